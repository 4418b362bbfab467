"""What answers the agent from inside a rank: torch's C++ worker server, which needs no GIL, and the one thread of ours."""

from __future__ import annotations

import ctypes
import os
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from . import flight, page
from .errors_seen import write_held
from .exits import AbortWatch
from .frames import write_variables
from .recording import Recording, attempt
from .waits_within import write_waits_within

_TURN_S = 0.25
_LONGEST_PATH = 100
# torch announces the server as a warning on file descriptor 2; the user's output stays what it was without us.
_GREETING = re.compile(rb"^[^\n]*WorkerServer\.cpp[^\n]*Server listening to UNIX[^\n]*\n", re.MULTILINE)


class Control:
    """Owns ctl.sock and a pipe that ends the thread. Blocks nobody: a daemon that the process does not wait for."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._stopping = False
        self._wake_reader, self._wake_writer = os.pipe()
        self._socket = attempt("ctl.sock", self._bind)
        self._abort_watch = AbortWatch(recording)
        self._thread = threading.Thread(target=self._run, name="unhang-control", daemon=True)
        recording.inherited_fds += [self._wake_reader, self._wake_writer]
        recording.at_fork.append(self._drop_socket)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread before the interpreter is taken apart. Blocks: up to 0.2 s, usually not at all."""
        self._stopping = True
        os.write(self._wake_writer, b"x")
        self._thread.join(0.2)

    def _bind(self) -> socket.socket | None:
        path = self._recording.path("ctl.sock")
        if len(path.encode()) > _LONGEST_PATH:
            self._recording.note("ctl.sock", f"the path is too long for a unix socket: {path}")
            return None
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            if os.path.exists(path):
                os.unlink(path)
            bound.bind(path)
        except OSError:
            bound.close()
            raise
        return bound

    def _drop_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _run(self) -> None:
        watched = [self._wake_reader] if self._socket is None else [self._wake_reader, self._socket.fileno()]
        while not self._stopping:
            try:
                ready = select.select(watched, [], [], _TURN_S)[0]
                self._turn(bool(self._socket and self._socket.fileno() in ready))
            except Exception as error:  # noqa: BLE001
                self._recording.note("control thread", f"{type(error).__name__}: {error}")
                time.sleep(_TURN_S)

    def _turn(self, is_asked: bool) -> None:
        words = self._recording.page.words
        words[page.HEARTBEAT] = time.monotonic_ns()
        if words[page.INITIALIZED] == 1:
            self._poll()
        if is_asked and self._socket is not None and b"dump" in self._drain(self._socket):
            attempt("variables.json", write_variables, self._recording)
            attempt("held.json", write_held, self._recording)
            attempt("waits.json", write_waits_within, self._recording)
            attempt("flight.pickle", flight.dump, self._recording, "flight.pickle")
        self._abort_watch.check()

    def _poll(self) -> None:
        try:
            flight.poll_status(self._recording)
        except Exception as error:  # noqa: BLE001
            self._recording.page.words[page.FAILED_POLLS] += 1
            self._recording.note("progress of the groups", f"{type(error).__name__}: {error}")

    @staticmethod
    def _drain(bound: socket.socket) -> list[bytes]:
        """All requests that wait: ten of them are one dump."""
        found: list[bytes] = []
        while len(found) < 64:
            try:
                found.append(bound.recv(64))
            except OSError:
                break
        return found


def start_server(recording: Recording) -> None:
    """Serve <folder>/fr.sock for the life of the process."""
    make = getattr(sys.modules.get("torch._C._distributed_c10d"), "_WorkerServer", None)
    path = recording.path("fr.sock")
    if make is None:
        recording.note("fr.sock", "this torch has no _WorkerServer")
        return
    if len(path.encode()) > _LONGEST_PATH:
        recording.note("fr.sock", f"the path is too long for a unix socket: {path}")
        return
    if os.path.exists(path):
        os.unlink(path)
    before = _open_fds()
    server = _without_greeting(lambda: make(path))
    # The destructor prints three lines at exit, and in a forked child, where the server's thread does not exist, it
    # aborts the process ("failed to listen"). An object that is never freed has no destructor.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    recording.inherited_fds += [fd for fd in _open_fds() - before if _is_bound_to(fd, path)]


def _open_fds() -> set[int]:
    try:
        return {int(name) for name in os.listdir("/proc/self/fd")}
    except OSError:
        return set()


def _is_bound_to(fd: int, path: str) -> bool:
    try:
        with socket.socket(fileno=os.dup(fd)) as copy:
            return bool(copy.family == socket.AF_UNIX and copy.getsockname() == path)
    except OSError:
        return False


def _without_greeting(action: Callable[[], Any]) -> Any:
    """Call `action` with stderr kept back, and write what was kept back except the greeting."""
    try:
        kept = os.memfd_create("unhang-stderr")
        stderr = os.dup(2)
    except (OSError, AttributeError):
        return action()
    try:
        os.dup2(kept, 2)
        try:
            return action()
        finally:
            os.dup2(stderr, 2)
            _write_again(kept)
    finally:
        os.close(kept)
        os.close(stderr)


def _write_again(kept: int) -> None:
    size = os.fstat(kept).st_size
    rest = _GREETING.sub(b"", os.pread(kept, size, 0), count=1) if size else b""
    if rest:
        os.write(2, rest)
