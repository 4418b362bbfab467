"""The course of a run: which steps were slow, that all became slower, which stalls passed; bounded, however long it is."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.check.fake_nvml import FakeNvml

from unhang.watch.beside import DeviceProbe
from unhang.watch.course import COURSE, Course, Series, StepTimes

POLL_S = 0.2
DATA, BACKWARD = 1, 3


class Probe:
    def cpu_share(self) -> float:
        return 0.5


class Rank:
    """What the course asks of a watched rank."""

    def __init__(self, rank: int) -> None:
        self.rank, self.pid, self.probe = rank, 1, Probe()
        self.content, self.folder = b"", Path("not/there")

    def page(self, offset: int, size: int) -> bytes:
        assert (offset, size) == (32, 32)
        return self.content


class Job:
    """Steps of given lengths, as their pages show them to a watcher that polls."""

    def __init__(self, tmp_path: Path, ranks: int = 2) -> None:
        self.said: list[str] = []
        self.course = Course(tmp_path, self.said.append)
        self.ranks = [Rank(r) for r in range(ranks)]
        self.now, self.next_poll, self.count, self.last_ns = 100.0, 100.0, 0, 0
        self.phases = dict.fromkeys(range(ranks), BACKWARD)

    def step(self, took_s: float, **phases: int) -> None:
        end = self.now + took_s
        now_in = {**self.phases, **{int(name[1:]): phase for name, phase in phases.items()}}
        while self.next_poll < end:
            for rank in self.ranks:
                rank.content = struct.pack("<4Q", self.count, self.last_ns, now_in[rank.rank], 0)
            self.course.turn(self.ranks, self.next_poll)  # type: ignore[arg-type]
            self.next_poll += POLL_S
        self.now, self.count, self.last_ns = end, self.count + 1, int(end * 1e9)

    def steps(self, count: int, took_s: float) -> None:
        for _ in range(count):
            self.step(took_s)


def test_a_slow_step_is_told_with_its_number_and_where_each_rank_was(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.steps(60, 0.03)
    job.step(2.5, r1=DATA)
    job.steps(60, 0.03)
    [found] = job.course.slow
    assert found["step"] == 61
    assert found["took_s"] == pytest.approx(2.5, abs=0.05)
    assert found["usual_s"] == pytest.approx(0.03, rel=0.05)
    assert found["phases"]["1"].startswith("data")
    assert found["phases"]["0"].startswith("backward")
    [line] = job.said
    assert line.startswith("step 61 took 2.5")
    assert "rank 1 data" in line
    assert "rank 0 backward" in line


def test_steps_that_are_a_little_slower_and_those_of_the_start_are_not_told(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.step(30.0)
    job.step(8.0)
    for i in range(300):
        job.step(0.08 if i % 7 else 0.16)
    assert job.said == []
    assert job.course.slow == []


def test_that_all_steps_became_slower_is_told_once_and_taken_back(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.steps(100, 0.02)
    job.steps(40, 0.7)
    assert len(job.said) == 2
    assert job.said[0].startswith("step 101 took")
    assert "since about step 101, 1" in job.said[1]
    assert job.course.as_json()["slower"]["took_s"] == pytest.approx(0.7, rel=0.05)
    job.steps(200, 0.02)
    assert job.said[2:] == ["steps take 20 ms again"]
    assert job.course.as_json()["slower"] is None


def test_one_slow_step_among_quick_ones_is_no_slowing_down(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.steps(400, 0.005)
    job.step(3.0)
    job.steps(400, 0.005)
    assert len(job.said) == 1
    assert job.course.slower is None
    assert job.course.steps[0].median_s == pytest.approx(0.005, rel=0.1)


def test_a_job_with_many_slow_steps_prints_few_lines_and_keeps_the_longest(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.steps(60, 0.02)
    for i in range(100):
        job.steps(30, 0.02)
        job.step(1.0 + i / 10)
    job.steps(30, 0.02)
    assert job.course.slow_count == 100
    assert len(job.course.slow) == 40
    assert max(s["took_s"] for s in job.course.slow) == pytest.approx(10.9, abs=0.1)
    assert len(job.said) == 8
    assert job.said[-1].endswith("(further slow steps are in the report)")


def test_the_samples_of_a_long_run_are_few(tmp_path: Path) -> None:
    series = Series()
    for i in range(100_000):
        series.add(float(i), {"node load": 1.0, **({"rank 1 cpu": 2.0} if i > 50_000 else {})})
    assert len(series.at_s) <= 301
    assert all(len(values) == len(series.at_s) for values in series.values.values())
    assert series.values["rank 1 cpu"][0] is None
    assert series.values["rank 1 cpu"][-1] == 2.0


def test_what_is_kept_is_json_and_a_page_that_is_not_there_is_no_step(tmp_path: Path) -> None:
    job = Job(tmp_path, ranks=1)
    assert StepTimes().poll(b"") is None
    job.steps(60, 0.1)
    job.course.passed({"waiting_ranks": [1, 2], "reason": "they wait"}, 16.0)
    job.course.write()
    kept: dict[str, Any] = json.loads((tmp_path / COURSE).read_bytes())
    assert kept["steps"]["0"]["median_s"] == pytest.approx(0.1, rel=0.01)
    assert kept["stalls"][0]["lasted_s"] == 16.0
    assert "node load" in kept["samples"]


def test_ranks_that_hold_memory_on_a_device_are_known_by_their_rank() -> None:
    held = {0: [(11, 9000), (12, 500), (77, 300)], 1: [(12, 9000)]}
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=97),
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=9_000_000_000),
        nvmlDeviceGetComputeRunningProcesses=lambda i: [
            SimpleNamespace(pid=pid, usedGpuMemory=mb * 1_000_000) for pid, mb in held[i]
        ],
    )
    probe = DeviceProbe(nvml)
    sample = probe.sample({11: 0, 12: 1})
    assert sample["device 0 use"] == 97
    assert probe.contexts == {"0": {"rank 0": 9000, "rank 1": 500, "pid 77": 300}, "1": {"rank 1": 9000}}


def test_an_nvml_that_hangs_or_fails_costs_a_moment_and_no_sample() -> None:
    assert DeviceProbe(FakeNvml({}, hangs=True)).sample({1: 0}) == {}
    assert DeviceProbe(FakeNvml({}, init_error=OSError("no driver"))).sample({1: 0}) == {}
