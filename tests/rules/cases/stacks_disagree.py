"""The cases of stacks-disagree."""

from __future__ import annotations

from tests.rules.notation import log_case
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

CASES = {
    "stacks-disagree": (
        Fires(log_case(_APART), (0,)),
        Fires(
            log_case(
                _TOGETHER.replace("all_reduce", "barrier", 1)
                + _TOGETHER.replace("rank 0", "rank 2").replace("rank 1", "rank 3")
            ),
            (0,),
        ),
        Quiet(log_case(_TOGETHER), "all ranks wait in the same call: the stacks do not tell why"),
        Quiet(log_case(_APART.split("TP1-3")[0]), "the stack of one rank alone"),
    ),
}
