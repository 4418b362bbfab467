"""A call that does not come back costs its limit and nothing more; what it made is removed even when its maker is killed; threads harm neither."""

from __future__ import annotations

import ast
import errno
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from unhang.check import calls
from unhang.check.calls import TookTooLong, kept_while, limited
from unhang.check.children import Worker

SOURCES = Path(calls.__file__).parent


def fails() -> None:
    raise OSError(errno.EROFS, "Read-only file system")


def end_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def threads_of_parent() -> int:
    return len(os.listdir(f"/proc/{os.getppid()}/task"))


def test_the_value_and_the_error_come_back() -> None:
    assert limited(os.getpid, 10) != os.getpid()
    with pytest.raises(OSError, match="Read-only") as raised:
        limited(fails, 10)
    assert raised.value.errno == errno.EROFS
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        limited(partial(divmod, 1, 0), 10)


def test_a_process_that_dies_is_no_answer() -> None:
    with pytest.raises(RuntimeError, match="without an answer"):
        limited(end_oneself, 10)


def test_a_server_that_died_is_started_again() -> None:
    server = limited(os.getppid, 10)
    os.kill(server, signal.SIGKILL)
    until = time.monotonic() + 20
    while psutil.pid_exists(server) and psutil.Process(server).status() != "zombie" and time.monotonic() < until:
        time.sleep(0.01)
    assert limited(os.getppid, 10) != server


def test_a_call_is_made_in_the_working_folder_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(os.getpid, 10)
    monkeypatch.chdir(tmp_path)
    assert limited(os.getcwd, 10) == str(tmp_path)


def test_a_call_that_hangs_is_left_behind(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    server = psutil.Process(limited(os.getppid, 10))
    began = time.monotonic()
    with pytest.raises(TookTooLong, match=r"no answer within 0\.2 s"):
        limited(partial(os.open, fifo, os.O_RDONLY), 0.2)  # nobody ever writes
    assert time.monotonic() - began < 10
    while server.children() and time.monotonic() - began < 10:
        time.sleep(0.01)
    assert server.children() == []


def test_calls_are_made_by_the_side_of_each_other() -> None:
    began, results = time.monotonic(), []
    threads = [threading.Thread(target=lambda: results.append(limited(partial(time.sleep, 1), 30))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [None] * 8
    assert time.monotonic() - began < 7


def holding(path: Path) -> tuple[Callable[[], Any], Callable[[], Any]]:
    return partial(path.write_text, "here"), partial(path.unlink, missing_ok=True)


def test_what_is_kept_is_there_in_the_block_only(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with kept_while(*holding(path), 10):
        assert path.read_text() == "here"
    assert not path.exists()
    with pytest.raises(OSError, match="Read-only"), kept_while(fails, bool, 10):
        pytest.fail("it was not made")


def test_it_is_removed_when_its_maker_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "token"
    maker = os.fork()
    if maker == 0:
        with kept_while(*holding(path), 10):
            (tmp_path / "ready").touch()
            time.sleep(60)
        os._exit(0)
    until = time.monotonic() + 20
    while not (tmp_path / "ready").exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert path.exists()
    os.kill(maker, signal.SIGKILL)
    os.waitpid(maker, 0)
    while path.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not path.exists()


def test_a_lock_that_another_thread_holds_holds_nothing_up() -> None:
    """A fork of this process would wait for the lock of logging, as its hook does, and a hook that ran by halves would complain."""
    held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with logging._lock:  # type: ignore[attr-defined]
            held.set()
            is_over.wait(60)

    def act() -> None:
        told.append(limited(os.getpid, 20))
        with Worker([sys.executable, "-Sc", "print('{}')"], os.environ) as worker:
            said: list[dict[str, Any]] = []
            while not said and not worker.is_silent:  # an unbuffered line comes in two parts
                said += worker.lines(20)
            told.append(said)

    told: list[object] = []
    holder, actor = threading.Thread(target=hold, daemon=True), threading.Thread(target=act, daemon=True)
    holder.start()
    held.wait(20)
    actor.start()
    actor.join(30)
    is_over.set()
    assert len(told) == 2
    assert told[1] == [{}]


def test_the_server_that_forks_has_one_thread() -> None:
    from unhang.check.machine.folders import read_folder

    read_folder(Path(), writes=True)  # whatever that imports there
    assert limited(threads_of_parent, 10) == 1


def test_nothing_else_of_a_check_forks() -> None:
    forks = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.attr] if isinstance(node, ast.Attribute) else [k.arg for k in getattr(node, "keywords", ())]
            with suppress(StopIteration):
                found = next(n for n in names if n in ("fork", "forkpty", "preexec_fn", "multiprocessing"))
                forks.add((path.name, found))
    # The first is the server. The second is called in a child of it alone, which has one thread.
    assert forks == {("calls.py", "fork"), ("limits.py", "fork")}
