"""Collectives matched by group and sequence number; the majority is the reference, never the first rank.

Legend of shapes: N rows, S positions (distinct sequence numbers) of one group, M members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from unhang.analyze.positions import ROOTED_OPS, CallIndex, Position, bare_op, may_be_uneven, numels
from unhang.model import CallState, Case, CollectiveCall, ProcessGroup

Signature = tuple[str, object, str]


def signature(call: CollectiveCall) -> Signature:
    """What the members of a group must agree on: op, and sizes and dtype where the op demands them equal."""
    op = bare_op(call.op)
    if may_be_uneven(op):
        return op, None, call.dtype
    if op in ROOTED_OPS:
        return op, None, ""
    return op, numels(call.in_sizes), call.dtype


@dataclass(frozen=True)
class StuckCollective:
    """A position of one group at which at least one member's call has not completed.

    `calls`: the call of each member that issued one. `missing`: members that have issued no call at this position, with
    their last sequence number. `classes`: members by signature, largest first. `unseen`: members of whom no call is recorded.
    `index`: the group's number in the table.
    """

    group: ProcessGroup
    seq: int
    calls: Mapping[int, CollectiveCall]
    missing: Mapping[int, int]
    unseen: tuple[int, ...]
    classes: tuple[tuple[int, ...], ...]
    index: int = 0

    @property
    def waiting(self) -> tuple[int, ...]:
        """Members whose call has not completed."""
        done = CallState.COMPLETED
        return tuple(sorted(r for r, c in self.calls.items() if c.state is not done))

    @property
    def is_mismatch(self) -> bool:
        """Whether members issued different calls at this position."""
        return len(self.classes) > 1

    @property
    def has_majority(self) -> bool:
        """Whether one class is larger than every other, and stays so if those who have not come yet join another one.

        One rank against several is odd in any case, unless there are members of which nothing is known.
        """
        if len(self.classes) == 1:
            return True
        most, second = len(self.classes[0]), len(self.classes[1])
        if second == 1:
            return most > second + len(self.unseen)
        return most > second + len(self.missing)


_MOST_IN_FLIGHT = 256


def members_of(index: CallIndex, group: int) -> tuple[int, ...]:
    """The ranks of a group: by its description, else all that were seen in it."""
    return index.table.groups[group].ranks or tuple(sorted(index.last(group)))


def missing_at(index: CallIndex, position: Position) -> dict[int, int]:
    """Members that have not come to a position, with the last sequence number that each has issued."""
    last, here = index.last(position.group), set(position.ranks.tolist())
    members = members_of(index, position.group)
    return {r: last.get(r, 0) for r in members if r not in here and last.get(r, 0) < position.seq}


def _stuck_at(index: CallIndex, position: Position, missing: Mapping[int, int]) -> StuckCollective:
    return StuckCollective(
        group=index.table.groups[position.group],
        seq=position.seq,
        calls=calls_at(index, position.group, position.seq),
        missing=missing,
        unseen=tuple(r for r in missing if r not in index.ranks),
        classes=position.classes,
        index=position.group,
    )


def _stuck_in(index: CallIndex, group: int) -> StuckCollective | None:
    """The first open position that is a mismatch or lacks a member; else the first open one.

    Several asynchronous calls may be open at once, and a call that everybody made equally may merely not be marked as done.
    """
    first: Position | None = None
    for seq in index.open_positions(group, _MOST_IN_FLIGHT):
        position = index.position(group, seq)
        assert position is not None
        missing = missing_at(index, position)
        if position.is_mismatch or missing:
            return _stuck_at(index, position, missing)
        first = first or position
    return None if first is None else _stuck_at(index, first, {})


def stuck_collectives(case: Case, index: CallIndex | None = None) -> tuple[StuckCollective, ...]:
    """For each group the position that cannot complete, in the order in which the waits began."""
    index = index or CallIndex(case.calls)
    found = [s for g in index.groups_with_open_calls() if (s := _stuck_in(index, g)) is not None]
    return tuple(sorted(found, key=lambda s: min((c.created_ns for c in s.calls.values()), default=0)))


def calls_at(index: CallIndex, group: int, seq: int) -> dict[int, CollectiveCall]:
    """Each member's call at one position."""
    position = index.position(group, seq)
    if position is None:
        return {}
    return dict(zip(position.ranks.tolist(), index.table.calls(position.rows), strict=True))


def majority(values: Mapping[int, object]) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Splits ranks into (those with the commonest value, the others, whether there is a majority)."""
    counts = Counter(values.values()).most_common()
    reference = counts[0][0]
    same = tuple(sorted(r for r, v in values.items() if v == reference))
    other = tuple(sorted(r for r in values if r not in same))
    return same, other, len(counts) == 1 or counts[0][1] > counts[1][1]
