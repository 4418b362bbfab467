"""All evidence on one job at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unhang.model.calls import CollectiveTable
from unhang.model.events import LogEvent
from unhang.model.evidence import LogLine, ProcessGroup, RaisedError, RankEvidence, ThreadStack, Unavailable
from unhang.model.readings import Reading


@dataclass(frozen=True, slots=True)
class Job:
    """What was run. `exit_code` is None while it runs or where it is not known."""

    world_size: int | None = None
    nodes: int = 1
    command: tuple[str, ...] = ()
    backend: str = ""
    torch_version: str = ""
    exit_code: int | None = None
    ended_by_us: bool = False
    started_ns: int = 0


@dataclass(frozen=True, slots=True)
class HangObservation:
    """What the watcher saw. `kind`: proven or suspected.

    `onset_s`: seconds from the start of the job to the wait; `detected_after_s`: from the onset to the verdict.

    `withdrawn`: the job moved again after the suspicion.
    """

    kind: str
    onset_s: float
    detected_after_s: float
    waiting_ranks: tuple[int, ...] = ()
    reason: str = ""
    withdrawn: bool = False


@dataclass(frozen=True)
class Case:
    """All evidence on one job at one moment. Rules read it and never change it.

    `events`: what the lines of `log` say; `loose_errors`: exceptions in it that no rank is known to have raised.
    `readings`: what was read on the machines.
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

    @property
    def world(self) -> tuple[int, ...]:
        """Every rank that exists or should exist."""
        expected = range(self.job.world_size) if self.job.world_size else ()
        return tuple(sorted({*expected, *self.ranks}))
