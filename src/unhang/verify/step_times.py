"""How long the steps of a job take, seen from outside: the recorder's pages are read while the job runs. And how two sides compare in this."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from unhang.errors import UnhangError
from unhang.numeric import np
from unhang.read.page import HEADER, MAGIC, read_page
from unhang.watch.process import children_of
from unhang.watch.process_tree import stat_of

SCHEMA = "unhang.steps/1"
FILE = "steps.json"
_POLL_S = 0.02
_SEARCH_S = 0.1
_MOST_SEEN = 200_000
_MOST_BYTES = 64 << 20
_TICKS = os.sysconf("SC_CLK_TCK")
_RESAMPLES = 2000
_FEWEST_RUNS = 3  # with fewer, runs cannot be resampled, and steps stand in for them
_MOST_VALUES = 20_000

Seen = list[tuple[int, int]]  # (steps done, wall ns of the last one), growing


@dataclass
class StepTrace:
    """The steps of each rank as they were seen. `cpu_share`: processor time over wall time of each rank's process."""

    seen: dict[int, Seen] = field(default_factory=dict)
    cpu_share: dict[int, float] = field(default_factory=dict)

    def see(self, rank: int, steps: int, last_ns: int) -> None:
        """Notes one look at a page; what did not change is not noted."""
        known = self.seen.setdefault(rank, [])
        if steps and last_ns and len(known) < _MOST_SEEN and (not known or steps > known[-1][0]):
            known.append((steps, last_ns))

    def durations(self) -> dict[int, float]:
        """Seconds of each step, of the rank that took longest; steps between two looks get the mean of both.

        The first step is left out: when it began is not known.
        """
        longest: dict[int, float] = {}
        for known in self.seen.values():
            for (steps, at_ns), (later, later_ns) in pairwise(known):
                took_s = max(0.0, (later_ns - at_ns) / 1e9 / (later - steps))
                for step in range(steps + 1, later + 1):
                    longest[step] = max(longest.get(step, 0.0), took_s)
        return dict(sorted(longest.items()))

    def write(self, folder: Path) -> None:
        """Leaves it in a report folder. A full disk loses it, not the verdict."""
        content = {"schema": SCHEMA, "seen": self.seen, "cpu_share": self.cpu_share}
        with suppress(OSError):
            (folder / FILE).write_text(json.dumps(content), encoding="utf-8")


