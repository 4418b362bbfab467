"""Waits that the recorded calls alone show, for ranks of which there is no stack; and counters that stand still.

A call that every member must feed completes for all of them or for none. So where it is done at one member and open at another,
the other one has issued it, and its device has stopped; or its watchdog has, which notes what is done. A watchdog that stopped
alone shows in that nothing is open: its rank's count is old, and tells nothing of its device.

Legend of shapes: K pairs of group and rank, N rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from unhang.analyze.calls.align import StuckCollective, missing_at
from unhang.analyze.calls.fronts import fronts, is_open, matched_transfers, sends_without_a_receive, stalled
from unhang.analyze.calls.positions import CallIndex, Ints, bare_op, numels, own_words, ranks_with_dump
from unhang.model import CallState, Case, CollectiveTable, WaitEdge, different
from unhang.numeric import np, npt

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
    if table.is_empty:
        return Frozen()
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


_OF_AN_EDGE = ("group", "seq", "created_ns", "op", "is_p2p")


class RecordedWaits:
    """For each rank the calls in which it waits, and for whom. Everything is computed once."""

    def __init__(self, case: Case, index: CallIndex) -> None:
        self._case, self._index, self._table = case, index, index.table
        self.frozen = frozen(self._table)
        self.fronts: Mapping[int, Sequence[int]] = fronts(self._table, self.frozen.old_counts)
        self.transfers = matched_transfers(self._table)
        self._front_rows = frozenset(row for rows in self.fronts.values() for row in rows)
        self.stalled = stalled(self._table, self.fronts) | self.frozen.devices.keys()
        self._with_dump = ranks_with_dump(case)
        self._wait_of, self._not_arrived = cache(self._collective_wait), cache(self._find_not_arrived)

    def is_idle(self, rank: int) -> bool:
        """Whether the rank left a dump that holds no open call: no recorded call keeps it."""
        return rank not in self.fronts and rank in self._with_dump

    def is_unseen(self, rank: int) -> bool:
        """Whether nothing tells what the rank does: no dump, and its process left no word or gave neither dump nor stack."""
        evidence = self._case.ranks.get(rank)
        if rank in self._with_dump or evidence is None:
            return rank not in self._with_dump
        is_silent = not (evidence.stacks or evidence.pending or evidence.error or evidence.exit)
        return is_silent and evidence.state is not None

    def edges(self, ranks: Collection[int], stuck: Sequence[StuckCollective]) -> Iterable[WaitEdge]:
        """The waits of these ranks."""
        found = [edge for rank in ranks for edge in self._edges_of(rank)]
        known = {target for targets in {e.targets for e in found} for target in targets}
        return (*found, *self._on_idle_ranks(frozenset(ranks), stuck, known))

    def _edges_of(self, rank: int) -> Iterable[WaitEdge]:
        """The waits in the calls at which the rank is.

        A batch is open until all of its transfers are done. Those that are done have no other side among the calls that a
        partial dump shows; they keep nobody if another transfer of the batch does.
        """
        rows = self.fronts.get(rank, ()) if rank not in self.stalled else ()
        edges = {row: tuple(self._edges_of_row(rank, row)) for row in rows}
        doubtful = [row for row in rows if edges[row] and self._may_be_done(row)]
        if doubtful and any((edges[row] or self._has_not_begun(row)) for row in rows if row not in doubtful):
            edges = {row: of for row, of in edges.items() if row not in doubtful}
        return (edge for of in edges.values() for edge in of)

    def _may_be_done(self, row: int) -> bool:
        """Whether the other side of a transfer may have completed, and be no longer in the peer's dump."""
        return bool(self._table["is_p2p"][row]) and row not in self.transfers

    def _has_not_begun(self, row: int) -> bool:
        """Whether the rank's side of a transfer has started, and the other one is issued and has not."""
        other = self.transfers.get(row)
        states = self._table["state"]
        return other is not None and states[row] == CallState.STARTED and states[other] == CallState.SCHEDULED

    def in_flight(self, rank: int) -> tuple[int, ...]:
        """Rows of the calls in which the rank waits although every member has come to them."""
        if rank in self.stalled:
            return ()
        return tuple(r for r in self.fronts.get(rank, ()) if not any(self._edges_of_row(rank, r)))

    def _edges_of_row(self, rank: int, row: int) -> Iterable[WaitEdge]:
        table = self._table
        group, seq, since, of, is_p2p = (table[name].item(row) for name in _OF_AN_EDGE)
        op, name = bare_op(table.ops[of]), table.groups[group].name
        if is_p2p:
            targets, mismatch = self._transfer_wait(row)
            if targets:
                arrow = "to" if op == "send" else "from"
                yield WaitEdge(rank, targets, "p2p", f"{op} {arrow} rank {targets[0]}", name, seq, since, mismatch)
            return
        by_rank, missing, mismatched = self._wait_of(group, seq)
        targets = missing or by_rank.get(rank) or self._not_arrived(group, seq)
        targets = tuple(t for t in targets if t != rank) if rank in targets else targets
        if targets:
            what = f"{op} #{seq} of {table.groups[group]}"
            yield WaitEdge(rank, targets, "collective", what, name, seq, since, mismatched and not missing)

    def _collective_wait(self, group: int, seq: int) -> tuple[Mapping[int, tuple[int, ...]], tuple[int, ...], bool]:
        """(those who made another call, for each member; those who made none; whether the calls differ)."""
        position = self._index.position(group, seq)
        assert position is not None
        missing = tuple(sorted(missing_at(self._index, position)))
        classes = position.classes if position.is_mismatch else ()
        others = {c: tuple(sorted(r for o in classes if o is not c for r in o)) for c in classes}
        return {rank: others[c] for c in classes for rank in c}, missing, bool(classes)

    def _find_not_arrived(self, group: int, seq: int) -> tuple[int, ...]:
        """Members whose call is issued and waits behind an earlier one of theirs, or for their device. gloo has no such order."""
        if self._table.groups[group].backend == "gloo":
            return ()
        position = self._index.position(group, seq)
        assert position is not None
        members = zip(position.ranks.tolist(), position.rows.tolist(), strict=True)
        return tuple(sorted(rank for rank, row in members if self._is_behind(rank, row)))

    def _is_behind(self, rank: int, row: int) -> bool:
        """Whether a call is issued and its rank's device has not come to it."""
        if rank in self.frozen.devices:
            return bool(self._table["state"][row] != CallState.COMPLETED)
        is_next = row in self._front_rows and rank not in self.stalled
        return bool(self._table["state"][row] == CallState.SCHEDULED) and not is_next

    def _transfer_wait(self, row: int) -> tuple[tuple[int, ...], bool]:
        """(the peer, unless its side is under way as well; whether its side is another transfer)."""
        table = self._table
        other = self.transfers.get(row)
        if table["peer"][row] < 0:
            return (), False  # the members of the group are not known
        peer = (int(table["peer"][row]),)
        if other is None:
            return peer, False
        if any(table[name][row] != table[name][other] for name in ("in_sizes", "dtype")) and self._differs(row, other):
            return peer, True
        return (peer if self._is_behind(peer[0], other) else ()), False

    def _differs(self, row: int, other: int) -> bool:
        mine, theirs = self._table.call(row), self._table.call(other)
        return transferred(mine.in_sizes, mine.out_sizes, mine.dtype) != transferred(
            theirs.in_sizes, theirs.out_sizes, theirs.dtype
        )

    def _on_idle_ranks(
        self, ranks: Collection[int], stuck: Sequence[StuckCollective], known: Collection[int]
    ) -> Iterable[WaitEdge]:
        """Calls behind the one in which a rank waits also wait for ranks that do nothing at all, if no other call does."""
        unanswered = (row for row, other in self.transfers.items() if other is None)
        for row in (*unanswered, *(r for r in sends_without_a_receive(self._table) if r not in self.transfers)):
            if row not in self._front_rows:
                rank, peer = int(self._table["rank"][row]), int(self._table["peer"][row])
                is_known = rank not in self.stalled and rank not in self.frozen.old_counts
                if rank in ranks and is_known and peer not in known and self.is_idle(peer):
                    yield from self._edges_of_row(rank, row)
        for s in stuck:
            idle = tuple(sorted(r for r in s.missing if r not in known and self.is_idle(r)))
            if not idle:
                continue
            for rank in s.waiting:
                call = s.calls[rank]
                if rank in ranks and rank not in self.stalled and call.row not in self._front_rows:
                    what = f"{bare_op(call.op)} #{s.seq} of {s.group}"
                    yield WaitEdge(rank, idle, "collective", what, s.group.name, s.seq, call.created_ns)


def transferred(
    in_sizes: tuple[tuple[int, ...], ...], out_sizes: tuple[tuple[int, ...], ...], dtype: str
) -> tuple[int, str]:
    """Elements and dtype of a send or receive."""
    return sum(numels(in_sizes or out_sizes)), dtype
