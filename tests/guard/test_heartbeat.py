"""Heartbeats: which step is slow, who lags and who is silent, by a clock that is passed in."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from unhang.inside.guards import heartbeat as module
from unhang.inside.guards import step_clock
from unhang.inside.guards.board import Board
from unhang.inside.guards.heartbeat import Heartbeat, heartbeat
from unhang.inside.guards.job import Job
from unhang.inside.guards.step_clock import SlowStep, StepClock


class FakeClock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class DictStore:
    """What a board needs of a store, in one process."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> str:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def compare_set(self, key: str, expected: str, value: str) -> str:
        return self.values.setdefault(key, value)


class FakeJob:
    """Ranks in one process; each has its own heartbeat and board, all one clock."""

    def __init__(self, world_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.said = FakeClock(), []
        self.ranks: list[Heartbeat] = []
        self._store, self._world_size, self._now_turning = DictStore(), world_size, 0
        self.jobs = [Job(r, r, world_size, board=Board(self._store, r, world_size)) for r in range(world_size)]
        monkeypatch.setattr(module, "live_job", lambda: self.jobs[self._now_turning])
        monkeypatch.setattr(module.time, "sleep", lambda seconds: setattr(self.clock, "now", self.clock.now + seconds))
        for _ in range(world_size):
            say = lambda _, text: self.said.append(text)  # noqa: E731
            self.ranks.append(Heartbeat(50, 30.0, "train", 2.0, self.clock, say, has_threads=False))

    said: list[str]

    def turn(self, *ranks: int) -> None:
        for rank in ranks or range(self._world_size):
            self._now_turning = rank
            self.ranks[rank].turn()

    def pass_time(self, seconds: int, *ranks: int) -> None:
        """Second by second, with the threads of these ranks alive."""
        for _ in range(seconds):
            self.clock.now += 1
            self.turn(*ranks)

    def step(self, count: int, *ranks: int, seconds: float = 0.1) -> None:
        for _ in range(count):
            self.clock.now += seconds
            for rank in ranks or range(self._world_size):
                self.ranks[rank].step()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], FakeJob]:
    return lambda world_size: FakeJob(world_size, monkeypatch)


def test_rank_0_tells_how_far_the_job_is(job: Callable[[int], FakeJob]) -> None:
    ranks = job(4)
    ranks.step(400)
    ranks.ranks[0]._info = {"loss": 2.3123, "note": "warm", "tensor": object()}
    ranks.turn(1, 2, 3, 0)
    assert ranks.said == ["step 400: 4 ranks, median 0.1 s/step, loss 2.312, note warm"]
    ranks.turn(0)
    assert len(ranks.said) == 1


def test_a_rank_that_lags_is_named_with_the_number_of_steps(job: Callable[[int], FakeJob]) -> None:
    ranks = job(4)
    ranks.step(386)
    ranks.step(14, 0, 1, 3)
    ranks.turn(1, 2, 3, 0)
    assert ranks.said == ["step 400: 4 ranks, median 0.1 s/step, rank 2 is 14 steps behind"]


def test_ranks_without_a_heartbeat_are_named_as_such(job: Callable[[int], FakeJob]) -> None:
    ranks = job(4)
    ranks.step(50)
    ranks.turn(1, 0)
    assert ranks.said == ["step 50: 4 ranks, median 0.1 s/step, no heartbeat so far from ranks 2, 3"]


def test_a_silent_rank_is_named_once_by_the_others(job: Callable[[int], FakeJob]) -> None:
    ranks = job(4)
    ranks.step(20)
    ranks.turn()
    ranks.step(5, 0, 1, 3)
    for _ in range(60):
        ranks.step(10, 0, 1, 3)
        ranks.turn(0, 1, 3)
    silent = [text for text in ranks.said if "rank 2 has given no sign of life for" in text]
    assert len(silent) == 1, ranks.said
    assert "at step 20: it has ended, is stopped, or its interpreter stands still" in silent[0]
    assert not [text for text in ranks.said if "given no sign" in text and "rank 2" not in text]


