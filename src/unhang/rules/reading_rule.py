"""The rule whose evidence is what was read on the machines: what `unhang check` judges before a job starts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.model import Case, EvidenceLine
from unhang.model.readings import Reading
from unhang.rules.base import Rule

_MOST_QUOTED = 8


def told(reading: Reading) -> str:
    """A reading as one line: `machine.limit nofile soft=1024 hard=4096`."""
    fields = " ".join(f"{name}={value}" for name, value in reading.fields.items() if value is not None)
    return " ".join(part for part in (reading.kind, reading.subject, fields) if part)


def cite(readings: Iterable[Reading], most: int = _MOST_QUOTED) -> tuple[EvidenceLine, ...]:
    """Readings as evidence; those that read the same are cited once, with the first who saw it."""
    found: dict[tuple[str, str], EvidenceLine] = {}
    for reading in readings:
        line = EvidenceLine(reading.where, told(reading)[:300])
        if len(found) < most:
            found.setdefault((reading.host, line.text), line)
    return tuple(found.values())


def ranks_of(readings: Iterable[Reading]) -> tuple[int, ...]:
    """The ranks that these readings are about, in ascending order."""
    return tuple(sorted({r.rank for r in readings if r.rank is not None}))


def hosts_of(readings: Iterable[Reading]) -> str:
    """The hosts that these readings are about, for people: `node3`, `node3 and node7`, `node3 and 12 others`."""
    hosts = sorted({r.host for r in readings if r.host})
    if len(hosts) <= 2:
        return " and ".join(hosts) or "this machine"
    return f"{hosts[0]} and {len(hosts) - 1} others"


class ReadingRule(Rule):
    """A rule on readings. `reads`: the kinds without which it cannot judge; without them it is skipped, and says why.

    Its finding's confidence is also its weight: 0.9 and more will break or stall the job, 0.7 and more is a risk that
    should be looked at, less is a note.
    """

    reads: ClassVar[tuple[str, ...]]

    def applies(self, case: Case) -> bool:
        """Only where something was read; a dump or a log alone says nothing of the machines."""
        return bool(case.readings)

    def missing(self, case: Case) -> str:
        """Why it cannot judge: what could not be read."""
        kinds = {r.kind for r in case.readings}
        lost = [kind for kind in self.reads if kind not in kinds]
        return "; ".join(dict.fromkeys(_reason(kind, case) for kind in lost))


def _reason(kind: str, case: Case) -> str:
    """The reason that was given for this kind, or for its whole area."""
    area = kind.split(".", 1)[0]
    given = {a.what: a.reason for a in case.absent}
    if kind in given:
        return f"{kind}: {given[kind]}"
    if area in given:
        return f"{area}: {given[area]}"
    return f"{kind} was not read" if area in case.present else f"{area} was not asked for"
