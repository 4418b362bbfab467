"""The writer of page.bin: a memory-mapped page whose content survives any death of the process.

A store into the map costs about 60 ns and no system call. Layout: docs/design/0001-run-directory.md, format 1.
"""

from __future__ import annotations

import mmap
import os
import struct
import time

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

SEND, RECV, ISEND, IRECV, NEW_GROUP, STORE_WAIT, INIT, DESTROY, STORE_SET, MONITORED_BARRIER, LOADER_END = range(1, 12)
_RETURNS_AT_ONCE = (ISEND, IRECV)


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
        return any(words[at] and not words[at + 5] and words[at + 1] not in _RETURNS_AT_ONCE for at in records)

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

    def give_back(self, number: int) -> None:
        """Let the next record overwrite this ended one, so that many short waits do not push out the history."""
        if self._next == number + 1:
            self._next = number

    def _free_number(self) -> int:
        """The next number whose place does not hold a blocking call that is still under way."""
        words, number = self.words, self._next
        for candidate in range(number, number + _RECORDS):
            at = _RING_WORD + (candidate & _LAST) * _RECORD_WORDS
            if words[at] == 0 or words[at + 5] or words[at + 1] in _RETURNS_AT_ONCE:
                return candidate
        return number
