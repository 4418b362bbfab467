"""Rows of numbers in memory that all ranks of one machine share: each writes its own, and sees when the others have written theirs.

Where all ranks of a job run on one machine, an exchange is then a few writes and reads of memory: no system call, no thread, and
no work of another process.

Each exchange has a number, the same on all ranks, and its place in a ring; there every rank has a slot. A slot holds the number
of its exchange and a check of its content, so that one which is half written, or whose words arrive in another order, counts as
not written. A place is used again when all ranks have read it: each publishes, now and then, up to which exchange it has.

Nearly all that an exchange costs in the midst of a training is code and memory that the training has driven from the cache. So
that of ranks in step (`InStep`) is one generator: what it needs lies in one frame, one object and two lines of this memory.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import Any, Generic, NamedTuple, TypeVar

# A slot: number of the exchange (from 1), check, row. A head: process id, when it began, whether the rank has left, and the first
# exchange that it has not read yet.
_SLOT, _HEAD = Struct("@8q"), Struct("@8q")
_ROW = slice(2, 7)
_LEFT_AT, _UNREAD_AT = 16, 24
_BEGAN = 19
PLACES = 64
_HALF = PLACES // 2
# Far less than half: a rank in step never waits for another to say what it has read.
PUBLISH_EVERY = 8
# A wait first lets others run, and then looks again after a share of the time that it has lasted.
_YIELDS, _PAUSE_SHARE, _LONGEST_PAUSE_S = 10, 1 / 16, 0.005
_CHECK_EVERY_S = 0.2
APART = 0x5555555555555555
T = TypeVar("T")
_SLOT_WORDS = 8


class Process(NamedTuple):
    """A process of this machine; `started` distinguishes it from a later one with the same number."""

    pid: int
    started: str

    def state(self) -> str:
        """As in /proc: T is stopped (by a signal, not by a debugger); empty when it has ended."""
        return self.seen()[0]

    def seen(self) -> tuple[str, int]:
        """Its state, and the clock ticks of CPU time that it has used; -1 when it has ended."""
        fields = process_fields(self.pid)
        if not fields or fields[19] != self.started or fields[0] in "ZX":
            return "", -1
        return fields[0], int(fields[11]) + int(fields[12])

    def resume(self) -> None:
        """Lets it go on, if it is stopped. Never raises."""
        with suppress(OSError):
            if self.state() == "T":
                os.kill(self.pid, signal.SIGCONT)


def process_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name; empty where there are none."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return []
    try:
        return os.read(descriptor, 4096).decode(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
    finally:
        os.close(descriptor)


def process_numbers() -> str:
    """Equal for processes that see each other under the same numbers; empty where that cannot be known."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()}/{os.readlink('/proc/self/ns/pid')}"
    return ""


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


def agreed(
    ask: Callable[[str, object, Callable[[list[Any]], Any]], Any], machine: str, rank: int, world_size: int
) -> SharedRows | None:
    """Memory that all ranks share; None, on all of them, where they are not on one machine or one cannot open it.

    `ask` has rank 0 judge the values of all ranks under a name, and returns its verdict on all; `machine` is as of `process_numbers`.

    Blocks: as `ask`, which may raise.
    """
    descriptor = -1

    def place(machines: list[Any]) -> str:
        nonlocal descriptor
        is_one = bool(machines[0]) and len(set(machines)) == 1
        descriptor, path = offered(world_size) if is_one else (-1, "")
        return path

    path = ask("machine", machine, place)
    try:
        found = opened(path, rank, world_size) if path else None
        return found if path and ask("opened", found is not None, all) else None
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _size(world_size: int) -> int:
    return world_size * (_HEAD.size + PLACES * _SLOT.size)


