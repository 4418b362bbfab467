"""Runs `partial(files) -> Shard` over all dumps, in processes that may fall, and makes one Shard of their answers."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from unhang.errors import UnhangError
from unhang.model import ProcessGroup, Unavailable
from unhang.read.dumps.engine_worker import Fell, Task, Worker, wait
from unhang.read.dumps.shard import DumpFile, Shard, merge

MOST_FILES, FEWEST_FILES = (
    64,
    16,
)  # of a shard: numpy's cost per call is shared by its files, its memory grows with them
MOST_BYTES = 64 << 20
MOST_PROCESSES = 32

Progress = Callable[[int, int], None]


class Engine(Protocol):
    """Runs a task over files, somewhere."""

    def run(
        self, task: Task, files: Sequence[DumpFile], progress: Progress | None = None, most_files: int = MOST_FILES
    ) -> Iterator[Shard]:
        """The shards, in any order; together they account for every file.

        `progress`: files done, and of how many. `most_files`: in one shard.
        """


def run_all(
    engine: Engine,
    task: Task,
    files: Sequence[DumpFile],
    progress: Progress | None = None,
    most_files: int = MOST_FILES,
) -> Shard:
    """All files as one Shard. The order in which the engine answers changes nothing."""
    known: dict[ProcessGroup, ProcessGroup] = {}
    return merge_ordered([_sharing(shard, known) for shard in engine.run(task, files, progress, most_files)])


def merge_ordered(shards: Sequence[Shard]) -> Shard:
    """The shards as one, the same whatever their order is but for the order of `parts`."""
    return merge(sorted(shards, key=_place))


def _place(shard: Shard) -> tuple[int, list[tuple[str, str]]]:
    first = min(shard.dumps, default=1 << 62)
    return first, [(a.what, a.reason) for a in shard.absent]


def _sharing(shard: Shard, known: dict[ProcessGroup, ProcessGroup]) -> Shard:
    """The shard with the known objects for equal groups: each shard of a large job brings all ranks of the world."""
    groups = tuple(known.setdefault(group, group) for group in shard.table.groups)
    return replace(shard, table=replace(shard.table, groups=groups))


def plan(files: Sequence[DumpFile], processes: int, most_files: int = MOST_FILES) -> list[tuple[DumpFile, ...]]:
    """The files as shards of bounded size, several for each process, by rank. Files of one rank stay together."""
    share = -(-len(files) // processes) if files else 1
    most = min(most_files, max(-(-share // (4 if most_files <= MOST_FILES else 1)), min(FEWEST_FILES, share)))
    shards: list[tuple[DumpFile, ...]] = []
    part: list[DumpFile] = []
    size = 0
    for file in sorted(files, key=lambda f: (f.rank, f.path, f.member)):
        is_full = len(part) >= most or (size + file.size > MOST_BYTES and most_files <= MOST_FILES)
        if part and is_full and part[-1].rank != file.rank:
            shards.append(tuple(part))
            part, size = [], 0
        part.append(file)
        size += file.size
    return [*shards, tuple(part)] if part else shards


def unreadable_shard(file: DumpFile, reason: str) -> Shard:
    """What a dump gives that cannot be decoded."""
    return Shard(absent=(Unavailable(f"dump of rank {file.rank}", reason),))


class _Try(NamedTuple):
    """Files to decode; `again`: the file has cost a process already, or shared one that fell."""

    files: tuple[DumpFile, ...]
    again: bool = False


class LocalEngine:
    """Worker processes of this machine, each under a limit of memory and time.

    A worker that falls or exceeds a limit is ended, and its files are tried again one by one; what falls twice is
    reported by name. Blocks while it runs.

    Args:
        processes: how many; by default one per usable CPU.
        memory_bytes: what a worker may allocate, besides 64 bytes per byte of its files.
        timeout_s: for one shard; the same again for each file alone after a fall.
    """

    def __init__(self, processes: int | None = None, memory_bytes: int = 1 << 30, timeout_s: float = 20.0) -> None:
        self._processes = processes or min(len(os.sched_getaffinity(0)), MOST_PROCESSES)
        self._memory_bytes, self._timeout_s = memory_bytes, timeout_s

    def run(
        self, task: Task, files: Sequence[DumpFile], progress: Progress | None = None, most_files: int = MOST_FILES
    ) -> Iterator[Shard]:
        """The shards as they are done.

        Raises:
            UnhangError: no process can be started.
        """
        todo = deque(_Try(shard) for shard in plan(files, self._processes, most_files))
        idle: list[Worker] = []
        busy: dict[Worker, _Try] = {}
        done = 0
        try:
            while todo or busy:
                self._hand_out(task, todo, idle, busy)
                for worker in wait(list(busy)):
                    tried = busy.pop(worker)
                    answer = worker.answer()
                    (idle if worker.alive else []).append(worker)
                    if isinstance(answer, Fell):
                        if not tried.again or len(tried.files) > 1:
                            todo.extend(_Try((file,), again=True) for file in tried.files)
                            continue
                        answer = unreadable_shard(tried.files[0], answer.reason)
                    done += len(tried.files)
                    if progress is not None:
                        progress(done, len(files))
                    yield answer
        finally:
            for worker in (*idle, *busy):
                worker.end()

    def _hand_out(self, task: Task, todo: deque[_Try], idle: list[Worker], busy: dict[Worker, _Try]) -> None:
        while todo and len(busy) < self._processes:
            if not idle:
                try:
                    idle.append(Worker(task, self._memory_bytes, self._timeout_s, tuple(busy)))
                except OSError as error:
                    if busy:
                        return
                    raise UnhangError(f"no process can be started to decode the dumps ({error.strerror})") from error
            tried, worker = todo.popleft(), idle.pop()
            busy[worker] = tried
            worker.ask(tried.files)
