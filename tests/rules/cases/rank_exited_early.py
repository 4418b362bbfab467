"""The cases of rank-exited-early."""

from __future__ import annotations

from tests.rules.notation import log_case, make_case
from unhang.model import ProcessState
from unhang.testing import Fires, Quiet, ended, pending

_LOG = """\
  File "/app/test.py", line 20, in main_worker
    dist.recv(x, 0)
  File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 1002, in recv
    pg.recv([tensor], src, tag).wait()
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.250.133.2]:30872
"""

_WAIT = {r: ["all_reduce[8]@main:10 !"] for r in (0, 1, 3)}

_SUM = "learners/all_reduce[4]@main:9"

_LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:29345@main:9"

_MORE = ["all_reduce[4]@main:9", "barrier@main:11"]

_LEFT = """\
[2022-01-30 18:41:11,311] [INFO] [launch.py:102:main] dist_world_size=2
[2022-01-30 18:42:22,779] [INFO] [launch.py:210:main] Process 211840 exits successfully.
[2022-01-30 19:35:02,117] [INFO] [launch.py:178:sigkill_handler] Killing subprocess 211840
[2022-01-30 19:35:02,118] [INFO] [launch.py:178:sigkill_handler] Killing subprocess 211841
"""

_BOTH = _LEFT.replace("211840 exits successfully.", "211840 exits successfully.\nProcess 211841 exits successfully.")

# Rank 0 of four alone saves a sharded model: it gathers what no other rank gives any more.
_SAVES = """\
$ torchrun --nproc_per_node=4 train.py
{'loss': 0.7968, 'learning_rate': 3.4e-06, 'epoch': 2.57}
{'train_runtime': 119.8187, 'train_samples_per_second': 2.504, 'train_loss': 1.23, 'epoch': 2.57}
[E ProcessGroupNCCL.cpp:828] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2778, OpType=_ALLGATHER_BASE, Timeout(ms)=1800000) ran for 1801649 milliseconds
ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -6) local_rank: 0 (pid: 5037) of binary: /usr/bin/python
"""
_ENDS_OTHERS = "W0801 14:11:34.1 1 torch/distributed/elastic/multiprocessing/api.py:851] Sending process 5038 closing signal SIGTERM\nERROR:torch"

_KILLED = "mpirun noticed that process rank 3 with PID 4711 on node node-b exited on signal 9 (Killed).\n"


def _horovod(*ranks: int, done: int | None = None) -> str:
    """What ranks raise where Horovod shuts them down; one may have come to the end of its bar."""
    bars = "".join(f"[1,{r}]<stderr>: 75%|###   | 3/4 [01:40<00:33, 33.19s/it]\n" for r in ranks)
    if done is not None:
        bars += f"[1,{done}]<stderr>:100%|####| 4/4 [02:11<00:00, 32.91s/it]\n"
    return (
        "$ mpirun -np 4 -H localhost:4 python train.py\n"
        + bars
        + "".join(
            f"[1,{r}]<stderr>:Traceback (most recent call last):\n"
            f'[1,{r}]<stderr>:  File "train.py", line 141, in train\n'
            f"[1,{r}]<stderr>:    optimizer.step()\n"
            f"[1,{r}]<stderr>:RuntimeError: Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce\n"
            for r in ranks
        )
    )


CASES = {
    "rank-exited-early": (
        Fires(log_case(_LOG), (0,), 20),
        Fires(log_case(_LEFT), (0,)),
        Fires(log_case(_SAVES), (0,), cause="code-divergence"),
        Quiet(log_case(_SAVES.replace("ERROR:torch", _ENDS_OTHERS)), "others were still there to be ended"),
        Quiet(log_case(_LOG + "process 0 terminated with signal SIGSEGV"), "the peer crashed"),
        Quiet(
            log_case(_LOG.replace("in recv", "in barrier").replace("recv(", "barrier(")),
            "in a collective anybody may be the peer",
        ),
        Quiet(log_case(_LOG.replace("recv(x, 0)", "recv(x, source)")), "nothing names the peer"),
        Fires(
            make_case(_WAIT, exits={2: ended("sys.exit", 0, where="main:7")}, states={2: ProcessState("gone")}), (2,), 7
        ),
        Fires(
            make_case(
                {},
                world=2,
                pending={0: [pending("init_process_group", where="main:9")]},
                exits={1: ended("exit", 0)},
                states={1: ProcessState("gone")},
                more={r: {"initialized": False} for r in (0, 1)},
            ),
            (1,),
        ),
        Fires(make_case(_WAIT, hang=None, exit_code=1, exits={2: ended("os._exit", 9, where="main:7")}), (2,), 7),
        *(
            Fires(
                make_case(
                    {0: [_SUM, f"{_SUM} !"], 1: [_SUM], 2: [_SUM, f"{_SUM} !"], 3: []},
                    groups={"learners": (0, 1, 2)},
                    hang=None,
                    exit_code=1,
                    errors=dict.fromkeys((0, 2), _LOST),
                    exits={1: ended("os._exit", 0, at_s=9.9, where="main:7"), 3: last},
                ),
                (1,),
                7,
            )
            for last in (ended("vanished", None, at_s=11.9), ended("signal", -9, at_s=11.9))
        ),
        Quiet(
            make_case(
                {0: [_SUM, f"{_SUM} !"], 1: [_SUM, _SUM], 2: [_SUM, f"{_SUM} !"], 3: []},
                groups={"learners": (0, 1, 2)},
                hang=None,
                exit_code=137,
                errors={0: _LOST},
                exits={1: ended("exit", 0, at_s=9.9), 2: ended("signal", -9, at_s=10.9)},
            ),
            "nobody waits for the rank that left",
        ),
        Fires(make_case({0: [*_MORE[:1], f"{_MORE[0]} !"], 1: _MORE[:1]}, world=2, exits={1: ended("exit", 0)}), (1,)),
        Quiet(
            make_case(
                {
                    0: ["all_reduce[4]@main:17", "all_reduce[4]@main:18 !"],
                    **{r: ["all_reduce[4]@main:17"] for r in (1, 2, 3)},
                },
                exits={r: ended("exit", 0) for r in (1, 2, 3)},
                states={r: ProcessState("gone") for r in (1, 2, 3)},
            ),
            "three came to the end of the program; the fourth makes a call more than they",
        ),
        Quiet(
            make_case(
                {0: ["all_reduce[4]@main:9", "barrier@main:12"], 1: [*_MORE, "barrier@main:12 !"]},
                world=2,
                exits={0: ended("exit", 0)},
                states={0: ProcessState("gone")},
            ),
            "it made that last call, too: its peer made another one more, before",
        ),
        Quiet(
            make_case(
                {r: ["barrier@main:10"] for r in range(4)},
                hang=None,
                exit_code=0,
                exits={r: ended("exit", 0, at_s=10 + r) for r in range(4)},
            ),
            "all ended, one after the other",
        ),
        Quiet(log_case(_BOTH), "the launcher was stopped while all were at their ends"),
        Fires(log_case(_horovod(0, 1, 2, done=3)), (3,), cause="uneven-inputs"),
        Fires(log_case(_horovod(0, 1, 2)), (3,), cause="rank-exited-early"),
        Quiet(log_case(_horovod(0, 1, 2, 3)), "every rank was shut down"),
        Quiet(log_case(_horovod(0, 1, 2) + _KILLED), "the launcher saw it die by a signal"),
    ),
}
