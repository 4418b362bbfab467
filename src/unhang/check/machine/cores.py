"""How many cores this process may use: its affinity and the quota of its control groups, not what is built in. Never blocks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from unhang.model import Reading
from unhang.model.evidence import Value

_UNLIMITED = 1 << 60  # version 1 of control groups writes a number near 2^63 where there is no limit


def read() -> Iterator[Reading]:
    """`cpus`: the cores that we may run on; `quota`: cores' worth of time, None where it is not limited."""
    online = os.cpu_count() or 1
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(online)
    most = quota()
    fields: dict[str, Value] = {"cpus": as_ranges(cpus), "count": len(cpus), "online": online}
    fields["quota"] = None if most is None else round(most, 2)
    yield Reading("machine.cores", "", fields)


def quota(root: Path = Path("/")) -> float | None:
    """The smallest quota of our control groups, in cores."""
    found = []
    for folder in groups_of("cpu", root):
        with suppress(OSError, ValueError, ZeroDivisionError):
            amount, _, period = (folder / "cpu.max").read_text().strip().partition(" ")
            if amount != "max":
                found.append(int(amount) / int(period or 100_000))
        amount_us, period_us = number_in(folder / "cpu.cfs_quota_us"), number_in(folder / "cpu.cfs_period_us")
        if amount_us and period_us:
            found.append(amount_us / period_us)
    return min(found, default=None)


def as_ranges(numbers: Iterable[int]) -> str:
    """`0-3,8` of 0, 1, 2, 3, 8, as the kernel writes it."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def groups_of(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """The control groups that may limit us, from our own up to the uppermost that is visible: each of them counts."""
    mount = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if names and controller not in names.split(","):
            continue
        places = [mount / names, mount / controller] if names else [mount, mount / "unified"]
        base = next((place for place in places if place.is_dir()), None)
        own = Path(path.lstrip("/"))
        for part in (own, *own.parents) if base else ():
            if base and ".." not in part.parts and (base / part).is_dir():
                yield base / part


def number_in(path: Path) -> int | None:
    """The number in a file of a control group; None where there is no limit, or no such file."""
    with suppress(OSError, ValueError, IndexError):
        value = int(path.read_text().split()[0])
        return value if 0 <= value < _UNLIMITED else None
    return None
