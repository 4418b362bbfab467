"""Calls that may never come back: each in a process of its own, with a limit; and things that are removed whatever becomes of their maker.

A thread that waits for a dead file system cannot be ended, and keeps its whole process from ending. A child can be left to the kernel.
The areas of a check are read by threads, and a process with threads must not fork: a lock that another thread holds would stay locked in
the child, and hooks of a module that another thread imports meanwhile would run by halves. So a server forks, an interpreter of its own with
one thread. A call goes there by name: a function of a module, or a `partial` of one.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from unhang.check.children import ask_to_die_with_parent

_START_LIMIT_S, _SEND_LIMIT_S, _END_LIMIT_S = 20.0, 5.0, 0.2
_MOST_ANSWER = 1 << 20
_NO_ANSWER = "the process that was asked ended without an answer"
# `python -m` would put the working folder first, where any file may have the name of a module.
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from unhang.check import calls; calls.serve(int(sys.argv[2]))"


class TookTooLong(Exception):
    """The call had not come back within its limit."""


class Died(RuntimeError):
    """The process that made the call ended before it had an answer."""


def limited(call: Callable[[], Any], limit_s: float) -> Any:
    """What a call returns, as far as JSON knows it. Blocks up to `limit_s`, and a moment to end the child.

    Raises:
        TookTooLong: it did not come back.
        OSError: it raised one.
        Died: its process ended.
        RuntimeError: it raised something else.
    """
    with _Child((call,)) as child:
        return child.answer(limit_s)


@contextmanager
def kept_while(make: Callable[[], Any], remove: Callable[[], Any], limit_s: float) -> Iterator[None]:
    """Makes something that is removed at the end of the block, and also when this process is killed within it.

    A child holds it, and removes it as soon as nobody holds the other end of its pipe. Blocks up to `limit_s` each for making
    and removing.

    Raises:
        TookTooLong, OSError, RuntimeError: it could not be made.
    """
    watched, held = os.pipe()
    try:
        with _Child((make, remove), watched) as child:
            try:
                os.close(watched)
                child.answer(limit_s)
                yield
            finally:
                os.close(held)
                held = -1
                child.wait_for_end(limit_s)
    finally:
        if held >= 0:  # it was not even asked
            os.close(watched)
            os.close(held)


# Our side


class _Server:
    """The process that forks. It ends when the last copy of our socket is closed, so also when we are killed."""

    def __init__(self) -> None:
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, json.dumps(sys.path), str(its.fileno())],
                pass_fds=[its.fileno()], start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        self._socket.settimeout(_START_LIMIT_S)
        if not self._socket.recv(1):
            raise OSError("the process for calls that may hang could not be started")
        self._socket.settimeout(_SEND_LIMIT_S)
        self.of_pid = os.getpid()

    def ask(self, calls: tuple[Callable[[], Any], ...], *descriptors: int) -> None:
        """Has a child make the calls."""
        here = None
        with suppress(OSError):
            here = os.getcwd()
        with open(os.memfd_create("unhang-call"), "w+b") as message:
            pickle.dump((calls, here), message)
            message.flush()
            socket.send_fds(self._socket, [b"!"], [message.fileno(), *descriptors])

    def close(self) -> None:
        """Lets it end."""
        self._socket.close()
        if self.of_pid == os.getpid():
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_LIMIT_S)


_servers: list[_Server] = []
_lock = threading.Lock()


def _server() -> _Server:
    """The one of this process, which is started if it is not there."""
    with _lock:
        if not _servers or _servers[0].of_pid != os.getpid() or _servers[0].process.poll() is not None:
            _close()
            _servers[:] = [_Server()]
        return _servers[0]


@atexit.register
def _close() -> None:
    while _servers:
        _servers.pop().close()


class _Child:
    """One child of the server, that writes its pid, then a line for what it has to say."""

    def __init__(self, calls: tuple[Callable[[], Any], ...], *descriptors: int) -> None:
        self._reader, writer = os.pipe()
        self._text = b""
        try:
            _server().ask(calls, writer, *descriptors)
        except BaseException:
            os.close(self._reader)
            raise
        finally:
            os.close(writer)

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        """Kills the child if it still runs; one that is stuck in the kernel is left to it."""
        if not self._has_ended():
            with suppress(OSError, ValueError, IndexError):
                os.kill(int(self._text.split(b"\n")[0]), signal.SIGKILL)
        os.close(self._reader)

    def answer(self, limit_s: float) -> Any:
        """Blocks: up to `limit_s`. Raises: as `limited`."""
        self._read(limit_s, lines=2)
        lines = self._text.split(b"\n")
        if len(lines) < 3:
            raise Died(_NO_ANSWER)
        answer = json.loads(lines[1])
        if "errno" in answer:
            raise OSError(answer["errno"], answer["error"])
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]

    def wait_for_end(self, limit_s: float) -> None:
        """Blocks: until the child has ended, up to `limit_s`."""
        with suppress(TookTooLong):
            self._read(limit_s)

    def _has_ended(self) -> bool:
        with suppress(TookTooLong):
            self._read(0.0)
            return True
        return False

    def _read(self, limit_s: float, lines: int = 0) -> None:
        """Until there are so many lines, or the child has ended. Raises TookTooLong."""
        deadline = time.monotonic() + limit_s
        while len(self._text) < _MOST_ANSWER and not (lines and self._text.count(b"\n") >= lines):
            ready, _, _ = select.select([self._reader], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TookTooLong(f"no answer within {limit_s:g} s")
            part = os.read(self._reader, 1 << 16)
            if not part:
                break
            self._text += part


# The server's side


def serve(number: int) -> None:
    """Forks for each message, until the other end of the socket is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them
    with socket.socket(fileno=number) as asked:
        asked.send(b"!")
        while True:
            text, descriptors, _, _ = socket.recv_fds(asked, 1, 3)
            if not text:
                return
            calls, here = _unpickled(descriptors[0])  # here, so that a module is imported once for all children
            if os.fork() == 0:
                asked.close()
                _be_asked(calls, here, *descriptors[1:])
            for descriptor in descriptors:
                os.close(descriptor)