def test_a_living_rank_that_is_stuck_is_named_with_its_line(
    job: Callable[[int], FakeJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "main_thread_place", lambda: "data.py:9 in load")
    ranks = job(3)
    ranks.step(20)
    with ranks.ranks[2].phase("data"):
        for _ in range(40):
            ranks.step(1, 0, 1, seconds=1)
            ranks.turn()
    stuck = [text for text in ranks.said if text.startswith("rank 2")]
    assert len(stuck) == 1
    assert stuck[0].startswith("rank 2 has ended no step for 3")
    assert stuck[0].endswith("behind, in the phase data, at data.py:9 in load")
    ranks.step(40, 2)
    ranks.pass_time(9)
    assert ranks.said[-1] == "rank 2 goes on: step 60"


def test_a_job_that_stands_says_where_each_rank_is(
    job: Callable[[int], FakeJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = job(4)
    monkeypatch.setattr(
        module,
        "main_thread_place",
        lambda: "data.py:9 in load" if ranks._now_turning == 2 else "train.py:80 in backward",
    )
    ranks.step(30)
    ranks.pass_time(60)
    assert len(ranks.said) == 1
    assert ranks.said[0].startswith("no rank has ended a step for 3")
    assert ranks.said[0].endswith(
        "rank 2 at step 30, at data.py:9 in load; ranks 0, 1, 3 at step 30, at train.py:80 in backward"
    )


def test_a_rank_that_is_done_is_not_missed(job: Callable[[int], FakeJob]) -> None:
    ranks = job(3)
    ranks.step(30)
    ranks.turn()
    ranks.ranks[2].close()
    for _ in range(100):
        ranks.step(1, 0, 1, seconds=1)
        ranks.turn(0, 1)
    assert [text for text in ranks.said if "rank 2" in text] == []


def test_in_a_large_job_each_rank_looks_at_a_few_and_is_looked_at(job: Callable[[int], FakeJob]) -> None:
    ranks = job(40)
    looked_at: dict[int, int] = {}
    for beat in ranks.ranks:
        beat._world_size = 40
    for rank, beat in enumerate(ranks.ranks):
        beat._rank = rank
        for other in beat._watched():
            looked_at[other] = looked_at.get(other, 0) + 1
    assert set(looked_at.values()) == {4}


def test_a_store_that_is_gone_leaves_rank_0_alone(job: Callable[[int], FakeJob]) -> None:
    ranks = job(4)

    def gone(*_: Any) -> None:
        raise RuntimeError("Connection reset by peer")

    ranks.jobs[0].board.put = gone  # type: ignore[union-attr, method-assign, assignment]
    ranks.step(100)
    ranks.turn(0)
    ranks.turn(0)
    assert ranks.said == ["step 100: rank 0 (the other 3 cannot be asked), median 0.1 s/step"]


def test_after_the_groups_are_gone_nobody_is_missed(
    job: Callable[[int], FakeJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = job(3)
    ranks.step(30)
    ranks.turn()
    still_there = ranks.jobs[:]
    ranks.jobs[2] = None  # type: ignore[call-overload]
    for _ in range(100):
        ranks.step(1, 0, 1, seconds=1)
        ranks.turn()
    assert [text for text in ranks.said if "rank 2" in text] == []
    ranks.jobs[:] = [None] * len(still_there)  # type: ignore[list-item]
    ranks.pass_time(100)
    assert [text for text in ranks.said if "no rank has ended" in text or "no sign" in text] == []


def _steps(clock: StepClock, fake: FakeClock, count: int, seconds: float = 0.1) -> list[SlowStep]:
    found = []
    for _ in range(count):
        fake.now += seconds
        slow = clock.step()
        if slow is not None:
            found.append(slow)
    return found


def test_the_warm_up_is_neither_slow_nor_part_of_the_median() -> None:
    fake = FakeClock()
    clock = StepClock(2.0, fake)
    assert _steps(clock, fake, 10, seconds=30) == []
    assert _steps(clock, fake, 20) == []
    assert clock.median_s == pytest.approx(0.1)


def test_a_slow_step_says_in_which_phases_it_was_spent() -> None:
    fake = FakeClock()
    clock = StepClock(2.0, fake)
    _steps(clock, fake, 40)
    for name, seconds in (("data", 0.184), ("communication", 0.0345)):
        with module.Phase(clock, name):
            fake.now += seconds
    (slow,) = _steps(clock, fake, 1, seconds=0.0115)
    assert str(slow) == (
        "step 41 took 0.23 s, 2.3x this job's median of 0.1 s: data 80 %, communication 15 %, other 5 %"
    )
    assert not slow.is_of_others
    assert _steps(clock, fake, 5) == []


def test_time_in_a_nested_phase_counts_once() -> None:
    fake = FakeClock()
    clock = StepClock(2.0, fake)
    _steps(clock, fake, 40)
    with module.Phase(clock, "backward"):
        fake.now += 0.1
        with module.Phase(clock, "communication"):
            fake.now += 0.6
        fake.now += 0.1
    (slow,) = _steps(clock, fake, 1, seconds=0.2)
    assert slow.spent == pytest.approx({"backward": 0.2, "communication": 0.6})
    assert slow.is_of_others


def test_a_phase_that_is_open_over_the_end_of_a_step_counts_for_both() -> None:
    fake = FakeClock()
    clock = StepClock(2.0, fake)
    _steps(clock, fake, 40)
    with module.Phase(clock, "data"):
        fake.now += 1
        first = clock.step()
        fake.now += 2
    second = clock.step()
    assert first is not None
    assert second is not None
    assert (first.spent, second.spent) == ({"data": 1}, {"data": 2})


def test_short_steps_are_not_slow_by_a_few_milliseconds() -> None:
    fake = FakeClock()
    clock = StepClock(2.0, fake)
    _steps(clock, fake, 40, seconds=0.001)
    assert _steps(clock, fake, 5, seconds=0.015) == []


def test_phases_come_from_the_recorder_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[int] = []

    class Page:
        def enter(self, phase: int) -> int:
            entered.append(phase)
            return 0

    page = Page()
    recording = SimpleNamespace(current=SimpleNamespace(page=page))
    monkeypatch.setitem(step_clock.sys.modules, "_unhang_inside.recorder.recording", recording)
    fake = FakeClock()
    clock = StepClock(2.0, fake)
    clock.follow_recorder()
    clock.follow_recorder()
    _steps(clock, fake, 40)
    page.enter(1)
    fake.now += 0.9
    page.enter(0)
    (slow,) = _steps(clock, fake, 1)
    assert slow.spent == pytest.approx({"data": 0.9})
    with module.Phase(clock, "mine"):
        page.enter(3)
        assert clock.phase == "mine"
        page.enter(0)
    assert entered == [1, 0, 3, 0]
    clock.leave_recorder()
    assert "enter" not in vars(page)


def test_slow_steps_are_told_once_a_minute_and_not_by_those_who_waited(job: Callable[[int], FakeJob]) -> None:
    ranks = job(3)
    ranks.step(40)
    for _ in range(3):
        with ranks.ranks[1].phase("communication"), ranks.ranks[2].phase("data"):
            ranks.clock.now += 1
        ranks.step(1)
        ranks.turn(2, 1, 0)
    slow = [text for text in ranks.said if "median" in text and "took" in text]
    assert [text.split(":")[0] for text in slow] == ["rank 2", "rank 0"]
    assert slow[0].endswith("data 91 %, other 9 %")
    assert slow[1].endswith("phases unknown")


@pytest.mark.parametrize("wrong", [{"every": 0}, {"slow": 1.0}, {"limit": 0}])
def test_arguments_without_sense_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"every|length of time"):
        heartbeat(**wrong)


def test_without_a_job_it_counts_and_tells_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with heartbeat(every=5) as beat:
        for _ in range(5):
            beat.step(loss=1.5)
        beat.turn()
    assert beat.steps == 5
    assert "[heartbeat] step 5: 1 rank, loss 1.5" in capfd.readouterr().err


def test_a_forked_child_does_not_end_its_parents_heartbeat() -> None:
    with heartbeat() as beat:
        pid = os.fork()
        if pid == 0:
            beat.step()
            beat.close()
            os._exit(7 if beat._is_closed else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
