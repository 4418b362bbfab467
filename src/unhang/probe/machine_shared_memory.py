"""/dev/shm: its size, what is free, and what processes that are gone have left there. Never blocks."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("/dev/shm")
# torch_PID_RANDOM_COUNT are tensors of loader workers; nccl-XXXXXX bears no pid.
_WITH_PID = re.compile(r"^torch_(?P<pid>\d{1,9})_\d+_\d+$")
_WITHOUT_PID = re.compile(r"^nccl-\w{6}$")
_YOUNGEST_S = 600.0
_INITIAL_PID_SPACE, _INITIAL_IPC_SPACE = 0xEFFFFFFC, 0xEFFFFFFF


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """In bytes; `type` is that of the file system."""

    size: int
    free: int
    type: str
    is_writable: bool


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file whose maker is gone. `pid`: the maker's, where the name tells it."""

    name: str
    size_bytes: int
    age_s: float
    pid: int | None


def shared_memory(folder: Path = FOLDER) -> SharedMemory:
    """Of the file system in which shared memory is made.

    Raises:
        OSError: there is none.
    """
    found = os.statvfs(folder)
    return SharedMemory(
        found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, _type(folder), os.access(folder, os.W_OK)
    )


def _type(folder: Path) -> str:
    with suppress(OSError):
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            parts = line.split()
            if parts[1] == str(folder):
                return parts[2]
    return "none of its own"


def leftovers(folder: Path = FOLDER) -> tuple[Leftover, ...]:
    """Files of torch and NCCL whose makers are gone, the largest first.

    Raises:
        OSError: the folder cannot be read, or pids in names mean nothing here, as others share the folder, but not our pids.
    """
    if sys.platform != "linux":
        raise OSError(f"{folder} is looked at on Linux only")
    if _space("pid") != _INITIAL_PID_SPACE and _space("ipc") == _INITIAL_IPC_SPACE:
        raise OSError(f"{folder} is the host's, but its processes are not visible from here")
    found = list(_stale(folder))
    if any(item.pid is None for item in found):
        mapped = _mapped(folder)
        found = [item for item in found if item.pid is not None or (mapped is not None and item.name not in mapped)]
    return tuple(sorted(found, key=lambda item: -item.size_bytes))


def _space(name: str) -> int:
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