def _unpickled(message: int) -> tuple[tuple[Callable[[], Any], ...], str | None]:
    try:
        with open(message, "rb", closefd=False) as file:
            file.seek(0)
            return pickle.load(file)  # type: ignore[no-any-return]
    except Exception as error:  # noqa: BLE001 - whatever it is belongs into the answer
        text = f"{type(error).__name__}: {error}"

        def fail() -> None:
            raise RuntimeError(text)

        return (fail,), None


def _be_asked(calls: tuple[Callable[[], Any], ...], here: str | None, writer: int, watched: int = -1) -> NoReturn:
    """What a child does: the first call, and the second one when nobody holds the other end of `watched` any more."""
    try:
        for number in (signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN)
        if watched < 0:
            ask_to_die_with_parent()
        else:  # it ends by itself, and has something to remove before
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
        os.write(writer, b"%d\n" % os.getpid())
        try:
            os.write(writer, _line(calls[0], here))
            if watched >= 0:
                os.read(watched, 1)
        finally:
            for call in calls[1:]:
                call()
    finally:
        os._exit(0)


def _line(call: Callable[[], Any], here: str | None) -> bytes:
    """What came of a call in the folder `here`, as a line of JSON."""
    try:
        if here is not None and here != os.getcwd():
            os.chdir(here)
        return json.dumps({"value": call()}).encode() + b"\n"
    except OSError as error:
        answer = {"errno": error.errno or 0, "error": error.strerror or str(error)}
    except BaseException as error:  # noqa: BLE001 - whatever it is belongs into the answer
        answer = {"error": f"{type(error).__name__}: {error}"[:300]}
    return json.dumps(answer).encode() + b"\n"
