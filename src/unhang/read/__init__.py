"""Files -> evidence, one file per format; nothing here executes or trusts what a file says. Here: what lies at some paths -> one Case."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from unhang.errors import NoNumpy
from unhang.model import Case, Unavailable
from unhang.numeric import has_numpy
from unhang.read.case import assemble
from unhang.read.dumps import DumpFile
from unhang.read.gathered import Gathered, Progress, gather
from unhang.read.rank_folder import NO_DUMP

if TYPE_CHECKING:
    from unhang.read.dumps.engine import Engine
    from unhang.read.dumps.reader import DumpReader


ENGINES = ("local", "ray")
ReadDumps = Callable[[Sequence[DumpFile]], "DumpReader"]


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

    def __init__(self, case: Case, gathered: Gathered, dumps: DumpReader | None = None) -> None:
        self.case, self.dumps, self._gathered = case, dumps, gathered

    @property
    def is_partial(self) -> bool:
        """Whether of each dump only the last calls were read."""
        return self.dumps is not None and not self.dumps.is_whole

    def closer(self, ranks: Collection[int]) -> Case:
        """The case with all calls of these ranks and their stacks."""
        if self.dumps is not None and self.is_partial and ranks:
            with without_collector():
                self.case = assemble(self._gathered, self.dumps.closer(ranks))
        return self.case

    def whole(self) -> Case:
        """The case with all calls of all ranks, with their stacks where the dumps are few."""
        if self.dumps is not None and self.is_partial:
            with without_collector():
                self.case = assemble(self._gathered, self.dumps.everything())
        return self.case


def open_paths(
    paths: Sequence[Path | str],
    *,
    trusted: bool = False,
    read_dumps: ReadDumps | None = None,
    on_progress: Progress | None = None,
) -> Evidence:
    """The evidence in folders and files, which are recognised by their content. `on_progress`: called while logs are read.

    Raises:
        UnreadableInput: only files were given, and none of them can be read.
        NothingToJudge: there is nothing in them that unhang can read.
    """
    with without_collector():
        gathered = gather(paths, on_progress)
        if gathered.dumps and not has_numpy() and gathered.logs:
            lacks = Unavailable(f"{len(gathered.dumps)} dumps", NoNumpy.help_text)
            gathered = replace(gathered, dumps=(), absent=(*gathered.absent, lacks))
        if gathered.dumps and not gathered.has_processes:
            dumps = (read_dumps or _read_here)(gathered.dumps)
            evidence = Evidence(assemble(gathered, dumps.look()), gathered, dumps)
        else:
            evidence = Evidence(assemble(gathered, trusted=trusted), gathered)
    case = evidence.case
    if case.present or gathered.job:
        return evidence
    from unhang.read.sniff import nothing_in

    raise nothing_in(paths, [a for a in (*case.absent, *gathered.absent) if a.reason != NO_DUMP])


def _read_here(files: Sequence[DumpFile]) -> DumpReader:
    from unhang.read.dumps.reader import DumpReader  # a job's watcher never needs it

    return DumpReader(files)


@contextmanager
def dump_reader(
    engine: str, ray_address: str | None, use_cache: bool, on_progress: Progress | None = None
) -> Iterator[ReadDumps]:
    """Makes readers of dumps. `engine`: one of ENGINES, closed at the end. `on_progress`: called while dumps are read."""

    def read(files: Sequence[DumpFile], runs: Engine | None = None) -> DumpReader:
        from unhang.read.dumps.reader import DumpReader

        return DumpReader(files, runs, on_progress, use_cache)

    if engine == "local":
        yield read
        return
    from unhang.read.dumps.engine_ray import RayEngine

    with RayEngine(ray_address) as ray:
        yield lambda files: read(files, ray)


@contextmanager
def without_collector(is_last_act: bool = False) -> Iterator[None]:
    """Millions of small objects are made, none of them in cycles: the garbage collector would double the time.

    `is_last_act`: what is alive at the end stays; to look through all of it once more would take longer than the process has left.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if is_last_act:
                gc.freeze()
            gc.enable()
