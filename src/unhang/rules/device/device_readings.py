"""What rules on devices share: each device once, how it is named, and whose it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from unhang.analyze.situation import Situation
from unhang.model import Reading
from unhang.rules.reading_rule import hosts_of, ranks_of

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


def less_than_peers(devices: Iterable[Reading], name: str) -> tuple[tuple[Reading, ...], float]:
    """Devices with less of something than the most that others of the same model have; and how much most of these have.

    Nothing where no other device of that model has more: what all have in common is how the machines are built.
    """
    models: dict[str, list[Reading]] = {}
    for device in devices:
        if device.number(name) is not None:
            models.setdefault(device.text("name"), []).append(device)
    less: list[Reading] = []
    usual = 0.0
    for same in models.values():
        amounts = sorted(d.number(name) or 0.0 for d in same)
        common = amounts[len(amounts) // 2]
        odd = [d for d in same if (d.number(name) or 0.0) < common]
        less += odd
        usual = common if odd else usual
    return tuple(less), usual
