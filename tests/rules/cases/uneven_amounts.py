"""The cases of uneven-amounts."""

from __future__ import annotations

from tests.rules.cases.calls_disagree import timeouts
from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_WAITS = timeouts((1, 808, "ALLREDUCE", 9801523), (2, 808, "ALLREDUCE", 9801523))


def _said(*counts: int) -> str:
    return "".join(f"[rank {r}] parquet stream: {count} files\n" for r, count in enumerate(counts))


CASES = {
    "uneven-amounts": (
        Fires(log_case(_said(31, 32, 32) + _WAITS), (0,)),
        Quiet(log_case(_said(32, 32, 32) + _WAITS), "all ranks have the same amount"),
        Quiet(log_case(_said(32, 31, 32) + _WAITS), "a rank with the least waited as well"),
        Quiet(log_case(_said(31, 32)), "all ranks wait"),
    ),
}
