"""The finding on a rank that failed first: shared by the rules that name the kind of failure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from unhang.analyze.failures import UNUSED_PARAMETERS, Failure
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Finding, Fix, Frame, user_frames
from unhang.rules import wording as w

if TYPE_CHECKING:
    from unhang.rules.base import Rule

GPU_OOM = re.compile(
    r"CUDA out of memory|OutOfMemoryError|HIP out of memory|CUDNN_STATUS_ALLOC_FAILED|CUDA error: out of memory"
)
FD_EXHAUSTED = re.compile(r"Too many open files|Errno 24\b|EMFILE")
FILE_RACE = re.compile(
    r"Parent directory .* does not exist|FileExistsError|FileNotFoundError|No such file or directory|Stale file handle"
)
PORT_TAKEN = re.compile(r"address already in use|EADDRINUSE|errno: ?98\b", re.IGNORECASE)
LOADER_TIMED_OUT = re.compile(r"DataLoader timed out after")
SPECIAL = (LOADER_TIMED_OUT, GPU_OOM, FD_EXHAUSTED, PORT_TAKEN, UNUSED_PARAMETERS)


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


def is_file_race(s: Situation, first: Failure) -> bool:
    """Whether some but not all ranks failed on a file that another rank makes."""
    ranks = {f.rank for f in same_failures(s, first)}
    return bool(FILE_RACE.search(text_of(first))) and 0 < len(ranks) < len(s.case.world) and len(s.case.world) > 1


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
