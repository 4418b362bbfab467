"""Whether far more threads want to run on a machine than it has cores, as the outputs of `top`, `uptime` and `lscpu` in a log tell it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from unhang.analyze.by_kind import Events
from unhang.model import LogEvent

_CROWDED = 3  # a little above 1 is a busy machine


class Crowd(NamedTuple):
    """The threads that wanted to run over the last minute, and the cores that they share."""

    load: float
    cores: int
    events: Sequence[LogEvent]


def crowded(events: Events) -> Crowd | None:
    """The last load of a machine whose cores are told, in a job that makes steps."""
    cores = {e.host: e for e in events.of("pace.cores")}
    loads = {e.host: e for e in events.of("pace.load")}
    for host, load in loads.items() if events.has("progress.step") else ():
        own = cores.get(host)
        count = (own.number("cores") or 0) if own is not None else 0
        if own is not None and count and float(load["load"]) > _CROWDED * count:
            return Crowd(float(load["load"]), count, (own, load))
    return None
