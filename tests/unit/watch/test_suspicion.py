"""What becomes of a suspicion: it is never the ground on which a job is ended that has come to life, or to its end."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from unhang.watch import RunOptions, naps
from unhang.watch import agent as watching
from unhang.watch.agent import Agent
from unhang.watch.ranks import WatchedRank

_STATUS_AT, _PAGE_BYTES = 4096, 73728


class Job:
    """One rank, a process that sleeps, which the agent suspects since long ago."""

    def __init__(self, folder: Path, abort_after_s: float | None) -> None:
        self.process = subprocess.Popen(["sleep", "60"])
        self.folder = folder / "ranks" / f"r0-{self.process.pid}"
        self.folder.mkdir(parents=True)
        (self.folder / "identity.json").write_text("{}")
        self.write_page(steps=3)
        self._reader, writer = os.pipe()
        self.agent = Agent(RunOptions(folder, abort_after_s=abort_after_s), folder, self.process.pid, writer, -1)
        self.rank = WatchedRank(self.folder, time.monotonic())
        self.rank.poll(time.monotonic())
        self.agent.ranks = {self.folder.name: self.rank}
        onset_ns = time.time_ns() - 60_000_000_000
        self.agent.verdict = {"kind": "suspected", "onset_ns": onset_ns, "waiting_ranks": [0], "withdrawn": False}

    def write_page(self, steps: int, completed: int = 0) -> None:
        """A page of the recorder with so many optimizer steps, and so many calls completed on one group."""
        content = bytearray(_PAGE_BYTES)
        struct.pack_into("<Q", content, 32, steps)
        struct.pack_into("<Qqqq", content, _STATUS_AT, 1, completed, completed, 0)
        (self.folder / "page.bin").write_bytes(content)

    def dies(self, code: int) -> None:
        """The process ends, as far as the agent can see."""
        self.process.kill()
        self.process.wait()
        self.rank.seen_end = (time.time_ns(), code)

    def told(self) -> list[dict[str, object]]:
        """What the agent has told the supervisor."""
        os.set_blocking(self._reader, False)
        try:
            return [json.loads(line) for line in os.read(self._reader, 65536).splitlines()]
        except BlockingIOError:
            return []

    def verdict(self) -> dict[str, object]:
        """What it has written down."""
        found = json.loads((self.folder.parents[1] / "verdict.json").read_bytes())
        assert isinstance(found, dict)
        return found


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    found = Job(tmp_path, getattr(request, "param", 1.0))
    yield found
    found.process.kill()
    found.process.wait()
    found.rank.close()


@pytest.fixture(autouse=True)
def no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching.evidence, "take_evidence", lambda ranks, kills, **_: {})


def test_a_stall_that_lasts_is_ended_where_the_user_said_so(job: Job) -> None:
    job.agent._maybe_abort()
    assert job.told() == [{"event": "verdict", "kind": "suspected", "end": True, "left": False}]


@pytest.mark.parametrize("job", [None], indirect=True)
def test_without_the_users_word_nothing_is_ended(job: Job) -> None:
    job.agent._maybe_abort()
    assert job.told() == []


@pytest.mark.parametrize("what", ["it moves", "it ends"])
def test_what_comes_to_life_while_the_evidence_is_taken_is_not_ended(
    job: Job, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def happens(*_: object, **_how: bool) -> dict[int, bytes]:
        job.write_page(steps=4) if what == "it moves" else job.dies(0)
        return {}

    monkeypatch.setattr(watching.evidence, "take_evidence", happens)
    job.agent._maybe_abort()
    assert job.told() == []


def test_a_rank_that_ended_well_takes_a_suspicion_back(job: Job) -> None:
    job.dies(0)
    job.agent._note_death(job.rank)
    assert job.verdict()["withdrawn"] is True
    assert [message["text"] for message in job.told()] == ["it moves again after 60 s: no hang"]


def test_a_rank_that_failed_does_not(job: Job) -> None:
    job.dies(1)
    job.agent._note_death(job.rank)
    assert job.agent.verdict is not None
    assert job.told() == []


@pytest.mark.parametrize(("load", "grace_s"), [(0.3, 2.0), (2.0, 4.0), (99.0, 10.0)])
def test_a_busy_machine_gives_a_dying_job_more_time(
    load: float, grace_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (2 * load, 0.0, 0.0))
    assert watching.death_grace_s() == grace_s


@pytest.mark.parametrize(("steps", "completed", "has_stepped"), [(0, 3, False), (0, 32, True), (1, 3, True)])
def test_when_a_job_is_past_its_first_step(job: Job, steps: int, completed: int, has_stepped: bool) -> None:
    job.write_page(steps, completed)
    job.rank.poll(time.monotonic())
    assert job.rank.has_stepped() is has_stepped


def test_a_sleep_whose_end_is_known_is_waited_out_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank that the others wait for pauses as a server told it to; then it may sleep on, as a loop that looks for something does."""
    left = {job.process.pid: 0.5}
    monkeypatch.setattr(naps, "sleep_left_s", left.get)
    monkeypatch.setattr(naps, "_WAKES_S", 0.0)
    assert job.agent.verdict is not None
    job.agent.verdict["waiting_ranks"] = [1]
    job.agent._maybe_abort()
    assert job.told() == []
    time.sleep(0.6)
    job.agent._maybe_abort()
    assert job.told() == [{"event": "verdict", "kind": "suspected", "end": True, "left": False}]


@pytest.mark.parametrize(("left_s", "waiting"), [(None, [1]), (5.0, [1]), (0.5, [0])])
def test_no_sleep_a_longer_one_and_that_of_a_rank_that_waits_keep_nothing(
    job: Job, left_s: float | None, waiting: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(naps, "sleep_left_s", {job.process.pid: left_s}.get)
    assert job.agent.verdict is not None
    job.agent.verdict["waiting_ranks"] = waiting
    job.agent._maybe_abort()
    assert job.told() == [{"event": "verdict", "kind": "suspected", "end": True, "left": False}]
