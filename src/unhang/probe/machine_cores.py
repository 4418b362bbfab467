"""How many cores this process may use: its affinity and the quota of its control groups, not what is built in. Never blocks."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from unhang.probe.machine_cgroup import folders_of, number_in


@dataclass(frozen=True, slots=True)
class Cores:
    """`cpus`: the numbers of the cores that we may run on; `quota`: cores' worth of time, None where it is not limited."""

    cpus: tuple[int, ...]
    online: int
    quota: float | None


def cores() -> Cores:
    """What this process may use."""
    online = os.cpu_count() or 1
    cpus = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else tuple(range(online))
    return Cores(cpus, online, quota())


def quota(root: Path = Path("/")) -> float | None:
    """The smallest quota of our control groups, in cores."""
    found = []
    for folder in folders_of("cpu", root):
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
