"""Opinions with their evidence, and what becomes of them: the contract of `report.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from unhang.model.case import HangObservation, Job
from unhang.model.causes import CAUSES
from unhang.model.evidence import Frame, Unavailable


class Verdict(StrEnum):
    """What a rule says of a case."""

    PASS = "pass"
    FAIL = "fail"
    SKIPPED = "skipped"
    ERROR = "error"


class Outcome(StrEnum):
    """What became of the job; `stalled` and `moves` are said of one that runs and was looked at from outside."""

    HANG = "hang"
    CRASH = "crash"
    STRAGGLER = "straggler"
    INTERRUPTED = "interrupted"
    CLEAN = "clean"
    UNKNOWN = "unknown"
    STALLED = "stalled"
    MOVES = "moves"


@dataclass(frozen=True, slots=True)
class Location:
    """A line of the user's code."""

    file: str
    line: int
    function: str

    @classmethod
    def of(cls, frame: Frame | None) -> Location | None:
        """The location of a frame."""
        return None if frame is None else cls(frame.file, frame.line, frame.function)

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class EvidenceLine:
    """One fact that a finding rests on. `source` names rank and reader ("rank 0 stack"), `line` a line of a file."""

    source: str
    text: str
    line: int | None = None


NO_HELP = "Does not help: "
SEVERITIES = ("wrong", "doubtful", "note")
WRONG, DOUBTFUL = 0.9, 0.7  # severity of what is found before a job: a finding of at least this confidence


@dataclass(frozen=True, slots=True)
class Fix:
    """A concrete change: one of `patch`, `command`, `setting`. `undo` takes it back, `verify` shows that it helped.

    A title that begins with NO_HELP names what is often tried and does not help; `verify` then says why.
    """

    title: str
    verify: str
    patch: str = ""
    command: str = ""
    setting: str = ""
    undo: str = ""

    @property
    def helps(self) -> bool:
        """Whether it is a remedy, not a warning against one."""
        return not self.title.startswith(NO_HELP)


@dataclass(frozen=True, slots=True)
class Finding:
    """An opinion with its evidence. `confidence` is 0..1. `consequence_of` is the id of the finding that caused it.

    `is_root`: it is no consequence of a more certain finding, but a fault of its own. `attempt`: where it was found in an earlier
    attempt of a job that was started again.
    """

    rule: str
    cause: str
    title: str
    confidence: float
    culprit_ranks: tuple[int, ...]
    because: str
    victim_ranks: tuple[int, ...] = ()
    process_group: Mapping[str, str] | None = None
    collective: Mapping[str, Any] | None = None
    location: Location | None = None
    evidence: tuple[EvidenceLine, ...] = ()
    fixes: tuple[Fix, ...] = ()
    id: str = ""
    consequence_of: str | None = None
    is_root: bool = False
    attempt: int | None = None

    def __post_init__(self) -> None:
        if self.cause not in CAUSES:
            raise ValueError(f"unknown cause {self.cause!r}")
        if not 0 <= self.confidence <= 1:
            raise ValueError(f"confidence {self.confidence} is not within 0..1")

    @property
    def severity(self) -> str:
        """How bad it is where no job has failed yet: wrong, doubtful, or a note."""
        return "wrong" if self.confidence >= WRONG else "doubtful" if self.confidence >= DOUBTFUL else "note"


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """What one rule said, and why (the missing evidence, for `skipped`)."""

    rule: str
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """What evidence was there and what was not, with the reason."""

    present: tuple[str, ...] = ()
    absent: tuple[Unavailable, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """The verdict on an attempt after which the ranks were started again. `number`: how often they had been started before it."""

    number: int
    outcome: Outcome
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """All outcomes; findings ordered cause first. `earlier`: the verdicts on the attempts before the last, oldest first."""

    outcome: Outcome
    job: Job
    hang: HangObservation | None
    findings: tuple[Finding, ...]
    outcomes: tuple[RuleOutcome, ...]
    inventory: Inventory
    notes: tuple[str, ...] = field(default=())
    earlier: tuple[Attempt, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 nothing wrong, 1 findings or a job that hung or failed for an unknown reason, 3 could not judge."""
        if self.findings or self.outcome in (Outcome.HANG, Outcome.STALLED, Outcome.CRASH):
            return 1
        return 0 if self.outcome in (Outcome.CLEAN, Outcome.MOVES) else 3
