"""Opinions with their evidence, the causes that they may name, what becomes of them, and how they name ranks: the contract of `report.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from unhang.model.case import HangObservation, Job
from unhang.model.evidence import Unavailable
from unhang.model.frames import Frame

CAUSES: Mapping[str, str] = {
    # The ranks' programs disagree.
    "code-divergence": "a rank takes another branch than its peers around a collective",
    "uneven-inputs": "the same program on every rank, but another number of batches",
    "size-mismatch": "the same collective with tensors of different size or dtype",
    "collective-order-race": "the same collectives in another order (threads, groups, point-to-point)",
    "slow-rank0-work": "one rank works alone (save, evaluate, tokenise) while the others wait for it",
    "unused-parameters": "DDP parameters that took no part in the loss",
    "rank-stuck-in-user-code": "a rank sits in CPU code: a lock, a queue, an event, an endless loop",
    "dataloader-hang": "a rank waits for its data loader",
    # A rank died or failed first.
    "user-exception": "a Python exception in one rank",
    "gpu-oom": "a device ran out of memory",
    "cuda-kernel-error": "a device-side assertion or an illegal access",
    "host-oom": "the kernel killed a process for want of memory",
    "rank-exited-early": "a rank ended before the others",
    "rank-crashed-earlier": "a peer crashed, the reason is not established",
    "rank-frozen": "a process is stopped or cannot be scheduled",
    "external-signal": "the job was ended from outside",
    # Start-up.
    "device-mapping": "wrong or duplicate device",
    "gpu-visibility-isolation": "a per-process CUDA_VISIBLE_DEVICES breaks IPC",
    "port-in-use": "the rendezvous port is taken",
    "rendezvous-endpoint": "wrong or unreachable master",
    "rendezvous-incomplete": "not all members came",
    "launcher-misuse": "the launcher was started wrongly",
    "stale-store": "keys of an earlier run are still in the store",
    "version-mismatch": "ranks run different versions",
    "misconfigured-env": "an environment variable is wrong",
    "filesystem-race": "ranks race for a file or folder",
    # Transport, node, hardware.
    "network-interface": "communication over the wrong interface",
    "network-unstable": "connections are lost",
    "ib-roce-config": "InfiniBand or RoCE is misconfigured",
    "ib-link": "an InfiniBand link is down or flapping",
    "memlock-limit": "the locked-memory limit is too small",
    "p2p-acs-iommu": "PCIe peer-to-peer is broken by ACS or IOMMU",
    "fabric-manager": "the NVSwitch fabric manager is not running",
    "driver-bug": "a fault of the driver",
    "gpu-hardware": "a broken device",
    "shm-too-small": "/dev/shm is too small",
    "fd-exhaustion": "too many open files",
    "straggler": "a rank is slow, but makes progress",
    "nccl-or-library-bug": "a fault of NCCL or another library",
    # Wrong without a hang.
    "silent-desync": "replicas diverge without an error",
    "not-learning": "the job runs, but trains nothing",
    "slow-steps": "the job goes on, but its steps take far too long",
    "shutdown-hang": "all work is done, the process cannot end",
    # Nothing is established.
    "unknown": "the evidence does not suffice",
}


class Verdict(StrEnum):
    """What a rule says of a case."""

    PASS = "pass"
    FAIL = "fail"
    SKIPPED = "skipped"
    ERROR = "error"


class Outcome(StrEnum):
    """What became of the job; `stalled` and `moves` are said of one that runs and was looked at from outside, `moves` also of a log that ends amid the training."""

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
class Gate:
    """The condition that decides whether a rank runs the line of a finding.

    `text`: what must hold for the line to run. `by_rank`: it asks for the number of the rank; `only_zero`: only rank 0 passes it.
    """

    file: str
    line: int
    text: str
    by_rank: bool = False
    only_zero: bool = False


@dataclass(frozen=True, slots=True)
class EvidenceLine:
    """One fact that a finding rests on. `source` names rank and reader ("rank 0 stack"), `line` a line of a file."""

    source: str
    text: str
    line: int | None = None


NO_HELP = "Does not help: "
# What the diffs of `unhang fix` do.
DIFFS = (
    "every rank calls", "decide together", "end together", "raise again", "find unused", "make folder", "wait for writer", "send first",
    "join thread", "gather objects", "one says", "set always", "after the round", "skip together",
)  # fmt: skip
LOOK, LIMIT, LOSS = "look", "limit", "loss"
# Evidence of a loop that ended early: the line that ended it; that it made as many rounds on all ranks before.
SOURCE, EARLIER = "ended by", "earlier rounds"
_NOTES = {
    LIMIT: "an error takes the place of the hang; what is behind it stays",
    LOSS: "a stop-gap: what the other ranks still have is left out without a word; what ended the loop stays",
}
_CHANGES = ("patch", "command", "setting", "advice")
_MOST_RUNS = 3  # of ranks, in a name of bounded length
SEVERITIES = ("wrong", "doubtful", "note")
WRONG, DOUBTFUL = 0.9, 0.7  # severity of what is found before a job: a finding of at least this confidence


@dataclass(frozen=True, slots=True)
class Fix:
    """A concrete change: one of `patch`, `command`, `setting`, `advice`. `undo` takes it back, `verify` shows that it helped.

    `patch`: a unified diff that applies to the program as it is, or empty; `advice`: what to change, in words or as an example.
    A title that begins with NO_HELP names what is often tried and does not help; `verify` then says why.
    `does`: which of DIFFS it is in words, so that the diff takes its place where one can be made.
    `kind`: empty for a repair; LOOK where it only shows more; LIMIT where an error takes the place of the hang,
    LOSS where work is left out in its place.
    """

    title: str
    verify: str
    patch: str = ""
    command: str = ""
    setting: str = ""
    undo: str = ""
    advice: str = ""
    does: str = ""
    kind: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Fix:
        """A fix as a report has it."""
        return cls(**{name: fields.get(name, "") for name in ("title", "verify", *_CHANGES, "undo", "kind")})

    @property
    def helps(self) -> bool:
        """Whether it is a remedy, not a warning against one."""
        return not self.title.startswith(NO_HELP)

    @property
    def mends(self) -> bool:
        """Whether the fault is gone when it is done as written."""
        return self.helps and not self.kind

    @property
    def note(self) -> str:
        """What is said beside it."""
        return _NOTES.get(self.kind, "")

    @property
    def changes(self) -> Mapping[str, str]:
        """What is changed, by its kind: one of them as a rule, none of a warning."""
        return {kind: text for kind in _CHANGES if (text := getattr(self, kind))}

    @property
    def change(self) -> str:
        """The same as text to read: a command as it is typed, a diff as it is applied."""
        return "\n".join(f"$ {text}" if kind == "command" else text for kind, text in self.changes.items())


def limits_last(fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """The fixes, behind the others those that put an error in the place of the hang, and then what does not help."""
    return tuple(sorted(fixes, key=lambda f: (not f.helps, f.kind == LIMIT)))


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
    condition: Gate | None = None

    def __post_init__(self) -> None:
        if self.cause not in CAUSES:
            raise ValueError(f"unknown cause {self.cause!r}")
        if not 0 <= self.confidence <= 1:
            raise ValueError(f"confidence {self.confidence} is not within 0..1")

    @property
    def line(self) -> int:
        """The line that it names; 0 where it names none."""
        return self.location.line if self.location else 0

    @property
    def unmended(self) -> str:
        """What is said in front of its fixes where none of them is a repair; else empty."""
        if not any(f.helps for f in self.fixes) or any(f.mends for f in self.fixes):
            return ""
        place = f" The line to look at is {self.location}." if self.location else ""
        return f"What mends it does not follow from this evidence.{place}"

    @property
    def remark(self) -> str:
        """The title alone, and where it is explained: for what accuses nobody."""
        return f"{self.title} (unhang explain {self.rule})"

    @property
    def severity(self) -> str:
        """How bad it is where no job has failed yet: wrong, doubtful, or a note."""
        return "wrong" if self.confidence >= WRONG else "doubtful" if self.confidence >= DOUBTFUL else "note"


@dataclass(frozen=True, slots=True)
class NextStep:
    """An experiment that decides where no cause is established.

    `outcomes`: (what is seen, what it means). `minutes`: what it takes; for a whole run `run_s` instead: (how sure one is that a fault as rare as
    the one that was seen is gone, how many seconds it has to run without a failure), and `ranks` that run so long.
    """

    title: str
    do: str
    outcomes: tuple[tuple[str, str], ...]
    undo: str
    minutes: int | None = None
    run_s: tuple[tuple[float, float], ...] = ()
    ranks: int = 0


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
    """All outcomes; findings ordered cause first. `earlier`: the verdicts on the attempts before the last, oldest first.

    `next_steps`: what decides, where no cause is established. `remarks`: what is worth knowing and accuses nobody; the notes tell it.
    `stop`, `cost`, `set_up`, `course`: what a report said of the course of the job,
    where nothing but that report is left.
    """

    outcome: Outcome
    job: Job
    hang: HangObservation | None
    findings: tuple[Finding, ...]
    outcomes: tuple[RuleOutcome, ...]
    inventory: Inventory
    notes: tuple[str, ...] = field(default=())
    earlier: tuple[Attempt, ...] = ()
    next_steps: tuple[NextStep, ...] = ()
    remarks: tuple[Finding, ...] = ()
    stop: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)
    set_up: tuple[Mapping[str, str], ...] = ()
    course: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first(self) -> Finding | None:
        """The finding that is told first: the cause."""
        return self.findings[0] if self.findings else None

    @property
    def word(self) -> str:
        """How a verdict begins: the outcome; `wrong` for a job that came to its end and did not do right."""
        return "wrong" if self.findings and self.outcome is Outcome.CLEAN else self.outcome.value

    @property
    def exit_code(self) -> int:
        """0 nothing wrong, 1 findings or a job that hung or failed for an unknown reason, 3 could not judge."""
        if self.findings or self.outcome in (Outcome.HANG, Outcome.STALLED, Outcome.CRASH):
            return 1
        return 0 if self.outcome in (Outcome.CLEAN, Outcome.MOVES) else 3


def _runs(ranks: Iterable[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if runs and runs[-1][1] == rank - 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    return runs


def fold_ranks(ranks: Iterable[int], most: int = 8) -> str:
    """Ranks as ranges: "0-2, 5, 6". Beyond `most` ranges the rest is counted: "0, 2, 4 and 509 more"."""
    runs = _runs(ranks)
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in runs[:most])
    left = sum(b - a + 1 for a, b in runs[most:])
    return f"{shown} and {left} more" if left else shown


def count_ranks(ranks: Iterable[int]) -> str:
    """A name of bounded length: "ranks 0-2, 5", and where these are too many ranges "2047 ranks (3, 11, 19, ...)"."""
    known = sorted(set(ranks))
    if len(_runs(known)) <= _MOST_RUNS:
        return name_ranks(known)
    return f"{len(known)} ranks ({fold_ranks(known, _MOST_RUNS).split(' and ')[0]}, ...)"


def name_ranks(ranks: Iterable[int], most: int = 8) -> str:
    """The same as a noun: "rank 5", "ranks 0-2, 5", "no rank"."""
    known = sorted(set(ranks))
    if not known:
        return "no rank"
    return f"rank {known[0]}" if len(known) == 1 else f"ranks {fold_ranks(known, most)}"
