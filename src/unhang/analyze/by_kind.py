"""What is asked for by its kind: the events of all logs of a job, and what was read on its machines, compared between ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from unhang.model import LogEvent
from unhang.model.evidence import Reading, Value


def is_of_training(event: LogEvent) -> bool:
    """Whether a line tells how a job trains, and not that it hangs or has failed."""
    return event.kind.startswith("learn.") and not event.says


class Events:
    """All events, in order. A kind may be given whole (`nccl.ecc`) or as a family (`nccl.`)."""

    def __init__(self, events: Iterable[LogEvent]) -> None:
        self._all = tuple(events)
        self._kinds: dict[str, list[LogEvent]] = {}
        for event in self._all:
            self._kinds.setdefault(event.kind, []).append(event)

    def __iter__(self) -> Iterator[LogEvent]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def of(self, *kinds: str) -> tuple[LogEvent, ...]:
        """The events of these kinds, in order."""
        found = [
            e
            for kind, events in self._kinds.items()
            if any(kind == k or (k.endswith(".") and kind.startswith(k)) for k in kinds)
            for e in events
        ]
        return tuple(sorted(found, key=lambda e: e.order))

    def has(self, *kinds: str) -> bool:
        """Whether there is any of these kinds."""
        return bool(self.of(*kinds))

    def first(self, *kinds: str) -> LogEvent | None:
        """The first of these kinds."""
        return next(iter(self.of(*kinds)), None)

    def ranks(self, *kinds: str) -> tuple[int, ...]:
        """The ranks that events of these kinds are about, in ascending order."""
        return tuple(sorted({e.rank for e in self.of(*kinds) if e.rank is not None}))


class Readings:
    """All readings. A kind may be given whole (`machine.limit`) or as an area (`machine.`)."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self._all = tuple(readings)
        self._kinds: dict[str, list[Reading]] = {}
        for reading in self._all:
            self._kinds.setdefault(reading.kind, []).append(reading)

    def __iter__(self) -> Iterator[Reading]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def of(self, *kinds: str, subject: str | None = None) -> tuple[Reading, ...]:
        """The readings of these kinds, in the order in which they were taken."""
        found = [
            reading
            for kind, readings in self._kinds.items()
            if any(kind == k or (k.endswith(".") and kind.startswith(k)) for k in kinds)
            for reading in readings
        ]
        return tuple(r for r in found if subject is None or r.subject == subject)

    def first(self, *kinds: str, subject: str | None = None) -> Reading | None:
        """The first of these kinds."""
        return next(iter(self.of(*kinds, subject=subject)), None)

    def by_value(self, kind: str, subject: str, name: str) -> Mapping[Value, tuple[Reading, ...]]:
        """The readings of one thing by the value of a field, the most frequent value first; one key: all are equal."""
        found: dict[Value, list[Reading]] = {}
        for reading in self.of(kind, subject=subject):
            found.setdefault(reading[name], []).append(reading)
        ordered = sorted(found.items(), key=lambda item: (-len(item[1]), str(item[0])))
        return {value: tuple(readings) for value, readings in ordered}
