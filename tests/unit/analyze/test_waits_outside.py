"""What a rank waits for outside of communication, who has it, and which line is named where the rank stands at none of the user's."""

from __future__ import annotations

from typing import Any

import pytest

from unhang.model import Frame, ThreadStack
from unhang.model.frames import KernelWait
from unhang.testing import ended, judge, make_case

RAY = ThreadStack("MainThread", (Frame("/site-packages/ray/_private/worker.py", 1069, "main_loop"),), is_main=True)
CALLS = {0: [], 1: ["broadcast[8]@receive:63 !"]}


@pytest.mark.parametrize(("driver", "line"), [("main:49>check:25", 25), ("", 63)])
def test_an_idle_actor_is_found_at_its_driver_else_at_the_call_that_it_lacks(driver: str, line: int) -> None:
    stacks: dict[int, Any] = {0: RAY, 1: "receive:63>~comm"}
    found = judge(make_case(CALLS, world=2, hang="suspected", stacks=stacks, launcher=driver)).findings[0]
    assert (found.cause, found.culprit_ranks) == ("rank-stuck-in-user-code", (0,))
    assert "a task of Ray" in found.title
    assert found.location is not None
    assert found.location.line == line
    assert ("check (train.py:25)" in found.because) is bool(driver)


@pytest.mark.parametrize(
    ("holder", "says"), [(1001, "which rank 1 held in broadcast #1"), (4711, "lock on the file a.lock")]
)
def test_of_a_lock_on_a_file_the_rank_that_has_it_is_named(holder: int, says: str) -> None:
    waits = KernelWait("flock", "file /data/a.lock", holder)
    stack = ThreadStack("MainThread", (Frame("train.py", 12, "main"),), is_main=True, kernel=waits)
    case = make_case(CALLS, world=2, hang="suspected", stacks={0: stack, 1: "receive:63>~comm"})
    found = judge(case).findings[0]
    assert says in found.title
    assert any("release the lock" in fix.title for fix in found.fixes) is (holder == 1001)


def test_a_rank_that_ended_is_named_with_the_call_that_it_lacks() -> None:
    calls = {0: ["barrier@main:3"], **{r: ["barrier@main:3", "all_reduce[8]@main:9 !"] for r in (1, 2)}}
    found = judge(make_case(calls, world=3, exits={0: ended("exit", 0)}, hang="suspected")).findings[0]
    assert (found.cause, found.culprit_ranks) == ("rank-exited-early", (0,))
    assert found.location is not None
    assert found.location.line == 9
