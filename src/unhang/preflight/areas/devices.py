"""The area `devices`: how the devices are, who uses them, how they reach each other, and which rank sees which of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from unhang.model import Reading, Unavailable
from unhang.preflight.context import Context
from unhang.preflight.member import Member
from unhang.probe.devices import Devices, NoDevices, devices, own_device, visible
from unhang.probe.nvml import Fields
from unhang.probe.pci import between

SCOPE = "rank"
LIMIT_S = 25.0
_VARIABLES = {"nvidia": ("CUDA_VISIBLE_DEVICES",), "amd": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")}
_MOST_NAMED = 16


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
    return lambda index, count: member.is_first_on_host or count == 1 or index == member.local_rank


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
