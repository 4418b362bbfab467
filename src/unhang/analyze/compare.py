"""Two runs of a job compared: what each is, how fast it goes, and where their programs part.

A run that began at another time, or whose buffers hold another stretch of it, is no other run for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from unhang.analyze.positions import bare_op
from unhang.analyze.schedule import Divergence, Ints, aligned, by_description, counted, divergences, group_labels
from unhang.model import Case, CollectiveTable, ProcessGroup
from unhang.read.dumps.shard import RankDump

_SAMPLED_RANKS = 32
_MOST_ROWS = 4000
_RECURS = 0.9  # share of calls that must equal the call one period before
_EQUALLY = 0.002
MUCH_SLOWER = 1.1


@dataclass(frozen=True, slots=True)
class Pair:
    """A fact that differs. Empty where a run does not tell it or has nothing of the kind."""

    what: str
    ours: str
    theirs: str


@dataclass(frozen=True, slots=True)
class GroupChange:
    """Groups that only one of the runs has, by what they are for."""

    desc: str
    ours: tuple[ProcessGroup, ...]
    theirs: tuple[ProcessGroup, ...]


@dataclass(frozen=True, slots=True)
class OpUse:
    """How one op is used in the groups of one description: calls per rank and second, medians over the ranks; 0 for unused."""

    desc: str
    op: str
    our_calls: float
    their_calls: float
    our_rate: float
    their_rate: float


@dataclass(frozen=True, slots=True)
class StepTime:
    """Median time between equal calls of a rank in a pattern that recurs every `calls` calls; median over `ranks` ranks."""

    seconds: float
    calls: int
    ranks: int


@dataclass(frozen=True, slots=True)
class SizeChange:
    """Sizes and dtypes that only one of the runs gives to an op, in the stretch that both recorded."""

    desc: str
    op: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """What differs between our run and the other one.

    `world`: ranks of each. `compared`: calls found in both. `calls`: of each run; `wrapped`: ranks whose oldest calls are lost.
    `uses` and `steps` are facts, equal or not; all else is a difference.
    """

    world: tuple[int, int]
    calls: tuple[int, int]
    wrapped: tuple[int, int]
    compared: int = 0
    our_ranks_only: tuple[int, ...] = ()
    their_ranks_only: tuple[int, ...] = ()
    software: tuple[Pair, ...] = ()
    groups: tuple[GroupChange, ...] = ()
    sizes: tuple[SizeChange, ...] = ()
    divergences: tuple[Divergence, ...] = ()
    uses: tuple[OpUse, ...] = ()
    steps: tuple[StepTime | None, StepTime | None] = (None, None)

    @property
    def is_same_program(self) -> bool:
        """Whether no difference was found in what the ranks are and call; speed does not count."""
        return not (
            self.world[0] != self.world[1]
            or self.our_ranks_only
            or self.their_ranks_only
            or self.software
            or self.groups
            or self.sizes
            or self.divergences
        )

    @property
    def slowdown(self) -> float | None:
        """Our step time by theirs."""
        ours, theirs = self.steps
        return ours.seconds / theirs.seconds if ours and theirs and theirs.seconds > 0 else None


def compare(
    ours: Case,
    theirs: Case,
    our_dumps: Mapping[int, RankDump] | None = None,
    their_dumps: Mapping[int, RankDump] | None = None,
) -> Comparison:
    """Compares two runs; about a second per million calls. The dumps tell versions that a case does not hold."""
    found = compare_tables(ours.calls, theirs.calls)
    a, b = set(ours.ranks) or _ranks(ours.calls), set(theirs.ranks) or _ranks(theirs.calls)
    software = [
        Pair(what, left, right)
        for (what, left), (_, right) in zip(_software(ours, our_dumps), _software(theirs, their_dumps), strict=True)
        if left != right and left and right
    ]
    return replace(
        found,
        world=(len(ours.world) or found.world[0], len(theirs.world) or found.world[1]),
        our_ranks_only=tuple(sorted(a - b)),
        their_ranks_only=tuple(sorted(b - a)),
        software=tuple(software),
    )


def compare_tables(ours: CollectiveTable, theirs: CollectiveTable) -> Comparison:
    """Compares the calls of two runs, and what the tables tell of groups and ranks."""
    pairs = aligned(ours, theirs, group_labels(ours, theirs))
    a, b = _ranks(ours), _ranks(theirs)
    return Comparison(
        world=(_world(ours), _world(theirs)),
        calls=(len(ours), len(theirs)),
        wrapped=(len(ours.wrapped_ranks), len(theirs.wrapped_ranks)),
        compared=int((pairs.our_partners >= 0).sum()),
        our_ranks_only=tuple(sorted(a - b)),
        their_ranks_only=tuple(sorted(b - a)),
        groups=_group_changes(ours.groups, theirs.groups),
        sizes=_size_changes(ours, theirs, pairs.our_rows, pairs.their_rows),
        divergences=divergences(ours, theirs, pairs),
        uses=_op_uses(ours, theirs),
        steps=(step_time(ours), step_time(theirs)),
    )


def _ranks(table: CollectiveTable) -> set[int]:
    return set(table["rank"][_first_rows(table)].tolist())


def _first_rows(table: CollectiveTable) -> Ints:
    """The first row of each rank; the ranks are sorted."""
    rank_N = table["rank"]
    return np.flatnonzero(np.append(True, rank_N[1:] != rank_N[:-1])[: len(rank_N)])


def _world(table: CollectiveTable) -> int:
    return max([*(max(g.ranks) for g in table.groups if g.ranks), *_ranks(table)], default=-1) + 1


def _software(case: Case, dumps: Mapping[int, RankDump] | None) -> list[tuple[str, str]]:
    """(what, its values over the ranks, empty where not known)."""
    identities = [evidence.identity for evidence in case.ranks.values()]
    backends = {d.backend for d in (dumps or {}).values()} or {i.backend for i in identities}
    facts = (
        ("backend", backends if any(backends) else {case.job.backend}),
        ("torch", {i.torch_version for i in identities} if any(i.torch_version for i in identities)
         else {case.job.torch_version}),
        ("flight recorder", {d.version for d in (dumps or {}).values()}),
    )  # fmt: skip
    return [(what, ", ".join(sorted(filter(None, values)))) for what, values in facts]


def _group_changes(ours: Sequence[ProcessGroup], theirs: Sequence[ProcessGroup]) -> tuple[GroupChange, ...]:
    """Groups without a counterpart of the same description and ranks, of runs that tell the ranks at all."""
    a, b = (Counter((g.desc, g.ranks) for g in groups) for groups in (ours, theirs))
    left, right = by_description(_beyond(ours, b)), by_description(_beyond(theirs, a))
    changes = []
    for desc in dict.fromkeys([*left, *right]):
        one, two = left.get(desc, []), right.get(desc, [])
        told = all(g.ranks for g in (*one, *two))
        if told or {g.name for g in one} != {g.name for g in two}:
            changes.append(GroupChange(desc, tuple(one), tuple(two)))
    return tuple(changes)


def _beyond(groups: Sequence[ProcessGroup], others: Counter[tuple[str, tuple[int, ...]]]) -> list[ProcessGroup]:
    left, found = others.copy(), []
    for group in groups:
        if left[group.desc, group.ranks] > 0:
            left[group.desc, group.ranks] -= 1
        else:
            found.append(group)
    return found


def _described(table: CollectiveTable) -> tuple[Ints, list[str]]:
    """`[N]` the number of each row's (description, op), and `G * ops` names of these numbers, tab-separated."""
    descs: dict[str, int] = {}
    desc_G = np.array([descs.setdefault(str(g), len(descs)) for g in table.groups] or [0], dtype=np.int64)
    ops: dict[str, int] = {}
    op_O = np.array([ops.setdefault(bare_op(op), len(ops)) for op in table.ops] or [0], dtype=np.int64)
    names = [f"{desc}\t{op}" for desc in descs for op in ops]
    number_N = (desc_G * max(len(ops), 1))[table["group"]]
    number_N += op_O[table["op"]]
    return number_N, names


