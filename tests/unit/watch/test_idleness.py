"""Ranks that no recorded wait accounts for: all wait for other threads and processes of their job, and nobody else may end that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unhang.analyze.situation import Situation
from unhang.analyze.waits.open_calls import all_wait_in_the_job
from unhang.model import Frame, ThreadStack
from unhang.model.frames import KernelWait, WaitingTask
from unhang.testing import make_case, path
from unhang.watch import suspicion
from unhang.watch.process import waits_for_storage

_READS, _ASKS = Frame("/usr/lib/python3.11/socket.py", 706, "readinto"), Frame("train.py", 4, "reward")
_ASKED = ThreadStack("MainThread", (_READS, _ASKS), is_main=True, kernel=KernelWait("recvfrom", "socket"))
_JOINS = ThreadStack("MainThread", (Frame("/usr/lib/python3.11/threading.py", 1119, "join"), _ASKS), is_main=True)
_LOCKS = ThreadStack("MainThread", (Frame("/usr/lib/python3.11/threading.py", 320, "acquire"), _ASKS), is_main=True)
_SENDS = ThreadStack("MainThread", (_ASKS,), is_main=True, kernel=KernelWait("sendto", "socket"))
_TYPES = ThreadStack("MainThread", (_ASKS,), is_main=True, kernel=KernelWait("read", "terminal"))


def idle(*stacks: ThreadStack, calls: tuple[str, ...] = (), beside: tuple[ThreadStack, ...] = ()) -> Situation:
    more = {r: {"stacks": (stack, *beside)} for r, stack in enumerate(stacks)}
    return Situation(make_case({0: calls}, world=len(stacks), hang=None, more=more))


@pytest.mark.parametrize(
    ("stacks", "calls", "found"),
    [
        ((_JOINS, _ASKED), (), {0, 1}),
        ((_JOINS, _LOCKS), (), {0, 1}),
        ((_JOINS, _JOINS), (), set()),
        ((_JOINS, _SENDS), (), {0, 1}),
        ((_TYPES, _ASKED), (), set()),
        ((_JOINS, _ASKED), ("barrier@main:9 !",), set()),
    ],
    ids=[
        "one asks another process",
        "one wants a lock",
        "nobody asks a process",
        "one has no room to send",
        "one waits for a person",
        "a call is open",
    ],
)
def test_all_ranks_wait_for_the_job_itself(
    stacks: tuple[ThreadStack, ...], calls: tuple[str, ...], found: set[int]
) -> None:
    assert all_wait_in_the_job(idle(*stacks, calls=calls)) == found


def test_a_thread_that_sleeps_or_works_may_end_their_waits() -> None:
    holds = ThreadStack("service", (Frame("/usr/lib/python3.11/threading.py", 327, "wait"), _ASKS))
    assert all_wait_in_the_job(idle(_JOINS, _ASKED, beside=(holds,))) == {0, 1}
    assert all_wait_in_the_job(idle(_JOINS, _ASKED, beside=(holds, ThreadStack("loads", (_ASKS,))))) == set()


@pytest.mark.parametrize("may_come", [False, True])
def test_where_somebody_from_outside_may_ask_nobody_is_suspected(
    may_come: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(suspicion, "may_be_asked", lambda pids: may_come)
    monkeypatch.setattr(suspicion, "talks_elsewhere", lambda pid: False)
    monkeypatch.setattr(suspicion, "sleep_left_s", lambda pid: None)
    idleness = suspicion.Idleness(tmp_path, os.getpid())
    monkeypatch.setattr(idleness._work, "is_at_work", lambda pids: False)
    assert idleness.ranks(idle(_JOINS, _ASKED), []) == (set() if may_come else {0, 1})


_SELECTS = (
    Frame("/usr/lib/python3.11/selectors.py", 468, "select"),
    Frame("/usr/lib/python3.11/asyncio/base_events.py", 1884, "_run_once"),
)
_RUNS = Frame("train.py", 9, "main")
_DRAINS = (Frame("/usr/lib/python3.11/asyncio/streams.py", 172, "_drain_helper"), Frame("ring.py", 30, "send"))


@pytest.mark.parametrize("moved", [False, True])
def test_what_tasks_wait_for_is_asked_anew_at_each_look(
    moved: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A look leaves them out; where all ranks wait for their tasks alone, they are asked, and what they said is not kept for the next look."""
    in_loop = ThreadStack("MainThread", (*_SELECTS, _RUNS), is_main=True)
    of_look = idle(in_loop, _JOINS if moved else in_loop)
    told = {r: {"stacks": (in_loop,), "tasks": (WaitingTask("Task-1", _DRAINS),)} for r in range(2)}
    answered = make_case({0: ()}, world=2, hang=None, more=told)
    steps: list[str] = []
    monkeypatch.setattr(suspicion.evidence, "request_pickles", lambda folders: steps.append("asked"))
    monkeypatch.setattr(suspicion.evidence, "drop_answers", lambda folder: steps.append(f"dropped {folder.name}"))
    monkeypatch.setattr(suspicion, "read_bundle", lambda path, trusted: answered)
    found = suspicion.Idleness(tmp_path, os.getpid()).with_tasks(of_look, [tmp_path / "r0", tmp_path / "r1"])
    assert all_wait_in_the_job(found) == (set() if moved else {0, 1})
    assert steps == ([] if moved else ["asked", "dropped r0", "dropped r1"])


_FETCHES = ThreadStack("MainThread", path("main:8>~loader"), is_main=True)


@pytest.mark.parametrize(
    ("stacks", "is_storage", "found"),
    [((_FETCHES, _FETCHES), False, {0, 1}), ((_FETCHES, _FETCHES), True, set()), ((_FETCHES, _JOINS), False, set())],
    ids=["nobody is at work", "a disk may take its time", "one waits for another thing"],
)
def test_all_ranks_wait_for_their_loaders(
    stacks: tuple[ThreadStack, ...], is_storage: bool, found: set[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(suspicion, "may_be_asked", lambda pids: False)
    monkeypatch.setattr(suspicion, "talks_elsewhere", lambda pid: False)
    monkeypatch.setattr(suspicion, "sleep_left_s", lambda pid: None)
    monkeypatch.setattr(suspicion, "waits_for_storage", lambda pid: is_storage)
    idleness = suspicion.Idleness(tmp_path, os.getpid())
    monkeypatch.setattr(idleness._work, "is_at_work", lambda pids: False)
    assert idleness.ranks(idle(*stacks), []) == found


def test_a_process_that_runs_waits_for_no_storage() -> None:
    assert not waits_for_storage(os.getpid())
