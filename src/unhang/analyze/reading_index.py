"""What was read on the machines of a job, found by kind, and compared between ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from unhang.model.evidence import Reading, Value


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