def _size_changes(
    ours: CollectiveTable, theirs: CollectiveTable, our_rows: Ints, their_rows: Ints
) -> tuple[SizeChange, ...]:
    a, b = _sizes_by_op(ours, our_rows), _sizes_by_op(theirs, their_rows)
    changes = []
    for name in sorted(a.keys() & b.keys()):
        if a[name] != b[name]:
            desc, op = name.split("\t", 1)
            changes.append(SizeChange(desc, op, tuple(sorted(a[name] - b[name])), tuple(sorted(b[name] - a[name]))))
    return tuple(changes)


def _sizes_by_op(table: CollectiveTable, rows: Ints) -> dict[str, set[str]]:
    key_N, names = _described(table)
    spans = len(table.sizes) + 1, len(table.dtypes) + 1
    for name, span in zip(("in_sizes", "dtype"), spans, strict=True):
        key_N *= span
        key_N += table[name]
    found: dict[str, set[str]] = {}
    for value in counted(key_N[rows], len(names) * spans[0] * spans[1])[0].tolist():
        rest, dtype = divmod(value, spans[1])
        number, sizes = divmod(rest, spans[0])
        shapes = ", ".join("x".join(map(str, s)) or "scalar" for s in table.sizes[sizes])
        found.setdefault(names[number], set()).add(f"{shapes} {table.dtypes[dtype]}".strip())
    return found


