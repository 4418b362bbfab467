"""What one process may have: descriptors, locked memory, processes; and what it may do. Never blocks."""

from __future__ import annotations

import os
import re
import resource
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from unhang.probe.machine_cgroup import folders_of, number_in

LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "nproc": resource.RLIMIT_NPROC,
    "core": resource.RLIMIT_CORE,
}
CAP_IPC_LOCK, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_SYS_RESOURCE = 14, 19, 21, 24
_COUNT_LIMIT_S = 0.3


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of this process, in its own unit; None: there is no limit."""

    soft: int | None
    hard: int | None


@dataclass(frozen=True, slots=True)
class Processes:
    """Processes and threads: `own_count` of our user, `count` of the whole machine; None where it is unknown or unlimited."""

    own_count: int | None
    count: int | None
    most_on_machine: int | None
    count_in_group: int | None
    most_in_group: int | None


def limits() -> dict[str, Limit]:
    """The limits of this process, by the names that limits.conf uses."""

    def told(value: int) -> int | None:
        return None if value == resource.RLIM_INFINITY else value

    return {name: Limit(*map(told, resource.getrlimit(number))) for name, number in LIMITS.items()}


def open_files() -> int | None:
    """Descriptors that this process has open."""
    with suppress(OSError):
        return len(os.listdir("/proc/self/fd"))
    return None


def has_capability(number: int, status: str | None = None) -> bool | None:
    """Whether this process has a capability; None where the kernel does not tell. `status`: as in /proc/self/status."""
    with suppress(OSError, ValueError):
        text = Path("/proc/self/status").read_text() if status is None else status
        found = re.search(r"^CapEff:\s*([0-9a-f]+)$", text, re.MULTILINE)
        return None if found is None else bool(int(found[1], 16) >> number & 1)
    return None


def processes(root: Path = Path("/")) -> Processes:
    """How many there are, and how many there may be."""
    groups = [
        (most, count)
        for folder in folders_of("pids", root)
        if (most := number_in(folder / "pids.max")) is not None
        and (count := number_in(folder / "pids.current")) is not None
    ]
    most, count = min(groups, key=lambda group: group[0] - group[1], default=(None, None))
    most_on_machine = [
        value
        for name in ("threads-max", "pid_max")
        if (value := number_in(root / "proc/sys/kernel" / name)) is not None
    ]
    return Processes(_own_count(), _all_count(root), min(most_on_machine, default=None), count, most)


def _all_count(root: Path) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        return int((root / "proc/loadavg").read_text().split()[3].split("/")[1])
    return None


def _own_count() -> int | None:
    """Threads of our user: what counts against its limit. None where counting takes too long, or there is no limit."""
    if resource.getrlimit(resource.RLIMIT_NPROC)[0] == resource.RLIM_INFINITY:
        return None
    deadline, own, found = time.monotonic() + _COUNT_LIMIT_S, os.getuid(), 0
    with suppress(OSError):
        for entry in os.listdir("/proc"):
            if time.monotonic() > deadline:
                return None
            if entry.isdecimal():
                with suppress(OSError):
                    if os.stat(f"/proc/{entry}").st_uid == own:
                        found += len(os.listdir(f"/proc/{entry}/task"))
        return found
    return None


def rdma_devices(root: Path = Path("/")) -> tuple[str, ...]:
    """RDMA devices with a port that is up."""
    folder, found = root / "sys/class/infiniband", []
    with suppress(OSError):
        for name in sorted(os.listdir(folder)):
            for state in sorted((folder / name / "ports").glob("*/state")):
                with suppress(OSError):
                    if "ACTIVE" in state.read_text():
                        found.append(name)
                        break
    return tuple(found)


def gpu_count() -> int:
    """Device files of NVIDIA or AMD GPUs that are visible here, without asking a driver, which may hang."""
    with suppress(OSError):
        count = sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in os.listdir("/dev"))
        if count:
            return count
        return len([n for n in os.listdir("/dev/dri") if n.startswith("renderD")]) if Path("/dev/kfd").exists() else 0
    return 0
