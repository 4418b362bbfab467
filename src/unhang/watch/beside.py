"""What is looked at beside the ranks while a job runs: its devices, the folders of its libraries, and rules on the program and its set-up."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from unhang.errors import UnhangError
from unhang.read import read_bundle
from unhang.watch.folders import fields_of

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


# Whether the folders from which a job's Python loads its modules change while it runs: what starts later then finds others.

EACH_S = 5.0
_MOST_FOLDERS, _MOST_NAMES = 8, 50


class Libraries:
    """The names in each folder, as they were when a rank was first seen, and what has become of them."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._before: dict[str, tuple[int, frozenset[str]]] = {}
        self._next_at = 0.0
        self.changed: dict[str, tuple[float, list[str], list[str]]] = {}  # folder -> seconds from the start, gone, new

    def look(self, ranks: Iterable[Path], now: float, ran_s: float) -> list[str]:
        """Looks at the folders of these ranks (their recorder's folders), every five seconds. Returns the folders that are seen to change for the first time.

        Blocks: for a stat of each folder; for its names where it has changed.
        """
        for folder in ranks:
            if folder.name not in self._known:
                self._known.add(folder.name)
                self._begin(folder)
        if now < self._next_at:
            return []
        self._next_at = now + EACH_S
        return [path for path in self._before if self._has_changed(path, ran_s)]

    def _begin(self, folder: Path) -> None:
        with suppress(OSError, TypeError):
            for path in fields_of(folder / "identity.json").get("libraries", ()):
                given = os.path.dirname(path) if path.endswith("/torch") else path
                if (
                    len(self._before) < _MOST_FOLDERS
                    and given not in self._before
                    and (names := _names(given)) is not None
                ):
                    self._before[given] = (os.stat(given).st_mtime_ns, names)

    def _has_changed(self, path: str, ran_s: float) -> bool:
        time_ns, before = self._before[path]
        with suppress(OSError):
            if os.stat(path).st_mtime_ns == time_ns:
                return False
        now = _names(path) or frozenset()
        gone, new = sorted(before - now)[:_MOST_NAMES], sorted(now - before)[:_MOST_NAMES]
        is_first = bool(gone) and path not in self.changed
        if gone:  # what is new alone breaks nothing that runs
            self.changed[path] = (self.changed[path][0] if path in self.changed else ran_s, gone, new)
        else:
            self.changed.pop(path, None)
        return is_first


def _names(path: str) -> frozenset[str] | None:
    """What lies in a folder, but for what Python and pip make on their own."""
    with suppress(OSError):
        return frozenset(n for n in os.listdir(path) if n != "__pycache__" and not n.startswith(("~", ".")))
    return None


# What is told while the job still runs: rules on the program and its set-up, as soon as the recorder has noted something new.

FACTS = "facts.jsonl"
_TOLD_BY_ITSELF = "library-changed"
_EACH_S, _MOST_LOOKS, _MOST_SAID = 3.0, 20, 8


class Early:
    """Looks at the facts of the ranks. `said`: what was told before is not told again."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._sizes: dict[Path, int] = {}
        self._looks, self._next_at = 0, 0.0
        self.said: set[str] = set()

    def look(self, ranks: Iterable[Path], now: float) -> list[str]:
        """What is new to say, given the folders of the ranks. Blocks: for a stat of each, and for the judgement where a file has grown."""
        if now < self._next_at or self._looks >= _MOST_LOOKS or len(self.said) >= _MOST_SAID:
            return []
        self._next_at = now + _EACH_S
        sizes = {}
        for folder in ranks:
            with suppress(OSError):
                sizes[folder] = (folder / FACTS).stat().st_size
        if sizes == self._sizes:
            return []
        self._sizes = sizes
        self._looks += 1
        return self._judged()

    def _judged(self) -> list[str]:
        from unhang.rules.base import RULES
        from unhang.rules.job import training  # most jobs give no reason to load it
        from unhang.rules.registry import judge

        with suppress(UnhangError):
            rules = [r for r in RULES.values() if r.find.__module__ == training.__name__ and r.id != _TOLD_BY_ITSELF]
            found = judge(read_bundle(self._run_dir, trusted=True), rules)
            told = (f"{f.title}{f', {f.location}' if f.location else ''}" for f in found.findings)
            texts = dict.fromkeys([*told, *(f.remark for f in found.remarks)])
            new = [text for text in texts if text not in self.said]
            self.said.update(new)
            return new
        return []
