"""How a job ran while it was watched, or looked at from outside: steps, what passed by itself, what was used. Seconds from its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
    found: dict[str, list[int]] = {}
    for rank, phase in sorted(phases.items()):
        if phase:
            found.setdefault(phase, []).append(rank)
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
class Look:
    """What several looks from outside showed of a rank that runs without the recorder.

    `moved`: whether its main thread has in between; None where that cannot be told. `how`: by what. `changed`: whether anything of
    its stack or variables has, which an endless loop does too. `has_group`: the call in which it stands was given a group, whose
    members are not known. `unsent`: (peer, bytes) of connections that got rid of nothing. `device`, `busy`: its device, and percent.
    `group_number`: of the group that it makes, as its process counts them.
    """

    looks: int
    seconds: float
    moved: bool | None
    how: str = ""
    changed: bool = False
    has_group: bool = False
    unsent: tuple[tuple[str, int], ...] = ()
    device: int | None = None
    busy: int | None = None
    group_number: int | None = None
