"""Rows of numbers in memory that all ranks of one machine share: each writes its own, and sees when the others have written theirs.

Where all ranks of a job run on one machine, an exchange is then a few writes and reads of memory: no system call, no thread, and
no work of another process.

Each exchange has a number, the same on all ranks, and its place in a ring; there every rank has a slot. A slot holds the number
of its exchange and a check of its content, so that one which is half written, or whose words arrive in another order, counts as
not written. A place is used again when all ranks have read it: each publishes up to which exchange it has.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from struct import Struct

from unhang.guard.neighbours import Process, process_fields

# A slot: number of the exchange (from 1), check, row. A head: process id, when it began, whether the rank has left, and the first
# exchange that it has not read yet.
_SLOT, _HEAD, _WORD = Struct("@8q"), Struct("@8q"), Struct("@q")
_ROW = slice(2, 7)
_LEFT_AT, _UNREAD_AT = 16, 24
_BEGAN = 19
_PLACES = 64
_HALF = _PLACES // 2
# A wait first lets others run, and then looks again after a share of the time that it has lasted.
_YIELDS, _PAUSE_SHARE, _LONGEST_PAUSE_S = 10, 1 / 16, 0.005
_CHECK_EVERY_S = 0.2


def offered(world_size: int) -> tuple[int, str]:
    """Makes memory for so many ranks: its descriptor, and the path under which the others open it; -1 and no path where there is none.

    The memory is gone with its last user.
    """
    try:
        descriptor = os.memfd_create("unhang-rows")
    except (OSError, AttributeError):  # AttributeError: not Linux
        return -1, ""
    try:
        os.ftruncate(descriptor, _size(world_size))
    except OSError:
        os.close(descriptor)
        return -1, ""
    return descriptor, f"/proc/{os.getpid()}/fd/{descriptor}"


def opened(path: str, rank: int, world_size: int) -> SharedRows | None:
    """The memory that another rank offers; None where this process cannot open it."""
    with suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size == _size(world_size):
                return SharedRows(mmap.mmap(descriptor, _size(world_size)), rank, world_size)
        finally:
            os.close(descriptor)
    return None


def _size(world_size: int) -> int:
    return world_size * (_HEAD.size + _PLACES * _SLOT.size)


class SharedRows:
    """The memory as one rank uses it. No method blocks."""

    def __init__(self, memory: mmap.mmap, rank: int, world_size: int) -> None:
        self.memory, self.rank, self.world_size = memory, rank, world_size
        self._begun = 0
        self._unread: dict[int, SharedRow] = {}
        fields = process_fields(os.getpid())
        began = int(fields[_BEGAN]) if fields else 0
        _HEAD.pack_into(memory, rank * _HEAD.size, os.getpid(), began, 0, 1, 0, 0, 0, 0)

    def has_room(self) -> bool:
        """Whether the next exchange can begin: all ranks have read those whose places are used next."""
        number = self._begun + 1
        if number % _HALF or number < _PLACES:
            return True
        for row in list(self._unread.values()):
            row.is_here()
        return not self.slow()

    def slow(self) -> list[int]:
        """The ranks that have not yet read what must be read before the next exchange."""
        needed = self._begun + 1 - _HALF
        return [rank for rank in range(self.world_size) if self._word(rank, _UNREAD_AT) < needed]

    def begin(self, row: Sequence[int]) -> SharedRow:
        """Writes this rank's row of the next exchange. Only where there is room."""
        self._begun = number = self._begun + 1
        written = self._unread[number] = SharedRow(self, number, row)
        return written

    def read(self, number: int) -> None:
        """This rank needs that exchange no more; reads an older one too, that nobody has asked for yet."""
        self._unread.pop(number, None)
        first = next(iter(self._unread), self._begun + 1)
        if first < number:
            self._unread[first].is_here()
            first = next(iter(self._unread), self._begun + 1)
        _WORD.pack_into(self.memory, self.rank * _HEAD.size + _UNREAD_AT, first)

    def leave(self) -> None:
        """This rank writes no more."""
        _WORD.pack_into(self.memory, self.rank * _HEAD.size + _LEFT_AT, 1)

    def is_gone(self, rank: int) -> bool:
        """Whether a rank has left, or its process has ended."""
        pid, began, has_left, *_ = _HEAD.unpack_from(self.memory, rank * _HEAD.size)
        return bool(has_left) or (bool(began) and not Process(pid, str(began)).state())

    def _word(self, rank: int, at: int) -> int:
        return int(_WORD.unpack_from(self.memory, rank * _HEAD.size + at)[0])


class SharedRow:
    """One exchange of this rank; made by `SharedRows.begin`."""

    def __init__(self, shared: SharedRows, number: int, row: Sequence[int]) -> None:
        self.shared, self.number = shared, number
        self._table, self._is_alike = b"", False
        size = shared.world_size
        self._at = size * _HEAD.size + number % _PLACES * size * _SLOT.size
        self._to = self._at + size * _SLOT.size
        self._own = _SLOT.pack(number, hash((number, *row)), *row, 0)
        at = self._at + shared.rank * _SLOT.size
        shared.memory[at : at + _SLOT.size] = self._own

    def is_here(self) -> bool:
        """Whether all rows are here."""
        if self._table:
            return True
        table = self.shared.memory[self._at : self._to]
        self._is_alike = table == self._own * self.shared.world_size
        if self._is_alike or all(map(self._is_whole, _SLOT.iter_unpack(table))):
            self._table = table
            self.shared.read(self.number)
        return bool(self._table)

    def _is_whole(self, slot: tuple[int, ...]) -> bool:
        return slot[0] == self.number and slot[1] == hash((slot[0], *slot[_ROW]))

    def absent(self) -> list[int]:
        """The ranks whose rows are not here."""
        table = self._table or self.shared.memory[self._at : self._to]
        return [rank for rank, slot in enumerate(_SLOT.iter_unpack(table)) if not self._is_whole(slot)]

    def is_alike(self) -> bool:
        """Whether all ranks wrote the same. When they are here."""
        return self._is_alike

    def rows(self) -> list[list[int]]:
        """By rank. When they are here."""
        return [list(slot[_ROW]) for slot in _SLOT.iter_unpack(self._table)]


def wait_until(is_so: Callable[[], bool], check: Callable[[], None], limit_s: float) -> bool:
    """Waits until it is so; whether it is. Blocks up to `limit_s`; calls `check` now and then."""
    began = checked = time.monotonic()
    turns = 0
    while not is_so():
        turns += 1
        now = time.monotonic()
        if now - began >= limit_s:
            return False
        if now - checked >= _CHECK_EVERY_S:
            checked = now
            check()
        time.sleep(0 if turns <= _YIELDS else min((now - began) * _PAUSE_SHARE, _LONGEST_PAUSE_S))
    return True
