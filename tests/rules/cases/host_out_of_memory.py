"""The cases of host-out-of-memory."""

from __future__ import annotations

from tests.rules.notation import log_case, make_case
from unhang.testing import Fires, Quiet, ended

_ECHO = "RuntimeError: Connection closed by peer [127.0.0.1]:4242@main:10"

_SLURM = """\
slurmstepd: error: Detected 1 oom_kill event in StepId=440575.0. Some of the step tasks have been OOM Killed.
srun: error: node-a: task 3: Out Of Memory
slurmstepd: error: *** STEP 440575.0 ON node-a CANCELLED AT 2023-12-05T07:16:01 ***
"""

_WORKER = "RuntimeError: DataLoader worker (pid 71810) is killed by signal: Killed. "

_LOADING = """\
Loading checkpoint shards:  50%|#####     | 2/4 [00:27<00:27, 13.69s/it]
[2023-04-14 13:11:27,879] [INFO] [launch.py:428:sigkill_handler] Killing subprocess 13266
[2023-04-14 13:11:27,885] [ERROR] [launch.py:434:sigkill_handler] ['python', '-u', 'main.py', '--local_rank=0'] exits with return code = -9
"""

_SAVING = """\
{'loss': 0.9411, 'learning_rate': 1.6e-05, 'epoch': 0.61}
Saving model checkpoint to out/checkpoint-300
[2024-07-06 18:21:09,733] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -9) local_rank: 1 (pid: 202101) of binary: python
"""

_STARTED = """\
[launch.py:256:main] process 51870 spawned with command: ['python', '-u', 'train.py', '--local_rank=0', '--x']
[launch.py:256:main] process 51871 spawned with command: ['python', '-u', 'train.py', '--local_rank=1', '--x']
[1204417.338120] Out of memory: Killed process 51871 (python) total-vm:81422716kB, anon-rss:24218804kB, file-rss:69120kB
"""


_BY_RAY = """\
(Actor pid=30410) [Rank 0] initialized, world size 2
(Actor pid=30411) [Rank 1] initialized, world size 2
ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.
Memory on the node (IP: 10.0.0.11, ID: 3b61) where the task (actor ID: 9c0a, name=Actor.train, pid={}, memory used=171.52GB) was running was \
1534.02GB / 1612.90GB (0.951094), which exceeds the memory usage threshold of 0.95. Ray killed this worker (ID: 0d7f)
"""


def _used(*gigabytes: int) -> str:
    said = [f"epoch 0 step {n} loss 1.{n} rank 0 RSS MEM USE: {x}.51G" for n, x in enumerate(gigabytes)]
    return "\n".join([*said, "run.sh: line 16: 218 Killed                  python train.py"])


_SERVER = """\
kernel: Out of memory: Killed process 20411 (sgl_diffusion::) total-vm:189233416kB, anon-rss:97114580kB
[08-28 14:04:08] Rank 2 scheduler is dead. Please check if there are relevant logs.
[08-28 14:04:10] Exit code: {}
"""


CASES = {
    "host-out-of-memory": (
        Fires(log_case(_BY_RAY.format(30411)), (1,)),
        Fires(log_case(_BY_RAY.format(30499)), ()),
        Fires(log_case(_STARTED), (1,)),
        Fires(log_case(_STARTED.replace("process 51871 (", "process 51879 (")), ()),
        Fires(
            make_case(
                {},
                errors={0: _ECHO},
                exits={2: ended("signal", -9, at_s=5)},
                hang=None,
                exit_code=1,
                log=["Out of memory: Killed process 4242 (python)"],
            ),
            (2,),
        ),
        Fires(log_case(_SLURM), (3,)),
        Fires(log_case(_WORKER), ()),
        Fires(log_case(_LOADING), ()),
        Quiet(
            make_case({}, exits={2: ended("signal", -9, at_s=5)}, hang=None, exit_code=1),
            "a SIGKILL alone proves nothing",
        ),
        Quiet(
            log_case(_LOADING.replace("Loading checkpoint shards", "Epoch 3")), "a SIGKILL in the middle of training"
        ),
        Fires(log_case(_SAVING), (1,)),
        Quiet(
            log_case(_SAVING.replace("[2024", "{'loss': 0.9, 'epoch': 0.6}\n[2024", 1)), "a SIGKILL after further steps"
        ),
        Fires(log_case(_used(5, 46, 105, 161)), (0,)),
        Quiet(log_case(_used(5, 46, 44, 45)), "the memory in use stayed as it was"),
        Quiet(log_case("torch.OutOfMemoryError: CUDA out of memory."), "the memory of the device"),
        Fires(log_case(_SERVER.format(-9)), (2,)),
        Fires(log_case(_SERVER.format(-6)), ()),
    ),
}
