"""The cases of uneven-amounts."""

from __future__ import annotations

from tests.rules.cases.calls_disagree import timeouts
from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_WAITS = timeouts((1, 808, "ALLREDUCE", 9801523), (2, 808, "ALLREDUCE", 9801523))


def _said(*counts: int) -> str:
    return "".join(f"[rank {r}] parquet stream: {count} files\n" for r, count in enumerate(counts))


_BAR = "{}%|####      | {}/{} [0{}:00<10:00,  4.21it/s]\n"


def _bars(*totals: int, name: str = "") -> str:
    done = [*range(4, min(totals)), min(totals)]
    return "".join(name + _BAR.format(100 * n // total, n, total, n % 10) for n in done for total in totals)


_INSIDE = "".join(_BAR.format(10 * n, n, 10, n) + _bars(8) for n in range(1, 10))

CASES = {
    "uneven-amounts": (
        Fires(log_case(_said(31, 32, 32) + _WAITS), (0,)),
        Quiet(log_case(_said(32, 32, 32) + _WAITS), "all ranks have the same amount"),
        Quiet(
            log_case(
                _said(0, 1841, 1841).replace("parquet stream: ", "inductor cache, entries=").replace(" files", "")
                + _WAITS
            ),
            "what a compiler has kept",
        ),
        Quiet(log_case(_said(32, 31, 32) + _WAITS), "a rank with the least waited as well"),
        Fires(log_case(_bars(8, 9, 12) + _WAITS), ()),
        Quiet(log_case(_said(31, 32)), "all ranks wait"),
        Quiet(log_case(_bars(8, 9, 12, name="Map: ") + _WAITS), "what is prepared before the training"),
        Quiet(log_case(_INSIDE + _WAITS), "a bar of an evaluation inside of that of the training"),
    ),
}
