"""What of a rank's transport can be seen from outside: data that a connection does not get rid of, and how busy its device is.

Source: Linux Documentation/networking/proc_net_tcp.rst; NVML API reference.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from unhang.check.devices.nvml import load_nvml

PROC = Path("/proc")
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_ESTABLISHED = "01"
_MOST_PEERS = 8


def unsent(pid: int, root: Path = PROC) -> list[dict[str, Any]]:
    """Its TCP connections with data that the other side has not taken: `peer`, `bytes`. Most first."""
    inodes = set()
    with suppress(OSError):
        for name in os.listdir(root / str(pid) / "fd"):
            with suppress(OSError):
                if found := _SOCKET.match(os.readlink(root / str(pid) / "fd" / name)):
                    inodes.add(found[1])
    waiting: list[tuple[int, str]] = []
    for table in ("tcp", "tcp6") if inodes else ():
        with suppress(OSError):
            for line in (root / str(pid) / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                left = int(fields[4].partition(":")[0], 16)
                if left and fields[3] == _ESTABLISHED and fields[9] in inodes:
                    waiting.append((left, _address(fields[2])))
    return [{"peer": peer, "bytes": left} for left, peer in sorted(waiting, reverse=True)[:_MOST_PEERS]]


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