def _op_uses(ours: CollectiveTable, theirs: CollectiveTable) -> tuple[OpUse, ...]:
    a, b = _use(ours), _use(theirs)
    none = (0.0, 0.0)
    uses = []
    for name in dict.fromkeys([*a, *b]):
        (our_calls, our_rate), (their_calls, their_rate) = a.get(name, none), b.get(name, none)
        desc, op = name.split("\t", 1)
        uses.append(OpUse(desc, op, our_calls, their_calls, our_rate, their_rate))
    return tuple(sorted(uses, key=lambda use: (-max(use.our_calls, use.their_calls), use.desc, use.op)))


def _use(table: CollectiveTable) -> dict[str, tuple[float, float]]:
    """(description, op) -> calls per rank and calls per second, medians over the ranks that make such calls."""
    if not len(table):
        return {}
    number_N, names = _described(table)
    created_N, first = table["created_ns"], _first_rows(table)
    ranks = table["rank"][first].astype(np.int64)
    span_R = (np.maximum.reduceat(created_N, first) - np.minimum.reduceat(created_N, first)) / 1e9
    number_N *= len(ranks)
    number_N += np.repeat(np.arange(len(ranks)), np.diff(first, append=len(table)))
    keys, count = counted(number_N, len(names) * len(ranks))
    number, place = np.divmod(keys, len(ranks))
    span = span_R[place]
    found = {}
    for n in np.unique(number).tolist():
        mine = number == n
        timed = mine & (span > 0)
        rate = float(np.median(count[timed] / span[timed])) if timed.any() else 0.0
        found[names[n]] = (float(np.median(count[mine])), rate)
    return found


def step_time(table: CollectiveTable) -> StepTime | None:
    """The time of a step, where the calls of a rank repeat themselves; of a sample of the ranks."""
    ranks = table["rank"][_first_rows(table)]
    sample = ranks[np.unique(np.linspace(0, len(ranks) - 1, min(len(ranks), _SAMPLED_RANKS)).astype(np.int64))]
    periods, times = [], []
    for rank in sample.tolist():
        rows = table.rank_rows(rank)
        rows = slice(max(rows.start, rows.stop - _MOST_ROWS), rows.stop)
        group, op, sizes = (table[name][rows].astype(np.int64) for name in ("group", "op", "in_sizes"))
        kind = (group * (len(table.ops) + 1) + op) * (len(table.sizes) + 1) + sizes
        period = _period(kind)
        created = table["created_ns"][rows]
        if period:
            apart = (created[period:] - created[:-period])[kind[period:] == kind[:-period]]
            periods.append(period)
            times.append(float(np.median(apart)) / 1e9)
    if not times:
        return None
    usual = Counter(periods).most_common(1)[0][0]
    times = [t for t, p in zip(times, periods, strict=True) if p == usual]
    return StepTime(float(np.median(times)), usual, len(times))


def _period(kind_N: Ints) -> int:
    """The least distance at which nearly all calls equal each other, 0 where there is none within a third of them."""
    most = len(kind_N) // 3
    if most < 1:
        return 0
    share = np.array([np.count_nonzero(kind_N[p:] == kind_N[:-p]) / (len(kind_N) - p) for p in range(1, most + 1)])
    if share.max() < _RECURS:
        return 0
    return int(np.argmax(share >= share.max() - _EQUALLY)) + 1
