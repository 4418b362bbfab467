"""Collectives matched by group and sequence number; the majority is the reference, never the first rank.

Among them those that completed although the members meant different things: neither NCCL nor gloo compares another operation, another root,
another type of equal size. Nothing hangs there; the result is what none of them means.

Legend of shapes: N rows, S positions (distinct sequence numbers) of one group, M members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from unhang.analyze.calls.positions import ROOTED_OPS, CallIndex, Position, bare_op, may_be_uneven, numels
from unhang.analyze.program.callpath import Fork, fork_of, user_path
from unhang.model import CallState, Case, CollectiveCall, CollectiveTable, ProcessGroup
from unhang.numeric import np

Signature = tuple[str, object, str]


def signature(call: CollectiveCall) -> Signature:
    """What the members of a group must agree on: op, and sizes and dtype where the op demands them equal."""
    op = bare_op(call.op)
    if may_be_uneven(op):
        return op, None, call.dtype
    if op in ROOTED_OPS:
        return op, None, ""
    return op, numels(call.in_sizes), call.dtype


class CallsOfMembers(Mapping[int, CollectiveCall]):
    """Each member's call at one position; the objects are made when one of them is looked at."""

    def __init__(self, table: CollectiveTable, position: Position) -> None:
        self._table, self._position = table, position

    @cached_property
    def _calls(self) -> dict[int, CollectiveCall]:
        calls = self._table.calls(self._position.rows)
        return dict(zip(self._position.ranks.tolist(), calls, strict=True))

    def __getitem__(self, rank: int) -> CollectiveCall:
        return self._calls[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._position.ranks)


@dataclass(frozen=True)
class StuckCollective:
    """A position of one group at which at least one member's call has not completed; or at which the members' calls differ.

    `calls`: the call of each member that issued one. `missing`: members that have issued no call at this position, with
    their last sequence number. `classes`: members by signature, largest first. `unseen`: members of whom no call is recorded.
    `waiting`: members whose call has not completed. `since_ns`: when the first call was issued. `index`: the group's number in
    the table.
    """

    group: ProcessGroup
    seq: int
    calls: Mapping[int, CollectiveCall]
    missing: Mapping[int, int]
    unseen: tuple[int, ...]
    classes: tuple[tuple[int, ...], ...]
    waiting: tuple[int, ...]
    since_ns: int
    index: int = 0

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


def is_nameless(group: ProcessGroup) -> bool:
    """Whether it may be several groups: those made by hand, without `new_group`, share the empty name, and their members are not known."""
    return not group.name and not group.ranks


def members_of(index: CallIndex, group: int) -> tuple[int, ...]:
    """The ranks of a group: by its description, else all that were seen in it, and those that its like leave to it."""
    return index.table.groups[group].ranks or index.members.get(group) or tuple(sorted(index.last(group)))


def missing_at(index: CallIndex, position: Position) -> dict[int, int]:
    """Members that have not come to a position, with the last sequence number that each has issued."""
    last_of, seq = index.last(position.group).get, position.seq
    return {r: last for r in members_of(index, position.group) if (last := last_of(r, 0)) < seq}


