"""What is asked for by its kind: the events of all logs of a job, and what was read on its machines, compared between ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from unhang.model import LogEvent
from unhang.model.evidence import Reading, Value


def is_of_training(event: LogEvent) -> bool:
    """Whether a line tells how a job trains, and not that it hangs or has failed."""
    return event.kind.startswith("learn.") and not event.says


T = TypeVar("T", bound=LogEvent | Reading)


class _ByKind(Generic[T]):
    """All of them, in order. A kind may be given whole (`nccl.ecc`) or as a family (`nccl.`)."""

    def __init__(self, all_: Iterable[T]) -> None:
        self._all = tuple(all_)
        self._kinds: dict[str, list[T]] = {}
        for one in self._all:
            self._kinds.setdefault(one.kind, []).append(one)

    def __iter__(self) -> Iterator[T]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def _of(self, kinds: Sequence[str]) -> list[T]:
        """Those of these kinds, one kind after the other."""
        families = tuple(kind for kind in kinds if kind.endswith("."))
        return [
            one for kind, found in self._kinds.items() if kind in kinds or kind.startswith(families) for one in found
        ]


class Events(_ByKind[LogEvent]):
    """All events of a job's logs."""

    def of(self, *kinds: str) -> tuple[LogEvent, ...]:
        """The events of these kinds, in order."""
        return tuple(sorted(self._of(kinds), key=lambda e: e.order))

    def has(self, *kinds: str) -> bool:
        """Whether there is any of these kinds."""
        return bool(self.of(*kinds))

    def first(self, *kinds: str) -> LogEvent | None:
        """The first of these kinds."""
        return next(iter(self.of(*kinds)), None)

    def ranks(self, *kinds: str) -> tuple[int, ...]:
        """The ranks that events of these kinds are about, in ascending order."""
        return tuple(sorted({e.rank for e in self.of(*kinds) if e.rank is not None}))


class Readings(_ByKind[Reading]):
    """All readings of a job's machines."""

    def of(self, *kinds: str, subject: str | None = None) -> tuple[Reading, ...]:
        """The readings of these kinds, in the order in which they were taken."""
        return tuple(r for r in self._of(kinds) if subject is None or r.subject == subject)

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
