"""The processes of this machine as /proc shows them: who they are, what they were started with, who may look into them.

Source: proc(5), ptrace(2), Linux Documentation/admin-guide/LSM/Yama.rst.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_TORCH = re.compile(rb"/(?:libtorch(?:_cpu|_cuda|_python|_hip)?\.so|torch/_C\.)")
_CAP_SYS_PTRACE = 1 << 19
_START, _UTIME, _STIME = 19, 11, 12


@dataclass(frozen=True)
class Process:
    """One process. What may not be read of it is empty. `pids_inside`: its numbers in the namespaces below ours, from NSpid."""

    pid: int
    parent: int
    state: str
    start_ticks: int
    uid: int
    command: tuple[str, ...]
    folder: Path
    pids_inside: tuple[int, ...] = ()

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """What it was started with."""
        with suppress(OSError):
            parts = (self.folder / "environ").read_bytes().decode(errors="replace").split("\0")
            return dict(p.split("=", 1) for p in parts if "=" in p)
        return {}

    @cached_property
    def is_readable(self) -> bool:
        """Whether its environment may be read."""
        with suppress(OSError):
            with (self.folder / "environ").open("rb") as file:
                file.read(1)
            return True
        return False

    @cached_property
    def has_torch(self) -> bool:
        """Whether torch is mapped."""
        with suppress(OSError):
            return bool(_TORCH.search((self.folder / "maps").read_bytes()))
        return False

    @cached_property
    def is_python(self) -> bool:
        """Whether it is an interpreter of Python, also one that has given itself another name."""
        name = os.path.basename(self.command[0]) if self.command else ""
        with suppress(OSError):
            name = os.path.basename(os.readlink(self.folder / "exe"))
        return "python" in name or "pypy" in name

    @cached_property
    def network(self) -> str:
        """Its network namespace."""
        with suppress(OSError):
            return os.readlink(self.folder / "ns" / "net")
        return ""

    def is_there(self) -> bool:
        """Whether it still runs, and not another one that has got its number."""
        now = _process(self.folder)
        return now is not None and now.start_ticks == self.start_ticks

    @property
    def user(self) -> str:
        """Whose it is."""
        with suppress(KeyError):
            return pwd.getpwuid(self.uid).pw_name
        return str(self.uid)


class Processes:
    """All processes at one moment. `root`: another folder than /proc."""

    def __init__(self, root: Path = PROC) -> None:
        self.root = root
        self.by_pid = {p.pid: p for p in self._read()}
        self._children: dict[int, list[int]] = {}
        for process in self.by_pid.values():
            self._children.setdefault(process.parent, []).append(process.pid)

    def _read(self) -> Iterator[Process]:
        for name in sorted(filter(str.isdecimal, os.listdir(self.root)), key=int):
            if (process := _process(self.root / name)) is not None:
                yield process

    @cached_property
    def boot_ns(self) -> int:
        """When the machine started, wall clock; 0 where it is not told."""
        with suppress(OSError, ValueError, StopIteration):
            lines = (self.root / "stat").read_text().splitlines()
            return int(next(x for x in lines if x.startswith("btime")).split()[1]) * 1_000_000_000
        return 0

    def started_ns(self, process: Process) -> int:
        """When a process started, wall clock."""
        return self.boot_ns + process.start_ticks * 1_000_000_000 // _TICKS_PER_S if self.boot_ns else 0

    def above(self, pid: int) -> list[int]:
        """Its ancestors, the nearest first."""
        found: list[int] = []
        while (process := self.by_pid.get(pid)) is not None and process.parent not in (0, *found):
            pid = process.parent
            found.append(pid)
        return found

    def children(self, pid: int) -> list[int]:
        """Its direct children."""
        return self._children.get(pid, [])

    def below(self, pid: int) -> list[int]:
        """All its descendants."""
        found, todo = [], [pid]
        while todo:
            for child in self._children.get(todo.pop(), ()):
                found.append(child)
                todo.append(child)
        return found


def _process(folder: Path) -> Process | None:
    with suppress(OSError, ValueError, IndexError):
        fields = (folder / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()
        if fields[0] in "ZX":
            return None
        status = _status(folder)
        command = tuple((folder / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1])
        inside = tuple(map(int, status.get("NSpid", "").split()[1:]))
        uid = int(status.get("Uid", "-1").split()[0])
        return Process(int(folder.name), int(fields[1]), fields[0], int(fields[_START]), uid, command, folder, inside)
    return None


def _status(folder: Path) -> dict[str, str]:
    lines = (folder / "status").read_text(errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def missing_right(process: Process, root: Path = PROC) -> str:
    """Why its stacks cannot be read, and what gives the right; empty where nothing speaks against it."""
    own = _status(root / "self") if (root / "self").exists() else {}
    can_trace = bool(int(own.get("CapEff", "0"), 16) & _CAP_SYS_PTRACE)
    my_uid = int(own.get("Uid", str(os.geteuid())).split()[0])
    if can_trace:
        return ""
    if process.uid != my_uid:
        return f"it belongs to {process.user}: run 'sudo unhang attach', or attach as {process.user}"
    scope = ""
    with suppress(OSError):
        scope = (root / "sys/kernel/yama/ptrace_scope").read_text().strip()
    if scope in ("1", "2"):
        return (
            f"kernel.yama.ptrace_scope is {scope}: run 'sudo unhang attach', or 'sudo sysctl kernel.yama.ptrace_scope=0'; "
            "in a container start it with --cap-add SYS_PTRACE"
        )
    if scope == "3":
        return "kernel.yama.ptrace_scope is 3: nobody may trace until the machine starts again"
    return ""
