"""Counters that stand still: who has not completed what its peers have, and whose own count is older than its dump.

A call that every member must feed completes for all of them or for none. So where it is done at one member and open at another,
the other one has issued it, and its device has stopped; or its watchdog has, which notes what is done. A watchdog that stopped
alone shows in that nothing is open: its rank's count is old, and tells nothing of its device.

Legend of shapes: K pairs of group and rank, N rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from unhang.analyze.fronts import is_open
from unhang.analyze.positions import Ints, bare_op, own_words
from unhang.model import CallState, CollectiveTable, different

# Calls that one member may complete before others come: what a root sends, or what only a root waits for.
ONE_SIDED = ("broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter", "send", "recv")


@dataclass(frozen=True)
class Frozen:
    """`devices`: rank -> row of the first call that is open there and done at a peer. `old_counts`: ranks whose word is old."""

    devices: Mapping[int, int] = field(default_factory=dict)
    old_counts: frozenset[int] = frozenset()


def feeds_all(op: str) -> bool:
    """Whether a call completes at one member only after all members have come to it."""
    return bare_op(op) not in ONE_SIDED and "coalesced" not in op


def frozen(table: CollectiveTable) -> Frozen:
    """Whose counters stand still. Never of gloo, which notes what is done where the caller waits."""
    width = int(max(table["rank"].max(initial=0), table.progress["rank"].max(initial=0))) + 1
    key, done = _completed(table, width)
    if not len(key):
        return Frozen()
    most = _Most(key, done, width)
    is_candidate = np.array([feeds_all(op) for op in table.ops] or [False])[table["op"]] & ~table["is_p2p"]
    rows = np.flatnonzero(is_candidate & _is_tracked(table)[table["group"]] & is_open(table))
    behind = rows[table["seq"][rows] <= most.of_others(table["group"][rows], table["rank"][rows])]
    return Frozen(_accused(table, behind), _old_counts(table, most))


def _is_tracked(table: CollectiveTable) -> npt.NDArray[np.bool_]:
    return np.array([g.backend != "gloo" for g in table.groups] or [False])


def _completed(table: CollectiveTable, width: int) -> tuple[Ints, Ints]:
    """`[K]`: groups and ranks as one number, and the last call that each has completed, by its entries or its own word."""
    rows = np.flatnonzero(
        ~table["is_p2p"] & (table["state"] == CallState.COMPLETED) & _is_tracked(table)[table["group"]]
    )
    said, _, completed = own_words(table)
    groups = max(1, len(table.groups))
    keys = np.concatenate(
        (table["group"][rows].astype(np.int64) * width + table["rank"][rows], said % groups * width + said // groups)
    )
    seqs = np.concatenate((table["seq"][rows], completed))
    order = np.lexsort((seqs, keys))
    keys, seqs = keys[order], seqs[order]
    is_last = np.append(keys[1:] != keys[:-1], True)[: len(keys)]
    return keys[is_last], seqs[is_last]


class _Most:
    """Of each group the most that any member has completed, and the most that any other one has."""

    def __init__(self, key_K: Ints, done_K: Ints, width: int) -> None:
        order = np.lexsort((done_K, key_K // width))
        group, rank, done = key_K[order] // width, key_K[order] % width, done_K[order]
        last = np.flatnonzero(np.append(group[1:] != group[:-1], True))
        has_second = (last > 0) & (group[last - 1] == group[last])
        self._groups, self._ranks, self._first = group[last], rank[last], done[last]
        self._second = np.where(has_second, done[last - 1], 0)

    def of_others(self, group_N: Ints, rank_N: Ints) -> Ints:
        """`[N]`: the last call of a group that any member but this rank has completed; 0 where none is known."""
        at = np.minimum(np.searchsorted(self._groups, group_N), len(self._groups) - 1)
        found = np.where(self._ranks[at] == rank_N, self._second[at], self._first[at])
        return np.where(self._groups[at] == group_N, found, 0)


def _accused(table: CollectiveTable, behind: Ints) -> dict[int, int]:
    """Those of the ranks behind who are so in more groups than all others that are behind with them, or are the lesser part."""
    groups_of: dict[int, set[int]] = {}
    ranks_of: dict[int, set[int]] = {}
    first: dict[int, int] = {}
    for row in behind.tolist():
        rank, group = int(table["rank"][row]), int(table["group"][row])
        groups_of.setdefault(rank, set()).add(group)
        ranks_of.setdefault(group, set()).add(rank)
        first.setdefault(rank, row)
    found = {}
    for rank, groups in groups_of.items():
        for group in groups:
            others = ranks_of[group] - {rank}
            size = len(table.groups[group].ranks)
            if all(len(groups_of[r]) < len(groups) for r in others) or len(others) + 1 <= (size - 1) // 2:
                found[rank] = first[rank]
    return found


def _old_counts(table: CollectiveTable, most: _Most) -> frozenset[int]:
    """Ranks that say less than their entries show, or less than their peers have completed though nothing of it is open."""
    key, enqueued, completed = own_words(table)
    groups = max(1, len(table.groups))
    counts_transfers = np.isin(key % groups, different(table["group"][table["is_p2p"]]))  # each member with all others
    key, enqueued, completed = (of[~counts_transfers] for of in (key, enqueued, completed))
    if not len(key):
        return frozenset()
    rank, group = key // groups, key % groups
    until = np.minimum(enqueued, most.of_others(group, rank))
    at = np.flatnonzero(completed < until)
    if not len(at):
        return frozenset()
    rows = np.flatnonzero(~table["is_p2p"])
    of_row = table["rank"][rows].astype(np.int64) * groups + table["group"][rows]
    found = set()
    for i in at.tolist():
        mine = rows[of_row == key[i]]
        seqs, states = table["seq"][mine], table["state"][mine]
        lacks = (seqs > completed[i]) & (seqs <= until[i])
        if bool((states[lacks] == CallState.COMPLETED).any()) or (
            int(rank[i]) in table.active_ranks and not lacks.any()
        ):
            found.add(int(rank[i]))
    return frozenset(found)
