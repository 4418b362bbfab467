"""The finding on a rank that failed first: shared by the rules that name the kind of failure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from unhang.analyze.failures import UNUSED_PARAMETERS, Failure
from unhang.analyze.first_errors import SeenError, errors_of, first_error, ranks_of
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Finding, Fix, Frame, RaisedError, user_frames
from unhang.model.evidence import SEEN_BY_LAUNCHER
from unhang.model.lazy_pattern import lazy_pattern
from unhang.rules import wording as w

if TYPE_CHECKING:
    from unhang.rules.base import Rule

GPU_OOM = lazy_pattern(
    # More than any device has is a size that was never filled in.
    r"^(?!.*more than 1EB)(?:.*)(?:(?:CUDA|HIP|NPU|XPU|MUSA) out of memory|cuda\.OutOfMemoryError|(?<![.\w])(?:torch\.)?OutOfMemoryError|CU\w+_STATUS_ALLOC_FAILED|"
    r"CUDA error: out of memory|Cuda failure (?:\d+ )?'out of memory'|cuda runtime error \(2\)|CUDA_ERROR_OUT_OF_MEMORY)",
    re.DOTALL,
)
KERNEL_ERROR = lazy_pattern(
    r"device-side assert|illegal memory access|misaligned address|an illegal instruction was encountered|"
    r"unspecified launch failure|hardware stack error|CU(?:BLAS|DNN)_STATUS_EXECUTION_FAILED|"
    r"CUDA_ERROR_(?:ILLEGAL_ADDRESS|ASSERT|MISALIGNED_ADDRESS)|cudaError(?:IllegalAddress|Assert|MisalignedAddress)"
)
HOST_OOM = lazy_pattern(
    r"^(?:\w+\.)*_?(?:Array)?MemoryError|DefaultCPUAllocator|Errno 12\b|bad_alloc|ray\.exceptions\.OutOfMemoryError|"
    r"killed by signal: Killed|node running low on memory|memory pressure"
)
WORKER_DIED = lazy_pattern(r"DataLoader worker \(pid.{0,40}\) (?:is killed by signal|exited unexpectedly)")
_WORKER_KILLED = lazy_pattern(r"DataLoader worker \(pid.{0,40}\) is killed by signal")
FD_EXHAUSTED = lazy_pattern(r"Too many open files|Errno 24\b|EMFILE")
FILE_RACE = lazy_pattern(
    r"Parent directory .* does not exist|FileExistsError|FileNotFoundError|No such file or directory|Stale file handle|"
    r"Errno (?:17|39|116)\b|Directory not empty"
)
MISSING_FILE = lazy_pattern(r"FileNotFoundError|No such file or directory|Parent directory .* does not exist")
# Paths of which one rank's work is another's failure: renamed from a temporary name, made twice, removed by a rotation, an index
# that one rank builds; and functions that build, download or rotate them.
SURE_RACE = lazy_pattern(
    r"\.(?:tmp|temp|incomplete|partial|lock)\b.{0,200}' -> '|tmp-checkpoint|Stale file handle|File exists|FileExistsError|Directory not empty|"
    r"_(?:doc_idx|sample_idx|shuffle_idx|document_index|sample_index|shuffle_index)\.npy|\.(?:incomplete|lock)'|"
    r"Parent directory .* does not exist|(?:cache|index)[^'\"]{0,200}\.(?:npy|arrow|idx|bin|json|lock|pt|so)\b"
)
MADE_BY_ONE = lazy_pattern(r"build|download|cache|rotate|_rotate_checkpoints|makedirs|index|prepare", re.IGNORECASE)
PORT_TAKEN = lazy_pattern(r"address already in use|EADDRINUSE|errno: ?98\b", re.IGNORECASE)
LOADER_TIMED_OUT = lazy_pattern(r"DataLoader timed out after")
# What DDP says where the first collective never came to its end: whose fault that was, it does not tell.
INCONSISTENT_PARAMETERS = lazy_pattern(
    r"DDP expects same model across all ranks, but Rank \d+ has \d+ params, while rank \d+ has inconsistent 0 params"
)
SPECIAL = (
    LOADER_TIMED_OUT,
    GPU_OOM,
    KERNEL_ERROR,
    HOST_OOM,
    _WORKER_KILLED,
    FD_EXHAUSTED,
    PORT_TAKEN,
    UNUSED_PARAMETERS,
    INCONSISTENT_PARAMETERS,
)


@dataclass(frozen=True)
class FirstException:
    """The exception with which it began, told by the processes themselves or read from logs.

    `failures`: the ranks' ends where the processes told them. `seen`: where it stands in the log.
    """

    error: RaisedError
    ranks: tuple[int, ...]
    failures: tuple[Failure, ...] = ()
    seen: SeenError | None = None

    @property
    def text(self) -> str:
        """Type and message."""
        return f"{self.error.type}: {self.error.message}"

    @property
    def head(self) -> str:
        """The first line of the message, short."""
        return (self.error.message.splitlines() or [""])[0][:140]

    @property
    def frame(self) -> Frame | None:
        """The innermost frame of the user's code."""
        return next(iter(user_frames(self.error.frames)), None)


