"""Devices as their vendors' libraries and the PCI bus tell of them. What one of these does not tell is None."""

from __future__ import annotations

import ctypes
import importlib
import struct
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

from unhang.model.evidence import Value

Fields = dict[str, Value]

# Of nvmlReturn_t, nvmlGpuP2PStatus_t, nvmlClocksEventReasons: the numbers are part of the library's interface.
NO_PERMISSION, NOT_LOADED, NO_LIBRARY, LOST, NEEDS_RESET, MISMATCH = 4, 9, 12, 15, 16, 18
_UNCORRECTED, _VOLATILE, _SLOWDOWN_AT, _CORE, _SM_CLOCK = 1, 0, 1, 0, 1
_P2P_READ, _P2P_NVLINK, _P2P_OK = 0, 2, 0  # the binding's own NVML_P2P_CAPS_INDEX_READ is a tuple
_RECOVERY, _MOST_LINKS = 1, 36
_ONE_SWITCH, _SEVERAL_SWITCHES = 10, 20
_SLOWDOWNS = {0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}
_HARDWARE_SLOWDOWN = 0x8
_FABRIC = ("not supported", "not started", "in progress", "completed")
_COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")
Ask = Callable[..., Any]


def load_nvml() -> Any:
    """The binding.

    Raises:
        ImportError: nvidia-ml-py is not installed.
    """
    return importlib.import_module("pynvml")


def system(nvml: Any) -> Fields:
    """The driver, and how many devices it has. After nvmlInit."""
    ask = _asking(nvml)
    cuda = ask("nvmlSystemGetCudaDriverVersion")
    return {
        "version": ask("nvmlSystemGetDriverVersion"),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        "count": nvml.nvmlDeviceGetCount(),
    }


def identity(nvml: Any, index: int) -> Fields:
    """Which device it is; `problem` where the driver cannot reach it."""
    fields: Fields = {"index": index}
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        fields["uuid"] = nvml.nvmlDeviceGetUUID(handle)
        fields["name"] = nvml.nvmlDeviceGetName(handle)
        fields["bus"] = sysfs_bus(nvml.nvmlDeviceGetPciInfo(handle).busId)
    except nvml.NVMLError as error:
        fields["problem"] = str(error)
    return fields


def sysfs_bus(bus: str | bytes) -> str:
    """`00000000:41:00.0` as the kernel writes it: `0000:41:00.0`."""
    domain, _, rest = (bus.decode() if isinstance(bus, bytes) else bus).lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def state(nvml: Any, index: int) -> Fields:
    """How a device is; `problem` where it stops answering meanwhile."""
    fields = identity(nvml, index)
    if "problem" in fields:
        return fields
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    ask = _asking(nvml)
    try:
        for part in (_memory, _errors, _speed, _nvlinks, _modes):
            fields |= part(ask, handle)
        fields |= _fabric(nvml, handle)
    except DeviceLost as error:
        fields["problem"] = str(error)
    return fields


class DeviceLost(Exception):
    """The device does not answer any more."""


def _asking(nvml: Any) -> Ask:
    """Calls by name; None for what this device, driver or binding does not support.

    Raises (from the calls):
        DeviceLost: the device is gone, or wants a reset.
    """

    def ask(name: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, name)(*arguments)
        except AttributeError:
            return None
        except nvml.NVMLError as error:
            if error.value in (LOST, NEEDS_RESET):
                raise DeviceLost(str(error)) from error
            return None

    return ask


def _memory(ask: Ask, handle: Any) -> Fields:
    found = ask("nvmlDeviceGetMemoryInfo", handle)
    return {"memory_bytes": found.total, "used_bytes": found.used} if found else {}


def _errors(ask: Ask, handle: Any) -> Fields:
    rows = ask("nvmlDeviceGetRemappedRows", handle)
    return {
        "ecc_uncorrected": ask("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE),
        "pages_pending": ask("nvmlDeviceGetRetiredPagesPendingStatus", handle),
        "rows_pending": rows[2] if rows else None,
        "rows_failed": rows[3] if rows else None,
    }


def _speed(ask: Ask, handle: Any) -> Fields:
    return {
        "slowdowns": _slowdowns(ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)),
        "temperature_c": ask("nvmlDeviceGetTemperature", handle, _CORE),
        "slowdown_at_c": ask("nvmlDeviceGetTemperatureThreshold", handle, _SLOWDOWN_AT),
        "performance_state": ask("nvmlDeviceGetPerformanceState", handle),
        "clock_mhz": ask("nvmlDeviceGetClockInfo", handle, _SM_CLOCK),
        "max_clock_mhz": ask("nvmlDeviceGetMaxClockInfo", handle, _SM_CLOCK),
        "pcie_width": ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        "max_pcie_width": ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        "pcie_gen": ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "max_pcie_gen": ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
    }


