"""The one recording of this process, or none (every wrapper asks `recording.current` first), and how its files are written."""

from __future__ import annotations

import errno
import functools
import json
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .page import Page

# A rank that ran out of descriptors is one that we must be able to report: two are kept back for that.
_spare: list[int] = []
T = TypeVar("T")
_MOST_NOTES = 64
_out_of_torch: deque[int] = deque(maxlen=16)


def reserve_descriptors() -> None:
    """Keep two descriptors for the day when there are none left."""
    while len(_spare) < 2:
        _spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE) or not _spare:
            raise
        os.close(_spare.pop())
        return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _write(path: str, flags: int, data: bytes) -> bool:
    try:
        fd = _open(path, flags)
        try:
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)
    except OSError:
        return False
    return True


def write_whole(path: str, data: bytes) -> bool:
    """Write and rename. Returns whether the file is there; a full or read-only disk is not an error of the training."""
    temporary = f"{path}.tmp"
    if not _write(temporary, os.O_WRONLY | os.O_TRUNC, data):
        return False
    try:
        os.replace(temporary, path)
    except OSError:
        return False
    return True


def write_json(path: str, value: Mapping[str, Any]) -> bool:
    """Write one JSON object as a whole file."""
    return write_whole(path, json.dumps(value, default=str).encode("utf-8", "replace"))


def append_json(path: str, value: Mapping[str, Any]) -> bool:
    """Append one line. O_APPEND and a single write keep lines of several threads apart."""
    return _write(path, os.O_WRONLY | os.O_APPEND, json.dumps(value, default=str).encode("utf-8", "replace") + b"\n")


def remove(path: str) -> None:
    """Remove a file, if it is there."""
    try:
        os.unlink(path)
    except OSError:
        return


class Recording:
    """The folder, the page and the identity of one training process.

    `inherited_fds` are closed in forked children: a data loader's worker must not keep our sockets open.
    `at_fork` undoes, in such a child, what only concerns the rank itself.
    """

    def __init__(self, folder: str, page: Page, identity: dict[str, Any]) -> None:
        self.folder = folder
        self.page = page
        self.identity = identity
        self.pid = os.getpid()
        self.main_thread_id = threading.main_thread().ident or 0
        self.inherited_fds: list[int] = []
        self.at_fork: list[Callable[[], None]] = []
        self.counts: dict[tuple[int, str], int] = {}
        self.groups_written: set[str] = set()
        self.noted: set[str] = set()
        self.shapes: dict[str, list[int]] = {}
        self.has_error = False
        self.has_flight = False
        self.exit_code: int | None = None
        self.is_exit_known = False

    def path(self, name: str) -> str:
        """A file of this rank's folder."""
        return os.path.join(self.folder, name)

    def count(self, kind: int, group: str) -> int:
        """The number of this call among those of its kind and group, from 1."""
        key = (kind, group)
        number = self.counts.get(key, 0) + 1
        self.counts[key] = number
        return number

    def note(self, what: str, reason: str) -> None:
        """Write down once that a facility could not be had."""
        if what in self.noted or len(self.noted) >= _MOST_NOTES:
            return
        self.noted.add(what)
        append_json(self.path("notes.jsonl"), {"what": what, "reason": reason[:1000]})

    def write_identity(self) -> None:
        """Write identity.json again, after something in it became known."""
        write_json(self.path("identity.json"), self.identity)


current: Recording | None = None


def note(what: str, reason: str) -> None:
    """Write a note if there is a recording to write it to."""
    if current is not None:
        current.note(what, reason)


def attempt(what: str, action: Callable[..., T], *args: Any) -> T | None:
    """Call `action`; whatever goes wrong in our own code ends in a note, never in the training."""
    try:
        return action(*args)
    except Exception as error:  # noqa: BLE001
        try:
            note(what, f"{type(error).__name__}: {error}")
        except Exception:  # noqa: BLE001
            # An exception whose str() raises.
            return None
        return None


def step_aside(error: BaseException) -> None:
    """Take the frame of the wrapper that asks out of the traceback of an exception that passes through; then it says `raise`.

    A bare `raise` adds no frame.
    """
    try:
        trace = error.__traceback__
        error.__traceback__ = trace.tb_next if trace is not None else None
    except Exception:  # noqa: BLE001
        # A class of exceptions whose traceback cannot be set.
        return


def failed_in_torch(error: BaseException) -> None:
    """The same where a function of torch raised; if that is written in C, no other frame tells so."""
    step_aside(error)
    if error.__traceback__ is None:
        _out_of_torch.append(id(error))


def is_out_of_torch(error: BaseException) -> bool:
    """Whether an exception that is still alive came lately from a function written in C that we wrap: no frame tells."""
    return id(error) in _out_of_torch


def forget_in_child() -> None:
    """After a fork: the child is not the rank. It writes nothing and holds nothing of ours."""
    global current
    parent, current = current, None
    if parent is None:
        return
    for undo in parent.at_fork:
        try:
            undo()
        except Exception:  # noqa: BLE001
            # There is nowhere to write a note: the folder belongs to the parent.
            continue
    for fd in parent.inherited_fds:
        try:
            os.close(fd)
        except OSError:
            continue


def preceded(original: Any, before: Callable[..., None]) -> Any:
    """The function with `before` called first, with its arguments; that one never raises."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            step_aside(error)
            raise

    return do_not_trace(call)


def do_not_trace(function: Any) -> Any:
    """A call of this function inside compiled code ends the graph, as torch.compiler.disable would have it."""
    function._torchdynamo_disable = True
    return function
