"""All devices of this host, of NVIDIA or AMD, and which of them a process sees.

A driver that is in trouble does not answer at all, and who asks it cannot be ended: it is asked in a child of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unhang.probe import amd, nvml
from unhang.probe.limited import TookTooLong, limited
from unhang.probe.nvml import Fields

LIMIT_S = 20.0
DRIVER = Path("/proc/driver/nvidia/version")
_NUMBER = re.compile(r"[+-]?\d+")
_NONE_MEANT = ("", "-1", "none", "void", "nodevfiles")


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


def devices(in_detail: Callable[[int, int], bool], loads: Callable[[], Any] = nvml.load_nvml) -> Devices:
    """What there is.

    Args:
        in_detail: of which device, by its index and the number of devices, all is wanted, and not just which it is.
        loads: imports the binding of NVML.

    Blocks: up to LIMIT_S.

    Raises:
        NoDevices: there is none, or nothing to read it with.
    """
    try:
        library = loads()
    except ImportError:
        if DRIVER.exists():
            raise NoDevices("the driver is here, nvidia-ml-py is not: pip install 'unhang[gpu]'") from None
        return _amd()
    pid = os.getpid()
    try:
        found = limited(lambda: nvidia(library, in_detail, pid), LIMIT_S)
    except TookTooLong as error:
        return Devices("nvidia", {"problem": f"it does not answer: {error}", "is_silent": True})
    except (OSError, RuntimeError) as error:
        return Devices("nvidia", {"problem": str(error)})
    if "absent" in found:
        return _amd(found["absent"])
    return Devices("nvidia", **found)


def nvidia(library: Any, in_detail: Callable[[int, int], bool], pid: int) -> dict[str, Any]:
    """All that NVML tells, as far as JSON knows it; `absent`: why there is nothing to be told."""
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        if error.value in (nvml.NOT_LOADED, nvml.NO_LIBRARY, nvml.NO_PERMISSION):
            return {"absent": f"NVML: {error}"}
        return {"driver": {"problem": str(error), "is_mismatch": error.value == nvml.MISMATCH}}
    try:
        driver = nvml.system(library)
        count = int(driver["count"] or 0)
        if not count:
            return {"absent": "the driver of NVIDIA has no device"}
        wanted = [index for index in range(count) if in_detail(index, count)]
        found = [nvml.state(library, i) if i in wanted else nvml.identity(library, i) for i in range(count)]
        used = [{**p, **_which(found[i])} for i in wanted for p in nvml.processes(library, i, pid)]
        peers = nvml.peers(library, count) if len(wanted) == count > 1 else {}
        return {"driver": driver, "devices": found, "processes": used, "peers": peers}
    finally:
        library.nvmlShutdown()


def _which(device: Fields) -> Fields:
    return {name: device.get(name) for name in ("index", "uuid")}


def _amd(why_not_nvidia: str = "no driver of NVIDIA") -> Devices:
    try:
        library = amd.load_amdsmi()
    except amd.CannotRead as error:
        raise NoDevices(f"{why_not_nvidia}, and {error}") from None
    try:
        found = limited(lambda: amd.devices(library), LIMIT_S)
    except TookTooLong as error:
        return Devices("amd", {"problem": f"it does not answer: {error}", "is_silent": True})
    except (OSError, RuntimeError) as error:
        raise NoDevices(f"{why_not_nvidia}, and amdsmi: {error}") from error
    if not found:
        raise NoDevices(f"{why_not_nvidia}, and amdsmi tells of no device")
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