def _slowdowns(reasons: int | None) -> str | None:
    """What holds the clock down that no load explains. A power limit and an idle device are no fault."""
    if reasons is None:
        return None
    known = [word for bit, word in _SLOWDOWNS.items() if reasons & bit]
    return ", ".join(known or ["hardware slowdown"] * bool(reasons & _HARDWARE_SLOWDOWN))


def _nvlinks(ask: Ask, handle: Any) -> Fields:
    """Links that are up; None for a device without any. `nvlink_recoveries`: how often links were trained again."""
    states = [ask("nvmlDeviceGetNvLinkState", handle, link) for link in range(_MOST_LINKS)]
    if all(found is None for found in states):
        return {}
    up = [link for link, found in enumerate(states) if found]
    counts = [ask("nvmlDeviceGetNvLinkErrorCounter", handle, link, _RECOVERY) for link in up]
    known = [count for count in counts if count is not None]
    return {"nvlinks_up": len(up), "nvlink_recoveries": sum(known) if known else None}


def _modes(ask: Ask, handle: Any) -> Fields:
    mode, mig = ask("nvmlDeviceGetComputeMode", handle), ask("nvmlDeviceGetMigMode", handle)
    persistence = ask("nvmlDeviceGetPersistenceMode", handle)
    return {
        "compute_mode": _COMPUTE_MODES[mode] if mode in range(len(_COMPUTE_MODES)) else None,
        "is_mig": bool(mig[0]) if mig else None,
        "is_persistent": None if persistence is None else bool(persistence),
    }


def _fabric(nvml: Any, handle: Any) -> Fields:
    """How far the NVSwitch fabric is. `fabric_error`: its code, where it was set up and failed."""
    try:
        info = nvml.c_nvmlGpuFabricInfo_v2_t()
        nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))  # by value it would crash
    except (AttributeError, nvml.NVMLError):
        return {}
    if info.state not in range(len(_FABRIC)):
        return {}
    return {"fabric": _FABRIC[info.state], "fabric_error": info.status if info.state == len(_FABRIC) - 1 else 0}


def processes(nvml: Any, index: int, but: int) -> Iterator[Fields]:
    """Who computes on a device, without process `but`. `command` is empty where the process cannot be seen from here."""
    try:
        found = nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError:
        return
    for process in found:
        if process.pid != but:
            yield {"pid": process.pid, "used_bytes": process.usedGpuMemory, "command": _command(process.pid)}


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def peers(nvml: Any, count: int) -> Fields:
    """How the devices of this host reach each other: pairs joined by NVLink, pairs that reach each other over PCIe."""
    ask = _asking(nvml)
    nvlink = direct = switched = pairs = 0
    for first, second in combinations(range(count), 2):
        try:
            a, b = nvml.nvmlDeviceGetHandleByIndex(first), nvml.nvmlDeviceGetHandleByIndex(second)
            by_link = ask("nvmlDeviceGetP2PStatus", a, b, _P2P_NVLINK) == _P2P_OK
            by_bus = ask("nvmlDeviceGetP2PStatus", a, b, _P2P_READ) == _P2P_OK
            near = ask("nvmlDeviceGetTopologyCommonAncestor", a, b)
        except (DeviceLost, nvml.NVMLError):
            continue
        pairs += 1
        nvlink += by_link
        direct += by_bus and not by_link
        switched += near in (_ONE_SWITCH, _SEVERAL_SWITCHES) and not by_link
    return {"pairs": pairs, "nvlink_pairs": nvlink, "pcie_pairs": direct, "switch_pairs": switched}


# AMD devices as amdsmi tells them. What a version of it does not tell is None.
#
# Source: AMD SMI Python API reference.

_MB = 1 << 20


class CannotRead(Exception):
    """There is no amdsmi, or no driver that it could ask."""


def load_amdsmi() -> Any:
    """The binding.

    Raises:
        CannotRead: it cannot be imported; without ROCm its import fails in other ways than by ImportError.
    """
    try:
        return importlib.import_module("amdsmi")
    except ImportError:
        raise CannotRead("amdsmi is not installed") from None
    except Exception as error:
        raise CannotRead(f"amdsmi cannot be loaded: {type(error).__name__}: {error}"[:200]) from error


