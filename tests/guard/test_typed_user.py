"""The types of the public names serve a user's strict type checker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.timeout(180)
def test_a_users_script_passes_a_strict_check(tmp_path: Path) -> None:
    """An `ignore` that is not needed is an error as well: each marks a mistake that the types must show."""
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--follow-imports", "silent",
         "--ignore-missing-imports", "--cache-dir", str(tmp_path), str(HERE / "typed_user.py")],
        capture_output=True, text=True, timeout=170, check=False, cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(HERE.parents[1] / "src")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
