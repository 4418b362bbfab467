"""What rules on the start of a job share: what its lines and exceptions say, and whether the start, or something else, failed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from unhang.analyze.failures import is_communication_error
from unhang.analyze.situation import Situation
from unhang.model import LogEvent, RaisedError
from unhang.read.logs.events import kinds_in
from unhang.rules.failure import first_exception

BESIDE_ANOTHER_ERROR = 0.6
_KILLED = (-4, -7, -8, -9, -11)
# Families whose errors are about the start itself, and exceptions that only pass on the failure of another process.
_OF_THE_START = ("store.", "elastic.", "launchers.", "gloo.", "device.", "version.", "files.")
_WRAPPER = re.compile(
    r"(?:ChildFailedError|ProcessRaisedException|ProcessExitedException|SignalException|SystemExit|KeyboardInterrupt|"
    r"CalledProcessError|RayTaskError|RayActorError|MultiprocessingError)"
)


def is_over_after(s: Situation, event: LogEvent, *kinds: str) -> bool:
    """Whether the log shows after an event that the start was over (steps of training, or `kinds`): the event ended nothing."""
    if event.source.reader != "output":
        return False
    later = s.events.of("progress.step", *kinds)
    return bool(later) and later[-1].order > event.order


def was_killed(s: Situation) -> bool:
    """Whether a process came to a violent end: those that could not reach it, or waited for it, are its victims."""
    failure = s.primary_failure
    return (failure is not None and failure.kind == "signal") or any(
        (e.number("code") or 0) in _KILLED for e in s.events.of("elastic.worker_failed")
    )


def has_other_error(s: Situation) -> bool:
    """Whether it began with an exception that is not about the start, or with the violent end of a process."""
    first = first_exception(s)
    return was_killed(s) or (first is not None and _is_of_its_own(first.error))


def _is_of_its_own(error: RaisedError) -> bool:
    if not error.type or _WRAPPER.search(error.type) or is_communication_error(error):
        return False
    return not any(kind.startswith(_OF_THE_START) for kind in kinds_in(error.text))


def still_starting(s: Situation, events: Iterable[LogEvent], *over: str) -> list[LogEvent]:
    """The events after which no step of training, and nothing of the kinds `over`, shows that the start was over."""
    return [e for e in events if not is_over_after(s, e, *over)]


def sure_beside(s: Situation, confidence: float) -> float:
    """The confidence of a rule on the start: less where an exception of another kind may have come first."""
    return min(confidence, BESIDE_ANOTHER_ERROR) if has_other_error(s) else confidence


def why_never_came(s: Situation) -> str:
    """What is known of ranks that never registered: two processes may run under one number."""
    for rank, evidence in s.case.ranks.items():
        if evidence.twins:
            pids = " and ".join(map(str, (*evidence.twins, evidence.identity.pid)))
            return f"processes {pids} both run as rank {rank} (see what sets RANK)"
    return "the process was not started, or died before it imported torch.distributed"
