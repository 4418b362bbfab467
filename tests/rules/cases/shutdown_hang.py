"""The cases of shutdown-hang."""

from __future__ import annotations

from dataclasses import replace

from tests.rules.notation import log_case, make_case
from unhang.model import Frame, ProcessState, ThreadStack
from unhang.testing import Fires, Quiet, ended, path

_PASTED = """\
rank 0:
Thread 0x7F81445A8440 (active): "MainThread"
    destroy_process_group (torch/distributed/distributed_c10d.py:2184)
    <module> (app/train.py:554)
"""

_NATIVE = """\
Process 17604: python benchmark_latency.py -tp 2
Thread 17604 (active): "MainThread"
    pthread_cond_wait (libc.so.6)
    ??? (libhcl.so)
    std::condition_variable::wait(std::unique_lock<std::mutex>&) (libstdc++.so.6.0.30)
    __run_exit_handlers (libc.so.6)
    exit (libc.so.6)
^CTraceback (most recent call last):
KeyboardInterrupt
"""

_TIMEOUT = "[rank1]:[E ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)\n"

_STUCK = "[rank2]:[F ProcessGroupNCCL.cpp:1169] [PG 0 Rank 2] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress\n"

_LISTED = "$ ps aux | grep train\ndev 24201 0.0 0.1 2811344 180120 pts/0 Sl+ 11:56 0:01 python -m torch.distributed.run train.py\n"

_CTRL_C = """\
^CTraceback (most recent call last):
  File "train.py", line 88, in main
    {}
  File "/opt/site-packages/{}
KeyboardInterrupt
"""

_JOIN = _CTRL_C.format("trainer.fit(model)", 'torch/multiprocessing/spawn.py", line 77, in join')

_PLOT = _CTRL_C.format("plot(results)", 'matplotlib/figure.py", line 9, in draw')

_CLEANED = "Epoch 4: 100%|##########| 10/10 [00:00<00:00, 94.17it/s]\nUserWarning: cleaning up ddp environment...\n"

_DONE = {r: ["barrier@main:20"] for r in range(4)}

_INTERRUPTED = "WARNING:torch.distributed.elastic.agent.server.api:Received 2 death signal, shutting down workers\n"

_OTHERS_ENDED = {r: ended("exit") for r in (1, 2, 3)}

_TWO_LEFT = {r: ended("exit") for r in (2, 3)}

_WORKS = {0: {"state": ProcessState("R", cpu_share=0.9)}}

_TWO_ENDED = {r: ended("exit") for r in (1, 3)}

_JOINS = ThreadStack("MainThread", path("main:30>flush:44>~join"), is_main=True)

_GETS = ThreadStack("Thread-1", path("_work:12>~queue"))

_SENDS = ThreadStack("Thread-2", path("_work:15>put:9"))

# A process at its end waits for the thread of a queue, which writes to a pipe or waits for its turn.
_ENDS = ThreadStack(
    "MainThread",
    (
        Frame("/usr/lib/python3.11/threading.py", 1119, "join"),
        Frame("/usr/lib/python3.11/multiprocessing/queues.py", 199, "_finalize_join"),
        Frame("/usr/lib/python3.11/multiprocessing/util.py", 360, "_exit_function"),
    ),
    is_main=True,
)
_JOINS_A_CHILD = ThreadStack(
    "MainThread",
    (
        Frame("/usr/lib/python3.11/multiprocessing/popen_fork.py", 27, "poll"),
        Frame("/usr/lib/python3.11/multiprocessing/popen_fork.py", 43, "wait"),
        Frame("/usr/lib/python3.11/multiprocessing/process.py", 149, "join"),
        Frame("/usr/lib/python3.11/multiprocessing/util.py", 357, "_exit_function"),
    ),
    is_main=True,
)
_FEED = Frame("/usr/lib/python3.11/multiprocessing/queues.py", 250, "_feed")
_PUT = (Frame("train.py", 33, "run"),)
_WRITES = ThreadStack(
    "QueueFeederThread", (Frame("/usr/lib/python3.11/multiprocessing/connection.py", 384, "_send"), _FEED), given=_PUT
)
_WRITE_IN_TURNS = {0: {"stacks": (_ENDS, _WRITES)}, 2: {"stacks": (_ENDS, replace(_WRITES, frames=(_FEED,)))}}

