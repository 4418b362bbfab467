"""Sections: their limits by a clock that is passed in, and what the other ranks say."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from unhang.inside.guards import section as module
from unhang.inside.guards import section_states
from unhang.inside.guards.board import Board
from unhang.inside.guards.job import Job
from unhang.inside.guards.section import Registry, SectionOverran, section, sections
from unhang.inside.guards.section_states import SectionQuestions, summary


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
        return self.values.setdefault(key, value) if not expected else self.values[key]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def registry(clock: FakeClock, said: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    made = Registry(clock, lambda tag, text: said.append(f"[{tag}] {text}"), has_threads=False)
    monkeypatch.setattr(module, "_registry", made)
    yield made
    made.stop()


def test_a_section_within_its_limit_is_not_told_of(registry: Registry, clock: FakeClock, said: list[str]) -> None:
    with section("sync", limit_s=60):
        clock.now += 59
        registry.watch()
    clock.now += 100
    registry.watch()
    assert said == []


def test_an_overrun_is_told_once_with_the_stack_and_the_leaving(
    registry: Registry, clock: FakeClock, said: list[str]
) -> None:
    with section("sync", limit_s=60):
        clock.now += 61
        registry.watch()
        clock.now += 10
        registry.watch()
    assert len(said) == 2
    assert "'sync' is over its limit of 60 s: thread MainThread" in said[0]
    assert "for the 1st time" in said[0]
    assert __file__ in said[0]
    assert said[1] == "[section] 'sync' was left after 71.0 s"


def test_the_watcher_sleeps_until_the_next_limit(registry: Registry, clock: FakeClock) -> None:
    assert registry.watch() is None
    with section("outer", limit_s=60):
        assert registry.watch() == 60
        with section("inner", limit_s=5):
            clock.now += 2
            assert registry.watch() == 3
        assert registry.watch() == 58
    assert registry.watch() == 5


def test_a_short_section_does_not_wake_the_watcher_again_and_again(
    registry: Registry, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[float] = []
    wake = registry.wake
    monkeypatch.setattr(registry, "wake", lambda limit_s: (woken.append(limit_s), wake(limit_s)))
    for name, limit_s in [("first", 60), ("again", 60), ("longer", 90), ("shorter", 5), ("again", 5)]:
        with section(name, limit_s=limit_s):
            clock.now += 0.001
        registry.watch()
    assert woken == [60, 5]


def test_nested_sections_are_listed_outermost_first(registry: Registry, clock: FakeClock) -> None:
    with section("epoch", limit_s="1h"):
        clock.now += 2
        with section("data", limit_s=30):
            clock.now += 1
            found = sections()
    assert [(s.name, s.thread, s.seconds, s.limit_s) for s in found] == [
        ("epoch", "MainThread", 3, 3600),
        ("data", "MainThread", 1, 30),
    ]
    assert sections() == []


def test_the_same_section_object_is_recursive_and_shared_by_threads(registry: Registry, clock: FakeClock) -> None:
    shared = section("io", limit_s=30)
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        with shared:
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=other, name="other")
    with shared, shared:
        thread.start()
        assert inside.wait(10)
        assert [s.thread for s in sections()] == ["MainThread", "MainThread", "other"]
    assert [s.thread for s in sections()] == ["other"]
    done.set()
    thread.join(10)
    assert sections() == []
    assert registry.state()["sections"] == {"io": [3, 3]}


def test_raise_after_raises_where_it_is_left(registry: Registry, clock: FakeClock) -> None:
    with pytest.raises(SectionOverran, match=r"section 'sync' took 61.0 s, its limit is 60 s"):  # noqa: SIM117
        with section("sync", limit_s=60, on_overrun="raise_after"):
            clock.now += 61


def test_an_exception_of_the_body_is_not_replaced(registry: Registry, clock: FakeClock) -> None:
    with pytest.raises(KeyError), section("sync", limit_s=60, on_overrun="raise_after"):  # noqa: PT012
        clock.now += 61
        raise KeyError("mine")


def test_as_a_decorator_each_call_is_a_stay(registry: Registry) -> None:
    @section("step", limit_s=10)
    def step(value: int) -> int:
        assert sections()[0].name == "step"
        return value + 1

    assert step(1) == 2
    assert step(2) == 3
    assert step.__name__ == "step"
    assert registry.state()["sections"]["step"] == [2, 2]


def test_a_coroutine_is_inside_until_it_is_done(registry: Registry) -> None:
    import asyncio

    @section("request", limit_s=10)
    async def request() -> list[str]:
        await asyncio.sleep(0)
        return [s.name for s in sections()]

    async def both() -> list[list[str]]:
        return await asyncio.gather(request(), request())

    assert asyncio.run(both()) == [["request", "request"], ["request"]]
    assert sections() == []


@pytest.mark.parametrize("wrong", [0, -1, "soon", 1e12])
def test_a_limit_that_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"length of time"):
        section("sync", limit_s=wrong)


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(ValueError, match="on_overrun is 'abort'"):
        section("sync", on_overrun="abort")  # type: ignore[arg-type]


def test_many_overruns_of_one_name_do_not_fill_the_log(registry: Registry, clock: FakeClock, said: list[str]) -> None:
    for _ in range(50):
        with section("sync", limit_s=1):
            clock.now += 1.5
            registry.watch()
    messages = [text for text in said if "over its limit" in text]
    assert 3 <= len(messages) <= 5


def test_names_without_end_do_not_fill_the_memory(registry: Registry) -> None:
    for number in range(5000):
        with section(f"step {number}", limit_s=1000 - number / 10):
            pass
    assert len(registry.numbers) <= 1000
    assert len(registry.state()["sections"]) <= 64
    assert len(json.dumps(registry.state())) < 8000


def test_stop_announces_and_raises_when_the_section_is_left_in_time(
    registry: Registry, clock: FakeClock, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    board = Board(DictStore(), 2, 4)
    monkeypatch.setattr(module, "live_job", lambda: Job(2, 2, 4, board=board))
    monkeypatch.setattr(module, "GRACE_S", 0.0)
    monkeypatch.setattr(registry.questions, "ask", lambda *_: "the ranks: inside: rank 2")
    ended: list[int] = []
    monkeypatch.setattr(module, "leave_now", lambda code: (ended.append(code), registry.open.clear()))
    with pytest.raises(SectionOverran), section("sync", limit_s=60, on_overrun="stop"):  # noqa: PT012
        clock.now += 61
        registry.watch()
    failure = board.failure()
    assert failure is not None
    assert (failure["rank"], failure["what"]) == (
        2,
        "section 'sync' is over its limit of 60 s; the ranks: inside: rank 2",
    )
    assert ended == [1]
    assert "rank 2: 'sync' is still not left; this process ends now" in said[1]


def test_a_forked_child_is_in_no_section_of_its_parent() -> None:
    with section("parent", limit_s=60):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, json.dumps([s.name for s in sections()]).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(reader, 100) == b"[]"
        os.close(reader)
        os.close(writer)
    module._registry.stop()
    module._registry = Registry()


def test_the_threads_watch_and_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    told = threading.Event()

    def say(_: str, text: str) -> None:
        said.append(text)
        told.set()

    made = Registry(say=say)
    monkeypatch.setattr(module, "_registry", made)
    with section("long", limit_s=100), section("short", limit_s=0.05):
        assert told.wait(10)
        assert "'short' is over its limit of 0.05 s" in said[0]
    made.stop()


def _questionss(monkeypatch: pytest.MonkeyPatch, states: dict[int, dict[str, Any]]) -> dict[int, SectionQuestions]:
    """One questions per rank, on one board; `asking` decides who is meant by `live_job`."""
    store = DictStore()
    made = {}
    for rank, state in states.items():
        questions = SectionQuestions(lambda state=state: state)  # type: ignore[misc]
        job = Job(rank, rank, 4, board=Board(store, rank, 4))
        questions._job_with_board = lambda job=job: (job, job.board)  # type: ignore[assignment, misc, method-assign]
        made[rank] = questions
    monkeypatch.setattr(section_states, "ANSWER_LIMIT_S", 0.2)
    return made


def _state(entered: int, left: int, at: str = "train.py:80 in sync") -> dict[str, Any]:
    is_open = [["sync", 61.0]] if entered > left else []
    return {"sections": {"sync": [entered, left]}, "open": is_open, "at": at}


def test_the_asking_rank_learns_where_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = _questionss(monkeypatch, {0: _state(5, 4), 1: _state(5, 5), 2: _state(4, 4, "data.py:9 in load")})
    waited: list[Any] = []

    def let_others_answer(is_there: Any, limit_s: float) -> bool:
        waited.append(limit_s)
        ranks[1].answer()
        ranks[2].answer()
        return bool(is_there())

    monkeypatch.setattr(section_states, "polled", let_others_answer)
    assert ranks[0].ask("sync", 5) == (
        "the ranks: inside (for up to 61 s): rank 0; left it (5 times so far), at train.py:80 in sync: rank 1; "
        "entered it only 4 times, not 5 times, at data.py:9 in load: rank 2; "
        "no answer (ended, standing still as a whole, or no section used so far): rank 3"
    )


def test_a_second_rank_that_overruns_reads_the_summary_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = _questionss(monkeypatch, {0: _state(5, 4), 1: _state(5, 4)})
    first = ranks[0].ask("sync", 5)
    assert ranks[1].ask("sync", 5) == f"the ranks, as rank 0 collected it: {first.removeprefix('the ranks: ')}"


def test_old_questions_are_answered_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = _questionss(monkeypatch, {0: _state(5, 4), 1: _state(5, 5)})
    for _ in range(2):
        ranks[0].ask("sync", 5)
        ranks[0].answer()
    ranks[1].answer()
    assert ranks[1]._next == 2


def test_a_store_that_is_gone_is_asked_no_more() -> None:
    class Gone(DictStore):
        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("Connection reset by peer")

    questions = SectionQuestions(lambda: _state(1, 0))
    job = Job(0, 0, 4, board=Board(Gone(), 0, 4))
    section_states_live = section_states.live_job
    try:
        section_states.live_job = lambda: job
        questions.answer()
        assert questions._job_with_board() is None
    finally:
        section_states.live_job = section_states_live


def test_the_summary_of_many_ranks_is_short() -> None:
    states = {rank: _state(5, 4) for rank in range(1000)}
    states[417] = _state(4, 4, "data.py:9 in load")
    assert summary("sync", 5, states, 1000) == (
        "inside (for up to 61 s): ranks 0-416, 418-999; "
        "entered it only 4 times, not 5 times, at data.py:9 in load: rank 417"
    )
