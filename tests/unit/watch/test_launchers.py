"""Launchers that wait for each other: the id by which each looks, and what is kept of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unhang.watch import evidence


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["--rdzv-id", "a1"], "start a1"),
        (["--rdzv_id=b2"], "start b2"),
        (["--nnodes", "2"], ""),
        (["--rdzv-id"], "start"),
    ],
)
def test_the_id_of_a_launcher_is_that_of_its_command_line(given: list[str], found: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()", *given], stdin=subprocess.PIPE)
    command = Path(f"/proc/{process.pid}/cmdline")
    for _ in range(500):  # the kernel shows it a moment after the start
        if b"input()" in command.read_bytes():
            break
        time.sleep(0.01)
    try:
        assert evidence._start_id(process.pid).strip() == found
    finally:
        process.communicate()
    assert evidence._start_id(process.pid) == ""


def test_where_no_rank_was_started_the_launchers_stacks_stay(tmp_path: Path) -> None:
    (tmp_path / "launcher.json").write_text("[]")
    evidence.take_driver(tmp_path, os.getpid(), [])
    assert (tmp_path / "launcher.json").read_text() == "[]"
