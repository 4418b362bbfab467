"""The rule whose evidence is lines of a log: what most causes of start-up, transport and hardware need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Finding, Fix, LogEvent
from unhang.rules.base import Rule

MAX_QUOTED = 6
MAX_QUOTE = 300


def quote(events: Iterable[LogEvent], most: int = MAX_QUOTED) -> tuple[EvidenceLine, ...]:
    """The first lines, with file and line number; lines that read the same are quoted once."""
    found: dict[str, EvidenceLine] = {}
    for event in events:
        if len(found) < most:
            text = event.text.strip()[:MAX_QUOTE]
            name = PurePath(event.source.path).name or "log"
            place = f"{name}:{event.source.line}" if event.source.line else name
            who = f"{place}, rank {event.rank}" if event.rank is not None else place
            found.setdefault(text, EvidenceLine(who, text, event.source.line))
    return tuple(found.values())


class LineRule(Rule):
    """A rule that speaks when there are events of `kinds`. A subclass tells them, and overrides what it needs."""

    kinds: ClassVar[tuple[str, ...]]
    confidence: ClassVar[float] = 0.9
    headline: ClassVar[str]
    reason: ClassVar[str]
    fixes: ClassVar[tuple[Fix, ...]]

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """The events that establish the cause; none: the rule is silent."""
        return s.events.of(*self.kinds)

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """The ranks where it started, as far as the lines tell."""
        return tuple(sorted({e.rank for e in events if e.rank is not None}))

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """One line: what is wrong, with names and numbers from the events."""
        return self.headline

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """Why these lines mean this cause."""
        return self.reason

    def certainty(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """0..1: 0.95 and more where a line names the cause itself, 0.6 to 0.8 where it is inferred."""
        return self.confidence

    def advice(self, s: Situation, events: Sequence[LogEvent]) -> tuple[Fix, ...]:
        """What to change."""
        return self.fixes

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if there is evidence."""
        events = self.evidence(s)
        if not events:
            return
        ranks = self.culprits(s, events)
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=self.title(s, events),
            confidence=self.certainty(s, events),
            culprit_ranks=ranks,
            victim_ranks=s.others(ranks) if ranks else (),
            because=self.because(s, events),
            evidence=quote(events),
            fixes=self.advice(s, events),
        )