def devices(amdsmi: Any) -> list[Fields]:
    """All devices, in the order of amdsmi."""
    amdsmi.amdsmi_init()
    try:
        return [_device(amdsmi, index, handle) for index, handle in enumerate(amdsmi.amdsmi_get_processor_handles())]
    finally:
        amdsmi.amdsmi_shut_down()


def _device(amdsmi: Any, index: int, handle: Any) -> Fields:
    def ask(name: str) -> Any:
        try:
            return getattr(amdsmi, name)(handle)
        except (AttributeError, amdsmi.AmdSmiException):
            return None

    memory = ask("amdsmi_get_gpu_vram_usage") or {}
    errors = ask("amdsmi_get_gpu_total_ecc_count") or {}
    fields: Fields = {
        "index": index,
        "uuid": ask("amdsmi_get_gpu_device_uuid"),
        "bus": ask("amdsmi_get_gpu_device_bdf"),
        "name": (ask("amdsmi_get_gpu_asic_info") or {}).get("market_name"),
        "ecc_uncorrected": errors.get("uncorrectable_count"),
        "memory_bytes": _bytes(memory.get("vram_total")),
        "used_bytes": _bytes(memory.get("vram_used")),
    }
    if fields["uuid"] is None:
        fields |= {"uuid": f"AMD-{fields['bus'] or index}"}
    return fields


def _bytes(megabytes: Any) -> int | None:
    return int(megabytes) * _MB if isinstance(megabytes, int) else None


# What lies between devices on the PCI bus: bridges that send traffic up to the processor, and the IOMMU.
#
# Source: PCI Express Base Specification, capabilities Express (0x10) and Access Control Services (0x000D); sysfs-bus-pci.

DEVICES = Path("/sys/bus/pci/devices")
CPU = Path("/proc/cpuinfo")
_EXPRESS, _ACS, _DOWNSTREAM = 0x10, 0x000D, 6
_REDIRECTS = 0x4 | 0x8  # of requests, of completions
_FULL_CONFIG = 0x200
_MOST_CAPABILITIES = 64


def redirects(config: bytes) -> bool | None:
    """Whether a port of a switch sends traffic between devices up to the root; None: no such port, or it cannot tell.

    Raises:
        ValueError: only the first part of its configuration can be read, as for users other than root.
    """
    express = _capability(config)
    if express is None or struct.unpack_from("<H", config, express + 2)[0] >> 4 & 0xF != _DOWNSTREAM:
        return None
    if len(config) < _FULL_CONFIG:
        raise ValueError("the configuration of PCI bridges is readable to root only")
    acs = _extended(config)
    return None if acs is None else bool(struct.unpack_from("<H", config, acs + 6)[0] & _REDIRECTS)


def _capability(config: bytes) -> int | None:
    """Where the capability Express is."""
    place = config[0x34] & ~3 if len(config) >= 0x40 else 0
    for _ in range(_MOST_CAPABILITIES):
        if place < 0x40 or place + 4 > len(config):
            return None
        if config[place] == _EXPRESS:
            return place
        place = config[place + 1] & ~3
    return None


def _extended(config: bytes) -> int | None:
    """Where the extended capability ACS is."""
    place = 0x100
    for _ in range(_MOST_CAPABILITIES):
        if place < 0x100 or place + 8 > len(config):
            return None
        header = struct.unpack_from("<I", config, place)[0]
        if header & 0xFFFF == _ACS:
            return place
        place = header >> 20 & ~3
    return None


def bridges(bus: str, root: Path = DEVICES) -> Iterator[str]:
    """The bridges above a device, the nearest last."""
    for part in (root / bus).resolve(strict=True).parts[:-1]:
        if part.count(":") == 2 and (root / part / "config").exists():
            yield part


def between(buses: list[str], root: Path = DEVICES, cpu: Path = CPU) -> Fields:
    """What lies above these devices: which ports redirect, how the IOMMU treats the first of them, whether this is a VM.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    above = dict.fromkeys(bridge for bus in buses for bridge in bridges(bus, root))
    redirecting = [bridge for bridge in above if redirects((root / bridge / "config").read_bytes())]
    group = root / buses[0] / "iommu_group" / "type"
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    flags = next((line for line in lines if line.startswith("flags")), "")
    return {
        "redirecting": " ".join(redirecting),
        "iommu": group.read_text().strip() if group.exists() else None,
        "is_virtual": " hypervisor" in flags,
    }
