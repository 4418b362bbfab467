"""All collectives of a table by group and sequence number, so that one position is found without a search.

Legend of shapes: N rows, C calls (one rank at one position; a coalesced batch is one call), S positions, G groups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

from unhang.model import CallState, Case, CollectiveTable, RankEvidence, grouped
from unhang.numeric import np, npt

# Ops in which the ranks may rightly give different sizes.
UNEVEN_OPS = (
    "all_to_all", "alltoall", "gatherv", "gather_v", "scatter_v", "scatterv", "allgather_uneven", "_oop",
)  # fmt: skip
ROOTED_OPS = ("gather", "scatter")

Ints: TypeAlias = "npt.NDArray[np.int64]"


def bare_op(op: str) -> str:
    """`nccl:all_reduce` -> `all_reduce`."""
    return op.rsplit(":", 1)[-1]


def may_be_uneven(op: str) -> bool:
    """Whether the members may rightly give tensors of different sizes."""
    return any(name in op for name in UNEVEN_OPS)


def numels(sizes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Elements of each tensor: what travels. NCCL and gloo know nothing of shapes."""
    return tuple(prod(s) for s in sizes)


def signatures(table: CollectiveTable) -> Ints:
    """`[N]`: equal numbers where members of a group agree on op, and on elements and dtype where the op demands it."""
    ops, keys = [bare_op(op) for op in table.ops], {}  # type: ignore[var-annotated]
    op_ids = np.array([keys.setdefault(op, len(keys)) for op in ops] or [0])
    numel_keys: dict[tuple[int, ...], int] = {}
    numel_ids = np.array([numel_keys.setdefault(numels(s), len(numel_keys)) for s in table.sizes] or [0])
    free_size = np.array([may_be_uneven(op) or op in ROOTED_OPS for op in ops] or [False])
    free_dtype = np.array([op in ROOTED_OPS for op in ops] or [False])
    op_N = table["op"]
    size_N = np.where(free_size[op_N], 0, numel_ids[table["in_sizes"]] + 1)
    dtype_N = np.where(free_dtype[op_N], 0, table["dtype"].astype(np.int64) + 1)
    return (op_ids[op_N] * (len(numel_keys) + 1) + size_N) * (len(table.dtypes) + 1) + dtype_N  # type: ignore[no-any-return]


def of_both_kinds(table: CollectiveTable) -> npt.NDArray[np.bool_]:
    """`[G]`: groups in which there are collectives, and sends and receives too."""
    counts = [
        np.bincount(table["group"][is_kind], minlength=max(1, len(table.groups)))
        for is_kind in (table["is_p2p"], ~table["is_p2p"])
    ]
    found: npt.NDArray[np.bool_] = (counts[0] > 0) & (counts[1] > 0)
    return found


def own_words(table: CollectiveTable) -> tuple[Ints, Ints, Ints]:
    """What ranks say of their groups: (rank and group as one number, the last call enqueued, the last completed), sorted.

    Without groups that have both collectives and transfers (one counter is of both kinds), and without gloo.
    """
    progress = {name: table.progress[name].astype(np.int64) for name in ("rank", "group", "enqueued", "completed")}
    is_apart = np.array([g.backend != "gloo" for g in table.groups] or [False]) & ~of_both_kinds(table)
    rows = np.flatnonzero((progress["enqueued"] >= 0) & is_apart[progress["group"]])
    key = progress["rank"][rows] * len(is_apart) + progress["group"][rows]
    rows, key = rows[np.argsort(key)], np.sort(key)
    return key, progress["enqueued"][rows], np.maximum(progress["completed"][rows], 0)


def reported_completed(table: CollectiveTable, rows: Ints) -> Ints:
    """The last call of its group that the rank of each row says it completed, 0 where none, -1 where that is not told."""
    key, _, completed = own_words(table)
    if not len(key) or not len(rows):
        return np.full(len(rows), -1, dtype=np.int64)
    wanted = table["rank"][rows].astype(np.int64) * max(1, len(table.groups)) + table["group"][rows]
    at = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    return np.where((key[at] == wanted) & ~table["is_p2p"][rows], completed[at], -1)


def run_starts(values: npt.NDArray[Any]) -> Ints:
    """Where each run of equal values begins."""
    return np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])


def is_complete(table: CollectiveTable) -> npt.NDArray[np.bool_]:
    """`[N]`: calls that have completed, by their state or by their rank's own word."""
    found: npt.NDArray[np.bool_] = table["state"] == CallState.COMPLETED
    rows = np.flatnonzero(~found)
    found[rows] = reported_completed(table, rows) >= np.maximum(table["seq"][rows], 1)
    return found


