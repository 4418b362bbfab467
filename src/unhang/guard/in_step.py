"""Rows of ranks that are in step: one exchange per item of an iterator, as long as all ranks write the same.

Nearly all that an exchange costs in the midst of a training is code and memory that the training has driven from the cache. So
the whole of it is one generator: what it needs lies in one frame, one object and two lines of the shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from unhang.guard.shared_rows import APART, PLACES, PUBLISH_EVERY, SharedRow

T = TypeVar("T")
_SLOT_WORDS = 8


class InStep(Generic[T]):
    """Yields items while all ranks have them, each told by a row whose position is one higher than the one before.

    Holds no item: after a `break` it is known here until another one takes its place.
    """

    __slots__ = ("_row", "number", "position", "shared")

    def __init__(self, row: SharedRow) -> None:
        """`row`: of the next item, which this rank has and has told the others."""
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
            go_on: called at the end, before the last item is yielded, with the next one, or why there is none; nobody was told.
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
                except Exception as error:  # noqa: BLE001 - raised again, in its place, after the others were told
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
