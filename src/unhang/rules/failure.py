"""The failure with which it began, and what a finding says of it: shared by the rules that name its kind, or that ask whether a process died first."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from unhang.analyze.failures import Failure, early_leavers, is_communication_error
from unhang.analyze.lines.first_errors import SeenError, errors_of, first_error, ranks_of
from unhang.analyze.lines.unshared import Written, named_apart, written_by_several
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Frame, LogEvent, RaisedError, user_frames
from unhang.model.evidence import SEEN_BY_LAUNCHER
from unhang.model.lazy_pattern import lazy_pattern
from unhang.read.logs import kinds_in
from unhang.rules import wording as w
from unhang.rules.base import Found

_FRESH_NS = 120_000_000_000
# Functions that build, download, rotate or remove files of which one rank's work is another's failure.
MADE_BY_ONE = lazy_pattern(
    r"build|download|cache|rotate|_rotate_checkpoints|makedirs|index|prepare|rmtree|\brmdir$|\bunlink$|\brm$|\b_?(?:remove|delete)_",
    re.IGNORECASE,
)
# Causes that an exception names, by the kind of what it says (the table `exceptions/causes`), and that have a rule of their own.
SPECIAL = (
    "cause.loader_timed_out", "cause.device_memory", "cause.kernel", "cause.host_memory", "cause.loader_killed", "cause.descriptors",
    "cause.port_taken", "cause.unused_parameters", "cause.no_parameters",
)  # fmt: skip
_KERNEL_OOM = re.compile(r"oom[-_ ]?kill|Out of memory: Killed process|Memory cgroup out of memory", re.IGNORECASE)
_IS_WHOLE = re.compile(
    r"WeightsUnpickler error: Unsupported|(?:Missing|Unexpected) key\(s\) in state_dict|size mismatch for "
)
_NO_PICKLE = re.compile(
    r"UnpicklingError|EOFError: Ran out of input|pickle data was truncated"
    r"|Trying to create tensor with negative dimension|Storage size calculation overflowed|invalid load key"
    r"|Invalid (?:mt19937|philox) state|RNG state is wrong size"
    r"|[Tt]ried to allocate (?:more than 1EB|\d{6,}\.\d+ GiB|\d{15,} bytes)"
)
_UNPICKLES = frozenset({"_tensor_to_object", "all_gather_list", "all_gather_object", "broadcast_object_list", "gather_object",
                        "broadcast_object", "recv_object_list", "scatter_object_list", "synchronize_rng_state"})  # fmt: skip
NO_WORDS: Mapping[str, object] = {}


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
        return self.error.text

    def names(self, *kinds: str) -> bool:
        """Whether it names one of these causes."""
        return names_cause(self.text, *kinds)

    @property
    def head(self) -> str:
        """The first line of the message, short."""
        return (self.error.message.splitlines() or [""])[0][:140]

    @property
    def frame(self) -> Frame | None:
        """The innermost frame of the user's code."""
        return w.own_line(self.error.frames)


def names_cause(text: str, *kinds: str) -> bool:
    """Whether an exception, given as `Type: message`, names one of these causes."""
    return not kinds_in(text).isdisjoint(kinds)


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


def is_before(event: LogEvent, first: FirstException | None, by: int = 0) -> bool:
    """Whether a line stands before the first exception, or at most so many lines behind it; true where there is none."""
    return first is None or (first.seen is not None and event.order <= first.seen.order + by)


def is_read_from_log(failure: Failure) -> bool:
    """Whether a failure is known from a log alone: from its traceback there, or from the launcher's word."""
    if failure.error is not None:
        return failure.error.source.reader == "output"
    return failure.exit is not None and failure.exit.text == SEEN_BY_LAUNCHER


def found_at_first(
    s: Situation, first: FirstException, confidence: float, words: Mapping[str, object] = NO_WORDS, **more: Any
) -> Found:
    """What is known of the first exception, with the words {who}, {at} (where, if known), {first} and {after} for the reason.

    `more`: other fields of `Found`.
    """
    if first.failures:
        return found_at_failures(s, first.failures, confidence, words, **more)
    ranks, frame = first.ranks, first.frame
    later = [e for e in errors_of(s) if first.seen is not None and e.kind == "echo" and e.order > first.seen.order]
    after = " What is printed after it about lost peers and timeouts is its echo." if later else ""
    after += "" if ranks else " The lines do not tell which rank it was."
    return Found(
        confidence,
        ranks,
        (*_seen_lines(first), *(_seen_line(e.rank, e.error, ", a consequence") for e in later[:4])),
        {**_words(ranks, frame, "It is the first failure that the log shows.", after), **words},
        location=frame,
        **more,
    )


