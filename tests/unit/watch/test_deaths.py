"""The end of a process is noted when it comes, with the code that it ended with, by whoever reaps it."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from unhang.watch.ranks import DeathClock, WatchedRank, exit_code_of_reaped

# PIDFD_INFO_EXIT came with this version.
_SHOWS_REAPED = tuple(int("0" + "".join(filter(str.isdigit, n))) for n in platform.release().split(".")[:2]) >= (6, 15)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that sleeps."""
    with subprocess.Popen(["sleep", "60"]) as started:
        yield started
        started.kill()


def watched(process: subprocess.Popen[bytes], folder: Path) -> WatchedRank:
    """The process as rank 0."""
    return WatchedRank(folder / f"r0-{process.pid}", time.monotonic())


@pytest.mark.skipif(not _SHOWS_REAPED, reason="this kernel forgets the exit code of a process that was reaped")
@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGKILL])
def test_the_signal_is_known_after_the_process_was_reaped(
    process: subprocess.Popen[bytes], tmp_path: Path, signo: signal.Signals
) -> None:
    rank = watched(process, tmp_path)
    assert rank.pidfd is not None
    assert exit_code_of_reaped(rank.pidfd) is None
    process.send_signal(signo)
    process.wait(10)
    assert rank.note_death()[1] == -signo
    assert not rank.is_alive
    rank.close()


def test_something_that_is_no_process_has_no_exit_code(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    assert exit_code_of_reaped(descriptor) is None
    os.close(descriptor)


def test_an_end_has_the_time_at_which_it_came_not_the_one_at_which_it_was_looked_at(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    rank, clock = watched(process, tmp_path), DeathClock()
    clock.add(rank)
    clock.start()
    process.send_signal(signal.SIGTERM)
    before_s = time.monotonic()
    while rank.seen_end is None and time.monotonic() - before_s < 10:
        time.sleep(0.005)
    clock.stop()
    clock.join(10)
    seen = rank.seen_end
    assert seen is not None
    assert seen[1] == -signal.SIGTERM
    assert not clock.is_alive()
    assert rank.is_alive  # the watcher's own loop decides what it means
    assert seen[0] < time.time_ns()
    assert rank.note_death() == seen
    rank.close()
