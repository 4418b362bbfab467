"""What rules on readings share: citing them, whose they are, and what was not read."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from unhang.analyze.situation import Situation
from unhang.model import Case, EvidenceLine
from unhang.model.evidence import Reading
from unhang.rules.base import unread

_MOST_QUOTED = 8


def as_line(reading: Reading) -> str:
    """A reading as one line: `machine.limit nofile soft=1024 hard=4096`."""
    fields = " ".join(f"{name}={value}" for name, value in reading.fields.items() if value is not None)
    return " ".join(part for part in (reading.kind, reading.subject, fields) if part)


def cite(readings: Iterable[Reading], most: int = _MOST_QUOTED) -> tuple[EvidenceLine, ...]:
    """Readings as evidence; those that read the same are cited once, with the first who saw it."""
    found: dict[tuple[str, str], EvidenceLine] = {}
    for reading in readings:
        line = EvidenceLine(reading.where, as_line(reading)[:300])
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


def spans_hosts(s: Situation) -> bool:
    """Whether the job runs, or will run, on more than one host."""
    return not is_only_planned(s) or any((r.number("nodes") or 0) > 1 for r in s.readings.of("setup.job"))


def is_only_planned(s: Situation) -> bool:
    """Whether the other hosts are not there: this one may not be one of them."""
    return len({r.host for r in s.readings.of("network.")}) < 2


def compares(kind: str) -> Callable[[Case], str]:
    """What a rule lacks that compares the ranks in what they have read of this kind: the reading, or a second rank."""

    def lacks(case: Case) -> str:
        alone = f"{kind}: one process has nothing to compare with; torchrun or srun starts it on all ranks"
        return unread(case, (kind,)) or (alone if len({r.rank for r in case.readings if r.kind == kind}) < 2 else "")

    return lacks
