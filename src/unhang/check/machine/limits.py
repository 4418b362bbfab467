"""What one process may have (cores, descriptors, locked memory, processes) and do, such as looking into another process."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from unhang.check.calls import TookTooLong, limited
from unhang.model import Reading
from unhang.model.evidence import Value

_UNLIMITED = 1 << 60  # version 1 of control groups writes a number near 2^63 where there is no limit


def cores() -> Iterator[Reading]:
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


LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "nproc": resource.RLIMIT_NPROC,
    "core": resource.RLIMIT_CORE,
}
CAP_IPC_LOCK, CAP_SYS_PTRACE, CAP_SYS_RESOURCE = 14, 19, 24
_PTRACE_SEIZE, _PTRACE_DETACH = 0x4206, 17
_COUNT_LIMIT_S, _TRACE_LIMIT_S = 0.3, 2.0


def limits() -> Iterator[Reading]:
    """The limits of this process, by the names of limits.conf, in their own units; None: there is no limit. Never blocks."""
    for name, number in LIMITS.items():
        soft, hard = resource.getrlimit(number)
        fields: dict[str, Value] = {"soft": _finite(soft), "hard": _finite(hard)}
        if name == "nofile":
            fields["open"] = open_files()
        if name == "memlock":
            fields |= {
                "rdma_devices": len(rdma_devices()),
                "is_exempt": has_capability(CAP_IPC_LOCK),
                "gpus": gpu_count(),
            }
        yield Reading("machine.limit", name, fields)


def _finite(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


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


def processes(root: Path = Path("/")) -> Iterator[Reading]:
    """Processes and threads: of our user, of the machine, of our control group; None where unknown or unlimited. Never blocks."""
    groups = [
        (most, count)
        for folder in groups_of("pids", root)
        if (most := number_in(folder / "pids.max")) is not None
        and (count := number_in(folder / "pids.current")) is not None
    ]
    most, count = min(groups, key=lambda group: group[0] - group[1], default=(None, None))
    machine = [number_in(root / "proc/sys/kernel" / name) for name in ("threads-max", "pid_max")]
    fields: dict[str, Value] = {
        "own_count": _own_count(),
        "count": _all_count(root),
        "most_on_machine": min((value for value in machine if value is not None), default=None),
        "count_in_group": count,
        "most_in_group": most,
        "is_exempt": os.getuid() == 0 or has_capability(CAP_SYS_RESOURCE),
        "user_limit": _finite(resource.getrlimit(resource.RLIMIT_NPROC)[0]),
    }
    yield Reading("machine.processes", "", fields)


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


def tracing() -> Iterator[Reading]:
    """Whether a child of our own can be traced, which is how stacks of a stuck rank are taken. Blocks up to two seconds.

    `scope`: of Yama, None without it. `problem`: empty where it can be traced.

    Raises:
        OSError: this is not Linux, or the machine is too slow to try.
    """
    if sys.platform != "linux":
        raise OSError("processes can be inspected on Linux only")
    try:
        problem = str(limited(_try, _TRACE_LIMIT_S))
    except (TookTooLong, RuntimeError) as error:
        raise OSError(f"it could not be tried: {error}") from error
    fields: dict[str, Value] = {
        "scope": _yama_scope(),
        "has_capability": has_capability(CAP_SYS_PTRACE),
        "problem": problem,
    }
    yield Reading("machine.tracing", "", fields)


def _yama_scope() -> int | None:
    """0: any process of ours; 1: descendants and who allows it; 2: with CAP_SYS_PTRACE only; 3: nobody."""
    with suppress(OSError, ValueError):
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    return None


def _try() -> str:
    """Seizes a child and lets it go; returns what the kernel said against it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    pid = os.fork()
    if pid == 0:
        time.sleep(_TRACE_LIMIT_S)
        os._exit(0)
    try:
        if libc.ptrace(_PTRACE_SEIZE, pid, None, None) == 0:
            libc.ptrace(_PTRACE_DETACH, pid, None, None)
            return ""
        return os.strerror(ctypes.get_errno())
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
