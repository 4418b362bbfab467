"""What the guards of `unhang` itself print when they end a job."""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

_SAYS = r"\[unhang\] rank (?P<failed>\d+) failed: "

PATTERNS = (
    Pattern(
        "guards.stopped",
        _SAYS + r"it was stopped by a signal \([^;)]*; pid (?P<pid>\d+)\)",
        ("failed: it was stopped by a signal",),
        (
            "[unhang] rank 1 failed: it was stopped by a signal (SIGSTOP, SIGTSTP; pid 4711) and has not gone on for 4 s; it is "
            "continued now, only to end",
        ),
        ("a rank failed: it was stopped by a signal",),
        says="hang",
    ),
)