class SharedRows:
    """The memory as one rank uses it. No method blocks.

    begun: exchanges so far; room_until: so many may begin before it is asked whether there is room; in_step: who writes rows
    that are no objects.
    """

    def __init__(self, memory: mmap.mmap, rank: int, world_size: int) -> None:
        self.memory, self.rank, self.world_size = memory, rank, world_size
        # In the midst of a training nearly all that an exchange costs is code and memory that are not in the cache: words that
        # are set and read one by one need the least of it, less than to pack them or to compare bytes.
        self.words = memoryview(memory).cast("q")
        slots = range(world_size * _HEAD.size // 8, _size(world_size) // 8, _SLOT.size // 8)
        self.slots_of_places = [slots[place * world_size : (place + 1) * world_size] for place in range(PLACES)]
        self.begun, self.room_until = 0, PLACES - 1
        self.in_step: InStep[Any] | None = None
        self._unread: list[SharedRow] = []
        fields = process_fields(os.getpid())
        began = int(fields[_BEGAN]) if fields else 0
        _HEAD.pack_into(memory, rank * _HEAD.size, os.getpid(), began, 0, 1, 0, 0, 0, 0)

    def has_room(self) -> bool:
        """Whether the next exchange can begin: all ranks have read those whose places are used next."""
        if self.begun < self.room_until:
            return True
        self.publish()
        if self.slow():
            return False
        self.room_until = self.begun + _HALF
        return True

    def slow(self) -> list[int]:
        """The ranks that have not yet read what must be read before the next exchange."""
        needed = self.begun + 1 - _HALF
        return [rank for rank in range(self.world_size) if self.words[(rank * _HEAD.size + _UNREAD_AT) // 8] < needed]

    def begin(self, row: Sequence[int]) -> SharedRow:
        """Writes this rank's row of the next exchange. Only where there is room."""
        self.begun = number = self.begun + 1
        written = SharedRow(self, number, row)
        written.write()
        self._unread.append(written)
        if not number % PUBLISH_EVERY:
            self.publish()
        return written

    def publish(self) -> None:
        """Reads what is here, also what nobody has asked for yet, and lets the others use those places again."""
        self._unread = unread = [row for row in self._unread if not row.is_here()]
        numbers = [row.number for row in unread]
        if self.in_step is not None and not self.in_step.in_hand().is_here():
            numbers.append(self.in_step.number)
        self.words[(self.rank * _HEAD.size + _UNREAD_AT) // 8] = min(numbers, default=self.begun + 1)

    def give_way(self, to: InStep[Any] | None) -> None:
        """Another one, or nobody, writes rows that are no objects; what the former has not read yet is kept."""
        if self.in_step is not None:
            self._unread.append(self.in_step.in_hand())
        self.in_step = to

    def leave(self) -> None:
        """This rank writes no more."""
        self.words[(self.rank * _HEAD.size + _LEFT_AT) // 8] = 1

    def is_gone(self, rank: int) -> bool:
        """Whether a rank has left, or its process has ended."""
        pid, began, has_left, *_ = _HEAD.unpack_from(self.memory, rank * _HEAD.size)
        return bool(has_left) or (bool(began) and not Process(pid, str(began)).state())


class SharedRow:
    """One exchange of this rank; made by `SharedRows.begin`.

    is_alike: whether all ranks wrote the same; known when their rows are here.
    """

    __slots__ = ("_slots", "_table", "check", "is_alike", "number", "row", "shared")

    def __init__(self, shared: SharedRows, number: int, row: Sequence[int]) -> None:
        self.shared, self.number, self.row = shared, number, row
        self._table, self.is_alike = b"", False
        self.check = _check_of(number, *row)
        self._slots = shared.slots_of_places[number % PLACES]

    def write(self) -> None:
        """Lets the other ranks see it."""
        at, words = self._slots[self.shared.rank], self.shared.words
        words[at + 2], words[at + 3], words[at + 4], words[at + 5], words[at + 6] = self.row
        words[at + 1] = self.check
        words[at] = self.number

    def is_here(self) -> bool:
        """Whether all rows are here."""
        if self.is_alike or self._table:
            return True
        words, check = self.shared.words, self.check
        for at in self._slots:
            # The check is of the whole row and its number: who has ours has written, or is about to write, the same row.
            if words[at + 1] != check:
                break
        else:
            self.is_alike = True
            return True
        table = self._table_now()
        if all(map(self._is_whole, _SLOT.iter_unpack(table))):
            self._table = table
            return True
        return False

    def _table_now(self) -> bytes:
        return self.shared.memory[8 * self._slots[0] : 8 * self._slots[-1] + _SLOT.size]

    def _is_whole(self, slot: tuple[int, ...]) -> bool:
        return slot[0] == self.number and slot[1] == _check_of(slot[0], *slot[_ROW])

    def absent(self) -> list[int]:
        """The ranks whose rows are not here."""
        if self.is_alike:
            return []
        table = self._table or self._table_now()
        return [rank for rank, slot in enumerate(_SLOT.iter_unpack(table)) if not self._is_whole(slot)]

    def gone(self) -> list[int]:
        """The ranks whose rows are not here and will not come; none where all came meanwhile."""
        found = [rank for rank in self.absent() if self.shared.is_gone(rank)]
        return [] if self.is_here() else found

    def rows(self) -> list[list[int]]:
        """By rank. When they are here."""
        if self.is_alike:
            return [list(self.row) for _ in self._slots]
        return [list(slot[_ROW]) for slot in _SLOT.iter_unpack(self._table)]


def _check_of(number: int, a: int, b: int, c: int, d: int, e: int) -> int:
    """Of a whole row and its number. Turned over by APART: of themselves, -1 and -2 have one hash."""
    return hash((number, a ^ APART, b ^ APART, c ^ APART, d ^ APART, e ^ APART))


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


class InStep(Generic[T]):
    """Yields items while all ranks have them, each announced by a row whose position is one higher than the one before.

    Holds no item: after a `break` it is known here until another one takes its place.
    """

    __slots__ = ("_row", "number", "position", "shared")

    def __init__(self, row: SharedRow) -> None:
        """`row`: of the next item, which this rank has and has announced."""
        self.shared, self._row = row.shared, row
        self.number, self.position = row.number, row.row[2]
        self.shared.give_way(self)

    def in_hand(self) -> SharedRow:
        """The row that was written last."""
        row = self._row
        if row.number != self.number:
            guard, turn, _, word, length = row.row
            self._row = row = SharedRow(self.shared, self.number, (guard, turn, self.position, word, length))
        return row

    def items(
        self,
        held: list[T],
        following: Iterator[T],
        fall_out: Callable[[T], None],
        go_on: Callable[[T | Exception], None],
    ) -> Iterator[T]:
        """The items, until a row of another rank is not here or not the same, or there is no next item.

        Args:
            held: the item of the row in hand, and then always the next ones; nothing else holds them.
            following: those behind it.
            fall_out: called at the end, where it is not known whether all have the item of the row in hand.
            go_on: called at the end, before the last item is yielded, with the next one, or why there is none; nobody knows yet.
        """
        shared, words, rank = self.shared, self.shared.words, self.shared.rank
        guard, turn, position, word, length = self.in_hand().row
        a, b, d, e = guard ^ APART, turn ^ APART, word ^ APART, length ^ APART
        number, check = self.number, self.in_hand().check
        first, stride = shared.slots_of_places[0][0], shared.world_size * _SLOT_WORDS
        while shared.in_step is self:
            at = first + number % PLACES * stride + 1
            for at in range(at, at + stride, _SLOT_WORDS):  # noqa: B020 - from there on
                if words[at] != check:
                    break
            else:
                try:
                    held.append(next(following))
                except Exception as error:  # noqa: BLE001 - raised again, in its place, after the others know
                    shared.give_way(None)
                    go_on(error)
                    yield held.pop()
                    return
                if shared.begun >= shared.room_until and not shared.has_room():
                    shared.give_way(None)
                    go_on(held.pop())
                    yield held.pop()
                    return
                position += 1
                number = shared.begun + 1
                check = hash((number, a, b, position ^ APART, d, e))
                shared.begun = self.number = number
                self.position = position
                at = first + number % PLACES * stride + rank * _SLOT_WORDS
                words[at + 2] = guard
                words[at + 3] = turn
                words[at + 4] = position
                words[at + 5] = word
                words[at + 6] = length
                words[at + 1] = check
                words[at] = number
                if not number % PUBLISH_EVERY:
                    shared.publish()
                yield held.pop(0)
                continue
            break
        if shared.in_step is self:
            shared.give_way(None)
        fall_out(held.pop())