@dataclass(frozen=True, slots=True)
class Position:
    """One sequence number of one group as its members saw it, arrays by rank `[M]`.

    `rows`: a row of each member's call that stands for it. `signatures`: equal where the calls agree.
    """

    group: int
    seq: int
    ranks: Ints
    rows: Ints
    signatures: Ints
    states: npt.NDArray[np.int8]

    @property
    def is_mismatch(self) -> bool:
        """Whether the members issued different calls."""
        return bool((self.signatures != self.signatures[0]).any())

    @property
    def classes(self) -> tuple[tuple[int, ...], ...]:
        """Members by equal call, the largest class first; ties are broken by the lowest rank."""
        found = [tuple(self.ranks[self.signatures == s].tolist()) for s in sorted(set(self.signatures.tolist()))]
        return tuple(sorted(found, key=lambda c: (-len(c), c[0])))


def _each(reduce: np.ufunc, values: npt.NDArray[Any], starts: Ints) -> npt.NDArray[Any]:
    """The values from each start to the next one as one; nothing of nothing."""
    return reduce.reduceat(values, starts) if len(values) else values


class CallIndex:
    """The collectives of a table, sorted by group, sequence number and rank. `everybody`: all ranks, if they left dumps."""

    def __init__(self, table: CollectiveTable, everybody: Collection[int] = ()) -> None:
        self.table, self._everybody = table, everybody
        if table.is_empty:
            return  # nobody asks for the rows of a group that there is not
        rows = np.flatnonzero(~table["is_p2p"])
        keys = (table["record_id"], table["rank"], table["seq"], table["group"])
        self._rows_N: Ints = rows[np.lexsort([key[rows] for key in keys])]
        group, seq, rank = (table[name][self._rows_N] for name in ("group", "seq", "rank"))
        is_position = np.ones(len(rows), dtype=bool)
        is_position[1:] = (group[1:] != group[:-1]) | (seq[1:] != seq[:-1])
        is_call = is_position.copy()
        is_call[1:] |= rank[1:] != rank[:-1]
        self._call_at_C: Ints = np.flatnonzero(is_call)
        call_of_N = np.cumsum(is_call) - 1
        self._first_call_S: Ints = call_of_N[is_position]
        # Where calls, and positions, begin and the last one ends.
        self._row_bounds: Ints = np.append(self._call_at_C, len(rows))
        self._call_bounds: Ints = np.append(self._first_call_S, len(self._call_at_C))
        self._size_C: Ints = np.diff(self._row_bounds)
        self._rank_C = rank[self._call_at_C]
        self._group_S = group[is_position]
        self._seq_S: Ints = seq[is_position]
        self._in_call_N = np.arange(len(rows)) - self._call_at_C[call_of_N]

    @cached_property
    def ranks(self) -> frozenset[int]:
        """The ranks of whom any call is recorded."""
        return frozenset(self.table.ranks)

    @cached_property
    def members(self) -> Mapping[int, tuple[int, ...]]:
        """Group -> its members, where that is not recorded and follows from the other groups."""
        return members_by_exclusion(self.table, self._everybody)

    @cached_property
    def _signature_N(self) -> Ints:
        return signatures(self.table)

    @cached_property
    def _signature_C(self) -> Ints:
        """Calls of a batch differ if any of its members does, or their order."""
        mixed = (self._signature_N[self._rows_N] + 1) * (self._in_call_N * 0x9E3779B1 + 1)
        return _each(np.add, mixed, self._call_at_C)

    @cached_property
    def _state_C(self) -> npt.NDArray[np.int8]:
        """The least state of a batch."""
        return _each(np.minimum, self.table["state"][self._rows_N], self._call_at_C)

    @cached_property
    def _is_open_S(self) -> npt.NDArray[np.bool_]:
        """Positions at which a call has not completed."""
        open_C = _each(np.logical_or, ~is_complete(self.table)[self._rows_N], self._call_at_C)
        return _each(np.logical_or, open_C, self._first_call_S)

    @cached_property
    def _is_closed_mismatch_S(self) -> npt.NDArray[np.bool_]:
        """Positions at which the members made different calls, each a single one, and all have completed."""
        low, high = (_each(of, self._signature_C, self._first_call_S) for of in (np.minimum, np.maximum))
        is_single = _each(np.maximum, self._size_C, self._first_call_S) == 1
        return (low != high) & is_single & ~self._is_open_S  # type: ignore[no-any-return]

    @cached_property
    def _groups(self) -> dict[int, tuple[int, int]]:
        """Group -> its range of positions."""
        if self.table.is_empty:
            return {}
        starts = run_starts(self._group_S).tolist()
        return {int(self._group_S[a]): (a, b) for a, b in pairwise([*starts, len(self._group_S)])}

    @cached_property
    def _last(self) -> dict[int, dict[int, int]]:
        """Group -> rank -> the last sequence number that it issued, by its calls and by its own word."""
        if self.table.is_empty:
            return {}
        table, progress = self.table, self.table.progress
        # Where a group has point-to-point calls as well, and on gloo, the rank's own count is of both kinds.
        is_apart = np.array([g.backend != "gloo" for g in table.groups] or [False])
        is_apart[table["group"][table["is_p2p"]]] = False
        is_known = (progress["enqueued"] >= 0) & is_apart[progress["group"]]
        group, rank, seq = (
            np.concatenate((table[mine][self._rows_N], progress[theirs][is_known]))
            for mine, theirs in (("group", "group"), ("rank", "rank"), ("seq", "enqueued"))
        )
        order = np.lexsort((seq, rank, group))
        group, rank, seq = group[order], rank[order], seq[order]
        is_last = np.ones(len(order), dtype=bool)
        is_last[:-1] = (group[1:] != group[:-1]) | (rank[1:] != rank[:-1])
        group, rank, seq = group[is_last], rank[is_last], seq[is_last]
        ranks, seqs, starts = rank.tolist(), seq.tolist(), run_starts(group).tolist()
        parts = pairwise([*starts, len(group)])
        return {int(group[a]): dict(zip(ranks[a:b], seqs[a:b], strict=True)) for a, b in parts}

    def last(self, group: int) -> Mapping[int, int]:
        """The last sequence number that each rank issued in a group."""
        return self._last.get(group, {})

    def groups_with_open_calls(self) -> list[int]:
        """Groups in which a call has not completed."""
        if self.table.is_empty:
            return []
        return sorted(set(self._group_S[self._is_open_S].tolist()))

    def open_positions(self, group: int, most: int) -> list[int]:
        """The first sequence numbers of a group at which a call has not completed."""
        return self._first_at(self._is_open_S, group, most)

    def closed_mismatches(self, group: int, most: int) -> list[int]:
        """The first sequence numbers of a group at which the members made different calls, each a single one, and all have completed."""
        return self._first_at(self._is_closed_mismatch_S, group, most)

    def _first_at(self, is_wanted_S: npt.NDArray[np.bool_], group: int, most: int) -> list[int]:
        first, end = self._groups.get(group, (0, 0))
        return [int(s) for s in self._seq_S[first:end][is_wanted_S[first:end]][:most]] if first < end else []

    def unlike(self, values_N: Ints, most: int) -> list[tuple[int, int]]:
        """The first (group, sequence number) at which those members whose value is known, 0 or more, differ in it, each with a single call."""
        values = values_N[self._rows_N[self._call_at_C]]
        known = np.where(values < 0, np.iinfo(np.int64).max, values)
        low, high = _each(np.minimum, known, self._first_call_S), _each(np.maximum, values, self._first_call_S)
        is_single = _each(np.maximum, self._size_C, self._first_call_S) == 1
        at = np.flatnonzero((low < high) & is_single)[:most]
        return list(zip(self._group_S[at].tolist(), self._seq_S[at].tolist(), strict=True))

    def rows_of(self, group: int) -> Ints:
        """All rows of a group, by sequence number and rank."""
        first, end = self._groups.get(group, (0, 0))
        if first == end:
            return np.zeros(0, dtype=np.int64)
        a, b = self._row_bounds[self._call_bounds[[first, end]]]
        return self._rows_N[a:b]

    def arrivals(self, created_N: Ints) -> tuple[Ints, Ints]:
        """`[N]`: when the last member came to the position of each row, and how many came; 0 for sends and receives."""
        last_N, came_N = np.zeros(len(self.table), dtype=np.int64), np.zeros(len(self.table), dtype=np.int64)
        created_C, calls_S = created_N[self._rows_N[self._call_at_C]], np.diff(self._call_bounds)
        for of_row, of_position in ((last_N, _each(np.maximum, created_C, self._first_call_S)), (came_N, calls_S)):
            of_row[self._rows_N] = np.repeat(np.repeat(of_position, calls_S), self._size_C)
        return last_N, came_N

    def position(self, group: int, seq: int) -> Position | None:
        """One position, or None if nobody issued a call there."""
        first, end = self._groups.get(group, (0, 0))
        if first == end:
            return None
        at = first + int(np.searchsorted(self._seq_S[first:end], seq))
        if at >= end or self._seq_S[at] != seq:
            return None
        a, b = self._call_bounds[at : at + 2].tolist()
        signatures = self._signatures(a, b)
        ranks, rows = self._rank_C[a:b].astype(np.int64), self._representatives(a, b, signatures)
        return Position(group, seq, ranks, rows, signatures, self._state_C[a:b])

    def _members(self, call: int) -> Ints:
        """The rows of a call: one, or those of its batch."""
        return self._rows_N[self._row_bounds[call] : self._row_bounds[call + 1]]

    def _signatures(self, a: int, b: int) -> Ints:
        """Signatures of the calls from a to b; a batch of which the ring buffer kept but the end equals a whole one that ends so."""
        found = self._signature_C[a:b]
        if b - a < 2 or (found == found[0]).all():
            return found
        lengths = self._size_C[a:b]
        is_whole = lengths == lengths.max()
        cut = [i for i in np.flatnonzero(~is_whole).tolist() if self._may_have_lost_its_start(self._members(a + i))]
        if not cut:
            return found
        whole = {int(found[i]): self._members(a + i) for i in np.flatnonzero(is_whole).tolist()}
        keys, found = self._signature_N, found.copy()
        for i in cut:
            rows = self._members(a + i)
            same = [s for s, of in whole.items() if np.array_equal(keys[of[-len(rows) :]], keys[rows])]
            found[i] = same[0] if same else found[i]
        return found

    def _may_have_lost_its_start(self, rows: Ints) -> bool:
        """Whether these are the first rows that are left of a rank, of whose past something is lost."""
        rank = int(self.table["rank"][rows[0]])
        is_partial = rank in self.table.wrapped_ranks or rank in self.table.active_ranks
        return is_partial and int(rows.min()) == self.table.rank_rows(rank).start

    def _representatives(self, a: int, b: int, signatures: Ints) -> Ints:
        """A row for each call from a to b: of a batch the first member in which the ranks differ."""
        starts, lengths = self._call_at_C[a:b], self._size_C[a:b]
        if (lengths == 1).all() or (signatures == signatures[0]).all():
            return self._rows_N[starts]
        keys = self._signature_N
        for member in range(int(lengths.min())):
            rows = self._rows_N[starts + member]
            if (keys[rows] != keys[rows[0]]).any():
                return rows
        last: Ints = self._rows_N[starts + lengths - 1]
        return last