_STEPS = "2025-06-25 04:18:45 iteration 799/800 | loss: 1.228\n`Trainer.fit` stopped: `max_steps=800` reached.\n"

_LIMIT = "slurmstepd: error: *** JOB 602263 ON node-1 CANCELLED AT {} DUE TO TIME LIMIT ***\n"

# The abort of the group, in its destructor, does not return.
_ABORTED = """\
[rank0]:[E ProcessGroupNCCL.cpp:1025] [PG 0 Rank 0] Future for ProcessGroup abort timed out after 600000 ms
[rank0]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank 0] Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=0
"""

_AT_EXIT = _CTRL_C.replace("^C", "Error in atexit._run_exitfuncs:\n").format(
    "self.acquire()", 'filelock/_api.py", line 264, in acquire'
)
_RAN = (
    "{'train_runtime': 4360.4, 'train_loss': 1.2}\n"
    + 90 * "filelock: Lock 14 not acquired on /home/a/table.lock, waiting 0.05 seconds ...\n"
)
_BROADCAST = "".join(
    _TIMEOUT.replace("ank1", f"ank{r}").replace("ank 1", f"ank {r}").replace("ALLREDUCE", "BROADCAST") for r in (0, 1)
)


_PARENT = "WARNING parent: waiting for subprocess pid=214 (proc.join), {} s after results were written\n"
_IN_THE_LOOP = (
    'Process 214: python -m train\nThread 214 (idle): "MainThread"\n    select (selectors.py:468)\n    _run_once (asyncio/base_events.py:1961)\n'
    "    run_forever (asyncio/base_events.py:641)\n    run_until_complete (asyncio/base_events.py:678)\n"
    "    _cancel_all_tasks (asyncio/runners.py:206)\n    close (asyncio/runners.py:71)\n    run (asyncio/runners.py:195)\n    main (train.py:512)\n"
)

_SPAWNED = """\
Process SpawnProcess-1:
Traceback (most recent call last):
  File "/opt/site-packages/torch/multiprocessing/spawn.py", line 19, in _wrap
    fn(i, *args)
  File "/srv/train.py", line 525, in run
    {}
KeyboardInterrupt
"""
_IN_ITS_END = 'dist.destroy_process_group()\n  File "/opt/site-packages/torch/distributed/distributed_c10d.py", line 552, in destroy_process_group\n    _pg_map.clear()'

