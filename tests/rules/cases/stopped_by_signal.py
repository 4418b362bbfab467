"""The cases of stopped-by-signal."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_SAID = (
    "[unhang] rank 1 failed: it was stopped by a signal (SIGSTOP, SIGTSTP; pid 4711) and has not gone on for 4 s; it is "
    "continued now, only to end"
)

CASES = {
    "stopped-by-signal": (
        Fires(log_case(f"step 5 loss 1.2\n{_SAID}\n"), (1,)),
        Quiet(log_case("[unhang] rank 1 failed: ValueError: corrupt\n"), "it failed by itself"),
    ),
}
