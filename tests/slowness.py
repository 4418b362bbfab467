"""How much slower this machine is at the moment than a quiet one: limits of tests grow by it, what they assert does not."""

from __future__ import annotations

import os
import time

VARIABLE = "UNHANG_TEST_SLOWNESS"
MOST = 5.0
# So much counting takes a quiet core a little less than this.
_COUNT, _QUIET_S = 1_000_000, 0.01
_HOLDS_S = 5.0
_measured: tuple[float, float] = (float("-inf"), 1.0)


def slowness() -> float:
    """1 on a quiet machine, at most MOST; `UNHANG_TEST_SLOWNESS` goes before what is measured, every 5 s anew in about 10 ms."""
    global _measured
    if given := os.environ.get(VARIABLE):
        return float(given)
    began = time.monotonic()
    if began - _measured[0] > _HOLDS_S:
        for _ in range(_COUNT):
            pass
        took_s = time.monotonic() - began
        # Who has just slept may get his 10 ms at once, however many others wait.
        waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
        _measured = began + took_s, min(max(took_s / _QUIET_S, waiting, 1.0), MOST)
    return _measured[1]
