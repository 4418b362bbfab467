"""What lies between devices on the PCI bus: bridges that send traffic up to the processor, and the IOMMU.

Source: PCI Express Base Specification, capabilities Express (0x10) and Access Control Services (0x000D); sysfs-bus-pci.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from unhang.check.devices.nvml import Fields

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
