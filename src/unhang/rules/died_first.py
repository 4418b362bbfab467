"""Whether a process of the job failed for a reason of its own, so that what its peers say of the network is an echo."""

from __future__ import annotations

from collections.abc import Sequence

from unhang.analyze.failures import is_communication_error
from unhang.analyze.situation import Situation
from unhang.model import LogEvent, RaisedError

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


def somebody_died(s: Situation, events: Sequence[LogEvent]) -> bool:
    """Whether there is another reason than the network for what these events say of it."""
    first = min(events, key=lambda e: e.order, default=None)
    if first is None:
        return s.primary_failure is not None
    if any(e.says == "crash" for e in s.events.of(*_FAULTS)):
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
