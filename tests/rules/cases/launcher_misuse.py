"""The cases of launcher-misuse."""

from __future__ import annotations

from tests.rules.notation import log_case, make_case
from unhang.testing import Fires, Quiet

_BARRIER = (
    "RuntimeError: Timed out initializing process group in store based barrier on rank: {}, for key: store_based_barrier_key:1 "
    "(world_size=2, worker_count={}, timeout=0:30:00)"
)

_NOT_SET = "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set@main:3"

_ARGUMENT = "train.py: error: unrecognized arguments: --local-rank=0"

_KILLED = "slurmstepd: error: *** STEP 71120.0 ON wn12 CANCELLED AT 2020-10-14T15:02:37 ***\n"


def _members(*ranks: int) -> str:
    return "".join(f"initializing distributed: GLOBAL_RANK: {r}, MEMBER: {r + 1}/4\n" for r in ranks)


_BARE = """\
+ python train.py
Multi-processing is handled by Slurm.
initializing ddp: GLOBAL_RANK: 0, MEMBER: 1/8
slurmstepd: error: *** JOB 47 ON n1 CANCELLED AT 2021-08-04T09:22:21 DUE TO TIME LIMIT ***
"""

_BEYOND = """\
+ srun python -u train.py --distributed-world-size 2
Initializing host node-0 as rank 0, main is node-0
Initializing host node-0 as rank 1, main is node-0
Initializing host node-0 as rank 2, main is node-0
RuntimeError: NCCL error in: NCCLUtils.hpp:82, invalid argument, NCCL version 2.4.8
"""


def _given(*ranks: int) -> str:
    """What a launcher of the program's own prints of the arguments of each rank; then a wait that somebody ended."""
    lines = (f"['train.py', '--out=o', '--n_gpus=2', '--rank={r}']\n" for r in ranks)
    return "".join(lines) + "Initializing Distributed\n^CTraceback (most recent call last):\nKeyboardInterrupt\n"


_STARTS = """\
[2022-09-12 19:22:03,518] [WARNING] [runner.py:178:fetch_hostfile] Unable to find hostfile, will proceed with training with local resources only.
[2022-09-12 19:22:05,290] [INFO] [launch.py:123:main] dist_world_size=2
"""
_WANTS = "NeoXArgs.configure_distributed_args() using world size: {} and model-parallel size: 1\n"
_NOBODY = "TimeoutError: The client socket has timed out after 1800s while trying to connect to (node-a, 29500).\n"


_COUNTS = (
    "INFO:torch.distributed.distributed_c10d:Waiting in store based barrier to initialize process group for rank: 0, "
    "key: store_based_barrier_key:1 (world_size=8, worker_count=7, timeout=0:30:00)\n"
)

CASES = {
    "launcher-misuse": (
        Fires(log_case(_BEYOND), ()),
        Fires(log_case(f"-- Process 1 terminated with the following error:\n{_BARRIER.format(2, 4)}"), (2,)),
        Fires(log_case("KeyError: 'LOCAL_RANK'"), ()),
        Fires(log_case(f"usage: train.py [-h] [--local_rank LOCAL_RANK]\n{_ARGUMENT}"), ()),
        Fires(
            make_case(
                {},
                world=2,
                errors=dict.fromkeys((0, 1), _NOT_SET),
                hang=None,
                exit_code=1,
            ),
            (),
        ),
        Fires(make_case({}, errors={2: _NOT_SET}, hang=None, exit_code=1), (2,), 3),
        Fires(log_case(_members(0, 1, 0, 1) + "Traceback (most recent call last):\nKeyboardInterrupt\n" + _KILLED), ()),
        Fires(log_case(_BARE), ()),
        Fires(log_case(_given(2, 3)), ()),
        Quiet(log_case(_BARE.replace("+ python", "+ srun python")), "srun starts it; somebody did not come"),
        Quiet(log_case(_members(0, 1, 2, 3) + _KILLED), "every rank once"),
        Quiet(log_case(_members(0, 1, 1) + _COUNTS + _KILLED), "of some that came the log does not tell"),
        Quiet(log_case(_members(0, 1) + "epoch 1 step 3 loss 0.3\n" + _members(0, 1) + _KILLED), "a second start"),
        Quiet(log_case(_given(0, 1)), "a launcher of the program's own counts from zero"),
        Quiet(log_case(_given(16)), "the rank of a matrix"),
        Quiet(log_case(_BARRIER.format(0, 1)), "a member is missing; those that came are numbered rightly"),
        Quiet(
            log_case(
                "Failed: environment variable RANK expected, but not set, falling back to single GPU\nstep 1 loss 2.0"
            ),
            "a program that goes on alone",
        ),
        Fires(log_case(_STARTS + 2 * _WANTS.format(8) + _NOBODY), ()),
        Quiet(
            log_case(_STARTS + 2 * _WANTS.format(2) + _NOBODY),
            "the launcher starts the whole world; the endpoint is wrong",
        ),
        Quiet(
            log_case(_STARTS + 2 * _WANTS.format(8) + "step 1 loss 0.3 lr 0.1\n"),
            "a start that went on, whatever it had told of its world",
        ),
    ),
}