_NO_PURPOSE = ("", "undefined")


def ranks_with_dump(case: Case) -> frozenset[int]:
    """The ranks that left a dump, be it without a call: it tells of groups, or of open calls where none is open, or of nothing."""
    table = case.calls
    known_by_dump = frozenset(r for r, e in case.ranks.items() if _is_known_by_its_dump_alone(e))
    recorded = {*table.ranks, *table.progress_ranks}
    return known_by_dump.union(recorded, table.active_ranks)


def _is_known_by_its_dump_alone(evidence: RankEvidence) -> bool:
    """Whether a readable dump is all that there is of a rank; what `unhang` itself gathers names the process."""
    e = evidence
    seen = e.identity.pid is not None or e.stacks or e.state or e.error or e.handled or e.exit or e.pending
    return not seen and not e.unavailable


def members_by_exclusion(table: CollectiveTable, everybody: Collection[int]) -> Mapping[int, tuple[int, ...]]:
    """Group -> all its members, where it is not recorded and one that never made a call of it is told by the other groups.

    Groups of one purpose (description) divide the ranks evenly. Where all but one are equally large, the ranks that are in
    none belong to the one that lacks as many. Where several lack members, ranks that made no call at all are counted to each
    of them: they are missing in one. `everybody`: all ranks of the job; nothing is told of one that may have lost calls.
    """
    if table.is_empty:
        return {}
    if all(g.ranks for g in table.groups):
        return {}
    seen: dict[int, set[int]] = {}
    for group, rank in {*zip(table["group"].tolist(), table["rank"].tolist(), strict=True)}:
        seen.setdefault(group, set()).add(rank)
    unknown = ((g.desc, number) for number, g in enumerate(table.groups) if number in seen and not g.ranks)
    kinds = grouped((desc, number) for desc, number in unknown if desc not in _NO_PURPOSE)
    found: dict[int, tuple[int, ...]] = {}
    with_calls = set().union(*seen.values())
    for groups in kinds.values():
        size = max(len(seen[g]) for g in groups)
        placed = {rank for g in groups for rank in seen[g]}
        lacking = [g for g in groups if len(seen[g]) < size]
        others = set(everybody) - placed
        is_divided = sum(len(seen[g]) for g in groups) == len(placed) and size * len(groups) == len(placed | others)
        is_known = len(lacking) == 1 or others.isdisjoint(with_calls)
        if is_known and is_divided and others.isdisjoint(table.wrapped_ranks | table.active_ranks):
            found.update({g: tuple(sorted(seen[g] | others)) for g in lacking})
    return found