def found_at_failures(
    s: Situation, failures: Sequence[Failure], confidence: float, words: Mapping[str, object] = NO_WORDS, **more: Any
) -> Found:
    """The same of ranks that failed first in the same way."""
    first, ranks = failures[0], tuple(sorted({f.rank for f in failures}))
    frame = frame_of(first)
    echo = [f for f in s.failures if f.rank not in ranks]
    after = f" What {w.name_ranks([f.rank for f in echo])} reported afterwards is its echo." if echo else ""
    return Found(
        confidence,
        ranks,
        (*_failure_lines(first), *_echo_lines(echo)),
        {**_words(ranks, frame, f"It is the first failure of the job{_after(s, first)}.", after), **words},
        location=frame,
        **more,
    )


def _words(ranks: Sequence[int], frame: Frame | None, first: str, after: str) -> dict[str, object]:
    return {"who": name_or(ranks, "a rank"), "at": w.at(frame), "first": first, "after": after}


def name_or(ranks: Sequence[int], nobody: str) -> str:
    """The ranks by name, or what is said where they are not known."""
    return w.name_ranks(ranks) if ranks else nobody


def died_of_own_memory(s: Situation) -> bool:
    """Whether the first crash is a bus error at a line of the program itself: it touched mapped memory behind which no file was left."""
    failure = first_crash(s)
    frames = failure.exit.frames if failure is not None and failure.exit is not None else ()
    is_bus = failure is not None and failure.exit is not None and failure.exit.code == -signal.SIGBUS
    return is_bus and bool(frames) and tuple(user_frames(frames))[:1] == tuple(frames[:1])


def first_crash(s: Situation) -> Failure | None:
    """The first end by a signal, or without a word, that no exception or divergence explains."""
    if s.divergence is not None or s.asked_to_end is not None:
        return None
    for failure in s.failures:
        if failure.kind == "exception" and not failure.secondary:
            return None
        asked = failure.exit is not None and failure.exit.code in (-1, -2, -15)
        by_signal = failure.kind == "signal" and (not failure.secondary or (failure is s.failures[0] and not asked))
        if by_signal or (failure.kind == "vanished" and not failure.secondary):
            return None if left_before(s, failure) else failure
    return None


def killed_for_memory(s: Situation, failure: Failure) -> bool:
    """Whether the kernel says that it killed for want of memory."""
    evidence = s.case.ranks.get(failure.rank)
    counted = bool(evidence and evidence.state and evidence.state.oom_kills)
    return bool(failure.exit and failure.exit.code == -9) and (
        counted or any(_KERNEL_OOM.search(x.text) for x in s.case.log)
    )


def left_before(s: Situation, failure: Failure) -> bool:
    """Whether peers wait for a rank that had left when this process was killed, or gone unseen: what a launcher does.

    Where the kernel killed it for want of memory, no launcher did.
    """
    code, evidence = failure.exit.code if failure.exit else None, s.case.ranks[failure.rank]
    if failure.kind != "vanished" and (failure.kind != "signal" or code not in (-9, -15)):
        return False
    if evidence.state is not None and evidence.state.oom_kills:
        return False
    waited_for = {rank for edge in s.waits.edges for rank in edge.targets}
    felt_ns = min((f.time_ns for f in s.failures if f.secondary and f.error is not None), default=0)
    return any(
        0 < e.exit.time_ns <= felt_ns <= failure.time_ns
        for rank, e in s.case.ranks.items()
        if e in early_leavers(s.case) and rank in waited_for and e.exit is not None
    )


def _seen_line(rank: int | None, error: RaisedError, what: str = "") -> EvidenceLine:
    name = PurePath(error.source.path).name or "log"
    who = f"{name}, rank {rank}{what}" if rank is not None else f"{name}{what}"
    return EvidenceLine(who, f"{error.type}: {error.message[:400]}", error.source.line)


def _seen_lines(first: FirstException) -> Iterable[EvidenceLine]:
    rank = first.seen.rank if first.seen is not None else None
    yield _seen_line(rank, first.error)
    yield from w.frame_lines("traceback" if rank is None else f"rank {rank} traceback", first.error.frames)


def text_of(failure: Failure) -> str:
    """Type and message of a failure's exception."""
    return failure.error.text if failure.error else ""


def frame_of(failure: Failure) -> Frame | None:
    """The innermost frame of the user's code where it failed."""
    frames = failure.error.frames if failure.error else failure.exit.frames if failure.exit else ()
    return w.own_line(frames)


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


_OF_PROCESSES = tuple(f"multiprocessing/{name}.py" for name in ("resource_sharer", "shared_memory"))


def is_file_race(s: Situation, first: FirstException) -> bool:
    """Whether some but not all ranks failed on a file that another rank makes, renames or removes, or is still writing."""
    if is_half_written(s, first) or written_at_once(s, first) is not None:
        return True
    error, is_unshared = first.error, first.names("cause.file_not_shared")
    # The program found a path that it does not want, and said so in its own words: the system's have a number.
    is_of_the_program = error.type.startswith("File") and bool(error.message) and not error.message.startswith("[")
    # What is not there, or is there already, is a socket of another process, or a name in shared memory.
    is_no_path = any(f.file.endswith(_OF_PROCESSES) for f in error.frames)
    if not first.names("cause.file_race") or (is_of_the_program and not is_unshared) or is_no_path:
        return False
    if first.failures:
        return 0 < len(first.ranks) < len(s.case.world)
    return (
        is_unshared
        or first.names("cause.file_of_others")
        or (
            first.names("cause.file_missing")
            and (
                any(MADE_BY_ONE.search(f"{f.file} {f.function}") for f in first.error.frames)
                or named_apart(s, first.text)
            )
        )
    )


