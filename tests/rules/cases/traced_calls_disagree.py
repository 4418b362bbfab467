"""The cases of traced-calls-disagree."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_LINE = (
    "node-a:{0}:{0} [{0}] NCCL INFO {1}: opCount {2} sendbuff 0x7f recvbuff 0x7f acc (nil) count {3} datatype 7 op 0 root 0 "
    "comm 0x5{0} [nranks=4] stream 0x56 task 0 globalrank {0}"
)


def traced(*calls: tuple[int, str, str, int]) -> str:
    """A log of traced calls, for examples: (rank, op, opCount, count)."""
    return "\n".join(_LINE.format(*call) for call in calls)


CASES = {
    "traced-calls-disagree": (
        Fires(
            log_case(traced((0, "AllReduce", "28c", 99), (1, "AllReduce", "28c", 99), (2, "AllGather", "28c", 5))), (2,)
        ),
        Fires(log_case(traced((0, "Broadcast", "0", 25503912), (1, "Broadcast", "0", 53))), ()),
        Quiet(log_case(traced((0, "AllReduce", "28c", 99), (1, "AllReduce", "28d", 5))), "other positions"),
        Quiet(log_case(traced((0, "AllGather", "28c", 41), (1, "AllGather", "28c", 40))), "another size of the same"),
        Quiet(
            log_case(
                traced((0, "AllReduce", "1", 9), (1, "AllReduce", "1", 9))
                + "\n"
                + traced((0, "AllGather", "1", 5)).replace("0x50", "0x99")
            ),
            "another communicator of the same size",
        ),
    ),
}
