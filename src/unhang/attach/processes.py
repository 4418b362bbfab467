"""The processes of this machine as /proc shows them: who they are, what they were started with, who may look into them, what their connections hold.

And how busy the devices of ranks are. Source: proc(5), ptrace(2), Linux Documentation/admin-guide/LSM/Yama.rst,
Documentation/networking/proc_net_tcp.rst; NVML API reference.
"""

from __future__ import annotations

import os
import pwd
import re
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from unhang.check.devices.vendors import load_nvml
from unhang.watch.process_tree import line_of

PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_TORCH = re.compile(rb"/(?:libtorch(?:_cpu|_cuda|_python|_hip)?\.so|torch/_C\.)")
_CAP_SYS_PTRACE = 1 << 19
_START = 19


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
        pids = sorted(filter(str.isdecimal, os.listdir(root)), key=int)
        self.by_pid = {p.pid: p for pid in pids if (p := _process(root / pid)) is not None}
        self._children: dict[int, list[int]] = {}
        for process in self.by_pid.values():
            self._children.setdefault(process.parent, []).append(process.pid)

    @cached_property
    def boot_ns(self) -> int:
        """When the machine started, wall clock; 0 where it is not told."""
        with suppress(OSError, ValueError, StopIteration):
            return int(line_of(self.root / "stat", "btime ")) * 1_000_000_000
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


# Connections and devices

_SOCKET = re.compile(r"socket:\[(\d+)\]")
_ESTABLISHED = "01"
_MOST_PEERS = 8
_LISTENS = "0A"
_RAS_PORT, _MOST_ANSWER, _ANY = "28028", 8 << 20, ("0.0.0.0", "::")


def unsent(pid: int, root: Path = PROC) -> list[dict[str, Any]]:
    """Its TCP connections with data that the other side has not taken: `peer`, `bytes`. Most first."""
    waiting = []
    for fields in _sockets(pid, root):
        left = int(fields[4].partition(":")[0], 16)
        if left and fields[3] == _ESTABLISHED:
            waiting.append((left, _address(fields[2])))
    return [{"peer": peer, "bytes": left} for left, peer in sorted(waiting, reverse=True)[:_MOST_PEERS]]


def listens_at(pid: int) -> list[str]:
    """The addresses at which it accepts TCP connections: `127.0.0.1:28028`."""
    return [_address(fields[1]) for fields in _sockets(pid, PROC) if fields[3] == _LISTENS]


def _sockets(pid: int, root: Path) -> Iterator[list[str]]:
    """The lines of the kernel's tables that are of its own TCP sockets."""
    inodes = set()
    with suppress(OSError):
        for name in os.listdir(root / str(pid) / "fd"):
            with suppress(OSError):
                if found := _SOCKET.match(os.readlink(root / str(pid) / "fd" / name)):
                    inodes.add(found[1])
    for table in ("tcp", "tcp6") if inodes else ():
        with suppress(OSError):
            lines = (root / str(pid) / "net" / table).read_text().splitlines()[1:]
            yield from (fields for line in lines if (fields := line.split())[9] in inodes)


def ras_answer(pids: Iterable[int], address: str, limit_s: float) -> bytes:
    """What NCCL's RAS tells of the whole job, where one of these processes serves it at `address`; empty where none does, or in time.

    Every process with NCCL 2.24 or newer does, unless it was told not to; of several on a host the first has the port. Blocks: `limit_s`.
    """
    port = address.rpartition(":")[2] or _RAS_PORT
    own = next((at for pid in pids for at in listens_at(pid) if at.rpartition(":")[2] == port), "")
    if not own:
        return b""
    host, text, end = own.rpartition(":")[0], b"", time.monotonic() + limit_s
    with (
        suppress(OSError),
        socket.create_connection(("localhost" if host in _ANY else host, int(port)), limit_s) as ras,
    ):
        ras.sendall(b"verbose status\n")
        while (left := end - time.monotonic()) > 0 and len(text) < _MOST_ANSWER:
            ras.settimeout(left)
            if not (piece := ras.recv(1 << 16)):
                break
            text += piece
    return text


def _address(text: str) -> str:
    """`0100007F:1F90` -> `127.0.0.1:8080`. The kernel writes each 32 bits in its own order."""
    host, port = text.split(":")
    words = [int(host[i : i + 8], 16) for i in range(0, len(host), 8)]
    raw = struct.pack(f"={len(words)}I", *words)
    name = socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, raw).removeprefix("::ffff:")
    return f"{name}:{int(port, 16)}"


def devices(pids: Iterable[int]) -> Mapping[int, dict[str, int]]:
    """Pid -> `device` and `busy` (percent) of the ranks that NVML shows on a device; nothing without a device or nvidia-ml-py."""
    wanted, found = set(pids), dict[int, dict[str, int]]()
    try:
        nvml = load_nvml()
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001  no driver, no library, no permission: then there is nothing to say
        return {}
    with suppress(Exception):
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            busy = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if process.pid in wanted:
                    found[process.pid] = {"device": index, "busy": busy}
    return found