def _stuck_at(index: CallIndex, position: Position, missing: Mapping[int, int]) -> StuckCollective:
    table = index.table
    is_open = table["state"][position.rows] != CallState.COMPLETED
    return StuckCollective(
        group=table.groups[position.group],
        seq=position.seq,
        calls=CallsOfMembers(table, position),
        missing=missing,
        unseen=tuple(r for r in missing if r not in index.ranks),
        classes=position.classes,
        waiting=tuple(position.ranks[is_open].tolist()),
        since_ns=int(table["created_ns"][position.rows].min()),
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
    if case.calls.is_empty:
        return ()
    index = index or CallIndex(case.calls)
    found = [s for g in index.groups_with_open_calls() if (s := _stuck_in(index, g)) is not None]
    return tuple(sorted(found, key=lambda s: s.since_ns))


def stuck_behind(index: CallIndex, stuck: Sequence[StuckCollective]) -> Iterator[StuckCollective]:
    """Further positions of the same groups in which members wait for others: in a call with a root the others may go on before it is over."""
    for first in stuck:
        waiting = set(first.waiting)
        for seq in index.open_positions(first.index, _MOST_IN_FLIGHT) if first.missing else ():
            position = index.position(first.index, seq)
            if seq > first.seq and position is not None and (missing := missing_at(index, position)):
                further = _stuck_at(index, position, missing)
                new = tuple(r for r in further.waiting if r not in waiting)
                waiting |= set(new)
                if new:
                    yield replace(further, waiting=new)


_MOST_PASSED = 8
# As a list of tensors, which torch sends one by one where their sizes differ.
_OF_ANY_SIZE = ("all_gather", "allgather")
_BATCHED = "coalesced"


def passed_mismatches(index: CallIndex) -> tuple[StuckCollective, ...]:
    """The first positions of each group at which its members made different calls that nevertheless completed, oldest first.

    Not those of batches: what a member puts into one is its own matter where it sends and receives.
    """
    found = []
    for group in range(len(index.table.groups)) if not index.table.is_empty else ():
        for seq in index.closed_mismatches(group, _MOST_PASSED):
            position = index.position(group, seq)
            assert position is not None
            passed = _stuck_at(index, position, missing_at(index, position))
            ops = {bare_op(call.op) for call in passed.calls.values()}
            if not passed.missing and _BATCHED not in ops and not (len(ops) == 1 and ops <= set(_OF_ANY_SIZE)):
                found.append(passed)
    return tuple(sorted(found, key=lambda s: s.since_ns))


def calls_at(index: CallIndex, group: int, seq: int) -> Mapping[int, CollectiveCall]:
    """Each member's call at one position."""
    position = index.position(group, seq)
    return {} if position is None else CallsOfMembers(index.table, position)


def majority(values: Mapping[int, object]) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Splits ranks into (those with the commonest value, the others, whether there is a majority)."""
    counts = Counter(values.values()).most_common()
    reference = counts[0][0]
    same = tuple(sorted(r for r, v in values.items() if v == reference))
    other = tuple(sorted(r for r in values if r not in same))
    return same, other, len(counts) == 1 or counts[0][1] > counts[1][1]


_MOST_LOOKED_AT = 64
# Bytes of an element, by the names of the flight recorder.
_BYTES = {
    **{"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2},
    **{"Byte": 1, "Char": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1},
}


@dataclass(frozen=True)
class Unlike:
    """The first position of a kind (`reduce_op`, `root`, `dtype`), with what each member meant as far as that is known.

    `odd`: those who differ from the commonest value. `is_decided`: whether they are a minority whoever is unknown.
    """

    kind: str
    values: Mapping[int, str]
    calls: Mapping[int, CollectiveCall]
    reference: tuple[int, ...]
    odd: tuple[int, ...]
    is_decided: bool

    @property
    def call(self) -> CollectiveCall:
        """The call of the first of those who differ."""
        return self.calls[self.odd[0]]

    @property
    def fork(self) -> Fork | None:
        """Where the program of those who differ parts from that of the others, if they came there on two ways."""
        return fork_of(*(user_path(self.calls[ranks[0]].frames) for ranks in (self.reference, self.odd)))


def unlike_values(index: CallIndex) -> Iterator[Unlike]:
    """The first of each kind that all members have completed."""
    table = index.table
    if table.is_empty or not len(table):
        return
    for kind in ("reduce_op", "root", "dtype"):
        values = table[kind].astype(np.int64)
        places = index.unlike(values, _MOST_LOOKED_AT)
        found = (_unlike_at(index, kind, group, seq) for group, seq in places if not is_nameless(table.groups[group]))
        first = min(filter(None, found), key=lambda u: u.call.created_ns, default=None)
        if first is not None:
            yield first


def _unlike_at(index: CallIndex, kind: str, group: int, seq: int) -> Unlike | None:
    calls = dict(calls_at(index, group, seq))
    members = members_of(index, group)
    if len({bare_op(c.op) for c in calls.values()}) > 1 or set(calls) != set(members):
        return None
    if any(c.state is not CallState.COMPLETED for c in calls.values()):
        return None
    if kind == "dtype":
        is_told_elsewhere = index.table.groups[group].backend != "gloo"  # that its calls differ
        if is_told_elsewhere or not _are_of_equal_length(calls):
            return None
    values = {r: text for r, call in calls.items() if (text := _text(call, kind))}
    reference, odd, has_majority = majority(values)
    unknown = len(members) - len(values)
    return Unlike(kind, values, calls, reference, odd, has_majority and len(reference) - len(odd) > unknown)


def _text(call: CollectiveCall, kind: str) -> str:
    if kind == "root":
        return "" if call.root is None else f"rank {call.root}"
    return call.reduce_op if kind == "reduce_op" else call.dtype


def _are_of_equal_length(calls: Mapping[int, CollectiveCall]) -> bool:
    """Whether the members' tensors take as many bytes, of types that are known."""
    sizes = {(c.in_sizes, _BYTES.get(c.dtype)) for c in calls.values()}
    return len(sizes) == 1 and None not in next(iter(sizes))
