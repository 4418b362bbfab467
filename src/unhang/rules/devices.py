"""What rules on the devices of a host share: each device once, how it is named, and whose it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Reading
from unhang.rules.base import Found
from unhang.rules.readings import cite, hosts_of, ranks_of

_MOST_NAMED = 4


def devices_of(s: Situation) -> tuple[Reading, ...]:
    """Every device that was read in detail, once, though several ranks of a host may have read it."""
    found: dict[tuple[str, str], Reading] = {}
    for reading in s.readings.of("devices.device"):
        found.setdefault((reading.host, reading.text("uuid") or reading.subject), reading)
    return tuple(found.values())


def users_of(s: Situation, devices: Iterable[Reading]) -> tuple[int, ...]:
    """The ranks that take these devices by convention; else those that have read them."""
    ranks: set[int] = set()
    for device in devices:
        users = [r for r in s.readings.of("devices.visible") if r["own"] and r["own"] == device["uuid"]]
        ranks |= set(ranks_of([r for r in users if r.host == device.host] or [device]))
    return tuple(sorted(ranks))


def named(devices: Sequence[Reading]) -> str:
    """`GPU 3 on node1`, `GPUs 3, 5 on node1`, or `4 devices on node1 and 2 others`."""
    if len({d.host for d in devices}) > 1 or len(devices) > _MOST_NAMED:
        return f"{len(devices)} devices on {hosts_of(devices)}"
    numbers = ", ".join(d.subject.removeprefix("GPU ") for d in devices)
    return f"GPU{'s' * (len(devices) > 1)} {numbers} on {hosts_of(devices)}"


def found_on(
    s: Situation,
    devices: Sequence[Reading],
    confidence: float,
    words: Mapping[str, object] | None = None,
    evidence: Sequence[EvidenceLine] = (),
    **more: Any,
) -> Found:
    """What is wrong with these devices, which are {devices} in the card; `more`: other fields of `Found`."""
    words = {"devices": named(devices), **(words or {})}
    return Found(confidence, users_of(s, devices), evidence or cite(devices), words, **more)


def majority(values: Iterable[str]) -> str:
    """What more than half have, of three or more; else nothing: of two nobody knows which is the odd one."""
    known = list(values)
    if len(known) < 3:
        return ""
    value, count = Counter(known).most_common(1)[0]
    return value if 2 * count > len(known) else ""


def less_than_peers(devices: Iterable[Reading], name: str) -> tuple[tuple[Reading, ...], float]:
    """Devices with less of something than most of their model have; and how much those have.

    Nothing where there is no majority: what many have in common is how the machines are built.
    """
    models: dict[str, list[Reading]] = {}
    for device in devices:
        if device.number(name) is not None:
            models.setdefault(device.text("name"), []).append(device)
    less: list[Reading] = []
    most = 0.0
    for same in models.values():
        usual = majority(d.text(name) for d in same)
        odd = [d for d in same if usual and (d.number(name) or 0.0) < float(usual)]
        less += odd
        most = float(usual) if odd else most
    return tuple(less), most
