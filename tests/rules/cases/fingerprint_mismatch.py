"""The cases of fingerprint-mismatch."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_HEAD = "RuntimeError: Detected mismatch between collectives on ranks. "

_ONE = "Rank {} is running collective: CollectiveFingerPrint(SequenceNumber={}, OpType={}, TensorShape=[{}], TensorDtypes=Float, TensorDeviceTypes=x)"


def printed(*prints: tuple[int, int, str, str]) -> str:
    """What torch prints, for examples: (rank, seq, op, shape)."""
    return _HEAD + ", but ".join(_ONE.format(*p) for p in prints)


_BEHIND = [f"[rank{r}]: " + printed((r, 18, "BROADCAST", "1"), (0, 30, "BROADCAST", "1")) for r in (1, 2, 3)]

CASES = {
    "fingerprint-mismatch": (
        Fires(log_case(printed((1, 31, "BARRIER", ""), (0, 31, "GATHER", "4"))), ()),
        Fires(log_case(printed((1, 3104, "ALLREDUCE", "195812480"), (0, 3104, "ALLREDUCE", "51123456"))), ()),
        Fires(log_case(printed((2, 8372, "BROADCAST", "24084544"), (0, 8372, "BROADCAST", "64"))), ()),
        Fires(log_case(printed((2, 152517, "BROADCAST", "1"))), ()),
        Fires(log_case(printed((1, 18, "BROADCAST", "1"), (0, 30, "BROADCAST", "1"))), ()),
        Fires(log_case("\n".join(_BEHIND)), (0,)),
        Quiet(
            log_case(printed((0, 5, "ALLGATHER", "41, 256"), (1, 5, "ALLGATHER", "40, 256"))),
            "another size of the same",
        ),
        Quiet(log_case("INFO mismatch between collectives of the plan: none"), "no fingerprint"),
    ),
}
