"""What one rank sees of the ranks beside it: stopped, gone, or nothing at all to be said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.slowness import slowness
from unhang.inside.guards import ending as nearby
from unhang.inside.guards import shared_memory
from unhang.inside.guards.board import Board

from .guarded import run


class Memory:
    """A store for one process."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def set(self, name: str, text: str) -> None:
        self.kept[name] = text

    def get(self, name: str) -> str:
        return self.kept[name]

    def check(self, names: list[str]) -> bool:
        return all(name in self.kept for name in names)

    def add(self, name: str, more: int) -> int:
        self.kept[name] = str(int(self.kept.get(name, 0)) + more)
        return int(self.kept[name])


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


@pytest.fixture
def board(other: subprocess.Popen[bytes]) -> Board:
    """As rank 1 sees it, when rank 0 has come to this machine before."""
    made = Board(Memory(), 1, 2)
    here = f"on/{nearby.process_numbers()}"
    made.count(here, 1)
    made.put(f"{here}/1", [0, other.pid, nearby.process_fields(other.pid)[19]])
    return made


def neighbours(board: Board, found: Callable[[dict[str, Any]], None] = lambda failure: None) -> nearby.Neighbours:
    made = nearby.Neighbours(board, found)
    wait_until(lambda: 0 in made._others)
    return made


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: nearby.process_fields(process.pid)[0] == "T")


@pytest.fixture
def idle(board: Board) -> nearby.Neighbours:
    """Its thread does not look; the tests do, with a clock of their own."""
    made = neighbours(board)
    made.stop()
    made._worker._thread.join(5)
    made._since.clear()
    made._looked = 100.0
    return made


def test_a_stopped_one_is_told_after_the_limit_and_continued_when_the_job_has_failed(
    idle: nearby.Neighbours, other: subprocess.Popen[bytes]
) -> None:
    assert idle.look(100.0) is None
    stop(other)
    assert idle.look(101.0) is None
    assert idle.look(103.5) is None
    assert idle.look(104.4) is None
    failure = idle.look(104.5)
    assert failure is not None
    assert (failure["rank"], failure["by"], failure["kind"]) == (0, None, "stopped")
    assert f"pid {other.pid}" in failure["what"]
    assert nearby.process_fields(other.pid)[0] == "T"
    idle.resume()
    wait_until(lambda: nearby.process_fields(other.pid)[0] == "S")


def test_one_that_goes_on_in_between_is_not_told(idle: nearby.Neighbours, other: subprocess.Popen[bytes]) -> None:
    stop(other)
    assert idle.look(101.0) is None
    other.send_signal(signal.SIGCONT)
    wait_until(lambda: nearby.process_fields(other.pid)[0] == "S")
    assert idle.look(103.5) is None
    stop(other)
    assert idle.look(105.0) is None
    assert idle.look(107.5) is None
    assert idle.look(108.4) is None


def test_one_that_runs_between_the_looks_is_not_told(
    idle: nearby.Neighbours, other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stops and continues a whole job again and again may have each look fall into a stop."""
    fields, ticks = nearby.process_fields(other.pid), iter([*range(10), *[10] * 5])
    monkeypatch.setattr(
        shared_memory, "process_fields", lambda pid: ["T", *fields[1:11], str(next(ticks)), "0", *fields[13:]]
    )
    assert [idle.look(101.0 + step) for step in range(14)] == [None] * 14
    assert idle.look(115.0) is not None


def test_who_stood_still_itself_begins_anew(idle: nearby.Neighbours, other: subprocess.Popen[bytes]) -> None:
    """A job that is suspended as a whole, and goes on an hour later."""
    stop(other)
    assert idle.look(101.0) is None
    assert idle.look(3701.0) is None
    assert idle.look(3702.5) is None


def test_one_that_is_gone_is_told_without_calling_it_the_cause(
    idle: nearby.Neighbours, other: subprocess.Popen[bytes]
) -> None:
    other.kill()
    other.wait()
    assert idle.look(101.0) is None
    failure = idle.look(102.5)
    assert failure is not None
    assert failure["rank"] is None
    assert failure["what"].startswith(f"rank 0 (pid {other.pid}) has ended without an error of its training")
    assert idle.look(103.0) is None


def test_one_that_has_come_to_its_end_may_go(
    idle: nearby.Neighbours, board: Board, other: subprocess.Popen[bytes]
) -> None:
    board.put("done/0", 1.0)
    other.kill()
    other.wait()
    assert [idle.look(101.0 + step) for step in range(5)] == [None] * 5


def test_a_store_that_is_gone_proves_nothing(
    idle: nearby.Neighbours, board: Board, other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*names: str) -> bool:
        raise RuntimeError("Broken pipe")

    monkeypatch.setattr(board, "has", fails)
    other.kill()
    other.wait()
    assert [idle.look(101.0 + step) for step in range(5)] == [None] * 5


def test_another_process_with_the_same_number_is_left_alone() -> None:
    stranger = nearby.Process(os.getppid(), "1")
    assert stranger.state() == ""
    stranger.resume()
    assert nearby.Process(os.getpid(), nearby.process_fields(os.getpid())[19]).state() == "R"


def test_the_thread_tells_by_itself_and_once(board: Board, other: subprocess.Popen[bytes]) -> None:
    found: list[dict[str, Any]] = []
    made = neighbours(board, found.append)
    stop(other)
    made._worker._thread.join(20)
    assert [failure["kind"] for failure in found] == ["stopped"]
    kept = board._store.kept
    assert json.loads(kept[f"0/on/{nearby.process_numbers()}/2"])[:2] == [1, os.getpid()]


WORKERS = """
import os, signal, sys, threading, time
import multiprocessing, torch
from unhang.inside.guards.ending import end_workers_with_this_process

end_workers_with_this_process()
end_workers_with_this_process()
fork = multiprocessing.get_context("fork")

def begin(daemon):
    process = fork.Process(target=time.sleep, args=(30,), daemon=daemon)
    process.start()
    return process.pid

pids = {"worker": begin(True), "no daemon": begin(False)}
thread = threading.Thread(target=lambda: pids.update(aside=begin(True)))
thread.start()
thread.join()
time.sleep(0.5)
alive = [name for name, pid in pids.items() if open(f"/proc/{pid}/stat").read().split()[2] != "Z"]
print("alive", alive, flush=True)
rank = os.fork()
if rank == 0:
    pid = begin(True)
    print("worker", pid, flush=True)
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(rank, 0)
os.kill(pids["no daemon"], signal.SIGKILL)
"""


def test_a_workers_end_comes_with_the_end_of_its_process_and_not_of_a_thread(tmp_path: Path) -> None:
    ended = run(WORKERS, tmp_path, launcher="none", limit_s=20)
    assert ended.exit_code == 0, ended
    assert "alive ['worker', 'no daemon', 'aside']" in ended.out, ended
    # `run` itself has seen that no process is left, though the killed one could end none.
    assert ended.seconds < 20 * slowness(), ended