def first_exception(s: Situation) -> FirstException | None:
    """The exception that is no echo and comes first; None where the first failure is of another kind."""
    failure = s.primary_failure
    if failure is not None and not is_read_from_log(failure):
        if failure.kind != "exception" or failure.error is None:
            return None
        failures = same_failures(s, failure)
        return FirstException(failure.error, tuple(sorted({f.rank for f in failures})), failures)
    seen = first_error(s)
    return FirstException(seen.error, ranks_of(s, seen), (), seen) if seen is not None else None


def comes_late(s: Situation, first: FirstException) -> bool:
    """Whether somebody's wait had run out before the exception, so that it may be what became of the wait."""
    return first.seen is not None and any(e.says == "hang" and e.order < first.seen.order for e in s.events)


def is_read_from_log(failure: Failure) -> bool:
    """Whether a failure is known from a log alone: from its traceback there, or from the launcher's word."""
    if failure.error is not None:
        return failure.error.source.reader == "output"
    return failure.exit is not None and failure.exit.text == SEEN_BY_LAUNCHER


def describe_first(
    s: Situation, rule: Rule, first: FirstException, confidence: float, what: str, fixes: tuple[Fix, ...], why: str = ""
) -> Finding:
    """The finding on the first exception: whose, where, with what, and what only followed from it."""
    if first.failures:
        return describe_failure(s, rule, first.failures, confidence, what, fixes)
    ranks, frame = first.ranks, first.frame
    later = [e for e in errors_of(s) if first.seen is not None and e.kind == "echo" and e.order > first.seen.order]
    who = w.name_ranks(ranks) if ranks else "a rank"
    return Finding(
        rule=rule.id,
        cause=rule.cause,
        title=f"{who} {what}{f' at {w.place(frame)}' if frame else ''}",
        confidence=confidence,
        culprit_ranks=ranks,
        victim_ranks=s.others(ranks) if ranks else (),
        because=(why or "It is the first failure that the log shows.")
        + (" What is printed after it about lost peers and timeouts is its echo." if later else "")
        + ("" if ranks else " The lines do not tell which rank it was."),
        location=w.location_of(frame),
        evidence=(*_seen_lines(first), *(_seen_line(e.rank, e.error, ", a consequence") for e in later[:4])),
        fixes=fixes,
    )


def _seen_line(rank: int | None, error: RaisedError, what: str = "") -> EvidenceLine:
    name = PurePath(error.source.path).name or "log"
    who = f"{name}, rank {rank}{what}" if rank is not None else f"{name}{what}"
    return EvidenceLine(who, f"{error.type}: {error.message[:400]}", error.source.line)


def _seen_lines(first: FirstException) -> Iterable[EvidenceLine]:
    rank = first.seen.rank if first.seen is not None else None
    yield _seen_line(rank, first.error)
    for frame in user_frames(first.error.frames)[:6]:
        yield EvidenceLine("traceback" if rank is None else f"rank {rank} traceback", str(frame), frame.line)


