"""Run directories, live or copied, and any mixture of recognised files -> one Case."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from unhang.errors import NothingToJudge, UnreadableInput
from unhang.model import Case, Job
from unhang.read.dumps.assemble import observed_hang, ranks_of, unseen, world_size
from unhang.read.dumps.shard import DumpFile, Shard
from unhang.read.gathered import Gathered, events_in, holds_run_directory
from unhang.read.inventory import NO_DUMP, RankCalls, present_evidence

if TYPE_CHECKING:
    from unhang.read.dumps.reader import DumpReader
    from unhang.read.logs.source import Tell


def read_bundle(path: Path, *, trusted: bool = False) -> Case:
    """The case in a run directory or a report folder. `trusted`: our own job writes it at this moment.

    Raises:
        NothingToJudge: there is nothing in it that unhang can read.
    """
    return read_paths([path], trusted=trusted)


def read_paths(paths: Sequence[Path], *, trusted: bool = False) -> Case:
    """The case in folders and files, see `open_paths`."""
    return open_paths(paths, trusted=trusted).case


class Evidence:
    """A case, and the dumps that it was read from, as far as the first look at them went."""

    def __init__(self, case: Case, dumps: DumpReader | None = None, put: Callable[[Shard], Case] | None = None) -> None:
        self.case, self.dumps, self._put = case, dumps, put

    def closer(self, ranks: Collection[int]) -> Case:
        """The case with all calls of these ranks and their stacks."""
        if self.dumps is not None and self._put is not None and ranks and not self.dumps.is_whole:
            with _without_collector():
                self.case = self._put(self.dumps.closer(ranks))
        return self.case

    def whole(self) -> Case:
        """The case with all calls of all ranks, with their stacks where the dumps are few."""
        if self.dumps is not None and self._put is not None and not self.dumps.is_whole:
            with _without_collector():
                self.case = self._put(self.dumps.everything())
        return self.case


def open_paths(
    paths: Sequence[Path | str],
    *,
    trusted: bool = False,
    reader: Callable[[Sequence[DumpFile]], DumpReader] | None = None,
    tell: Tell | None = None,
) -> Evidence:
    """The evidence in folders and files, which are recognised by their content. `tell`: called while logs are read.

    Raises:
        UnreadableInput: only files were given, and none of them can be read.
        NothingToJudge: there is nothing in them that unhang can read.
    """
    gathered = Gathered(tell=tell)
    with _without_collector():
        elsewhere = []
        for path in paths:
            if isinstance(path, Path) and holds_run_directory(path):
                gathered.add(path)
            else:
                elsewhere.append(path)
        if elsewhere:
            gathered.add_located(elsewhere)
        if gathered.dumps and not gathered.attempts:
            dumps = (reader or _default_reader)(gathered.dumps)
            put = partial(_case_of_dumps, gathered)
            evidence = Evidence(put(dumps.look()), dumps, put)
        else:
            from unhang.read.run_directory import case_of_run  # a folder of dumps never needs it

            evidence = Evidence(case_of_run(gathered, trusted))
    case = evidence.case
    if case.present or gathered.job:
        return evidence
    reasons = [a.reason for a in (*case.absent, *gathered.absent) if a.reason != NO_DUMP]
    if reasons and not any(isinstance(path, Path) and path.is_dir() for path in paths):
        raise UnreadableInput(reasons[0])
    shown = f" ({'; '.join(reasons[:3])})" if reasons else ""
    raise NothingToJudge(f"no evidence in {', '.join(map(str, paths[:3]))}{shown}")


def _default_reader(files: Sequence[DumpFile]) -> DumpReader:
    from unhang.read.dumps.reader import DumpReader  # a job's watcher never needs it

    return DumpReader(files)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Millions of small objects are made, none of them in cycles: the garbage collector would double the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _case_of_dumps(gathered: Gathered, shard: Shard) -> Case:
    """The case in dumps that lie outside of a run directory, and in whatever was given with them."""
    records = gathered.chosen()
    logs = gathered.outputs(records)
    ranks = ranks_of(shard)
    if records:
        from unhang.read.run_directory import ranks_of_records

        ranks |= ranks_of_records(gathered, records, logs)
    lines = tuple(line for log in logs for line in log.lines)
    counts = {r: RankCalls(d.entries, d.has_frames, d.backend) for r, d in shard.dumps.items()}
    backend = next((d.backend for d in shard.dumps.values() if d.backend), "")
    return Case(
        job=Job(world_size=world_size(shard) or None, backend=backend),
        ranks=ranks,
        groups=shard.table.groups,
        calls=shard.table,
        log=lines,
        events=events_in(lines),
        hang=observed_hang(shard),
        present=present_evidence(counts, ranks, len(lines)),
        absent=(*gathered.absent, *shard.absent, *unseen(shard)),
    )
