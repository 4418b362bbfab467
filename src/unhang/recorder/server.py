"""Starts torch's C++ worker server on a unix socket: it answers while Python is stuck and even holds the GIL."""

from __future__ import annotations

import ctypes
import os
import re
import socket
import sys
from collections.abc import Callable
from typing import Any

from .recording import Recording

_LONGEST_PATH = 100
# torch announces the server as a warning on file descriptor 2; the user's output stays what it was without us.
_GREETING = re.compile(rb"^[^\n]*WorkerServer\.cpp[^\n]*Server listening to UNIX[^\n]*\n", re.MULTILINE)


def start(recording: Recording) -> None:
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
