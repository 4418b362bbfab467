"""The entries of a rank's ring buffer as columns: which recorded call each is, when it was seen, and its state.

Legend of shapes: N entries kept, K rows of one program (one for each entry that the program leaves).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dumpgen.schedule import Part, Step
from dumpgen.simulate import Timeline

SCHEDULED, STARTED, COMPLETED = "scheduled", "started", "completed"
STATES = (SCHEDULED, STARTED, COMPLETED)
NONE_NS = 0
CLOSING = Part("coalesced", (), (), "")
_BETWEEN_PARTS_NS = 1_500
WATCHDOG_NS = 100_000_000

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Row:
    """One entry that a program leaves. Sequence numbers count from the begin of the program, from 1.

    `tracked`: its state follows the work; that of a member of a batch does not.
    """

    step: Step
    part: Part
    tracked: bool
    collective_seq: int
    p2p_seq: int
    op_id: int


class Rows:
    """All entries that a program leaves, and how far it advances the numbers of each group."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.rows: list[Row] = []
        collectives, transfers, ops = Counter[str](), Counter[str](), Counter[str]()
        step_K, offset_K = [], []
        for i, step in enumerate(steps):
            axis = step.axis
            (transfers if step.is_p2p else collectives)[axis] += 1
            parts = [*step.parts, CLOSING] if step.batched else step.parts
            for k, part in enumerate(parts):
                ops[axis] += part is not CLOSING
                tracked = part is CLOSING or not step.batched
                self.rows.append(Row(step, part, tracked, collectives[axis], transfers[axis], ops[axis]))
                step_K.append(i)
                offset_K.append(k * _BETWEEN_PARTS_NS)
        self.counts = {a: (collectives[a], transfers[a], ops[a]) for a in {s.axis for s in steps}}
        self.step_K, self.offset_K = np.array(step_K, dtype=np.int64), np.array(offset_K, dtype=np.int64)
        self.tracked_K = np.array([r.tracked for r in self.rows], dtype=bool)

    def issued(self, steps: int) -> int:
        """How many entries the first `steps` steps leave."""
        return int(np.searchsorted(self.step_K, steps))


@dataclass(frozen=True)
class Clock:
    """How a rank sees time. `skew_ns`: its clock against the true one. `phase_ns`: of its watchdog, None: no watchdog."""

    skew_ns: int = 0
    phase_ns: int | None = None

    def discovered(self, ns_N: Ints, until_ns: int) -> Ints:
        """When the watchdog, or the dump itself, sees what happened at `ns_N`."""
        if self.phase_ns is None:
            return ns_N
        seen: Ints = np.minimum(ns_N + (self.phase_ns - ns_N) % WATCHDOG_NS, until_ns)
        return seen


@dataclass(frozen=True)
class Seen:
    """The entries of one rank, columns `[N]`. `program`: 0 a past iteration, 1 the last stretch; `row` of that program.

    `iteration`: of the past. Times are true ones, NONE_NS where there is none. `state`: index into STATES.
    """

    program: Ints
    row: Ints
    iteration: Ints
    record_id: Ints
    created_ns: Ints
    started_ns: Ints
    completed_ns: Ints
    state: npt.NDArray[np.int8]
    is_done: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.row)

    def only(self, kept: npt.NDArray[np.bool_] | slice) -> Seen:
        """Some of the entries."""
        return Seen(**{name: getattr(self, name)[kept] for name in self.__dataclass_fields__})


@dataclass(frozen=True)
class Past:
    """Iterations before the simulated stretch: all alike, one every `period_ns`, the last ends before the stretch."""

    timeline: Timeline
    iterations: int
    period_ns: int


def seen(past: Past, final: Timeline, programs: tuple[Rows, Rows], rank: int, until_ns: int, ring: int) -> Seen:
    """All entries of a rank that its ring buffer still holds at `until_ns`, as true times.

    A time of the simulated stretch after `until_ns` has not come yet.
    """
    steady, last = programs
    issued, arrived, done = final.columns(rank)
    steps = int(np.searchsorted(issued, until_ns, side="right"))
    n_last = last.issued(steps)
    n_past = past.iterations * len(steady.rows)
    first = max(0, n_past + n_last - ring)
    from_iteration = min(first // max(1, len(steady.rows)), past.iterations)
    past_part = _past(past, steady, rank, from_iteration)
    step_K, offset_K = last.step_K[:n_last], last.offset_K[:n_last]
    tracked = last.tracked_K[:n_last]
    started = np.where((arrived > until_ns) | (arrived == 0), NONE_NS, arrived)[step_K]
    completed = np.where((done > until_ns) | (done == 0), NONE_NS, done)[step_K]
    last_part = (np.arange(n_last), issued[step_K] + offset_K, started, completed, tracked)
    row, created, began, ended, is_tracked = (np.concatenate(pair) for pair in zip(past_part, last_part, strict=True))
    n = len(past_part[0])
    iterations = np.repeat(np.arange(from_iteration, past.iterations), len(steady.rows))
    whole = Seen(
        program=np.repeat(np.array([0, 1]), [n, n_last]),
        row=row,
        iteration=np.concatenate([iterations, np.full(n_last, past.iterations)]),
        record_id=np.arange(len(row)) + n_past - n,
        created_ns=created,
        started_ns=np.where(is_tracked, began, NONE_NS),
        completed_ns=np.where(is_tracked, ended, NONE_NS),
        state=np.where(is_tracked, np.where(ended > 0, 2, np.where(began > 0, 1, 0)), 0).astype(np.int8),
        is_done=is_tracked & (ended > 0),
    )
    return whole.only(slice(max(0, len(whole) - ring), None))


def _past(past: Past, steady: Rows, rank: int, from_iteration: int) -> tuple[Ints, ...]:
    shift = (np.arange(from_iteration, past.iterations) * past.period_ns)[:, None]
    times = [c[steady.step_K] for c in past.timeline.columns(rank)] if len(shift) else [steady.step_K] * 3
    times[0] = times[0] + steady.offset_K
    count = len(shift)
    rows = np.tile(np.arange(len(steady.rows)), count)
    return (rows, *((shift + t[None, :]).ravel() for t in times), np.tile(steady.tracked_K, count))
