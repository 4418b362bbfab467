"""How much memory there is, and how much of it this process may still have. Never blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from unhang.probe.machine_cgroup import fields_of, folders_of, number_in


@dataclass(frozen=True, slots=True)
class Memory:
    """In bytes. `limit` and `left_in_group`: of the control group that leaves least; None where none is limited."""

    total: int
    available: int
    swap_free: int
    limit: int | None = None
    left_in_group: int | None = None


def memory(root: Path = Path("/")) -> Memory:
    """What the kernel tells.

    Raises:
        OSError: it does not show /proc/meminfo.
    """
    told = {
        name: int(value) << 10
        for name, value in re.findall(r"^(\w+): +(\d+) kB$", (root / "proc/meminfo").read_text(), re.MULTILINE)
    }
    if "MemTotal" not in told:
        raise OSError("/proc/meminfo tells no MemTotal")
    available = told.get("MemAvailable", told.get("MemFree", 0))
    groups = [group for folder in folders_of("memory", root) if (group := _left(folder)) is not None]
    left, limit = min(groups, default=(None, None))
    return Memory(told["MemTotal"], available, told.get("SwapFree", 0), limit, left)


def _left(folder: Path) -> tuple[int, int] | None:
    """What one group leaves, and its limit. Pages of files that nobody uses are given back before anyone is killed."""
    stat = fields_of(folder / "memory.stat")
    for limit_name, used_name, idle_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, used = number_in(folder / limit_name), number_in(folder / used_name)
        if limit is not None and used is not None:
            return max(0, limit - max(0, used - stat.get(idle_name, 0))), limit
    return None
