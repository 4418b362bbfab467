"""Which ranks differ from the others: the majority is the reference, and without one nobody is accused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unhang.model import Case, Reading
from unhang.model.readings import Value
from unhang.rules.reading_rule import hosts_of, ranks_of
from unhang.rules.wording import name_ranks

_MOST_VALUES, _MOST_SHOWN = 3, 60


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same on all ranks. `odd`: ranks that are not with the majority; empty where there is none."""

    what: str
    by_value: Mapping[Value, tuple[Reading, ...]]

    @property
    def usual(self) -> Value:
        """The most frequent value."""
        return next(iter(self.by_value))

    @property
    def has_majority(self) -> bool:
        """Whether more than half of the ranks have the same."""
        counts = [len(readings) for readings in self.by_value.values()]
        return 2 * counts[0] > sum(counts)

    @property
    def odd_readings(self) -> tuple[Reading, ...]:
        """What was read on the odd ranks."""
        if not self.has_majority:
            return ()
        return tuple(r for value, readings in self.by_value.items() if value != self.usual for r in readings)

    @property
    def odd(self) -> tuple[int, ...]:
        """The odd ranks."""
        return ranks_of(self.odd_readings)

    @property
    def cited(self) -> tuple[Reading, ...]:
        """One reading of each value."""
        return tuple(readings[0] for readings in list(self.by_value.values())[:_MOST_VALUES])

    def told(self) -> str:
        """What is there, and what most have: `torch 2.12.0, not 2.13.0`."""
        if self.has_majority:
            others = dict.fromkeys(shown(r_value) for r_value in self.by_value if r_value != self.usual)
            return f"{self.what} {' and '.join(list(others)[:_MOST_VALUES])}, not {shown(self.usual)}"
        parts = [
            f"{shown(value)} ({name_ranks(ranks_of(readings))})"
            for value, readings in list(self.by_value.items())[:_MOST_VALUES]
        ]
        return f"{self.what}: {', '.join(parts)}"


def nothing_to_compare(case: Case, kind: str) -> str:
    """Why ranks cannot be compared in what they have read; empty where they can."""
    ranks = {r.rank for r in case.readings if r.kind == kind}
    return (
        ""
        if len(ranks) > 1
        else f"{kind}: one process has nothing to compare with; torchrun or srun starts it on all ranks"
    )


def differences(found: Mapping[str, Mapping[Value, tuple[Reading, ...]]]) -> list[Difference]:
    """Those things that are not the same on all ranks."""
    return [Difference(what, by_value) for what, by_value in found.items() if len(by_value) > 1]


def together(found: Sequence[Difference]) -> list[list[Difference]]:
    """Differences on the same ranks belong together: one image, one node, one mistake."""
    groups: dict[tuple[int, ...], list[Difference]] = {}
    for difference in found:
        groups.setdefault(difference.odd, []).append(difference)
    return list(groups.values())


def headline(group: Sequence[Difference], most: int = 3) -> str:
    """Which ranks have what."""
    told = "; ".join(d.told() for d in group[:most]) + (f"; and {len(group) - most} more" if len(group) > most else "")
    first = group[0]
    if not first.has_majority:
        return f"the ranks differ, and no majority says who is right: {told}"
    verb = "have" if len(first.odd) > 1 else "has"
    return f"{name_ranks(first.odd)} on {hosts_of(first.odd_readings)} {verb} {told}"


def shown(value: Value) -> str:
    """A value for people."""
    text = "none" if value is None else str(value) or "(empty)"
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN // 2]}...{text[-_MOST_SHOWN // 2 :]}"
