"""What of a rank's transport can be seen from outside: data that a connection does not get rid of, and how busy its device is.

Source: Linux Documentation/networking/proc_net_tcp.rst; NVML API reference.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from unhang.check.devices.vendors import load_nvml

PROC = Path("/proc")
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


def listens_at(pid: int, root: Path = PROC) -> list[str]:
    """The addresses at which it accepts TCP connections: `127.0.0.1:28028`."""
    return [_address(fields[1]) for fields in _sockets(pid, root) if fields[3] == _LISTENS]


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
