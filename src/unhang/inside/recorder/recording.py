"""The one recording of this process, or none (every wrapper asks `recording.current` first): its page, and how its files are written.

page.bin is mapped into memory, so that its content survives any death of the process: a store into it costs about 60 ns and no system call. Its
layout: docs/design/0001-run-directory.md, format 1.
"""

from __future__ import annotations

import errno
import functools
import json
import mmap
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

FORMAT = 1
_MAGIC = 0x31474E41484E55
_SIZE = 8192 + 256 * 256
_RECORD = struct.Struct("<QqqqQQqq192s")
_MASK = (1 << 64) - 1
_STATUS_WORD = 4096 // 8
_STATUS_SLOTS = 128
_RING_BYTE = 8192
_RING_WORD = _RING_BYTE // 8
_RECORD_WORDS = 32
_RECORDS = 256
_LAST = _RECORDS - 1
_pack, _now = _RECORD.pack_into, time.time_ns

PID, HEARTBEAT, STEPS, STEP_TIME, PHASE, PHASE_SINCE = 2, 3, 4, 5, 6, 7
RECORDS, INITIALIZED, ENDED, FAILED_POLLS, SKIPPED, SAMPLES, TOKENS = range(8, 15)

NONE, DATA, _FORWARD, BACKWARD, OPTIMIZER, CHECKPOINT = range(6)

SEND, RECV, ISEND, IRECV, NEW_GROUP, STORE_WAIT, INIT, DESTROY, STORE_SET, MONITORED_BARRIER, LOADER_END, WORK_WAIT = (
    range(1, 13)
)
_RETURNS_AT_ONCE = (ISEND, IRECV)
_AWAITED_AT, _KIND = 8, 255  # bits of the word that holds the kind


def _open_map(path: str) -> mmap.mmap:
    """Map the file. Its space is claimed first: a store into a hole of a full disk would raise SIGBUS in training."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(fd, 0, _SIZE)
        return mmap.mmap(fd, _SIZE)
    finally:
        os.close(fd)


class Page:
    """The page of one rank. Without a file (`problem` says why) it writes into memory that nobody reads."""

    def __init__(self, path: str) -> None:
        self.problem = ""
        try:
            self._map = _open_map(path)
        except OSError as error:
            self.problem = str(error)
            self._map = mmap.mmap(-1, _SIZE)
        self.words = memoryview(self._map).cast("Q")
        self._next = 0
        self._status_slots: dict[int, int] = {}
        self.words[1] = FORMAT
        self.words[PID] = os.getpid()
        self.words[HEARTBEAT] = time.monotonic_ns()
        self.words[0] = _MAGIC

    def enter(self, phase: int) -> int:
        """Mark the phase; returns the one before, to be entered again afterwards."""
        words = self.words
        before = words[PHASE]
        words[PHASE] = phase
        words[PHASE_SINCE] = time.time_ns()
        return before

    def count_step(self) -> None:
        """One more optimizer step."""
        words = self.words
        words[STEPS] += 1
        words[STEP_TIME] = time.time_ns()

    def count_skipped(self, is_skipped: bool) -> None:
        """One more optimizer step that a loss scaler left out since the last one that was taken, or a taken one."""
        self.words[SKIPPED] = self.words[SKIPPED] + 1 if is_skipped else 0

    def count_batch(self, samples: int, tokens: int) -> None:
        """One more batch that a loader has handed out."""
        words = self.words
        words[SAMPLES] += samples
        words[TOKENS] += tokens

    def set_status(self, pg_id: int, enqueued: int, completed: int) -> bool:
        """Write how far one group is. False when all 128 places are taken by other groups."""
        slot = self._status_slots.setdefault(pg_id, len(self._status_slots))
        if slot >= _STATUS_SLOTS:
            return False
        at = _STATUS_WORD + slot * 4
        self.words[at + 1] = enqueued & _MASK
        self.words[at + 2] = completed & _MASK
        self.words[at] = pg_id + 1
        return True

    def statuses(self) -> memoryview:
        """How far the groups are: of each its number from 1, the calls enqueued and those completed."""
        return self.words[_STATUS_WORD:_RING_WORD]

    def has_open_status(self) -> bool:
        """Whether some group has calls enqueued that are not complete."""
        words = self.statuses()
        slots = range(0, _STATUS_SLOTS * 4, 4)
        return any(words[at] and words[at + 1] not in (words[at + 2], _MASK) for at in slots)

    def has_open_record(self) -> bool:
        """Whether a point-to-point call, or the making of a group, has not come back."""
        words, records = self.words, range(_RING_WORD, _SIZE // 8, _RECORD_WORDS)
        return any(words[at] and not words[at + 5] and words[at + 1] & _KIND not in _RETURNS_AT_ONCE for at in records)

    def begin(self, kind: int, peer: int, index: int, tag: int, text: bytes, nth: int = 0) -> int:
        """Write a call that starts now; returns its number for `end`."""
        words, number = self.words, self._next
        at = _RING_WORD + (number & _LAST) * _RECORD_WORDS
        if words[at] and not words[at + 5]:
            number = self._free_number()
        self._next = after = number + 1
        _pack(self._map, _RING_BYTE + (number & _LAST) * 256, after, kind, peer, index, _now(), 0, tag, nth, text)
        words[RECORDS] = after
        return number

    def note(self, number: int | None, kind: int, index: int, text: bytes) -> int:
        """Write a call that is done, over the earlier record of its sort if that still stands there; returns its number."""
        at = _RING_WORD + (number & _LAST) * _RECORD_WORDS if number is not None else 0
        if number is None or self.words[at] != number + 1:
            number = self.begin(kind, -1, index, 0, text)
            self.end(number)
        else:
            now = _now()
            _pack(self._map, _RING_BYTE + (number & _LAST) * 256, number + 1, kind, -1, index, now, now, 0, 0, text)
        return number

    def end(self, number: int) -> None:
        """The call has returned; nothing happens when its place in the ring is taken by a newer one."""
        words = self.words
        at = _RING_WORD + (number & _LAST) * _RECORD_WORDS
        if words[at] == number + 1:
            words[at + 5] = _now()

    def wait_for(self, number: int) -> None:
        """From now on a thread waits for this call, which had returned at once; above its kind stand the microseconds after its start."""
        words = self.words
        at = _RING_WORD + (number & _LAST) * _RECORD_WORDS
        if words[at] == number + 1 and not words[at + 1] >> _AWAITED_AT:
            words[at + 1] |= max(1, (_now() - words[at + 4]) // 1000) << _AWAITED_AT

    def give_back(self, number: int) -> None:
        """Let the next record overwrite this ended one, so that many short waits do not push out the history."""
        if self._next == number + 1:
            self._next = number

    def _free_number(self) -> int:
        """The next number whose place does not hold a blocking call that is still under way."""
        words, number = self.words, self._next
        for candidate in range(number, number + _RECORDS):
            at = _RING_WORD + (candidate & _LAST) * _RECORD_WORDS
            if words[at] == 0 or words[at + 5] or words[at + 1] & _KIND in _RETURNS_AT_ONCE:
                return candidate
        return number


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