CASES = {
    "shutdown-hang": (
        Fires(log_case(_NATIVE), ()),
        Fires(log_case(_SPAWNED.format(_IN_ITS_END)), ()),
        Quiet(log_case(_SPAWNED.format("step()")), "the program of a spawned process was still at work"),
        Fires(log_case(_ABORTED), ()),
        Fires(log_case(_PASTED), (0,)),
        Fires(log_case("Training finished\nDestroying process group... \n" + _TIMEOUT), ()),
        Fires(log_case("Training completed.\n" + _STUCK), ()),
        Fires(
            log_case("step 9 loss 0.4\nwandb: Program ended successfully.\n" + _LIMIT.format("2025-06-25T05:58:06")), ()
        ),
        Fires(log_case(_STEPS + _LIMIT.format("2025-06-25T05:58:06")), ()),
        Quiet(log_case(_STEPS + _LIMIT.format("2025-06-25T04:20:06")), "the limit came a minute after the training"),
        Fires(log_case("WARNING: destroy_process_group() was not called before program exit\n" + _STUCK), ()),
        Quiet(log_case("Training completed.\n" + _TIMEOUT), "some ranks still made a collective"),
        Quiet(
            log_case("Training completed.\nSaving model checkpoint to out\n" + _STUCK),
            "the model was still being saved",
        ),
        Quiet(log_case("Destroying process group... \nSaving model\n" + _TIMEOUT), "there was work after it"),
        Fires(log_case("Results saved to runs\nDestroying process group... \n" + _INTERRUPTED), ()),
        Quiet(
            log_case("Destroying process group... \nSaving model\n" + _INTERRUPTED), "there was work before the signal"
        ),
        Fires(log_case("1 epochs completed in 0.055 hours.\nDestroying process group... \n" + _LISTED), ()),
        Fires(log_case("Training finished: 20/20 steps\n" + _IN_THE_LOOP), ()),
        Fires(log_case("Training finished: 20/20 steps\n" + _PARENT.format(600)), ()),
        Quiet(log_case("Training finished: 20/20 steps\n" + _PARENT.format(20)), "an end takes some seconds"),
        Quiet(
            log_case(f"{_LISTED}1 epochs completed in 0.055 hours.\nDestroying process group... \n"),
            "it ended after it was listed",
        ),
        Fires(log_case(_CLEANED + _JOIN), ()),
        Quiet(log_case(_CLEANED + _PLOT), "the program itself was still at work when it was interrupted"),
        Quiet(log_case(_TIMEOUT + "Destroying process group... \n"), "the end came after the timeout"),
        Fires(make_case(_DONE, hang="suspected", exits=_TWO_ENDED, more=_WRITE_IN_TURNS), (0, 2), 33),
        Fires(
            make_case(_DONE, hang="suspected", stacks={1: "~shutdown"}, exits={r: ended("exit") for r in (0, 2, 3)}),
            (1,),
        ),
        Fires(
            make_case(
                _DONE,
                hang="suspected",
                exits={r: ended("exit") for r in (0, 2, 3)},
                more={1: {"stacks": (_JOINS_A_CHILD,)}},
            ),
            (1,),
        ),
        Fires(make_case(_DONE, hang="suspected", stacks=dict.fromkeys((0, 2), "main:22>~destroy")), (0, 2), 22),
        Quiet(
            make_case(
                {**_DONE, 0: ["barrier@main:20", "all_reduce[4]@main:21 !"]},
                hang="suspected",
                stacks={0: "main:21>~comm", 1: "~shutdown"},
            ),
            "a peer still waits: the rank left early",
        ),
        Quiet(make_case(_DONE, hang=None, exit_code=0, stacks={1: "~shutdown"}), "a job that ended"),
        Fires(make_case(_DONE, hang="suspected", stacks={0: "main:30>rest:44", 1: "~shutdown"}, exits=_TWO_LEFT), (1,)),
        Quiet(
            make_case(
                _DONE, hang="suspected", stacks={0: "main:30>export:44", 1: "~shutdown"}, exits=_TWO_LEFT, more=_WORKS
            ),
            "a rank that ends while another one still works for itself",
        ),
        Fires(make_case(_DONE, hang="suspected", exits=_OTHERS_ENDED, more={0: {"stacks": (_JOINS, _GETS)}}), (0,), 44),
        Quiet(
            make_case(_DONE, hang="suspected", exits=_OTHERS_ENDED, more={0: {"stacks": (_JOINS, _GETS, _SENDS)}}),
            "a thread of the process is still at work",
        ),
        Quiet(
            make_case(_DONE, hang="suspected", exits={1: ended("exit")}, more={0: {"stacks": (_JOINS, _GETS)}}),
            "another rank is still at work",
        ),
        Fires(log_case(_RAN + _AT_EXIT), ()),
        Quiet(
            log_case(_AT_EXIT), "it was interrupted a second time, at its end, and nothing tells that its work was done"
        ),
        Quiet(log_case(_RAN + _PLOT + _AT_EXIT), "interrupted in its program first, and in its end by the next Ctrl-C"),
        Fires(log_case("".join(f"rank {r}: training finished\n" for r in (0, 1)) + _BROADCAST), ()),
        Quiet(
            log_case("".join(f"rank {r}: init_process_group done\n" for r in (0, 1)) + _BROADCAST),
            "what the ranks were done with was a part of their start",
        ),
    ),
}
