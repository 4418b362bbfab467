"""The cases of submitted-apart."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_STALL = (
    "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks\nMissing ranks:\n"
)

_READY = (
    "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks. Stalled ops: {}\n"
)

_OF_FOUR = "0: [broadcast.a, broadcast.b]\n1: [broadcast.b]\n2: [broadcast.a]\n3: [broadcast.a]"

CASES = {
    "submitted-apart": (
        Fires(log_case(_STALL + "0: [allgather.metric]\n1: [allreduce.w]\n2: [allreduce.w]"), (0,)),
        Fires(log_case("Stalled ops:\nallgather.metric [missing ranks: 0]\nallreduce.w [missing ranks: 1]"), ()),
        Fires(log_case("\n".join(f"[1,0]<stderr>:{line}" for line in (_STALL + _OF_FOUR).splitlines() * 2)), ()),
        Fires(log_case(_READY.format("loss [ready ranks: 3], allreduce.w [ready ranks: 2, 0, 1]")), (3,)),
        Quiet(log_case(_READY.format("a [ready ranks: 2, 0], b [ready ranks: 0, 2]")), "all miss the same ranks"),
        Quiet(log_case(_STALL + "1: [allreduce.w]\n2: [allreduce.w]"), "only one side misses something"),
        Quiet(log_case(_STALL + "1: [allreduce.w]\n" + _STALL + "0: [allreduce.w]"), "two reports, at two times"),
    ),
}