def text_of(failure: Failure) -> str:
    """Type and message of a failure's exception."""
    return f"{failure.error.type}: {failure.error.message}" if failure.error else ""


def frame_of(failure: Failure) -> Frame | None:
    """The innermost frame of the user's code where it failed."""
    frames = failure.error.frames if failure.error else failure.exit.frames if failure.exit else ()
    return next(iter(user_frames(frames)), None)


def same_failures(s: Situation, first: Failure) -> tuple[Failure, ...]:
    """Every primary failure of the same exception at the same line: one fault, several ranks."""
    where = frame_of(first)
    return tuple(
        f
        for f in s.failures
        if not f.secondary
        and f.kind == first.kind
        and f.error
        and first.error
        and f.error.type == first.error.type
        and frame_of(f) == where
    ) or (first,)


def is_file_race(s: Situation, first: FirstException) -> bool:
    """Whether some but not all ranks failed on a file that another rank makes, renames or removes."""
    if not FILE_RACE.search(first.text):
        return False
    if first.failures:
        return 0 < len(first.ranks) < len(s.case.world)
    return bool(SURE_RACE.search(first.text)) or (
        is_missing_file(first) and any(MADE_BY_ONE.search(f"{f.file} {f.function}") for f in first.error.frames)
    )


def is_missing_file(first: FirstException) -> bool:
    """Whether a path was not there, which alone says nothing of other ranks."""
    return bool(MISSING_FILE.search(first.text))


def describe_failure(
    s: Situation, rule: Rule, failures: Sequence[Failure], confidence: float, what: str, fixes: tuple[Fix, ...]
) -> Finding:
    """The finding: who failed first, where, with what, and who was only taken along."""
    first = failures[0]
    ranks = tuple(sorted({f.rank for f in failures}))
    frame = frame_of(first)
    echo = [f for f in s.failures if f.rank not in ranks]
    where = f" at {w.place(frame)}" if frame else ""
    return Finding(
        rule=rule.id,
        cause=rule.cause,
        title=f"{w.name_ranks(ranks)} {what}{where}",
        confidence=confidence,
        culprit_ranks=ranks,
        victim_ranks=s.others(ranks),
        because=f"It is the first failure of the job{_after(s, first)}."
        + (f" What {w.name_ranks([f.rank for f in echo])} reported afterwards is its echo." if echo else ""),
        location=w.location_of(frame),
        evidence=(*_failure_lines(first), *_echo_lines(echo)),
        fixes=fixes,
    )


def _after(s: Situation, failure: Failure) -> str:
    started = s.case.job.started_ns
    return (
        f", {(failure.time_ns - started) / 1e9:.1f} s after its start" if started and failure.time_ns > started else ""
    )


def _failure_lines(failure: Failure) -> Iterable[EvidenceLine]:
    if failure.error is not None:
        yield EvidenceLine(f"rank {failure.rank} exception", f"{failure.error.type}: {failure.error.message[:400]}")
        for frame in user_frames(failure.error.frames)[:6]:
            yield EvidenceLine(f"rank {failure.rank} traceback", str(frame), frame.line)
        return
    if failure.exit is not None:
        yield EvidenceLine(f"rank {failure.rank} exit", _exit_text(failure))
        for frame in user_frames(failure.exit.frames)[:6]:
            yield EvidenceLine(f"rank {failure.rank} stack at exit", str(frame), frame.line)


def _exit_text(failure: Failure) -> str:
    end = failure.exit
    if end is None:
        return "unknown"
    code = "" if end.code is None else f" (code {end.code})"
    return f"{end.kind}{code} {end.text}".strip()


def _echo_lines(echo: Sequence[Failure]) -> Iterable[EvidenceLine]:
    for failure in echo[:4]:
        text = text_of(failure).splitlines()[0][:160] if failure.error else _exit_text(failure)
        yield EvidenceLine(f"rank {failure.rank}, a consequence", text)
