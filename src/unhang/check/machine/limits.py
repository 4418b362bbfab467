"""What this machine has, and what one process may have of it (cores, descriptors, memory, shared memory) and do.

Memory and the files that dead processes left never block.
"""

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
from dataclasses import dataclass
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
            fields |= {"rdma_devices": len(rdma_devices()), "is_exempt": has_capability(CAP_IPC_LOCK)}
            fields["gpus"] = gpu_count()
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
    able = has_capability(CAP_SYS_PTRACE)
    yield Reading("machine.tracing", "", {"scope": _yama_scope(), "has_capability": able, "problem": problem})


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


# Memory and shared memory: what there is, what this process may still have, and what dead processes left.

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
