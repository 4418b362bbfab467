"""The cases of stacks-disagree."""

from __future__ import annotations

from tests.rules.notation import log_case, make_case
from unhang.testing import Fires, Quiet

_APART = """\
TP0:
all_reduce (torch/distributed/distributed_c10d.py:3075)
  sync_groups (cache.py:196)
  get_batch (scheduler.py:2679)
TP1-3:
broadcast (torch/distributed/distributed_c10d.py:2974)
  broadcast_pyobj (utils/common.py:1437)
  recv_requests (receiver.py:187)
"""

_TOGETHER = """\
rank 0:
    all_reduce (torch/distributed/distributed_c10d.py:3075)
    step (train.py:41)
rank 1:
    all_reduce (torch/distributed/distributed_c10d.py:3075)
    step (train.py:41)
"""

_RETURNED = """\
$ py-spy dump --pid 410   # rank 0
Thread 410 (active): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2810)
    finalize (checkpoint.py:71)
$ py-spy dump --pid 411   # rank 1
Thread 411 (idle): "MainThread"
    main_loop (ray/_private/worker.py:977)
$ py-spy dump --pid 412   # rank 2
Thread 412 (idle): "MainThread"
    main_loop (ray/_private/worker.py:977)
"""

# A job whose torch keeps no record of gloo's calls: the stacks of the watcher are all that there is.
_EVALUATES, _WAITS = "main:4>evaluate:2>~comm", "main:6>~barrier"

_TIMER = """\
[INFO] [launch.py:102:main] dist_world_size=2
Timeout (0:02:00)!
Thread 0x00007f6c2b1a7740 (most recent call first):
  File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 3081 in all_gather_object
  File "/work/rollout.py", line 212 in collect
Timeout (0:02:00)!
Thread 0x00007f3273c51740 (most recent call first):
  File "/venv/site-packages/deepspeed/runtime/zero/partition_parameters.py", line 175 in wait
  File "/venv/site-packages/deepspeed/runtime/zero/partitioned_param_coordinator.py", line 320 in fetch_sub_module
  File "/work/rollout.py", line 255 in main
"""

# DDP sends its buffers at the head of a forward, and no function there bears the name of a collective.
_OF_DDP = """\
rank 0:
    _sync_buffers (torch/nn/parallel/distributed.py:1945)
    forward (torch/nn/parallel/distributed.py:1519)
    validate (train.py:188)
rank 1:
    barrier (torch/distributed/distributed_c10d.py:3330)
    train (train.py:322)
"""

CASES = {
    "stacks-disagree": (
        Fires(log_case(_TIMER), ()),
        Fires(log_case(_APART), (0,)),
        Fires(log_case(_RETURNED), (0,)),
        Fires(log_case(_OF_DDP), ()),
        Quiet(log_case(_OF_DDP.replace("_sync_buffers", "_check_inputs")), "one of them is in no call"),
        Quiet(log_case(_RETURNED[_RETURNED.index("$ py-spy dump --pid 411") :]), "all wait for their next task"),
        Fires(
            log_case(
                _TOGETHER.replace("all_reduce", "barrier", 1)
                + _TOGETHER.replace("rank 0", "rank 2").replace("rank 1", "rank 3")
            ),
            (0,),
        ),
        Fires(make_case(hang="suspected", stacks={0: _EVALUATES, **dict.fromkeys((1, 2, 3), _WAITS)}), ()),
        Quiet(
            make_case(hang="suspected", stacks={0: "main:4>evaluate:2", **dict.fromkeys((1, 2, 3), _WAITS)}),
            "nothing was recorded, and a rank is in no call: it may yet come",
        ),
        Quiet(
            make_case(hang="suspected", stacks=dict.fromkeys(range(4), _WAITS)), "unrecorded, and all in the same call"
        ),
        Quiet(
            make_case(
                {r: ["barrier@main:6 !"] for r in range(4)}, stacks={0: _EVALUATES, **dict.fromkeys((1, 2, 3), _WAITS)}
            ),
            "the calls are recorded: rules that know them judge",
        ),
        Quiet(log_case(_TOGETHER), "all ranks wait in the same call: the stacks do not tell why"),
        Quiet(log_case(_APART.split("TP1-3")[0]), "the stack of one rank alone"),
    ),
}