def is_of_objects(first: FirstException) -> bool:
    """Whether what another rank sent could not be unpickled, or has no size that can be: another object than the one that was awaited, or a tensor."""
    return bool(_NO_PICKLE.search(first.text)) and any(f.function in _UNPICKLES for f in first.error.frames)


def is_of_a_fork(first: FirstException) -> bool:
    """Whether a loader's worker could not begin to use the device: it was forked from a process that had."""
    is_worker = any(f.file.replace("\\", "/").endswith("utils/data/_utils/worker.py") for f in first.error.frames)
    return is_worker and "CUDA error: initialization error" in first.text


def is_half_written(s: Situation, first: FirstException) -> bool:
    """Whether some but not all ranks could not read a file that was written while the job ran, a moment before."""
    started, error = s.case.job.started_ns or 0, first.error
    is_of_this_run = bool(error.file) and 0 < started < error.file_written_ns and not _IS_WHOLE.search(error.message)
    is_fresh = abs(error.time_ns - error.file_written_ns) < _FRESH_NS
    return is_of_this_run and is_fresh and bool(first.failures) and 0 < len(first.ranks) < len(s.case.world)


def written_at_once(s: Situation, first: FirstException) -> Written | None:
    """What several ranks said they write, if this exception finds it broken."""
    return None if first.seen is None else written_by_several(s, first.text, first.ranks, first.seen.order)


def _after(s: Situation, failure: Failure) -> str:
    started = s.case.job.started_ns
    return (
        f", {(failure.time_ns - started) / 1e9:.1f} s after its start" if started and failure.time_ns > started else ""
    )


def _failure_lines(failure: Failure) -> Iterable[EvidenceLine]:
    if failure.error is not None:
        line = failure.error.source.line if is_read_from_log(failure) else None
        text = f"{failure.error.type}: {failure.error.message[:400]}"
        yield EvidenceLine(f"rank {failure.rank} exception", text, line)
        yield from w.frame_lines(f"rank {failure.rank} traceback", failure.error.frames)
    elif failure.exit is not None:
        yield EvidenceLine(f"rank {failure.rank} exit", _exit_text(failure))
        yield from w.frame_lines(f"rank {failure.rank} stack at exit", failure.exit.frames)


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


# A device or a process that failed by itself, whenever it was printed.
_FAULTS = (
    "cuda.",
    "oom.",
    "nccl.cuda_oom",
    "shm.",
    "loader.worker_killed",
    "loader.worker_exited",
    "kernel.ecc_uncorrectable",
    "kernel.off_the_bus",
    "python.fatal",
)
MOST_COMPARED = 120
# Ends that are a reason where they come first, and a consequence where they come after.
_ENDS = "ending."
_ABORTED = "Aborted"  # by code of the process itself, which gave up


def has_worked(s: Situation, event: LogEvent) -> bool:
    """Whether steps of training were made before: the way that they took was right."""
    return any(e.order < event.order for e in s.events.of("progress.step"))


def somebody_died(s: Situation, events: Sequence[LogEvent]) -> bool:
    """Whether there is another reason than the network for what these events say of it."""
    first = min(events, key=lambda e: e.order, default=None)
    if first is None:
        return s.primary_failure is not None
    if any(e.says == "crash" and not (e["what"] == _ABORTED and e.order > first.order) for e in s.events.of(*_FAULTS)):
        return True
    if any(e.says == "crash" and e.order < first.order for e in s.events.of(_ENDS)):
        return True
    if any(not f.secondary and f.error is None for f in s.failures):
        return True
    raised = [f.error for f in s.failures if not f.secondary and f.error is not None]
    raised += [e for e in s.case.loose_errors if not is_communication_error(e)]
    return any(not _is_after(error, first) and not _is_reported_by(error, events) for error in raised)


def in_trouble(s: Situation) -> bool:
    """Whether the job hung or failed, as far as anything tells: a warning alone accuses nobody."""
    return s.is_hang or s.is_crash


def _is_reported_by(error: RaisedError, events: Sequence[LogEvent]) -> bool:
    """Whether an exception is one of these events itself."""
    head = (error.message.splitlines() or [""])[0].strip()[:MOST_COMPARED]
    return bool(head) and any(head in e.text for e in events)


def _is_after(error: RaisedError, event: LogEvent) -> bool:
    """Whether an exception was raised after an event: then it may be about it."""
    if error.time_ns and event.time_ns:
        return error.time_ns > event.time_ns
    source = error.source
    if source is None or source.path != event.source.path or source.line is None or event.source.line is None:
        return False
    return source.line > event.source.line
