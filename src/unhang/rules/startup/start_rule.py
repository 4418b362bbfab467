"""The rule on a job that failed in its start: what all of them share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from unhang.analyze.failures import is_communication_error
from unhang.analyze.situation import Situation
from unhang.model import LogEvent, RaisedError
from unhang.read.logs.patterns import matches
from unhang.rules.failure import first_exception
from unhang.rules.line_rule import LineRule

BESIDE_ANOTHER_ERROR = 0.6
_KILLED = (-4, -7, -8, -9, -11)
# Families whose errors are about the start itself, and exceptions that only pass on the failure of another process.
_OF_THE_START = ("store.", "elastic.", "launchers.", "gloo.", "device.", "version.", "files.")
_WRAPPER = re.compile(
    r"(?:ChildFailedError|ProcessRaisedException|ProcessExitedException|SignalException|SystemExit|KeyboardInterrupt|"
    r"CalledProcessError|RayTaskError|RayActorError|MultiprocessingError)"
)


def events_in(error: RaisedError, rank: int | None) -> Iterator[LogEvent]:
    """What the text of an exception says."""
    for line in f"{error.type}: {error.message}".splitlines()[:20]:
        for pattern, match in matches(line[:4000]):
            fields = {name: value for name, value in match.groupdict().items() if value is not None}
            yield LogEvent(
                pattern.kind, line, error.source, error.source.line or 0, rank, fields=fields, says=pattern.says
            )


def seen(s: Situation, *kinds: str) -> tuple[LogEvent, ...]:
    """Events of these kinds, of the logs and of the exceptions that ranks reported themselves."""
    found = list(s.events.of(*kinds))
    known = {(e.kind, e.rank, e.text.strip()) for e in found}
    for failure in s.failures:
        for event in events_in(failure.error, failure.rank) if failure.error else ():
            key = (event.kind, event.rank, event.text.strip())
            if key not in known and any(
                event.kind == k or (k.endswith(".") and event.kind.startswith(k)) for k in kinds
            ):
                known.add(key)
                found.append(event)
    return tuple(found)


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
    return not any(event.kind.startswith(_OF_THE_START) for event in events_in(error, None))


class StartRule(LineRule):
    """A rule on lines of the start. It is silent where training began afterwards, and unsure beside an error of another kind."""

    over: ClassVar[tuple[str, ...]] = ()  # what, beside steps of training, shows that the start was over

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """The events of its kinds after which the start was not over."""
        return self.still_starting(s, seen(s, *self.kinds))

    def still_starting(self, s: Situation, events: Iterable[LogEvent]) -> list[LogEvent]:
        """Those after which nothing shows that the start was over."""
        return [e for e in events if not is_over_after(s, e, *self.over)]

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """Nobody: a rank that says that the start failed is seldom the one that made it fail."""
        return ()

    def certainty(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """Its own confidence; less where an exception of another kind may have come first."""
        sure = self.sureness(s, events)
        return min(sure, BESIDE_ANOTHER_ERROR) if has_other_error(s) else sure

    def sureness(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """How sure the lines make, taken alone."""
        return self.confidence
