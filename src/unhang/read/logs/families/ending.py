"""How launchers, schedulers and the kernel say that a process or a whole job ended."""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

PATTERNS = (
    Pattern(
        "ending.death_signal",
        r"Received (?P<signal>\d+) death signal, shutting down workers|Received Signals\.(?P<name>SIG\w+) death signal",
        ("death signal",),
        (
            "W1122 04:29:04.631636 247807 torch/distributed/elastic/agent/server/api.py:723] Received 15 death signal, shutting "
            "down workers",
            "WARNING:torch.distributed.elastic.agent.server.api:Received Signals.SIGTERM death signal, shutting down workers",
        ),
        says="crash",
    ),
    Pattern(
        "ending.got_signal",
        r"Process (?P<pid>\d+) got signal: (?P<signal>\d+|SIG\w+)",
        (" got signal: ",),
        ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 8401 got signal: 1",),
        says="crash",
    ),
    Pattern(
        "ending.cancelled",
        r"(?:JOB|STEP|Job|Step)\S* (?P<job>[\d.+]+)? ?ON (?P<node>\S+) CANCELLED AT (?P<at>[\d:T-]+)"
        r"(?: DUE TO (?P<why>[A-Za-z ,]+?))?(?: \*\*\*|$|;)",
        ("CANCELLED AT",),
        (
            "slurmstepd: error: *** JOB 494583 ON node-a CANCELLED AT 2024-04-20T09:09:37 DUE TO TIME LIMIT ***",
            "slurmstepd: error: *** STEP 440575.0 ON nid001277 CANCELLED AT 2023-12-05T07:16:01 ***",
            "slurmstepd: error: *** JOB 37 ON node-b CANCELLED AT 2021-03-15T18:00:46 DUE TO PREEMPTION ***",
        ),
        says="crash",
    ),
    Pattern(
        "ending.preempted",
        r"(?:[Jj]ob|[Ii]nstance|[Nn]ode|[Pp]od|VM)\b.{0,40}\b(?:was|is being|has been|got) preempted\b|"
        r"(?:spot|preemptible) instance.{0,30}(?:interruption|reclaimed|termination) notice",
        (" preempted", "interruption notice", "reclaimed notice", "termination notice"),
        ("The job was preempted by a job of higher priority", "spot instance interruption notice received"),
        says="crash",
    ),
    Pattern(
        "ending.srun_task",
        r"srun: error: (?P<node>\S+): tasks? (?P<tasks>[\d,-]+): (?P<what>Killed|Aborted|Terminated|Bus error|"
        r"Segmentation fault|Out Of Memory|Floating point exception|Illegal instruction|Exited with exit code (?P<code>\d+))",
        ("srun: error: ",),
        (
            "srun: error: nid001277: tasks 1-3: Out Of Memory",
            "srun: error: node-a: task 3: Aborted (core dumped)",
            "srun: error: node-a: task 0: Exited with exit code 1",
        ),
        says="crash",
    ),
    Pattern(
        "ending.mpirun",
        r"mpi(?:run|exec) noticed that process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<node>\S+) exited on signal "
        r"(?P<signal>\d+)",
        ("noticed that process rank",),
        ("mpirun noticed that process rank 2 with PID 4711 on node node-b exited on signal 9 (Killed).",),
        says="crash",
    ),
    Pattern(
        "ending.mpirun_exit",
        r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]",
        ("Process name: [[",),
        ("  Process name: [[10311,1],2]",),
        says="crash",
    ),
    Pattern(
        "ending.spawned",
        r"[Pp]rocess (?P<rank>\d+) terminated with (?:exit code (?P<code>-?\d+)|signal (?P<signal>SIG\w+))",
        (" terminated with ",),
        (
            "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGKILL",
            "Process 2 terminated with exit code 10, terminating remaining processes.",
        ),
        not_examples=("-- Process 1 terminated with the following error:",),
        says="crash",
    ),
    Pattern(
        "ending.lightning_child",
        r"(?:\[rank: (?P<rank>\d+)\] )?Child process with PID (?P<pid>\d+) terminated with code (?P<code>-?\d+)",
        ("Child process with PID",),
        (
            "[rank: 1] Child process with PID 9487 terminated with code -9. Forcefully terminating all other processes to avoid "
            "zombies",
        ),
        says="crash",
    ),
    Pattern(
        "ending.torchrun",
        r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local_rank>\d+) \(pid: (?P<pid>\d+)\)",
        ("failed (exitcode: ",),
        (
            "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 0 (pid: 7035) of binary: "
            "/usr/bin/python",
        ),
        says="crash",
    ),
    Pattern(
        "ending.closing",
        r"Sending process (?P<pid>\d+) closing signal (?P<signal>SIG\w+)|Closing process (?P<other>\d+) via signal (?P<name>SIG\w+)",
        ("closing signal SIG", " via signal SIG"),
        (
            "W1017 16:21:57.292678 2124525 multiprocessing/api.py:908] Sending process 4568363 closing signal SIGTERM",
            "api.py:766] Closing process 293866 via signal SIGTERM",
        ),
        is_background=True,
    ),
    Pattern(
        "ending.child_failed",
        r"\bChildFailedError\b",
        ("ChildFailedError",),
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",),
        says="crash",
    ),
    Pattern(
        "ending.deepspeed",
        r"--local_rank=(?P<local_rank>\d+)'.*exits with return code = (?P<code>-?\d+)",
        ("exits with return code",),
        (
            "[2023-12-15 09:54:54,716] [ERROR] [launch.py:321:sigkill_handler] ['/opt/env/bin/python', '-u', 'train.py', "
            "'--local_rank=3', '--deepspeed', 'ds.json'] exits with return code = -7",
        ),
        says="crash",
    ),
    Pattern(
        "ending.called_process",
        r"CalledProcessError: Command .* (?:died with <Signals\.(?P<signal>SIG\w+)|returned non-zero exit status (?P<code>\d+))",
        ("CalledProcessError",),
        (
            "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>.",
            "subprocess.CalledProcessError: Command '['python', '-u', 'train.py']' returned non-zero exit status 1.",
        ),
        says="crash",
    ),
    Pattern(
        "ending.exit_code",
        r"(?:[Ee]xit(?:ed with)? ?(?:code|status)|exitCode|returned exit code)[:=]? +(?:code )?(?P<code>1[34]\d)\b",
        ("xit code", "xit status", "exitCode", "xited with"),
        (
            "container train terminated, exit code: 137",
            "      exitCode: 139",
            "Process 3 exit with status code: exit code 134",
        ),
        not_examples=("exit code 1", "exit code: 0"),
        says="crash",
    ),
    Pattern(
        "ending.fatal_signal",
        r"(?:\*\*\* Process received signal|Signal: (?P<name>[A-Z][\w ]+?) \((?P<signal>\d+)\)|"
        r"Caught signal (?P<caught>\d+) \((?P<what>[^:)]+)|"
        r"^(?:\S+: line \d+: +\d+ )?(?P<shell>Segmentation fault|Bus error|Aborted|Illegal instruction|"
        r"Floating point exception)\b(?: +\(core dumped\)|$))",
        (
            "Process received signal",
            "Signal: ",
            "Caught signal ",
            "Segmentation fault",
            "Bus error",
            "Aborted",
            "Illegal instr",
            "Floating point exception",
        ),
        (
            "[node-a:01234] Signal: Segmentation fault (11)",
            "[node-b:378934:0:382579] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x8)",
            "Segmentation fault (core dumped)",
        ),
        not_examples=("RuntimeError: Aborted by the user", "Signal: none"),
        says="crash",
    ),
    Pattern(
        "ending.killed",
        r"^(?:\S+: line \d+: +)?(?:\d+ )?Killed(?: +\S*(?:python|torchrun|deepspeed|accelerate).*)?$",
        ("Killed",),
        (
            "Killed",
            "/var/spool/slurmd/job00191/slurm_script: line 28:  8156 Killed                  python3 main.py --prop x",
        ),
        not_examples=("Killed by the user",),
        says="crash",
    ),
    Pattern(
        "ending.ray_worker",
        r"(?P<what>A worker died or was killed while executing a task|The actor (?:is dead because|died unexpectedly)|"
        r"Worker exit type: (?:SYSTEM_ERROR|UNEXPECTED\w*)|ActorDiedError|WorkerCrashedError)",
        ("A worker died or was killed", "The actor ", "Worker exit type: ", "ActorDiedError", "WorkerCrashedError"),
        (
            "(raylet) A worker died or was killed while executing a task by an unexpected system error.",
            "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
        ),
        not_examples=("The actor is ready",),
        says="crash",
    ),
    Pattern(
        "ending.finished",
        r"\b[Tt]rain(?:ing|er)? (?:has |is |was )?(?:successfully )?(?:completed?|finished|done)\b|"
        r"`?Trainer\.fit`? stopped: `?max_|^\{'train_runtime':|\bepochs completed in\b|exiting after reaching|"
        r"exiting program (?:at|after) iteration",
        (
            "raining complete",
            "raining finished",
            "raining done",
            "raining is ",
            "raining has ",
            "raining was ",
            "raining successfully",
            "rainer finished",
            "rainer done",
            "rain finished",
            "rain done",
            "stopped: `max_",
            "stopped: max_",
            "'train_runtime'",
            "epochs completed in",
            "exiting after reaching",
            "exiting program a",
        ),
        (
            "[INFO] [train.py:510] Training finished, exiting ...",
            "`Trainer.fit` stopped: `max_epochs=3` reached.",
            "{'train_runtime': 1203.2, 'train_samples_per_second': 12.2}",
            "300 epochs completed in 2.112 hours.",
        ),
        not_examples=("Training is slow today",),
        is_background=True,
    ),
    Pattern(
        "ending.destroying",
        r"[Dd]estroying process group|destroy(?:ing)? (?:the )?process[ _]group\b(?!\(\) was not)",
        ("estroying process group", "destroy process group", "destroy the process group", "destroy_process_group"),
        ("Destroying process group... ",),
        not_examples=("Warning: WARNING: destroy_process_group() was not called before program exit",),
        is_background=True,
    ),
    Pattern(
        "ending.not_destroyed",
        r"destroy_process_group\(\) was not called|process group has NOT been destroyed",
        ("destroy_process_group() was not", "has NOT been destroyed"),
        (
            "Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources.",
            "Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.",
        ),
        is_background=True,
    ),
)
