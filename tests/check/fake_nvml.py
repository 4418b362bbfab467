"""The binding of NVML, in memory: the same functions, driven by a table of devices, each fault a change of the table."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

NOT_SUPPORTED, LOST = 3, 15
HEALTHY: Mapping[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3",
    "memory": (80 << 30, 600 << 20),
    "ecc": 0,
    "rows": (0, 0, 0, 0),
    "reasons": 0x1,  # idle
    "temperature": 33,
    "width": 16,
    "links": 18,
    "recoveries": 0,
    "fabric": (3, 0),
    "mode": 0,
    "mig": [0, 0],
    "processes": (),
    "near": 50,
    "p2p": {0: 0, 2: 0},  # reads, and NVLink
}
CARD: Mapping[str, Any] = {  # of a desktop: neither ECC nor NVLink nor MIG
    "name": "NVIDIA GeForce RTX 4090",
    "ecc": None,
    "rows": None,
    "links": None,
    "fabric": (0, 0),
    "mig": None,
    "p2p": {0: 1, 2: 5},
}


class FakeNvml:
    """`devices`: what differs from HEALTHY, one table for each. `init_error`: what nvmlInit raises; `hangs`: it never returns."""

    class NVMLError(Exception):
        """As that of the binding."""

        def __init__(self, value: int, text: str = "error") -> None:
            super().__init__(text)
            self.value = value

    class c_nvmlGpuFabricInfo_v2_t(ctypes.Structure):
        """Filled by the call."""

        _fields_ = (("state", ctypes.c_ubyte), ("status", ctypes.c_uint))

    def __init__(self, *devices: Mapping[str, Any], init_error: Exception | None = None, hangs: bool = False) -> None:
        self.devices = [{**HEALTHY, **device} for device in devices]
        self.init_error, self.hangs, self.open = init_error, hangs, 0

    def nvmlInit(self) -> None:
        while self.hangs:
            time.sleep(1)
        if self.init_error:
            raise self.init_error
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95.05"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        if self.devices[index].get("lost"):
            raise self.NVMLError(LOST, "GPU is lost")
        return {**self.devices[index], "index": index}

    def nvmlDeviceGetUUID(self, handle: dict[str, Any]) -> str:
        return str(handle.get("uuid", f"GPU-{handle['index']:08d}-aaaa"))

    def nvmlDeviceGetName(self, handle: dict[str, Any]) -> str:
        return str(handle["name"])

    def nvmlDeviceGetPciInfo(self, handle: dict[str, Any]) -> Any:
        return SimpleNamespace(busId=f"00000000:{handle['index'] + 1:02X}:00.0")

    def nvmlDeviceGetMemoryInfo(self, handle: dict[str, Any]) -> Any:
        total, used = handle["memory"]
        return SimpleNamespace(total=total, used=used, free=total - used)

    def _of(self, handle: dict[str, Any], name: str) -> Any:
        if handle[name] is None:
            raise self.NVMLError(NOT_SUPPORTED, "Not Supported")
        if handle.get("lost_later"):
            raise self.NVMLError(LOST, "GPU is lost")
        return handle[name]

    def nvmlDeviceGetTotalEccErrors(self, handle: dict[str, Any], error: int, counter: int) -> Any:
        assert (error, counter) == (1, 0), "uncorrected, and since the driver was loaded"
        return self._of(handle, "ecc")

    def nvmlDeviceGetRemappedRows(self, handle: dict[str, Any]) -> Any:
        return self._of(handle, "rows")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: dict[str, Any]) -> Any:
        return self._of(handle, "reasons")

    def nvmlDeviceGetTemperature(self, handle: dict[str, Any], sensor: int) -> Any:
        return self._of(handle, "temperature")

    def nvmlDeviceGetTemperatureThreshold(self, handle: dict[str, Any], threshold: int) -> int:
        return {0: 92, 1: 87}[threshold]

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: dict[str, Any]) -> Any:
        return self._of(handle, "width")

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: dict[str, Any]) -> int:
        return 16

    def nvmlDeviceGetNvLinkState(self, handle: dict[str, Any], link: int) -> int:
        if link >= 18:
            raise self.NVMLError(2, "Invalid Argument")
        return int(link < self._of(handle, "links"))

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: dict[str, Any], link: int, counter: int) -> Any:
        assert counter == 1, "recoveries"
        return self._of(handle, "recoveries") if link == 0 else 0

    def nvmlDeviceGetComputeMode(self, handle: dict[str, Any]) -> Any:
        return self._of(handle, "mode")

    def nvmlDeviceGetMigMode(self, handle: dict[str, Any]) -> Any:
        return self._of(handle, "mig")

    def nvmlDeviceGetPersistenceMode(self, handle: dict[str, Any]) -> int:
        return 1

    def nvmlDeviceGetGpuFabricInfoV(self, handle: dict[str, Any], info: Any) -> int:
        # The binding hands on what it is given: a structure instead of its address would crash the process.
        info._obj.state, info._obj.status = self._of(handle, "fabric")
        return 0

    def nvmlDeviceGetComputeRunningProcesses(self, handle: dict[str, Any]) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in handle["processes"]]

    def nvmlDeviceGetP2PStatus(self, a: dict[str, Any], b: dict[str, Any], index: int) -> int:
        return int(a["p2p"][index])

    def nvmlDeviceGetTopologyCommonAncestor(self, a: dict[str, Any], b: dict[str, Any]) -> int:
        return int(a["near"])
