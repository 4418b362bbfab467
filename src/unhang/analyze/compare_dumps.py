"""Two runs compared where their dumps are decoded: a process takes the same ranks of both, and answers what they give.

Calls never leave the process that decodes them. Parts of the ranks add up only where the groups of a few ranks are those
of the job, and correspond in the same way; if not, or where a dump is damaged, the runs are compared as wholes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from unhang.analyze.compare import Comparison, compare
from unhang.analyze.compare_parts import Part, part_of, rank_ordinals, sampled
from unhang.analyze.schedule import group_labels
from unhang.model import CollectiveTable, ProcessGroup
from unhang.model.calls import empty_progress
from unhang.read.bundle import Evidence, open_paths
from unhang.read.dumps.engine import merge_ordered
from unhang.read.dumps.shard import DumpFile, RankDump, Shard, stale_ranks, unify_groups, with_world

if TYPE_CHECKING:
    from collections.abc import Callable

    from unhang.read.dumps.reader import DumpReader

    Reader = Callable[[Sequence[DumpFile]], DumpReader]


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
    runs = [
        open_paths(paths, read_dumps=reader) if run.dumps is not None and run.dumps.given is not None else run
        for run, paths in zip(runs, (ours, theirs), strict=True)
    ]
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
