"""Which devices a process sees, what lies between them, and AMD's binding in memory."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.check.forked import forked
from unhang.check.devices import NoDevices, devices, own_device, vendors, visible
from unhang.check.devices.vendors import between, bridges, redirects, sysfs_bus

UUIDS = ("GPU-aa11", "GPU-ab22", "GPU-b333")


@pytest.mark.parametrize(
    ("value", "seen", "problem"),
    [
        (None, UUIDS, ""),
        ("", (), ""),
        ("-1", (), ""),
        ("NoDevFiles", (), ""),
        ("2,0", (UUIDS[2], UUIDS[0]), ""),
        (" 1 , 2", UUIDS[1:], ""),
        ("GPU-b", (UUIDS[2],), ""),
        ("1gpu", (UUIDS[1],), ""),
        ("MIG-x/1/0", ("MIG-x/1/0",), ""),
        ("0,3,1", (UUIDS[0],), "no device '3' among 3"),
        ("GPU-a", (), "no device 'GPU-a'"),
        ("first", (), "no device 'first'"),
        ("1,1", (), "named twice"),
    ],
)
def test_what_cuda_makes_of_the_variable(value: str | None, seen: tuple[str, ...], problem: str) -> None:
    found = visible(value, UUIDS)
    assert found.uuids == seen
    assert problem in found.problem
    assert bool(found.problem) == bool(problem)


def test_the_device_of_a_rank() -> None:
    assert own_device(visible("2,1", UUIDS), 1) == UUIDS[1]
    assert own_device(visible("2", UUIDS), 7) == UUIDS[2]
    assert own_device(visible("2,1", UUIDS), 2) is None
    assert own_device(visible("", UUIDS), 0) is None


def test_bus_ids() -> None:
    assert sysfs_bus("00000000:C1:00.0") == sysfs_bus(b"00000000:c1:00.0") == "0000:c1:00.0"


def config(kind: int, acs: int | None, size: int = 4096) -> bytes:
    """The configuration of a bridge: its kind of port, and the control register of ACS."""
    data = bytearray(size)
    data[0x34] = 0x40
    struct.pack_into("<BBH", data, 0x40, 0x01, 0x60, 0)  # power management first
    struct.pack_into("<BBH", data, 0x60, 0x10, 0x00, kind << 4 | 2)
    if size > 0x200:
        struct.pack_into("<I", data, 0x100, 0x0001 | 1 << 16 | (0x180 if acs is not None else 0) << 20)
        if acs is not None:
            struct.pack_into("<IHH", data, 0x180, 0x000D | 1 << 16, 0x1F, acs)
    return bytes(data)


@pytest.mark.parametrize(
    ("kind", "acs", "expected"),
    [(6, 0x1D, True), (6, 0x8, True), (6, 0x11, False), (6, None, None), (4, 0x1D, None), (5, 4, None)],
)
def test_ports_that_redirect(kind: int, acs: int | None, expected: bool | None) -> None:
    assert redirects(config(kind, acs)) is expected


def test_configurations_that_tell_nothing() -> None:
    assert redirects(b"") is None
    assert redirects(bytes(4096)) is None
    endless = bytearray(config(6, None))
    struct.pack_into("<I", endless, 0x100, 0x0001 | 1 << 16 | 0x100 << 20)  # points to itself
    assert redirects(bytes(endless)) is None
    with pytest.raises(ValueError, match="root only"):
        redirects(config(6, None, 256))


def test_a_tree_of_bridges(tmp_path: Path) -> None:
    tree = tmp_path / "devices" / "pci0000:00"
    by_name = tmp_path / "bus"
    by_name.mkdir()
    parts = ["0000:00:01.0", "0000:01:00.0", "0000:02:04.0", "0000:03:00.0"]
    for i, (part, kind) in enumerate(zip(parts, (4, 5, 6, 0), strict=True)):
        place = tree.joinpath(*parts[: i + 1])
        place.mkdir(parents=True)
        (place / "config").write_bytes(config(kind, 0x1D))
        (by_name / part).symlink_to(place)
    (by_name / parts[-1] / "iommu_group").mkdir()
    (by_name / parts[-1] / "iommu_group" / "type").write_text("DMA-FQ\n")
    cpu = tmp_path / "cpuinfo"
    cpu.write_text("flags\t\t: fpu vme hypervisor lahf_lm\n")
    assert list(bridges(parts[-1], by_name)) == parts[:-1]
    assert between([parts[-1]], by_name, cpu) == {"redirecting": parts[2], "iommu": "DMA-FQ", "is_virtual": True}
    with pytest.raises(OSError, match="No such file"):
        between(["0000:99:00.0"], by_name, cpu)


class Amd:
    """The binding of AMD, in memory."""

    class AmdSmiException(Exception):
        """As that of the binding."""

    def amdsmi_init(self) -> None: ...

    def amdsmi_shut_down(self) -> None: ...

    def amdsmi_get_processor_handles(self) -> list[int]:
        return [0, 1]

    def amdsmi_get_gpu_device_uuid(self, handle: int) -> str:
        return f"{handle}aff74a1-0000-1000-80d7"

    def amdsmi_get_gpu_device_bdf(self, handle: int) -> str:
        return f"0000:0{handle + 1}:00.0"

    def amdsmi_get_gpu_asic_info(self, handle: int) -> dict[str, Any]:
        return {"market_name": "AMD Instinct MI300X"}

    def amdsmi_get_gpu_total_ecc_count(self, handle: int) -> dict[str, int]:
        if handle == 0:
            raise self.AmdSmiException
        return {"correctable_count": 1, "uncorrectable_count": 2, "deferred_count": 0}

    def amdsmi_get_gpu_vram_usage(self, handle: int) -> dict[str, int]:
        return {"vram_total": 196592, "vram_used": 283}


def test_devices_of_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> Any:
        raise ImportError

    monkeypatch.setattr(vendors, "load_amdsmi", Amd)
    monkeypatch.setattr("unhang.check.devices.limited", forked)
    found = devices(lambda index, count: True, absent)
    assert (found.vendor, found.driver) == ("amd", {"count": 2})
    assert [d["ecc_uncorrected"] for d in found.devices] == [None, 2]
    assert found.devices[0]["memory_bytes"] == 196592 << 20


def test_a_binding_of_amd_without_rocm_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "amdsmi.py").write_text("import os\nos.environ['ROCM_ROOT_THAT_IS_NOT_SET']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(vendors.CannotRead, match="KeyError"):
        vendors.load_amdsmi()


def test_no_device_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot() -> Any:
        raise vendors.CannotRead("amdsmi is not installed")

    monkeypatch.setattr(vendors, "load_amdsmi", cannot)
    monkeypatch.setattr("unhang.check.devices.limited", forked)
    with pytest.raises(NoDevices, match="amdsmi is not installed"):
        devices(lambda index, count: True, lambda: SimpleNamespace(NVMLError=OSError, nvmlInit=_fails))


def _fails() -> None:
    error = OSError("Driver Not Loaded")
    error.value = 9  # type: ignore[attr-defined]
    raise error
