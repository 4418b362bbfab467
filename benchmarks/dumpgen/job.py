"""A simulated job: what each rank's dump holds, as bytes or in memory, and what went wrong."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dumpgen.encode import EntryWriter, Names, Numbers, Pickler, Template, Token, to_json
from dumpgen.fields import VERSION, Recording, as_of_version, entry_tokens, fields_of, filled
from dumpgen.rows import STATES, Clock, Past, Row, Rows, Seen, seen
from dumpgen.schedule import WORLD, CodeFrame, Mesh
from dumpgen.simulate import Plan, Timeline

NAME = "nccl_trace_rank_"
_ALL = 1 << 40


@dataclass(frozen=True)
class Awaited:
    """A call in which somebody waits for a culprit itself. `group`: (name, desc). `differs`: culprits are in it, unlike.

    `waiters`: who waits there, apart from the culprits; `absent`: who has not come. `seq`: as the first waiter counts;
    `seqs`: as each of those counts that issued it, for the two sides of a transfer number it differently.
    """

    group: tuple[str, str]
    seq: int
    op: str
    is_p2p: bool
    differs: bool
    waiters: tuple[int, ...]
    absent: tuple[int, ...]
    seqs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Truth:
    """What went wrong. `kind` is a name of FAULTS or `healthy`. The call is the awaited or the differing one.

    `group`: (name, desc). `frame`: (file, line) of the call that was not made or that differs. `awaited`: all calls in
    which somebody waits for the culprits, the one meant by the truth first. `departs`: (group name, seq) of the first call
    of the culprit that is not what it should be. `victims`: ranks that wait, apart from the culprits. `others`: faults
    that are independent of this one.
    """

    kind: str = "healthy"
    culprits: tuple[int, ...] = ()
    group: tuple[str, str] = ("", "")
    seq: int = 0
    op: str = ""
    frame: tuple[str, int] = ("", 0)
    awaited: tuple[Awaited, ...] = ()
    departs: tuple[str, int] = ("", 0)
    victims: tuple[int, ...] = ()
    others: tuple[Truth, ...] = ()

    @property
    def all_culprits(self) -> frozenset[int]:
        """The culprits of this fault and of those independent of it."""
        return frozenset(self.culprits).union(*(t.culprits for t in self.others))


@dataclass(frozen=True)
class Loss:
    """What became of the files. `truncated`: the share of its bytes that is left of a rank's file."""

    lost: frozenset[int] = frozenset()
    truncated: Mapping[int, float] = field(default_factory=dict)
    json: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class Job:
    """A job at the moment of its dump. `past_plans`, `plans`: of each rank, before and in the simulated stretch.

    `until_ns`: what comes later is not in the dumps. `written_ns`: modification time of the files, on true clocks.
    """

    mesh: Mesh
    past: Past
    past_plans: Sequence[Plan]
    final: Timeline
    until_ns: int
    written_ns: int
    recording: Recording
    clocks: Callable[[int], Clock]
    truth: Truth = Truth()
    loss: Loss = Loss()

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.mesh.world

    @property
    def ranks(self) -> list[int]:
        """The ranks whose files are left."""
        return [r for r in range(self.world) if r not in self.loss.lost]

    @cached_property
    def _rows_by_plan(self) -> dict[int, Rows]:
        return {}

    @cached_property
    def _templates(self) -> dict[object, Template]:
        return {}

    def _pg_id(self, row: Row) -> int:
        return self.mesh.axes.index(row.step.axis)

    def _tokens_of(self, row: Row) -> tuple[Token, ...]:
        return entry_tokens(row, self._pg_id(row), self.recording)

    @cached_property
    def _statuses(self) -> dict[object, dict[str, tuple[int, int, int]]]:
        return {}

    def programs(self, rank: int) -> tuple[Rows, Rows]:
        """The entries that the past program and the last stretch of a rank leave."""
        return self._rows(self.past_plans[rank]), self._rows(self.final.plans[rank])

    def _rows(self, plan: Plan) -> Rows:
        rows = self._rows_by_plan.get(id(plan))
        if rows is None:
            rows = self._rows_by_plan[id(plan)] = Rows(plan.steps)
        return rows

    def seen(self, rank: int) -> Seen:
        """The entries of a rank in its ring buffer, as columns."""
        return seen(self.past, self.final, self.programs(rank), rank, self.until_ns, self.recording.ring)

    def rows(self, rank: int, entries: Seen) -> list[tuple[Row, Numbers]]:
        """Which call each entry of a rank is, and its numbers."""
        steady, last = self.programs(rank)
        counts = steady.counts
        shows_no_state = self.recording.backend == "gloo"
        columns = (entries.program, entries.row, entries.iteration, entries.record_id, entries.state, entries.is_done)
        found = []
        for is_last, k, iteration, record_id, state, done in zip(*(c.tolist() for c in columns), strict=True):
            row = last.rows[k] if is_last else steady.rows[k]
            collectives, transfers, ops = counts.get(row.step.axis, (0, 0, 0))
            if shows_no_state or (state == 1 and not self.recording.timing):
                state = 0
            numbers = Numbers(
                record_id,
                iteration * collectives + row.collective_seq,
                iteration * transfers + row.p2p_seq,
                iteration * ops + row.op_id,
                state,
                done,
            )
            found.append((row, numbers))
        return found

    def made(self, rank: int) -> Seen:
        """All entries that a rank ever made, those that its ring buffer has lost among them."""
        return seen(self.past, self.final, self.programs(rank), rank, self.until_ns, _ALL)

    def times(self, rank: int, entries: Seen) -> npt.NDArray[np.int64]:
        """Created, started and completed as the rank's dump tells them, shape [N, 3], 0 where unknown."""
        clock, until = self.clocks(rank), self.written_ns - 1_000_000
        none = np.zeros(len(entries), dtype=np.int64)
        if self.recording.backend == "gloo":
            return np.stack([entries.created_ns + clock.skew_ns, none, none], axis=1)
        seen = (entries.started_ns if self.recording.timing else none, entries.completed_ns)
        told = [np.where(column > 0, clock.discovered(column, until) + clock.skew_ns, 0) for column in seen]
        return np.stack([entries.created_ns + clock.skew_ns, *told], axis=1)

    def kept(self, entries: Seen) -> Seen:
        """What of the ring buffer is dumped."""
        return entries.only(~entries.is_done) if self.recording.only_active else entries

    def entries(self, rank: int) -> list[dict[str, Any]]:
        """The entries of a rank's dump."""
        kept = self.kept(self.seen(rank))
        found = []
        for (row, numbers), times in zip(self.rows(rank, kept), self.times(rank, kept).tolist(), strict=True):
            state = STATES[numbers.state]
            created, started, completed = (t or None for t in times)
            values = (*numbers[:4], created, state, started, completed, numbers.retired, *self.names(rank, row))
            found.append(filled(fields_of(row, self._pg_id(row), self.recording), values))
        return found

    def names(self, rank: int, row: Row) -> Names:
        """The names in an entry that depend on the rank."""
        group, part = self.mesh.groups_of[rank][row.step.axis], row.part
        arrow = {"send": "->", "recv": "<-"}.get(part.op)
        ends = f" {self.mesh.places[rank][group.axis]}{arrow}{part.peer}" if arrow else ""
        return Names(group.name, group.desc, f"{self.recording.backend}:{part.op}{ends}")

    def header(self, rank: int, status: Mapping[str, tuple[int, int, int]]) -> dict[str, Any]:
        """All of a dump but its entries."""
        groups = self.mesh.groups_of[rank]
        is_gloo = self.recording.backend == "gloo"
        listed = {a: g.ranks_text if a != WORLD or self.recording.lists_world else "[]" for a, g in groups.items()}
        config = {g.name: {"name": g.name, "desc": g.desc, "ranks": listed[a]} for a, g in groups.items()}
        if is_gloo:
            config = {"": {"name": "", "desc": "", "ranks": "[]"}}
        keys = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
        library = "comm_lib_version" if self.recording.version == VERSION else "nccl_version"
        header = {
            "version": self.recording.version,
            "pg_config": config,
            library: "" if is_gloo else "2.29.7",
            "pg_status": {str(g.local_id): dict(zip(keys, status[a], strict=True)) for a, g in groups.items()},
        }
        return as_of_version(header, self.recording.version)

    def status(self, rank: int, entries: Seen) -> dict[str, tuple[int, int, int]]:
        """The sequence number of the last work of each group that was enqueued, started and completed, -1 where none.

        `entries`: all that the rank ever made; torch does not count in the ring buffer.
        """
        found = {axis: [-1, -1, -1] for axis in self.mesh.groups_of[rank]}
        started = (entries.started_ns > 0).tolist()
        for (row, numbers), is_started in zip(self.rows(rank, entries), started, strict=True):
            if row.tracked:
                seq = numbers.p2p_seq if row.step.is_p2p else numbers.collective_seq
                told = found[row.step.axis]
                told[0] = seq
                told[1] = seq if is_started and self.recording.timing else told[1]
                told[2] = seq if numbers.retired else told[2]
        return {axis: (told[0], told[1], told[2]) for axis, told in found.items()}

    def contents(self, rank: int) -> dict[str, Any]:
        """A rank's dump in memory."""
        return {**self.header(rank, self.status(rank, self.made(rank))), "entries": self.entries(rank)}

    def dump(self, rank: int) -> bytes:
        """A rank's file."""
        data = to_json(self.contents(rank)) if rank in self.loss.json else self.pickled(rank)
        return data[: int(len(data) * self.loss.truncated.get(rank, 1.0))]

    def pickled(self, rank: int) -> bytes:
        """A rank's dump as torch pickles it; equal to `to_pickle(contents(rank))`, and faster."""
        entries = self.seen(rank)
        plans = id(self.past_plans[rank]), id(self.final.plans[rank])
        made = self.made(rank) if len(entries) and entries.record_id[0] else entries
        alike = (*plans, len(entries), len(made), made.state.tobytes())
        status = self._statuses.get(alike)
        if status is None:
            status = self._statuses[alike] = self.status(rank, made)
        kept = self.kept(entries)
        pickler = self._begun(rank, status)
        times = self.times(rank, kept)
        known = pickler.memo.get
        groups = self.mesh.groups_of[rank].values()
        places = self.mesh.places[rank]
        key = (
            alike,
            len(pickler.memo),
            *((known(g.name, g.name), known(g.desc), places[g.axis] if g.axis in ("pp", "cp") else 0) for g in groups),
        )
        template = self._templates.get(key)
        if template is None:
            begun = bytes(pickler.out)
            template = self._templates[key] = self._written(rank, kept, times, pickler)
            return begun + template.data.tobytes()
        return bytes(pickler.out) + template.with_times(times)

    def _begun(self, rank: int, status: Mapping[str, tuple[int, int, int]]) -> Pickler:
        pickler = Pickler()
        pickler.out += b"}("
        for name, value in self.header(rank, status).items():
            pickler.string(name)
            pickler.value(value)
        pickler.string("entries")
        return pickler

    def _written(self, rank: int, kept: Seen, times: npt.NDArray[np.int64], pickler: Pickler) -> Template:
        rows = self.rows(rank, kept)
        if self.recording.has_frames:
            uses = Counter[CodeFrame]()
            for frames, count in Counter(row.step.frames for row, _ in rows).items():
                for frame in frames:
                    uses[frame] += count
            pickler.shared = {code for code, count in uses.items() if count > 1}
        return EntryWriter(pickler, self._tokens_of, lambda row: self.names(rank, row)).write(rows, times)

    def write(self, folder: Path, ranks: Iterable[int] | None = None) -> int:
        """Writes the files that are left, dated to the moment of the dump on each rank's clock; returns their bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        size = 0
        for rank in self.ranks if ranks is None else ranks:
            data = self.dump(rank)
            size += len(data)
            path = folder / f"{NAME}{rank}"
            path.write_bytes(data)
            at = self.written_ns + self.clocks(rank).skew_ns
            os.utime(path, ns=(at, at))
        return size

    def write_in_parallel(
        self, folder: Path, processes: int, tell: Callable[[int, int], None], within: range | None = None
    ) -> int:
        """As `write`, in forked processes; `tell` gets the files done, and of how many. `within`: these ranks only."""
        ranks = [r for r in self.ranks if within is None or r in within]
        count = max(1, min(256, len(ranks) // processes))
        tasks = [(self, folder, ranks[i : i + count]) for i in range(0, len(ranks), count)]
        _TASKS[:] = tasks
        size = done = 0
        with multiprocessing.get_context("fork").Pool(processes) as pool:
            for n, written in pool.imap_unordered(_write_task, range(len(tasks))):
                size, done = size + written, done + n
                tell(done, len(ranks))
        _TASKS.clear()
        return size


_TASKS: list[tuple[Job, Path, list[int]]] = []


def _write_task(number: int) -> tuple[int, int]:
    job, folder, ranks = _TASKS[number]
    return len(ranks), job.write(folder, ranks)
