"""Memory and shared memory: what there is, what this process may still have, and what dead processes left. Never blocks."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from unhang.check.machine.limits import gpu_count, groups_of, number_in
from unhang.model import Reading
from unhang.model.evidence import Value

SHM = Path("/dev/shm")
# torch_PID_RANDOM_COUNT are tensors of loader workers; nccl-XXXXXX bears no pid.
_WITH_PID = re.compile(r"^torch_(?P<pid>\d{1,9})_\d+_\d+$")
_WITHOUT_PID = re.compile(r"^nccl-\w{6}$")
_YOUNGEST_S, _MOST_NAMED = 600.0, 5
_INITIAL_PID_SPACE, _INITIAL_IPC_SPACE = 0xEFFFFFFC, 0xEFFFFFFF


def memory(root: Path = Path("/")) -> Iterator[Reading]:
    """`limit_bytes`: of the control group that leaves least, None where none is limited.

    Raises:
        OSError: the kernel does not show /proc/meminfo.
    """
    rows = re.findall(r"^(\w+): +(\d+) kB$", (root / "proc/meminfo").read_text(), re.MULTILINE)
    known = {name: int(value) << 10 for name, value in rows}
    if "MemTotal" not in known:
        raise OSError("/proc/meminfo has no MemTotal")
    available = known.get("MemAvailable", known.get("MemFree", 0))
    groups = [group for folder in groups_of("memory", root) if (group := _left(folder)) is not None]
    left, limit = min(groups, default=(available, None))
    fields: dict[str, Value] = {
        "total_bytes": known["MemTotal"],
        "available_bytes": available,
        "swap_free_bytes": known.get("SwapFree", 0),
        "limit_bytes": limit,
        "left_bytes": min(available, left),
    }
    yield Reading("machine.memory", "", fields)


def _left(group: Path) -> tuple[int, int] | None:
    """What a control group leaves, and its limit. Pages of files that nobody uses are given back before anyone is killed."""
    for limit_name, used_name, idle_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, used = number_in(group / limit_name), number_in(group / used_name)
        if limit is not None and used is not None:
            idle = 0
            with suppress(OSError):
                found = re.search(rf"^{idle_name} (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
                idle = int(found[1]) if found else 0
            return max(0, limit - max(0, used - idle)), limit
    return None


def shared_memory() -> Iterator[Reading]:
    """The file system in which shared memory is made.

    Raises:
        OSError: there is none.
    """
    found = os.statvfs(SHM)
    kind = "none of its own"
    with suppress(OSError):
        rows = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        kind = next((row[2] for row in reversed(rows) if row[1] == str(SHM)), kind)
    fields: dict[str, Value] = {
        "size_bytes": found.f_blocks * found.f_frsize,
        "free_bytes": found.f_bavail * found.f_frsize,
        "type": kind,
        "is_writable": os.access(SHM, os.W_OK),
        "gpus": gpu_count(),
    }
    yield Reading("machine.shared_memory", str(SHM), fields)


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file whose maker is gone. `pid`: the maker's, where the name shows it."""

    name: str
    size_bytes: int
    age_s: float
    pid: int | None


def shm_leftovers() -> Iterator[Reading]:
    """How much dead processes of torch and NCCL occupy.

    Raises:
        OSError: see `leftovers`.
    """
    found, space = leftovers(), os.statvfs(SHM)
    fields: dict[str, Value] = {
        "count": len(found),
        "bytes": sum(item.size_bytes for item in found),
        "size_bytes": space.f_blocks * space.f_frsize,
        "newest_age_s": round(min((item.age_s for item in found), default=0.0)),
        "names": " ".join(item.name for item in found[:_MOST_NAMED]),
    }
    yield Reading("machine.shm_leftovers", str(SHM), fields)


def leftovers(folder: Path = SHM) -> tuple[Leftover, ...]:
    """Files of torch and NCCL whose makers are gone, the largest first.

    Raises:
        OSError: the folder cannot be read, or pids in names mean nothing here, as others share the folder, but not our pids.
    """
    if sys.platform != "linux":
        raise OSError(f"{folder} is looked at on Linux only")
    if _namespace("pid") != _INITIAL_PID_SPACE and _namespace("ipc") == _INITIAL_IPC_SPACE:
        raise OSError(f"{folder} is the host's, but its processes are not visible from here")
    found = list(_stale(folder))
    if any(item.pid is None for item in found):
        mapped = _mapped(folder)
        found = [item for item in found if item.pid is not None or (mapped is not None and item.name not in mapped)]
    return tuple(sorted(found, key=lambda item: -item.size_bytes))


def _namespace(name: str) -> int:
    return os.stat(f"/proc/self/ns/{name}").st_ino


def _stale(folder: Path) -> Iterator[Leftover]:
    now = time.time()
    with os.scandir(folder) as entries:
        for entry in entries:
            named = _WITH_PID.match(entry.name)
            if not (named or _WITHOUT_PID.match(entry.name)):
                continue
            with suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                age_s = now - max(info.st_mtime, info.st_ctime)
                pid = int(named["pid"]) if named else None
                if age_s >= _YOUNGEST_S and (pid is None or not Path(f"/proc/{pid}").exists()):
                    yield Leftover(entry.name, info.st_blocks * 512, age_s, pid)


def _mapped(folder: Path) -> set[str] | None:
    """Names of files in the folder that a process has mapped; None where not every process shows what it has."""
    found: set[str] = set()
    mark = f"{folder}/"
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            text = Path(f"/proc/{entry}/maps").read_text(errors="replace")
        except OSError as error:
            if isinstance(error, PermissionError) and os.geteuid():
                return None
            continue  # it is gone, or it refuses root: a service of the system, no rank
        found.update(line.split(mark, 1)[1].split(" ")[0] for line in text.splitlines() if mark in line)
    return found
