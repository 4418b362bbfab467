"""Collectives matched by group and sequence number; the majority is the reference, never the first rank.

Legend of shapes: N rows, S positions (distinct sequence numbers) of one group, M members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from unhang.model import CallState, Case, CollectiveCall, CollectiveTable, ProcessGroup

# Ops in which the ranks may rightly give different sizes.
_UNEVEN_OPS = ("all_to_all", "alltoall", "gatherv", "gather_v", "scatter_v", "scatterv")
_ROOTED_OPS = ("gather", "scatter")

Signature = tuple[str, object, str]


def bare_op(op: str) -> str:
    """`nccl:all_reduce` -> `all_reduce`."""
    return op.rsplit(":", 1)[-1]


def signature(call: CollectiveCall) -> Signature:
    """What the members of a group must agree on: op, and sizes and dtype where the op demands them equal."""
    op = bare_op(call.op)
    if any(name in op for name in _UNEVEN_OPS):
        return op, None, call.dtype
    if op in _ROOTED_OPS:
        return op, None, ""
    return op, call.in_sizes, call.dtype


@dataclass(frozen=True)
class StuckCollective:
    """A position of one group at which at least one member's call has not completed.

    `calls`: the call of each member that issued one. `missing`: members that have issued no call at this position, with
    their last sequence number. `classes`: members by signature, largest first. `unseen`: members without any record.
    """

    group: ProcessGroup
    seq: int
    calls: Mapping[int, CollectiveCall]
    missing: Mapping[int, int]
    unseen: tuple[int, ...]
    classes: tuple[tuple[int, ...], ...]

    @property
    def waiting(self) -> tuple[int, ...]:
        """Members whose call has not completed."""
        return tuple(sorted(r for r, c in self.calls.items() if c.state != CallState.COMPLETED))

    @property
    def is_mismatch(self) -> bool:
        """Whether members issued different calls at this position."""
        return len(self.classes) > 1

    @property
    def has_majority(self) -> bool:
        """Whether one class is larger than every other."""
        return len(self.classes) == 1 or len(self.classes[0]) > len(self.classes[1])


def last_sequence(table: CollectiveTable, group_index: int) -> dict[int, int]:
    """The last collective sequence number that each rank issued in a group."""
    mask = (table["group"] == group_index) & ~table["is_p2p"]
    ranks, seqs = table["rank"][mask], table["seq"][mask]
    return {int(r): int(seqs[ranks == r].max()) for r in np.unique(ranks)}


def classes_of(calls: Mapping[int, CollectiveCall]) -> tuple[tuple[int, ...], ...]:
    """Members by equal signature, largest class first; ties are broken by the lowest rank."""
    by_signature: dict[Signature, list[int]] = {}
    for rank in sorted(calls):
        by_signature.setdefault(signature(calls[rank]), []).append(rank)
    return tuple(tuple(c) for c in sorted(by_signature.values(), key=lambda c: (-len(c), c[0])))


def calls_at(table: CollectiveTable, group_index: int, seq: int) -> dict[int, CollectiveCall]:
    """Each member's call at one position."""
    mask = (table["group"] == group_index) & (table["seq"] == seq) & ~table["is_p2p"]
    return {int(table["rank"][row]): table.call(int(row)) for row in np.flatnonzero(mask)}


_MOST_IN_FLIGHT = 256


def _incomplete(table: CollectiveTable, group_index: int) -> list[int]:
    mask = (table["group"] == group_index) & ~table["is_p2p"] & (table["state"] != CallState.COMPLETED)
    return [int(seq) for seq in np.unique(table["seq"][mask])[:_MOST_IN_FLIGHT]]


def _stuck_in(case: Case, index: int) -> StuckCollective | None:
    """The first open position that is a mismatch or lacks a member; else the first open one.

    Several asynchronous calls may be open at once, and a call that everybody made equally may merely not be marked as done.
    """
    first: StuckCollective | None = None
    group, last = case.calls.groups[index], last_sequence(case.calls, index)
    for seq in _incomplete(case.calls, index):
        calls = calls_at(case.calls, index, seq)
        members = group.ranks or tuple(sorted(last))
        missing = {r: last.get(r, 0) for r in members if r not in calls and last.get(r, 0) < seq}
        unseen = tuple(r for r in missing if r not in last)
        found = StuckCollective(group, seq, calls, missing, unseen, classes_of(calls))
        if found.is_mismatch or missing:
            return found
        first = first or found
    return first


def stuck_collectives(case: Case) -> tuple[StuckCollective, ...]:
    """For each group the position that cannot complete, in the order in which the waits began."""
    found = [s for i in range(len(case.calls.groups)) if (s := _stuck_in(case, i)) is not None]
    return tuple(sorted(found, key=lambda s: min((c.created_ns for c in s.calls.values()), default=0)))


def majority(values: Mapping[int, object]) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Splits ranks into (those with the commonest value, the others, whether there is a majority)."""
    counts = Counter(values.values()).most_common()
    reference = counts[0][0]
    same = tuple(sorted(r for r, v in values.items() if v == reference))
    other = tuple(sorted(r for r in values if r not in same))
    return same, other, len(counts) == 1 or counts[0][1] > counts[1][1]
