"""All evidence on one job at one moment: how it ran until then, in seconds from its start, and who waits for whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from unhang.model.calls import CollectiveTable
from unhang.model.evidence import (
    LogEvent,
    LogLine,
    ProcessGroup,
    RaisedError,
    RankEvidence,
    Reading,
    ThreadStack,
    Unavailable,
)

K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The second parts of pairs by the first, in the order in which they come."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


@dataclass(frozen=True, slots=True)
class StepPace:
    """The optimizer steps of a rank: how many, and what they took, in seconds; None where too few were seen."""

    steps: int = 0
    median_s: float | None = None
    p95_s: float | None = None


@dataclass(frozen=True, slots=True)
class SlowStep:
    """One step that took far longer than usual. `phases`: rank -> `data 95 %`, "" where it is not known."""

    step: int
    took_s: float
    usual_s: float
    at_s: float = 0.0
    phases: Mapping[int, str] = field(default_factory=dict)


def ranks_by_phase(phases: Mapping[int, str]) -> dict[str, tuple[int, ...]]:
    """Phase -> the ranks that were in it; those of which it is not known are left out."""
    found = grouped((phase, rank) for rank, phase in sorted(phases.items()) if phase)
    return {phase: tuple(ranks) for phase, ranks in found.items()}


@dataclass(frozen=True, slots=True)
class SlowerSteps:
    """From some step on all took much longer than at the beginning."""

    since_step: int
    took_s: float
    usual_s: float
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PassedStall:
    """A wait that was suspected to be a hang, and ended by itself."""

    onset_s: float
    lasted_s: float
    waiting_ranks: tuple[int, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LibraryChange:
    """What is gone and what is new in a folder of Python's modules since the job began; `at_s`: when it was first seen."""

    path: str
    at_s: float
    gone: tuple[str, ...] = ()
    new: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Course:
    """One run. `slow_count`: how many slow steps there were, of which the longest are kept.

    `contexts`: device -> who held memory on it (`rank 3`, `pid 4711`) -> the most, in MB. `samples`: name -> one value for each moment of
    `at_s`: `rank 0 cpu` (cores), `rank 0 memory_mb`, `node load`, `device 0 use` (%).
    """

    ran_s: float = 0.0
    steps: Mapping[int, StepPace] = field(default_factory=dict)
    slow_steps: tuple[SlowStep, ...] = ()
    slow_count: int = 0
    slower: SlowerSteps | None = None
    stalls: tuple[PassedStall, ...] = ()
    contexts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    samples: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    changed: tuple[LibraryChange, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """What was run. `exit_code` is None while it runs or where it is not known.

    `interrupted_by`: the signal to `unhang run` that ended the job (SIGINT: Ctrl-C), empty if none did; `interrupted_ns`: when it came.
    `report_dirs`: where the reports of its `unhang run`s lie. `environment`: the variables that decide how ranks find each other.
    `added`: what `unhang run` was asked to set for it.
    `end_line`: the line of a log that tells how it ended, where nothing else does.
    """

    world_size: int | None = None
    nodes: int = 1
    command: tuple[str, ...] = ()
    backend: str = ""
    torch_version: str = ""
    exit_code: int | None = None
    ended_by_us: bool = False
    started_ns: int = 0
    interrupted_by: str = ""
    interrupted_ns: int = 0
    report_dirs: tuple[str, ...] = ()
    end_line: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HangObservation:
    """What the watcher saw. `kind`: proven or suspected.

    `onset_s`: seconds from the start of the job to the wait; `detected_after_s`: from the onset to the verdict. None where
    no clock of the job tells it: dumps tell neither when the job began nor when they were written, and a file's time is its copy's.

    `withdrawn`: the job moved again after the suspicion.
    """

    kind: str
    onset_s: float | None
    detected_after_s: float | None
    waiting_ranks: tuple[int, ...] = ()
    reason: str = ""
    withdrawn: bool = False


@dataclass(frozen=True)
class Case:
    """All evidence on one job at one moment. Rules read it and never change it.

    `attempt`: how often the ranks had been started before; `earlier`: what there is of each of these attempts, oldest first.

    `shapes`: of the model's parameters, in their order, as the recorder saw them when the model was wrapped.

    `events`: what the lines of `log` say; `loose_errors`: exceptions in it that no rank is known to have raised.
    `readings`: what was read on the machines. `out_of_sight`: ranks that run on another node, or under another `unhang run`, of
    which nothing was given. That nothing is known of them is no evidence on them.

    `chosen`: of a job with many ranks those that stand for all `stands_for` of them; groups have no other members here.
    """

    job: Job = Job()
    ranks: Mapping[int, RankEvidence] = field(default_factory=dict)
    groups: tuple[ProcessGroup, ...] = ()
    calls: CollectiveTable = field(default_factory=CollectiveTable.empty)
    log: tuple[LogLine, ...] = ()
    events: tuple[LogEvent, ...] = ()
    loose_errors: tuple[RaisedError, ...] = ()
    readings: tuple[Reading, ...] = ()
    launcher_stacks: tuple[ThreadStack, ...] = ()
    hang: HangObservation | None = None
    present: tuple[str, ...] = ()
    absent: tuple[Unavailable, ...] = ()
    out_of_sight: tuple[int, ...] = ()
    course: Course | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    attempt: int = 0
    earlier: tuple[Case, ...] = ()
    chosen: tuple[int, ...] = ()
    stands_for: int = 0

    def of_attempt(self, number: int | None) -> Case:
        """What there is of an earlier attempt; all of this for None."""
        return next((case for case in self.earlier if case.attempt == number), self)

    @property
    def size(self) -> int:
        """How many ranks the job has, as far as that is known; 0 where it is not."""
        return self.stands_for or self.job.world_size or 0

    @property
    def in_sight(self) -> tuple[int, ...]:
        """The ranks that this evidence would show if they had started."""
        unseen = set(self.out_of_sight)
        return tuple(r for r in self.world if r not in unseen)

    @property
    def world(self) -> tuple[int, ...]:
        """Every rank that exists or should exist; where some stand for all, these."""
        if self.chosen:
            return self.chosen
        expected = range(self.job.world_size) if self.job.world_size else ()
        return tuple(sorted({*expected, *self.ranks}))


@dataclass(frozen=True, slots=True)
class WaitEdge:
    """`waiter` cannot go on before every rank in `targets` has acted.

    `kind`: collective, p2p, new_group, store, rendezvous. `what` reads as an object: "all_reduce #15 of default_pg".
    `mismatch`: the targets did act, but with another call, so that the wait can never end. `of_any`: one of several waits of which whoever
    acts first ends all.
    """

    waiter: int
    targets: tuple[int, ...]
    kind: str
    what: str
    group: str = ""
    seq: int | None = None
    since_ns: int | None = None
    mismatch: bool = False
    of_any: bool = False


@dataclass(frozen=True)
class WaitsFor:
    """The graph. `roots`: ranks that others wait for, directly or not, and that wait for nobody themselves.

    `cycles`: sets of ranks that wait for each other. `victims`: for each root, the ranks that it blocks.
    """

    edges: tuple[WaitEdge, ...] = ()
    roots: tuple[int, ...] = ()
    cycles: tuple[tuple[int, ...], ...] = ()

    @property
    def waiting(self) -> tuple[int, ...]:
        """Every rank that waits."""
        return tuple(sorted({e.waiter for e in self.edges}))

    def edges_of(self, rank: int) -> tuple[WaitEdge, ...]:
        """The waits of one rank."""
        return self._by_waiter.get(rank, ())

    @cached_property
    def _by_waiter(self) -> dict[int, tuple[WaitEdge, ...]]:
        found = grouped((edge.waiter, edge) for edge in self.edges)
        return {rank: tuple(edges) for rank, edges in found.items()}
