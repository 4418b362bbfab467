"""A short notation for cases of readings, for the `EXAMPLES` of rules and for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from unhang.model.case import Case, Job
from unhang.model.evidence import RankEvidence, RankIdentity, Unavailable
from unhang.model.readings import Reading, Value

_HOST = "node{}"


def read(what: str, rank: int | None = 0, host: str = "", **fields: Value) -> Reading:
    """A reading: `read("machine.limit nofile", rank=1, soft=1024)`. Two ranks share a host: 0 and 1 are on node0."""
    kind, _, subject = what.partition(" ")
    return Reading(kind, subject, fields, rank, host or (_HOST.format(rank // 2) if rank is not None else "node0"))


def readings_case(
    *readings: Reading | Iterable[Reading], world: int = 4, absent: Mapping[str, str] | None = None
) -> Case:
    """A case of readings. `absent`: kind or area -> why it could not be read."""
    flat = [r for part in readings for r in ([part] if isinstance(part, Reading) else part)]
    return Case(
        job=Job(world_size=world, nodes=max(1, world // 2)),
        ranks={r: RankEvidence(RankIdentity(r, world, r % 2, host=_HOST.format(r // 2))) for r in range(world)},
        readings=tuple(flat),
        present=("party", "setup"),
        absent=tuple(Unavailable(what, reason) for what, reason in (absent or {}).items()),
    )
