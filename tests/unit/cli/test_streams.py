"""Streams that are full or closed, as a shell makes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.slowness import slowness

LOG = "[rank0]: RuntimeError: out of luck\n"
FULL = "unhang: the standard output: No space left on device\n"
CLOSED = "unhang: the standard output: Bad file descriptor\n"
WRITING = [
    "diagnose LOG",
    "--help",
    "diagnose --help",
    "--version",
    "env --list",
    "explain",
    "inject --list",
    "demo --list",
]


def shell(command: str, folder: Path) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `unhang COMMAND` with its redirections."""
    (folder / "LOG").write_text(LOG)
    line = f'"{sys.executable}" -m unhang {command}'
    done = subprocess.run(
        ["sh", "-c", line], cwd=folder, capture_output=True, text=True, timeout=50 * slowness(), env=_environ()
    )
    return done.returncode, done.stdout, done.stderr


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.mark.parametrize("command", WRITING)
def test_a_full_disk_is_one_line(command: str, tmp_path: Path) -> None:
    assert shell(f"{command} >/dev/full", tmp_path) == (2, "", FULL)


@pytest.mark.parametrize("command", ["diagnose LOG", "--help", "env --list"])
def test_a_closed_stdout_is_one_line(command: str, tmp_path: Path) -> None:
    assert shell(f"{command} >&-", tmp_path) == (2, "", CLOSED)


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_a_stderr_that_nobody_reads_changes_nothing(redirection: str, tmp_path: Path) -> None:
    code, out, _ = shell(f"diagnose LOG {redirection}", tmp_path)
    assert (code, out) == shell("diagnose LOG", tmp_path)[:2]
    assert shell(f"diagnose nothing {redirection}", tmp_path) == (2, "", "")
    assert shell(f"diagnose LOG --output nowhere/x {redirection}", tmp_path) == (2, "", "")


def test_all_closed_leaves_the_exit_code(tmp_path: Path) -> None:
    assert shell("diagnose LOG >&- 2>&- <&-", tmp_path) == (2, "", "")
    assert shell("diagnose LOG --output x >&- 2>&- <&-", tmp_path)[0] == shell("diagnose LOG", tmp_path)[0]
    assert (tmp_path / "x").read_text() == shell("diagnose LOG", tmp_path)[1]


def test_no_file_takes_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    code = "import os, sys; from unhang.cli import hold_streams; hold_streams(); print(os.open('f', os.O_CREAT), file=open('n', 'w'))"
    subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -c "{code}" >&- 2>&-'], cwd=tmp_path, check=True, timeout=30 * slowness()
    )
    assert int((tmp_path / "n").read_text()) > 2


def test_a_closed_stdin_is_an_empty_one(tmp_path: Path) -> None:
    line = "unhang: the standard input is empty\n"
    assert shell("diagnose - <&-", tmp_path) == shell("diagnose - </dev/null", tmp_path) == (2, "", line)


@pytest.mark.parametrize("command", ["env --list", "diagnose LOG"])
def test_a_reader_that_has_seen_enough_is_no_error(command: str, tmp_path: Path) -> None:
    _, out, err = shell(f"{command} | head -c 1", tmp_path)
    assert (len(out), err) == (1, "")
