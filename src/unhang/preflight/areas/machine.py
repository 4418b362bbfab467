"""The area `machine`: cores, memory, shared memory, limits, folders, clocks, and what the kernel has said."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from unhang.model import Reading, Unavailable
from unhang.model.readings import Value
from unhang.preflight.context import Context
from unhang.preflight.machine_kernel import kernel_readings
from unhang.preflight.machine_together import read_offset, read_shared
from unhang.probe.limited import TookTooLong
from unhang.probe.machine_clock import EvenClock, is_synchronised
from unhang.probe.machine_cores import as_ranges, cores
from unhang.probe.machine_folders import read_folder
from unhang.probe.machine_kernel_log import kernel_messages, now_s
from unhang.probe.machine_limits import (
    CAP_IPC_LOCK,
    CAP_SYS_RESOURCE,
    gpu_count,
    has_capability,
    limits,
    open_files,
    processes,
    rdma_devices,
)
from unhang.probe.machine_memory import memory
from unhang.probe.machine_shared_memory import FOLDER, leftovers, shared_memory
from unhang.probe.machine_tracing import tracing

SCOPE = "rank"
LIMIT_S = 25.0
_MOST_NAMED = 5

Read = Callable[[], Iterator[Reading]]


def probe(context: Context) -> Iterator[Reading | Unavailable]:
    """What belongs to each rank on every rank, and what the host has in common on one rank of it."""
    even = EvenClock()
    yield from _tried("machine.cores", _cores)
    yield from _tried("machine.limit", _limits)
    if not context.member.is_first_on_host:
        return
    yield from _tried("machine.memory", _memory)
    yield from _tried("machine.shared_memory", _shared_memory)
    yield from _tried("machine.shm_leftovers", _leftovers)
    yield from _tried("machine.processes", _processes)
    yield from _tried("machine.tracing", lambda: iter((Reading("machine.tracing", "", asdict(tracing())),)))
    yield from _tried("machine.kernel_log", _kernel)
    yield from _folders(context)
    fields = {"jump_s": round(even.jump_s(), 3), "is_synchronised": is_synchronised()}
    yield Reading("machine.clock", "", fields)


def probe_together(context: Context) -> Iterator[Reading | Unavailable]:
    """Clocks against each other, and whether all see the same folders."""
    if context.party.is_alone:
        reason = "one process; torchrun or srun starts it on all nodes"
        yield from (Unavailable(kind, reason) for kind in ("machine.clock_offset", "machine.folder_shared"))
        return
    yield from read_offset(context.party)
    yield from read_shared(context)


def _tried(kind: str, read: Read) -> Iterator[Reading | Unavailable]:
    """What is read, or why it cannot be."""
    try:
        yield from read()
    except (OSError, ValueError, RuntimeError) as error:
        yield Unavailable(kind, str(error)[:300])


def _cores() -> Iterator[Reading]:
    found = cores()
    fields: dict[str, Value] = {
        "cpus": as_ranges(found.cpus),
        "count": len(found.cpus),
        "online": found.online,
        "quota": None if found.quota is None else round(found.quota, 2),
    }
    yield Reading("machine.cores", "", fields)


def _limits() -> Iterator[Reading]:
    for name, limit in limits().items():
        fields: dict[str, Value] = {"soft": limit.soft, "hard": limit.hard}
        if name == "nofile":
            fields["open"] = open_files()
        if name == "memlock":
            fields["rdma_devices"] = len(rdma_devices())
            fields["is_exempt"] = has_capability(CAP_IPC_LOCK)
            fields["gpus"] = gpu_count()
        yield Reading("machine.limit", name, fields)


def _memory() -> Iterator[Reading]:
    found = memory()
    left = found.available if found.left_in_group is None else min(found.available, found.left_in_group)
    fields: dict[str, Value] = {
        "total_bytes": found.total,
        "available_bytes": found.available,
        "swap_free_bytes": found.swap_free,
        "limit_bytes": found.limit,
        "left_bytes": left,
    }
    yield Reading("machine.memory", "", fields)


def _shared_memory() -> Iterator[Reading]:
    found = shared_memory()
    fields: dict[str, Value] = {
        "size_bytes": found.size,
        "free_bytes": found.free,
        "type": found.type,
        "is_writable": found.is_writable,
        "gpus": gpu_count(),
    }
    yield Reading("machine.shared_memory", str(FOLDER), fields)


def _leftovers() -> Iterator[Reading]:
    found = leftovers()
    fields: dict[str, Value] = {
        "count": len(found),
        "bytes": sum(item.size_bytes for item in found),
        "size_bytes": shared_memory().size,
        "newest_age_s": round(min((item.age_s for item in found), default=0.0)),
        "names": " ".join(item.name for item in found[:_MOST_NAMED]),
    }
    yield Reading("machine.shm_leftovers", str(FOLDER), fields)


def _processes() -> Iterator[Reading]:
    fields: dict[str, Value] = asdict(processes()) | {"is_exempt": os.getuid() == 0 or has_capability(CAP_SYS_RESOURCE)}
    fields["user_limit"] = limits()["nproc"].soft
    yield Reading("machine.processes", "", fields)


def _kernel() -> Iterator[Reading]:
    messages = kernel_messages()
    yield Reading("machine.kernel_log", "", {"messages": len(messages)})
    yield from kernel_readings(messages, now_s())


def _folders(context: Context) -> Iterator[Reading | Unavailable]:
    """The folders that were named, the one in which the job starts, and that of temporary files."""
    wanted = dict.fromkeys(context.options.folders, "named")
    wanted.setdefault(Path(), "current")
    wanted.setdefault(Path(context.environ.get("TMPDIR") or "/tmp"), "temporary")
    for folder, role in wanted.items():
        fields: dict[str, Value] = {"role": role}
        try:
            fields |= read_folder(folder, writes=role == "named")
        except TookTooLong as error:
            fields |= {"hangs": True, "problem": str(error)}
        except OSError as error:
            fields["problem"] = error.strerror or str(error)
        except RuntimeError as error:
            yield Unavailable("machine.folder", f"{folder.absolute()}: {error}")
            continue
        yield Reading("machine.folder", str(folder.absolute()), fields)