def read_trace(folder: Path) -> StepTrace | None:
    """The trace in a report folder; None where there is none that can be read."""
    try:
        if (folder / FILE).stat().st_size > _MOST_BYTES:
            return None
        content = json.loads((folder / FILE).read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            return None
        trace = StepTrace(cpu_share={int(r): float(s) for r, s in content["cpu_share"].items()})
        for rank, seen in content["seen"].items():
            for steps, last_ns in seen[:_MOST_SEEN]:
                trace.see(int(rank), int(steps), int(last_ns))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return trace


def add_last_looks(trace: StepTrace, bundle: Path) -> None:
    """Adds what the pages in the bundle say of the last step, which the looks may have missed."""
    for folder in sorted((bundle / "ranks").glob("r*-*")):
        rank = _rank_of(folder)
        with suppress(UnhangError, OSError):
            page = read_page(folder / "page.bin")
            if rank is not None:
                trace.see(rank, page.steps, page.last_step_ns)


def _rank_of(folder: Path) -> int | None:
    digits = folder.name[1:].split("-", 1)[0]
    return int(digits) if digits.isdecimal() else None


class StepWatch:
    """Looks at the pages of the job that the process `pid` (an `unhang run`) started, in a thread, until it is stopped."""

    def __init__(self, pid: int) -> None:
        self.trace = StepTrace()
        self._pid, self._stop = pid, threading.Event()
        self._pages: dict[Path, int] = {}
        self._run_dir: Path | None = None
        self._began: dict[Path, tuple[float, float]] = {}
        self._thread = threading.Thread(target=self._watch, name="unhang-steps", daemon=True)

    def __enter__(self) -> StepWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for descriptor in self._pages.values():
            os.close(descriptor)

    def _watch(self) -> None:
        searched = 0.0
        while not self._stop.wait(_POLL_S):
            now = time.monotonic()
            if now - searched >= _SEARCH_S:
                searched = now
                if self._run_dir is None and (job := job_of(self._pid)):
                    self._run_dir = job[1]
                self._find_pages(now)
            for folder, descriptor in self._pages.items():
                self._look(folder, descriptor)

    def _find_pages(self, now: float) -> None:
        if self._run_dir is None:
            return
        for folder in self._run_dir.glob("ranks/r*-*"):
            if folder not in self._pages:
                with suppress(OSError):
                    self._pages[folder] = os.open(folder / "page.bin", os.O_RDONLY)
            if (used_s := _cpu_s(folder)) is not None:
                began, used_before_s = self._began.setdefault(folder, (now, used_s))
                if now > began and (rank := _rank_of(folder)) is not None:
                    self.trace.cpu_share[rank] = round((used_s - used_before_s) / (now - began), 3)

    def _look(self, folder: Path, descriptor: int) -> None:
        rank = _rank_of(folder)
        if rank is None:
            return
        with suppress(OSError):
            data = os.pread(descriptor, HEADER.size, 0)
            if len(data) == HEADER.size and data == os.pread(descriptor, HEADER.size, 0):  # else it changed meanwhile
                header = HEADER.unpack(data)
                if header[0] == MAGIC:
                    self.trace.see(rank, header[4], header[5])


def _cpu_s(folder: Path) -> float | None:
    """Processor time of the process of a rank so far; None once it is gone."""
    pid = folder.name.rpartition("-")[2]
    fields = stat_of(int(pid)) if pid.isdecimal() else None
    return (int(fields[11]) + int(fields[12])) / _TICKS if fields else None


def job_of(pid: int) -> tuple[int, Path] | None:
    """The `unhang run` that is the process `pid` or below it, and the run directory that it gave to its job."""
    todo = [pid]
    while todo:
        parent = todo.pop(0)
        children = children_of(parent)
        for child in children:
            with suppress(OSError):
                for entry in Path("/proc", str(child), "environ").read_bytes().split(b"\0"):
                    name, _, value = entry.partition(b"=")
                    if name == b"UNHANG_RUN_DIR" and value and value != os.environb.get(name):
                        return parent, Path(os.fsdecode(value))
        todo += children
    return None


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds of many steps. `count`: how many steps these figures rest on."""

    median_s: float
    lower_s: float
    upper_s: float
    largest_s: float
    count: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread | None:
        """Median, quartiles and maximum; None without values."""
        if not seconds:
            return None
        lower, median, upper = (float(q) for q in np.quantile(np.asarray(seconds), (0.25, 0.5, 0.75)))
        return cls(median, lower, upper, max(seconds), len(seconds))


@dataclass(frozen=True, slots=True)
class Ratio:
    """The after's median step time over the before's, with a 95 % bootstrap interval over runs, or over steps."""

    value: float
    low: float
    high: float
    over: str

    @property
    def is_certain(self) -> bool:
        """Whether the interval excludes 1."""
        return self.low > 1 or self.high < 1

    def __str__(self) -> str:
        return f"{self.value:.2f} (95 %: {self.low:.2f} to {self.high:.2f}, resampled over {self.over})"


def ratio_of_medians(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], seed: int = 0
) -> Ratio | None:
    """Compares the steps of several runs; each inner sequence is one run. None where one side has no steps.

    Steps of one run depend on each other, so that whole runs are resampled where both sides have three of them.
    """
    runs = [[np.asarray(run[:_MOST_VALUES]) for run in side if len(run)] for side in (before, after)]
    if not all(runs):
        return None
    over_runs = min(map(len, runs)) >= _FEWEST_RUNS
    values = [np.array([np.median(run) for run in side]) if over_runs else np.concatenate(side) for side in runs]
    middles = [float(np.median(np.concatenate(side))) for side in runs]
    if not middles[0]:
        return None
    random = np.random.default_rng(seed)
    drawn = [np.median(random.choice(side, (_resamples(len(side)), len(side))), axis=1) for side in values]
    some = min(map(len, drawn))
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.nanquantile(drawn[1][:some] / drawn[0][:some], (0.025, 0.975))
    return Ratio(middles[1] / middles[0], float(low), float(high), "runs" if over_runs else "steps")


def _resamples(count: int) -> int:
    """Fewer of long series, whose medians hardly differ."""
    return max(200, min(_RESAMPLES, 4_000_000 // max(1, count)))
