"""A call that does not come back costs its limit and nothing more; what it made is removed even when its maker is killed."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from unhang.check.children import TookTooLong, kept_while, limited


def fails() -> None:
    raise OSError(errno.EROFS, "Read-only file system")


def test_the_value_and_the_error_come_back() -> None:
    assert limited(lambda: {"pid": os.getpid()}, 10)["pid"] != os.getpid()
    with pytest.raises(OSError, match="Read-only") as raised:
        limited(fails, 10)
    assert raised.value.errno == errno.EROFS
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        limited(lambda: 1 // 0, 10)


def test_a_process_that_dies_is_no_answer() -> None:
    with pytest.raises(RuntimeError, match="without an answer"):
        limited(lambda: os.kill(os.getpid(), signal.SIGKILL), 10)


def test_a_call_that_hangs_is_left_behind(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    began, before = time.monotonic(), psutil.Process().children()
    with pytest.raises(TookTooLong, match=r"no answer within 0\.2 s"):
        limited(lambda: os.open(fifo, os.O_RDONLY), 0.2)  # nobody ever writes
    assert time.monotonic() - began < 10
    assert psutil.Process().children() == before


def holding(path: Path) -> tuple[object, object]:
    return (lambda: path.write_text("here"), lambda: path.unlink(missing_ok=True))


def test_what_is_kept_is_there_in_the_block_only(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with kept_while(*holding(path), 10):  # type: ignore[arg-type]
        assert path.read_text() == "here"
    assert not path.exists()
    with pytest.raises(OSError, match="Read-only"), kept_while(fails, lambda: None, 10):
        pytest.fail("it was not made")


def test_it_is_removed_when_its_maker_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "token"
    maker = os.fork()
    if maker == 0:
        with kept_while(*holding(path), 10):  # type: ignore[arg-type]
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
