"""Two runs of a job compared: what each is, how fast it goes, and where their programs part.

A run that began at another time, or whose buffers hold another stretch of it, is no other run for that.

Calls never leave the process that decodes them. Parts of the ranks add up only where the groups of a few ranks are those
of the job, and correspond in the same way; if not, or where a dump is damaged, the runs are compared as wholes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from unhang.analyze.calls.compare_parts import Part, RunPart, part_of, rank_ordinals, ranks_of_calls, sampled, step_of
from unhang.analyze.calls.schedule import Divergence, by_description, divergences, group_labels
from unhang.model import Case, CollectiveTable, ProcessGroup
from unhang.model.calls import empty_progress
from unhang.numeric import np
from unhang.read import Evidence, open_paths
from unhang.read.dumps import DumpFile, RankDump, Shard, stale_ranks, unify_groups, with_world
from unhang.read.dumps.engine import merge_ordered

if TYPE_CHECKING:
    from collections.abc import Callable

    from unhang.read.dumps.reader import DumpReader

    Reader = Callable[[Sequence[DumpFile]], DumpReader]

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
        ranks = self.our_ranks_only or self.their_ranks_only or self.world[0] != self.world[1]
        return not (ranks or self.software or self.groups or self.sizes or self.divergences)

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
    parts: Sequence[Part] = (),
) -> Comparison:
    """Compares two runs; about a second per million calls.

    Args:
        ours: Our run.
        theirs: The other one.
        our_dumps: They tell versions that a case does not hold.
        their_dumps: The same of the other run.
        parts: What all ranks give, where the cases hold no more than one call of each rank in each of its groups.
    """
    found = combined(parts or [part_of(ours.calls, theirs.calls)], ours.calls, theirs.calls)
    mine, other = (set(case.ranks) or ranks_of_calls(case.calls) for case in (ours, theirs))
    known = zip(_software(ours, our_dumps), _software(theirs, their_dumps), strict=True)
    software = [Pair(what, a, b) for (what, a), (_, b) in known if a != b and a and b]
    return replace(
        found,
        world=(len(ours.world) or found.world[0], len(theirs.world) or found.world[1]),
        our_ranks_only=tuple(sorted(mine - other)),
        their_ranks_only=tuple(sorted(other - mine)),
        software=tuple(software),
    )


def compare_tables(ours: CollectiveTable, theirs: CollectiveTable) -> Comparison:
    """Compares the calls of two runs, and what the tables tell of groups and ranks."""
    return combined([part_of(ours, theirs)], ours, theirs)


def combined(parts: Sequence[Part], ours: CollectiveTable, theirs: CollectiveTable) -> Comparison:
    """The comparison that parts give together; the tables tell groups and ranks."""
    a, b = ranks_of_calls(ours), ranks_of_calls(theirs)
    left, right = [part.ours for part in parts], [part.theirs for part in parts]
    return Comparison(
        world=(_world(ours), _world(theirs)),
        calls=(sum(run.calls for run in left), sum(run.calls for run in right)),
        wrapped=(len(ours.wrapped_ranks), len(theirs.wrapped_ranks)),
        compared=sum(part.compared for part in parts),
        our_ranks_only=tuple(sorted(a - b)),
        their_ranks_only=tuple(sorted(b - a)),
        groups=_group_changes(ours.groups, theirs.groups),
        sizes=_size_changes(left, right),
        divergences=divergences(first for part in parts for first in part.firsts),
        uses=_op_uses(_use(left), _use(right)),
        steps=(_usual_step(left), _usual_step(right)),
    )


def _world(table: CollectiveTable) -> int:
    return max([*(max(g.ranks) for g in table.groups if g.ranks), *ranks_of_calls(table)], default=-1) + 1


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
        known = all(g.ranks for g in (*one, *two))
        if known or {g.name for g in one} != {g.name for g in two}:
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


def _size_changes(ours: Sequence[RunPart], theirs: Sequence[RunPart]) -> tuple[SizeChange, ...]:
    a, b = _all_sizes(ours), _all_sizes(theirs)
    changes = []
    for name in sorted(a.keys() & b.keys()):
        if a[name] != b[name]:
            desc, op = name.split("\t", 1)
            changes.append(SizeChange(desc, op, tuple(sorted(a[name] - b[name])), tuple(sorted(b[name] - a[name]))))
    return tuple(changes)


def _all_sizes(runs: Sequence[RunPart]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for run in runs:
        for name, sizes in run.sizes.items():
            found.setdefault(name, set()).update(sizes)
    return found


def _op_uses(a: Mapping[str, tuple[float, float]], b: Mapping[str, tuple[float, float]]) -> tuple[OpUse, ...]:
    none = (0.0, 0.0)
    uses = []
    for name in dict.fromkeys([*a, *b]):
        (our_calls, our_rate), (their_calls, their_rate) = a.get(name, none), b.get(name, none)
        desc, op = name.split("\t", 1)
        uses.append(OpUse(desc, op, our_calls, their_calls, our_rate, their_rate))
    return tuple(sorted(uses, key=lambda use: (-max(use.our_calls, use.their_calls), use.desc, use.op)))


def _use(runs: Sequence[RunPart]) -> dict[str, tuple[float, float]]:
    """Calls per rank and calls per second of each use, medians over the ranks that make such calls."""
    found = {}
    for name in dict.fromkeys(name for run in runs for name in run.uses):
        known = [run.uses[name] for run in runs if name in run.uses]
        count, span = (np.concatenate(column) for column in zip(*known, strict=True))
        timed = span > 0
        rate = float(np.median(count[timed] / span[timed])) if timed.any() else 0.0
        found[name] = (float(np.median(count)), rate)
    return found


def step_time(table: CollectiveTable) -> StepTime | None:
    """The time of a step, where the calls of a rank repeat themselves; of a sample of the ranks."""
    found = (step_of(table, rank) for rank in sampled(ranks_of_calls(table)))
    return _usual([step for step in found if step is not None])


def _usual_step(runs: Sequence[RunPart]) -> StepTime | None:
    return _usual([step for run in runs for step in run.steps])


def _usual(steps: Sequence[tuple[int, float]]) -> StepTime | None:
    """The median of the steps that have as many calls as most."""
    if not steps:
        return None
    usual = Counter(period for period, _ in steps).most_common(1)[0][0]
    times = [seconds for period, seconds in steps if period == usual]
    return StepTime(float(np.median(times)), usual, len(times))


class OtherFile(DumpFile):
    """A dump of the other run."""

    __slots__ = ()


class RanksPart(NamedTuple):
    """The part of some ranks. For each run: what `sketch` leaves of their dumps, and the labels of its groups."""

    part: Part
    sketches: tuple[Shard, Shard]
    labels: tuple[list[int], list[int]]


def compare_runs(ours: Sequence[Path | str], theirs: Sequence[Path | str], reader: Reader) -> Comparison:
    """Compares what lies at some paths with what lies at others.

    Raises:
        UnhangError: nothing of a run can be read.
    """
    runs = [open_paths(paths, read_dumps=partial(_unread, reader)) for paths in (ours, theirs)]
    found = _compare_parts(*runs)
    if found is not None:
        return found
    was_not_read = [run.dumps is not None and run.dumps.given is not None for run in runs]
    again = zip(runs, (ours, theirs), was_not_read, strict=True)
    runs = [open_paths(paths, read_dumps=reader) if is_so else run for run, paths, is_so in again]
    our_dumps, their_dumps = (run.dumps.seen if run.dumps else None for run in runs)
    return compare(runs[0].whole(), runs[1].whole(), our_dumps, their_dumps)


def _unread(reader: Reader, files: Sequence[DumpFile]) -> DumpReader:
    """A reader of dumps that takes all of them to be there, and looks at none; at few it looks as ever."""
    dumps = reader(files)
    if not dumps.is_whole:
        dumps.given = Shard(dumps={file.rank: RankDump(file) for file in files})
    return dumps


def _compare_parts(ours: Evidence, theirs: Evidence) -> Comparison | None:
    """The comparison by parts; None where that cannot be done."""
    a, b = ours.dumps, theirs.dumps
    if a is None or b is None or a.given is None or b.given is None:
        return None
    ranks = [f.rank for f in a.files], [f.rank for f in b.files]
    others = [OtherFile(f.rank, f.path, f.member, f.size, f.written_ns) for f in b.files]
    answer = a.run(partial(compare_files, ranks=ranks), [*a.files, *others])
    if answer.absent:
        return None
    parts = sorted(answer.parts, key=lambda part: [min(shard.dumps, default=0) for shard in part.sketches])
    a.given, b.given = (merge_ordered([part.sketches[i] for part in parts]) for i in (0, 1))
    if any(run.absent or stale_ranks(run) for run in (a.given, b.given)):
        return None
    cases = ours.whole(), theirs.whole()
    tables = cases[0].calls, cases[1].calls
    are_all = all({*table["rank"].tolist()} == {*wanted} for table, wanted in zip(tables, ranks, strict=True))
    if not are_all or not _add_up(parts, tables):
        return None
    return compare(*cases, a.given.dumps, b.given.dumps, [part.part for part in parts])


def compare_files(files: Sequence[DumpFile], *, ranks: tuple[Collection[int], Collection[int]]) -> Shard:
    """What an engine runs on dumps of both runs. `ranks`: all that left a dump, of each run."""
    a = _decoded([f for f in files if not isinstance(f, OtherFile)], ranks[0])
    b = _decoded([f for f in files if isinstance(f, OtherFile)], ranks[1])
    labels = group_labels(a.table, b.table)
    part = part_of(a.table, b.table, labels, (sampled(ranks[0]), sampled(ranks[1])))
    return Shard(parts=(RanksPart(part, (sketch(a), sketch(b)), (labels[0].tolist(), labels[1].tolist())),))


def _decoded(files: Sequence[DumpFile], ranks: Collection[int]) -> Shard:
    """All calls of some dumps, with the groups that they tell."""
    from unhang.read.dumps.decode import decode_shard

    shard = decode_shard(files, last=None, frames=False)
    return replace(shard, table=with_world(unify_groups(shard.table), set(ranks)))


def sketch(shard: Shard) -> Shard:
    """The shard with one call of each rank in each group, which tells what the ranks and their groups are."""
    table = shard.table
    key_N = rank_ordinals(table) * len(table.groups) + table["group"]
    first_K = np.full(int(key_N.max(initial=0)) + 1, -1, np.int64)
    first_K[key_N[::-1]] = np.arange(len(table))[::-1]  # the last of equal places wins
    rows = np.sort(first_K[first_K >= 0])
    columns = {name: column[rows] for name, column in table.columns.items()}
    return replace(shard, table=replace(table, columns=columns, stacks=(), progress=empty_progress()))


def _add_up(parts: Sequence[RanksPart], tables: tuple[CollectiveTable, CollectiveTable]) -> bool:
    """Whether the parts, together, tell what the whole would: groups are the same ones, and correspond alike.

    Where a process fell, its dumps were decoded one by one, and none was compared with its counterpart.
    """
    shared = {*tables[0]["rank"].tolist()} & {*tables[1]["rank"].tolist()}
    if any(part.sketches[0].dumps.keys() & shared != part.sketches[1].dumps.keys() & shared for part in parts):
        return False
    labels = [label.tolist() for label in group_labels(*tables)]
    known = [dict(zip(table.groups, label, strict=True)) for table, label in zip(tables, labels, strict=True)]
    return all(_is_alike(part, known) for part in parts)


def _is_alike(part: RanksPart, known: Sequence[Mapping[ProcessGroup, int]]) -> bool:
    """Whether labels of the groups of a part are equal where those of the same groups of the job are."""
    pairs = set()
    for shard, labels, numbers in zip(part.sketches, part.labels, known, strict=True):
        pairs |= {(label, numbers.get(group)) for group, label in zip(shard.table.groups, labels, strict=True)}
    return all(len({pair[i] for pair in pairs} - {None}) == len(pairs) for i in (0, 1))
