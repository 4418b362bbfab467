"""The area `devices`: how the devices are, who uses them, how they reach each other, and which rank sees which of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from unhang.check.areas import Context, Member
from unhang.check.calls import Died, TookTooLong, limited
from unhang.check.devices import vendors
from unhang.check.devices.vendors import Fields, between
from unhang.model import Reading, Unavailable

SCOPE = "rank"
LIMIT_S = 25.0
_VARIABLES = {"nvidia": ("CUDA_VISIBLE_DEVICES",), "amd": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")}
_MOST_NAMED = 16
_ASK_LIMIT_S = 20.0
DRIVER = Path("/proc/driver/nvidia/version")
_NUMBER = re.compile(r"[+-]?\d+")
_NONE_MEANT = ("", "-1", "none", "void", "nodevfiles")


def probe(context: Context) -> Iterator[Reading | Unavailable]:
    """One rank of a host reads all devices in detail; the others which they are, and in detail the one of their number.

    Devices that are hidden from the first rank, as where Slurm gives each task one of its own, are read by their own ranks.
    """
    try:
        found = devices(in_detail(context.member))
    except NoDevices as error:
        yield Unavailable("devices", str(error))
        return
    yield from readings(found, context)


def in_detail(member: Member) -> Callable[[int, int], bool]:
    """Which devices, by index and their number, a rank reads in detail."""
    return partial(_is_in_detail, member.is_first_on_host, member.local_rank)


def _is_in_detail(is_first_on_host: bool, local_rank: int, index: int, count: int) -> bool:
    return is_first_on_host or count == 1 or index == local_rank


def readings(found: Devices, context: Context) -> Iterator[Reading | Unavailable]:
    """What was read, as readings."""
    yield Reading("devices.driver", found.vendor, found.driver)
    if not found.devices:
        yield Unavailable("devices", str(found.driver.get("problem", "the driver told of no device")))
        return
    for device in found.devices:
        if len(device) > 4 or "problem" in device:
            yield Reading("devices.device", f"GPU {device['index']}", device)
    for process in found.processes:
        yield Reading("devices.process", f"GPU {process['index']}", process)
    yield _visible(found, context)
    if found.peers:
        yield Reading("devices.peers", "", found.peers)
        yield from _pci(found.devices)
    elif context.member.is_first_on_host:
        yield from (Unavailable(kind, "one device has no peer") for kind in ("devices.peers", "devices.pci"))


def _visible(found: Devices, context: Context) -> Reading:
    """Which devices this rank sees, and which it takes by convention."""
    member, names = context.member, _VARIABLES[found.vendor]
    variable = next((name for name in names if name in context.environ), names[0])
    value = context.environ.get(variable)
    uuids = [str(device.get("uuid") or f"unknown {device['index']}") for device in found.devices]
    # Where ROCR hides devices too, amdsmi still tells of them: what is left cannot be told by their numbers.
    seen = visible(None if "ROCR_VISIBLE_DEVICES" in context.environ else value, uuids)
    fields: Fields = {
        "variable": variable,
        "value": value,
        "problem": seen.problem or None,
        "is_hidden": seen.is_meant or None,
        "count": len(seen.uuids),
        "uuids": " ".join(sorted(seen.uuids)[:_MOST_NAMED]),
        "own": own_device(seen, member.local_rank),
        "local_rank": member.local_rank,
        "present": len(uuids),
        "backend": context.options.backend or None,
    }
    return Reading("devices.visible", "", fields)


def _pci(found: Iterable[Fields]) -> Iterator[Reading | Unavailable]:
    buses = [str(device["bus"]) for device in found if device.get("bus")]
    if not buses:
        return
    try:
        yield Reading("devices.pci", "", between(buses))
    except OSError as error:
        yield Unavailable("devices.pci", f"{error.filename}: {error.strerror}")
    except (ValueError, IndexError) as error:
        yield Unavailable("devices.pci", str(error))


class NoDevices(Exception):
    """There is no device to read, and why."""


@dataclass(frozen=True)
class Devices:
    """`driver` has a `problem` where it does not answer; `peers` is empty where there is one device only."""

    vendor: str
    driver: Fields
    devices: list[Fields] = field(default_factory=list)
    processes: list[Fields] = field(default_factory=list)
    peers: Fields = field(default_factory=dict)


def devices(in_detail: Callable[[int, int], bool], loads: Callable[[], Any] = vendors.load_nvml) -> Devices:
    """What there is. A driver in trouble does not answer at all, and who asks it cannot be ended: a child asks it.

    Args:
        in_detail: of which device, by its index and the number of devices, all is wanted, and not just which it is.
        loads: imports the binding of NVML.

    Blocks: up to `_ASK_LIMIT_S`.

    Raises:
        NoDevices: there is none, or nothing to read it with.
    """
    try:
        loads()
    except ImportError:
        if DRIVER.exists():
            raise NoDevices("the driver is here, nvidia-ml-py is not: pip install 'unhang[gpu]'") from None
        return _amd()
    pid = os.getpid()
    try:
        found = limited(partial(nvidia, loads, in_detail, pid), _ASK_LIMIT_S)
    except TookTooLong as error:
        return Devices("nvidia", {"problem": f"it does not answer: {error}", "is_silent": True})
    except Died as error:  # whose fault that is, nobody knows: a binding that does not fit the driver crashes too
        raise NoDevices(f"NVML was asked in a process of its own, and {error}") from None
    except (OSError, RuntimeError) as error:
        return Devices("nvidia", {"problem": str(error)})
    if "absent" in found:
        return _amd(found["absent"])
    return Devices("nvidia", **found)


def nvidia(loads: Callable[[], Any], in_detail: Callable[[int, int], bool], pid: int) -> dict[str, Any]:
    """All that NVML reports, as far as JSON knows it; `absent`: why there is nothing."""
    library = loads()
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        if error.value in (vendors.NOT_LOADED, vendors.NO_LIBRARY, vendors.NO_PERMISSION):
            return {"absent": f"NVML: {error}"}
        return {"driver": {"problem": str(error), "is_mismatch": error.value == vendors.MISMATCH}}
    try:
        driver = vendors.system(library)
        count = int(driver["count"] or 0)
        if not count:
            return {"absent": "the driver of NVIDIA has no device"}
        wanted = [index for index in range(count) if in_detail(index, count)]
        found = [vendors.state(library, i) if i in wanted else vendors.identity(library, i) for i in range(count)]
        used = [
            {**p, "index": i, "uuid": found[i].get("uuid")} for i in wanted for p in vendors.processes(library, i, pid)
        ]
        peers = vendors.peers(library, count) if len(wanted) == count > 1 else {}
        return {"driver": driver, "devices": found, "processes": used, "peers": peers}
    finally:
        library.nvmlShutdown()


def _amd_devices() -> list[dict[str, Any]]:
    return vendors.devices(vendors.load_amdsmi())


def _amd(why_not_nvidia: str = "no driver of NVIDIA") -> Devices:
    try:
        vendors.load_amdsmi()
    except vendors.CannotRead as error:
        raise NoDevices(f"{why_not_nvidia}, and {error}") from None
    try:
        found = limited(_amd_devices, _ASK_LIMIT_S)
    except TookTooLong as error:
        return Devices("amd", {"problem": f"it does not answer: {error}", "is_silent": True})
    except (OSError, RuntimeError) as error:
        raise NoDevices(f"{why_not_nvidia}, and amdsmi: {error}") from error
    if not found:
        raise NoDevices(f"{why_not_nvidia}, and amdsmi reports no device")
    return Devices("amd", {"count": len(found)}, found)


@dataclass(frozen=True)
class Visible:
    """The devices that a process sees, in its own order. `problem`: what is wrong with the variable that chooses them."""

    uuids: tuple[str, ...]
    problem: str = ""
    is_meant: bool = False  # the variable hides all devices, and says so


def visible(value: str | None, uuids: Sequence[str]) -> Visible:
    """What CUDA makes of CUDA_VISIBLE_DEVICES: what comes after a name that is not there is hidden; one named twice hides all.

    Source: CUDA programming guide, CUDA environment variables; torch.cuda reads it in the same way.
    """
    if value is None:
        return Visible(tuple(uuids))
    if value.strip().lower() in _NONE_MEANT:
        return Visible((), is_meant=True)
    chosen: list[str] = []
    for part in (p.strip() for p in value.split(",")):
        uuid = _named(part, uuids)
        if uuid is None:
            after = " and what is named after it is hidden" if "," in value else ""
            return Visible(tuple(chosen), f"there is no device {part!r} among {len(uuids)}: it{after or ' is hidden'}")
        if uuid in chosen:
            return Visible((), f"{part} is named twice: all devices are hidden")
        chosen.append(uuid)
    return Visible(tuple(chosen))


def _named(part: str, uuids: Sequence[str]) -> str | None:
    """The device of an index or of a (shortened) uuid. A slice of a device (MIG) is taken by its name."""
    if part.startswith("MIG-"):
        return part
    if match := _NUMBER.match(part):
        index = int(match[0])
        return uuids[index] if 0 <= index < len(uuids) else None
    found = [uuid for uuid in uuids if part.startswith("GPU-") and uuid.startswith(part)]
    return found[0] if len(found) == 1 else None


def own_device(seen: Visible, local_rank: int) -> str | None:
    """The device that a rank takes by convention: that of its local rank, or the only one that it sees."""
    if len(seen.uuids) == 1:
        return seen.uuids[0]
    return seen.uuids[local_rank] if local_rank < len(seen.uuids) else None


def backend_and_device(context: Context, area: str) -> tuple[str, str]:
    """The backend that was asked for; else nccl where torch sees a device on every rank, else gloo. All ranks call it.

    Blocks: up to 60 seconds, for a rank that imports torch.
    """
    asked = context.options.backend
    if not asked:
        seen = context.participants.exchange(f"{area}/devices", _count(), 60.0)
        asked = "nccl" if seen and all(seen.values()) else "gloo"
    if asked == "gloo":
        return "gloo", "cpu"
    return asked, f"cuda:{context.member.local_rank % max(1, _count())}"


def _count() -> int:
    """Devices that torch sees; 0 without torch."""
    try:
        import torch
    except ImportError:
        return 0
    return int(torch.cuda.device_count())
