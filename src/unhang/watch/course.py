"""How the job ran: steps and their times, slow ones, stalls that passed, and samples of what its ranks and machine used.

All of it comes from the pages that the watcher polls anyway, and from /proc. The cost of a run is bounded, however long it is: a
few hundred samples, the last few hundred step times of each rank, the first few dozen slow steps.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from unhang.model.case import ranks_by_phase
from unhang.model.findings import name_ranks
from unhang.watch.beside import DeviceProbe, Early, Libraries
from unhang.watch.folders import write_whole
from unhang.watch.process import resident_bytes
from unhang.watch.process_tree import line_of
from unhang.watch.ranks import WatchedRank

COURSE = "course.json"
_PAGE_WORDS = struct.Struct("<4Q")  # steps, wall ns of the last one, phase, wall ns since when
_PAGE_AT = 32
PHASES = ("", "data", "forward", "backward", "optimizer", "checkpoint")
_WARM_UP, _LEAST_KNOWN = 3, 15  # steps that are not counted, and those that must be known
_KEPT = 512  # step times of one rank
_SLOW_RATIO, _SLOW_S = 8.0, 0.5
_SLOWER_RATIO, _SLOWER_S, _SLOWER_STEPS = 3.0, 0.05, 12
_SAY_EACH_S, _MOST_SAID = 10.0, 8
_MOST_SLOW, _MOST_STALLS = 40, 100
_SAMPLE_EACH_S, _MOST_SAMPLES = 2.0, 300
_WRITE_EACH_S = 30.0

Say = Callable[[str], None]


class StepTimes:
    """The optimizer steps of one rank."""

    def __init__(self) -> None:
        self.count = self.first = 0
        self._last_ns = 0
        self.times_s: deque[float] = deque(maxlen=_KEPT)
        self.usual_s: float | None = None  # the median of the first steps that counted
        self.phases: Counter[str] = Counter()  # what it was doing in the step that is under way, one for each poll
        self._known = 0

    def poll(self, page: bytes) -> tuple[int, float, Counter[str]] | None:
        """Takes what the page says now.

        Returns:
            If steps have ended since the last poll: the first of them, which is the slow one if one was, as it was polled while it went;
            what the longest took, in seconds; and the polls in each phase.
        """
        if len(page) < _PAGE_WORDS.size:
            return None
        count, last_ns, phase, _ = _PAGE_WORDS.unpack(page)
        self.phases[PHASES[phase] if phase < len(PHASES) else ""] += 1
        if count == self.count:
            return None
        made, before_ns = count - self.count, self._last_ns
        self.count, self._last_ns = count, last_ns
        phases, self.phases = self.phases, Counter()
        self._known += made
        if not before_ns or self._known <= _WARM_UP:
            return None
        took_s = max(0.0, (last_ns - before_ns) / 1e9)
        longest_s = each_s = took_s / made
        if self.times_s and each_s > 2 * (usual_s := self.median_s):
            each_s, longest_s = (
                usual_s,
                took_s - (made - 1) * usual_s,
            )  # one of them was slow, not each of them a little
        self.times_s.extend([*[each_s] * min(made - 1, 8), longest_s])
        if self.usual_s is None and len(self.times_s) >= _LEAST_KNOWN:
            self.usual_s = median(self.times_s)
        return count - made + 1, longest_s, phases

    @property
    def median_s(self) -> float:
        """The median of the times that are kept, 0 without any."""
        return median(self.times_s) if self.times_s else 0.0

    @property
    def recent_s(self) -> float:
        """The median of the last dozen times."""
        return median(list(self.times_s)[-_SLOWER_STEPS:]) if self.times_s else 0.0

    @property
    def slow_for(self) -> int:
        """How many of the last steps were all slower than usual."""
        usual_s = self.usual_s or 0.0
        return next((i for i, t in enumerate(reversed(self.times_s)) if t < 1.5 * usual_s), len(self.times_s))

    def as_json(self) -> dict[str, Any]:
        """Steps, median and the 95th percentile, seconds."""
        times = sorted(self.times_s)
        known = (
            {"median_s": round(median(times), 6), "p95_s": round(times[int(0.95 * (len(times) - 1))], 6)}
            if times
            else {}
        )
        return {"steps": self.count, **known}


class Series:
    """Samples of a few hundred moments: where they become more, every second one goes, and the pause doubles."""

    def __init__(self) -> None:
        self.pause_s, self.next_at = _SAMPLE_EACH_S, 0.0
        self.at_s: list[float] = []
        self.values: dict[str, list[float | None]] = {}

    def add(self, at_s: float, sample: dict[str, float | None]) -> None:
        """One moment; a name that is new has no value before it."""
        for name in sample.keys() - self.values.keys():
            self.values[name] = [None] * len(self.at_s)
        self.at_s.append(round(at_s, 1))
        for name, values in self.values.items():
            values.append(sample.get(name))
        if len(self.at_s) > _MOST_SAMPLES:
            self.pause_s *= 2
            self.at_s = self.at_s[::2]
            self.values = {name: values[::2] for name, values in self.values.items()}


class Course:
    """The course of one run on this machine. Told to the watcher's `say` as it goes, a few lines at most; kept in `course.json`."""

    def __init__(self, run_dir: Path, say: Say) -> None:
        self._run_dir, self._say = run_dir, say
        self._began = time.monotonic()
        self._written_at = self._began
        self.steps: dict[int, StepTimes] = {}
        self.slow: list[dict[str, Any]] = []
        self.slow_count = 0
        self._last_slow: dict[str, Any] = {}
        self.slower: dict[str, Any] | None = None
        self.stalls: list[dict[str, Any]] = []
        self._said, self._said_at = 0, float("-inf")
        self._series, self._devices, self._libraries, self._early = Series(), DeviceProbe(), Libraries(), Early(run_dir)
        self._used: dict[str, tuple[float, float]] = {}

    def begin_again(self) -> None:
        """The ranks are started again: their steps are counted anew."""
        self.steps.clear()
        self.slower = None

    def turn(self, ranks: Sequence[WatchedRank], now: float) -> None:
        """Takes what the pages say, and from time to time a sample. Blocks: never for long, it reads some small files of /proc."""
        ended = {}
        for rank in ranks:
            if (
                step := self.steps.setdefault(rank.rank, StepTimes()).poll(rank.page(_PAGE_AT, _PAGE_WORDS.size))
            ) is not None:
                ended[rank.rank] = step
        if ended:
            self._note_slow(ended, now)
            self._note_slower(ended.keys(), now)
        if now >= self._series.next_at:
            self._series.next_at = now + self._series.pause_s
            self._series.add(now - self._began, self._sample(ranks, now))
        folders = [rank.folder for rank in ranks]
        for text in self._early.look(folders, now):
            self._say(text)
        for path in self._libraries.look(folders, now, now - self._began):
            _, gone, new = self._libraries.changed[path]
            what = [*(f"{n} is gone" for n in gone[:3]), *(f"{n} is new" for n in new[:3])]
            self._tell(f"{path} changes under the running job: {', '.join(what)}", now, is_rare=True)
        if now - self._written_at >= _WRITE_EACH_S:
            self.write()

    def passed(self, verdict: dict[str, Any], stood_s: float) -> None:
        """A suspicion that was taken back."""
        if len(self.stalls) < _MOST_STALLS:
            onset_s = max(0.0, time.monotonic() - self._began - stood_s)
            self.stalls.append(
                {"onset_s": round(onset_s, 1), "lasted_s": round(stood_s, 1),
                 "waiting_ranks": list(verdict.get("waiting_ranks", ()))[:64], "reason": verdict.get("reason", "")}
            )  # fmt: skip

    def _note_slow(self, ended: dict[int, tuple[int, float, Counter[str]]], now: float) -> None:
        """One step that took far longer than usual: which, how long, and in which phase each rank spent it."""
        rank, (step, took_s, _) = max(ended.items(), key=lambda item: item[1][1])
        usual_s = self.steps[rank].usual_s
        if usual_s is None or took_s < max(_SLOW_S, _SLOW_RATIO * self.steps[rank].median_s) or self.slower is not None:
            return
        phases = {str(r): _main_phase(p) for r, (_, t, p) in ended.items() if t >= took_s / 2}
        if self._last_slow.get("step") == step:  # of a rank whose page was polled a moment too early
            self._last_slow["phases"] |= phases
            return
        self.slow_count += 1
        found: dict[str, Any] = {"step": step, "took_s": round(took_s, 3), "usual_s": round(self.steps[rank].median_s, 6),
                 "at_s": round(now - self._began, 1), "phases": phases}  # fmt: skip
        self._last_slow = found
        if len(self.slow) < _MOST_SLOW:
            self.slow.append(found)
        elif took_s > (least := min(self.slow, key=lambda x: x["took_s"]))["took_s"]:
            self.slow[self.slow.index(least)] = found
        self._tell(f"step {step} took {_seconds(took_s)}, {took_s / max(found['usual_s'], 1e-6):.0f}x the usual "
                   f"{_seconds(found['usual_s'])}{_told_phases(phases)}", now)  # fmt: skip

    def _note_slower(self, ranks: Iterable[int], now: float) -> None:
        """All steps take much longer than they did at first; or again as they did."""
        known = [
            self.steps[r] for r in ranks if self.steps[r].usual_s and len(self.steps[r].times_s) >= 2 * _SLOWER_STEPS
        ]
        if not known:
            return
        slowest = max(known, key=lambda s: s.recent_s)
        now_s, usual_s = slowest.recent_s, slowest.usual_s or 0.0
        is_slower = now_s >= max(_SLOWER_RATIO * usual_s, usual_s + _SLOWER_S)
        if is_slower and self.slower is None:
            since = slowest.count - slowest.slow_for + 1
            self.slower = {"since_step": since, "took_s": round(now_s, 4), "usual_s": round(usual_s, 6),
                           "at_s": round(now - self._began, 1)}  # fmt: skip
            self._tell(f"steps take {_seconds(now_s)} since about step {since}, {now_s / usual_s:.0f}x the {_seconds(usual_s)} "
                       "at the beginning", now, is_rare=True)  # fmt: skip
        elif is_slower and self.slower is not None:
            self.slower["took_s"] = round(now_s, 4)
        elif self.slower is not None and now_s < max(1.5 * usual_s, usual_s + _SLOWER_S / 2):
            self._tell(f"steps take {_seconds(now_s)} again", now, is_rare=True)
            self.slower = None

    def _tell(self, text: str, now: float, is_rare: bool = False) -> None:
        if (self._said < _MOST_SAID and now - self._said_at >= _SAY_EACH_S) or (
            is_rare and self._said < 2 * _MOST_SAID
        ):
            self._said += 1
            self._said_at = now
            self._say(text if self._said != _MOST_SAID else f"{text} (further slow steps are in the report)")

    # Samples

    def _sample(self, ranks: Sequence[WatchedRank], now: float) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        for rank in ranks:
            found |= {f"rank {rank.rank} {name}": value for name, value in self._of_process(rank, now).items()}
        found |= {f"node {name}": value for name, value in self._of_node(now).items()}
        return found | self._devices.sample({rank.pid: rank.rank for rank in ranks})

    def _of_process(self, rank: WatchedRank, now: float) -> dict[str, float | None]:
        """Cores used, memory in MB, and what it read and wrote, in MB/s."""
        held = resident_bytes(rank.pid)
        memory_mb = None if held is None else round(held / 1e6, 1)
        found: dict[str, float | None] = {"cpu": rank.probe.cpu_share(), "memory_mb": memory_mb}
        with suppress(OSError, ValueError):
            fields = dict(line.split(": ") for line in Path(f"/proc/{rank.pid}/io").read_text().splitlines())
            for name, key in (("read_mb_s", "rchar"), ("written_mb_s", "wchar")):
                found[name] = self._rate(f"{rank.pid} {key}", int(fields[key]) / 1e6, now)
        return found

    def _of_node(self, now: float) -> dict[str, float | None]:
        """Load, memory that is left in MB, and what went over the network, in MB/s."""
        found: dict[str, float | None] = {"load": round(os.getloadavg()[0], 2)}
        with suppress(OSError, ValueError, StopIteration):
            found["memory_left_mb"] = round(int(line_of("/proc/meminfo", "MemAvailable:").split()[0]) / 1e3)
        with suppress(OSError, ValueError, IndexError):
            rows = [line.split(":")[1].split() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
            for name, column in (("received_mb_s", 0), ("sent_mb_s", 8)):
                found[name] = self._rate(name, sum(int(row[column]) for row in rows) / 1e6, now)
        return found

    def _rate(self, name: str, value: float, now: float) -> float | None:
        before = self._used.get(name)
        self._used[name] = (now, value)
        return round((value - before[1]) / (now - before[0]), 2) if before and now > before[0] else None

    # What is kept

    def as_json(self) -> dict[str, Any]:
        """The content of `course.json`."""
        return {
            "taken_ns": time.time_ns(),
            "ran_s": round(time.monotonic() - self._began, 1),
            "steps": {str(rank): times.as_json() for rank, times in sorted(self.steps.items()) if times.count},
            "slow_steps": self.slow,
            "slow_count": self.slow_count,
            "slower": self.slower,
            "stalls": self.stalls,
            "contexts": self._devices.contexts,
            "changed": [
                {"path": path, "at_s": round(at_s, 1), "gone": gone, "new": new}
                for path, (at_s, gone, new) in self._libraries.changed.items()
            ],
            "samples": {"at_s": self._series.at_s, **self._series.values},
        }

    def write(self) -> None:
        """Writes `course.json`."""
        self._written_at = time.monotonic()
        write_whole(self._run_dir / COURSE, json.dumps(self.as_json()).encode())


def _main_phase(phases: Counter[str]) -> str:
    """`data 95 %`: the phase of most polls; "" where the polls are too few to tell, or no phase is marked."""
    total = sum(phases.values())
    name, count = phases.most_common(1)[0] if phases else ("", 0)
    return f"{name} {100 * count / total:.0f} %" if name and total >= 2 else ""


def _told_phases(phases: dict[str, str]) -> str:
    by_phase = ranks_by_phase({int(rank): phase for rank, phase in phases.items()})
    told = [f"{name_ranks(ranks)} {phase}" for phase, ranks in by_phase.items()]
    return f": {', '.join(told[:4])}" if told else ""


def _seconds(value: float) -> str:
    return f"{value * 1000:.3g} ms" if value < 0.1 else f"{value:.2f} s" if value < 10 else f"{value:.0f} s"
