"""These tests judge what `unhang` does, whatever the shell ignores that they were started from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.slowness import slowness

TESTS = Path(__file__).parents[1]
SIGNALS = TESTS / "unit" / "watch" / "test_supervise.py"


def test_under_nohup_the_jobs_of_the_tests_hear_their_signals() -> None:
    """The `-n 0`: in this very process, which inherits what the shell ignores."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", f"--rootdir={TESTS.parent}"]
    chosen = [str(SIGNALS), "-k", "test_a_signal_sent_to_us_reaches_the_job and (SIGHUP or SIGINT)"]
    command = ["sh", "-c", "trap '' HUP INT QUIT TERM; exec \"$@\"", "sh", *pytest, *chosen]
    done = subprocess.run(
        command, cwd=TESTS.parent, capture_output=True, text=True, timeout=50 * slowness(), check=False
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
