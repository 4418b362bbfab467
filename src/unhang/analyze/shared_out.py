"""Devices that were not shared out as was meant: one in use where several were asked for, or one for all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from unhang.analyze.by_kind import Events
from unhang.model import LogEvent

_IN_USE_MIB, _IDLE_MIB = 2048, 100


class Alone(NamedTuple):
    """The one `device` of several, `asked`, that is in use."""

    device: str
    asked: int
    events: Sequence[LogEvent]


def alone_in_use(events: Events) -> Alone | None:
    """The one device in use where several were asked for and the others are empty, in a job that ran out of device memory."""
    asked = {len((e["devices"] or e["devices_"]).split(",")) for e in events.of("device.asked")}
    used = {e["index"]: e for e in events.of("device.in_use")}
    full = [e for e in used.values() if (e.number("used") or 0) >= _IN_USE_MIB]
    idle = [e for e in used.values() if (e.number("used") or 0) <= _IDLE_MIB]
    if asked != {len(used)} or len(full) != 1 or len(idle) != len(used) - 1 or not events.has("oom.device"):
        return None
    return Alone(full[0]["index"], len(used), (*events.of("device.asked")[:1], *full, *idle))
