"""A call that may never come back, made in a forked child that is killed when its time is over.

A thread that waits for a dead file system cannot be ended, and keeps its whole process from ending. A child can be left to the kernel.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_PR_SET_PDEATHSIG = 1
_END_LIMIT_S = 0.2
_MOST_ANSWER = 1 << 20


class TookTooLong(Exception):
    """The call had not come back within its limit."""


def limited(call: Callable[[], Any], limit_s: float) -> Any:
    """What a call returns, as far as JSON knows it. Blocks up to `limit_s`, and a moment to end the child.

    Raises:
        TookTooLong: it did not come back.
        OSError: it raised one.
        RuntimeError: it raised something else, or its process died.
    """
    pid, reader = _started(call)
    try:
        text = _read(reader, limit_s)
    finally:
        os.close(reader)
        _end(pid)
    if not text.endswith(b"\n"):
        raise RuntimeError("the process that was asked ended without an answer")
    answer = json.loads(text)
    if "errno" in answer:
        raise OSError(answer["errno"], answer["error"])
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer["value"]


@contextmanager
def kept_while(make: Callable[[], Any], remove: Callable[[], Any], limit_s: float) -> Iterator[None]:
    """Makes something that is removed at the end of the block, and also when this process is killed within it.

    A child holds it, and removes it as soon as nobody holds the other end of its pipe. Blocks up to `limit_s` each for making
    and removing.

    Raises:
        TookTooLong, OSError, RuntimeError: it could not be made.
    """
    watched, held = os.pipe()

    def keep() -> Iterator[Any]:
        os.close(held)
        try:
            yield make()
            os.read(watched, 1)
        finally:
            remove()

    pid, reader = _started_steps(keep)
    os.close(watched)
    try:
        text = _read(reader, limit_s, until_line=True)
        if b"\n" not in text:
            raise RuntimeError("the process that was asked ended without an answer")
        answer = json.loads(text.split(b"\n")[0])
        if "error" in answer:
            raise OSError(answer.get("errno") or 0, answer["error"])
        yield
    finally:
        os.close(held)
        with suppress(TookTooLong):
            _read(reader, limit_s)
        os.close(reader)
        _end(pid)


def _started(call: Callable[[], Any]) -> tuple[int, int]:
    def once() -> Iterator[Any]:
        yield call()

    return _started_steps(once, dies_with_parent=True)


def _started_steps(steps: Callable[[], Iterator[Any]], dies_with_parent: bool = False) -> tuple[int, int]:
    """Forks; the child writes a line for each step. Its pid, and where to read."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of a fork in a process with threads
        pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        os.close(reader)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if dies_with_parent and libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if not dies_with_parent:  # it ends by itself when its parent does, and has something to remove before
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        _tell_steps(steps, writer)
    finally:
        os._exit(0)


def _tell_steps(steps: Callable[[], Iterator[Any]], writer: int) -> None:
    try:
        for value in steps():
            os.write(writer, json.dumps({"value": value}).encode() + b"\n")
    except OSError as error:
        told = {"errno": error.errno or 0, "error": error.strerror or str(error)}
        os.write(writer, json.dumps(told).encode() + b"\n")
    except BaseException as error:  # noqa: BLE001  whatever it is belongs into the answer
        os.write(writer, json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}).encode() + b"\n")


def _read(reader: int, limit_s: float, until_line: bool = False) -> bytes:
    deadline = time.monotonic() + limit_s
    text = b""
    while len(text) < _MOST_ANSWER and not (until_line and b"\n" in text):
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TookTooLong(f"no answer within {limit_s:g} s")
        part = os.read(reader, 1 << 16)
        if not part:
            break
        text += part
    return text


def _end(pid: int) -> None:
    """Kills and reaps the child; one that is stuck in the kernel is left to it."""
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _END_LIMIT_S
        while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.002)
