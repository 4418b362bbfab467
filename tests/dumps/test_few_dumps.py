"""Some of a job's dumps were given: the first line says so, and accuses nobody for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.dumps.conftest import BENCHMARKS
from tests.slowness import slowness


def test_the_first_line_says_how_many_dumps_were_given(tmp_path: Path) -> None:
    some = ["--ranks", "64", "--fault", "missing", "--last-rank", "2", str(tmp_path)]
    subprocess.run(
        [sys.executable, BENCHMARKS / "make_dumps.py", *some], check=True, capture_output=True, timeout=50 * slowness()
    )
    done = subprocess.run(
        [sys.executable, "-m", "unhang", "diagnose", str(tmp_path)], capture_output=True, text=True, timeout=50
    )
    first, *others = done.stdout.splitlines()
    assert "dumps of 3 of 64 ranks were given; ranks 0-2 wait for ranks 8-10, of which there is none" in first
    assert not [line for line in others if "8-10" in line and "wait for nobody" in line]
