"""What the devices of this machine do, by NVML, while a job runs. NVML may stand for minutes: a thread of its own asks it."""

from __future__ import annotations

import importlib
import threading
from contextlib import suppress
from typing import Any

_FIRST_ANSWER_S = 0.2


class DeviceProbe:
    """Use and memory of each device, and which ranks hold memory on it. Without the package `nvidia-ml-py` it has nothing."""

    def __init__(self, nvml: Any = None) -> None:
        self.contexts: dict[str, dict[str, float]] = {}  # device -> rank -> MB, the most that was seen
        self._nvml, self._handles = nvml, list[Any]()
        self._answer: dict[str, float | None] = {}
        self._ranks: dict[int, int] = {}
        self._is_asked = threading.Event()
        self._thread: threading.Thread | None = None
        if nvml is None:
            with suppress(ImportError):
                self._nvml = importlib.import_module("pynvml")

    def sample(self, ranks: dict[int, int]) -> dict[str, float | None]:
        """What was answered last, and asks again. `ranks`: the rank of each pid. Blocks: up to 0.2 s, the first time only."""
        if self._nvml is None:
            return {}
        self._ranks = ranks
        self._is_asked.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._ask_for_ever, name="unhang-devices", daemon=True)
            self._thread.start()
            self._thread.join(_FIRST_ANSWER_S)
        return self._answer

    def _ask_for_ever(self) -> None:
        with suppress(Exception):  # no driver, no device, a lost one: then there are no samples of it
            self._nvml.nvmlInit()
            self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._nvml.nvmlDeviceGetCount())]
            while self._handles:
                self._is_asked.wait()
                self._is_asked.clear()
                self._answer = {
                    name: value for i, h in enumerate(self._handles) for name, value in self._of_device(i, h)
                }

    def _of_device(self, number: int, handle: Any) -> list[tuple[str, float | None]]:
        found: list[tuple[str, float | None]] = []
        with suppress(Exception):
            found.append((f"device {number} use", float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)))
        with suppress(Exception):
            found.append((f"device {number} memory_mb", round(self._nvml.nvmlDeviceGetMemoryInfo(handle).used / 1e6)))
        with suppress(Exception):
            for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                name = f"rank {self._ranks[process.pid]}" if process.pid in self._ranks else f"pid {process.pid}"
                held = self.contexts.setdefault(str(number), {})
                held[name] = max(held.get(name, 0.0), round((process.usedGpuMemory or 0) / 1e6))
        return found
