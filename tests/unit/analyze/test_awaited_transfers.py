"""A receive that was posted early is no wait until somebody waits for it; where that is recorded, it tells who waits for whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unhang.analyze.situation import Situation
from unhang.analyze.waits.open_calls import oldest_wait_ns
from unhang.analyze.waits.sends import awaited_transfer
from unhang.model import PendingCall
from unhang.testing import make_case, pending

STACKS = {0: "main:10>~comm", 1: "main:20>~comm", 2: "main:30"}
RECEIVES = pending("recv", 0, where="main:20")


def awaited(call: PendingCall, after_s: float = 1.0) -> PendingCall:
    return replace(call, awaited_ns=call.started_ns + int(after_s * 1e9))


def situation(*calls: PendingCall) -> Situation:
    """Rank 0 has made these calls and stands in one of them, rank 1 receives from it, rank 2 is at work."""
    return Situation(make_case(world=3, pending={0: calls, 1: [RECEIVES]}, stacks=STACKS, hang="suspected"))


CONTROL, DATA = pending("irecv", 1, where="main:5"), pending("irecv", 2, where="main:10")


def test_a_receive_posted_for_later_closes_no_circle() -> None:
    s = situation(CONTROL, awaited(DATA))
    assert [(e.waiter, e.targets) for e in s.waits.edges] == [(0, (2,)), (1, (0,))]
    assert s.waits.cycles == ()
    assert s.proven == ()


def test_a_call_that_blocks_tells_the_same() -> None:
    s = situation(CONTROL, pending("recv", 2, where="main:10"))
    assert s.waits.cycles == ()
    assert s.proven == ()


def test_a_wait_for_a_collective_tells_the_same() -> None:
    """All members have come to it, and it takes its time."""
    s = situation(CONTROL, pending("work_wait", where="main:10"))
    assert s.waits.cycles == ()
    assert s.proven == ()


def test_a_receive_that_is_waited_for_closes_the_circle() -> None:
    """Whichever was posted first."""
    for calls in ((awaited(CONTROL), DATA), (DATA, awaited(CONTROL))):
        s = situation(*calls)
        assert s.waits.cycles == ((0, 1),)
        assert s.proven == (0, 1)


def test_what_is_waited_for_and_is_under_way_waits_for_nobody() -> None:
    """The other side has been issued: the transfer takes its time."""
    sent = pending("send", 0, where="main:30")
    case = make_case(world=3, pending={0: [CONTROL, awaited(DATA)], 1: [RECEIVES], 2: [sent]}, stacks=STACKS)
    assert awaited_transfer(case, 0) is None


def test_without_a_record_of_waits_the_first_open_call_counts() -> None:
    s = situation(CONTROL, DATA)
    assert s.waits.cycles == ((0, 1),)


def test_a_wait_lasts_since_it_began_and_the_rank_stands() -> None:
    """A call begun long ago, of a rank that went on meanwhile, is no long wait."""
    s = situation(CONTROL, awaited(DATA, after_s=30))
    begun, started = DATA.started_ns + 30_000_000_000, RECEIVES.started_ns
    assert oldest_wait_ns(s, {}) == started
    assert oldest_wait_ns(s, {1: begun + 5}) == begun
    assert oldest_wait_ns(s, {0: begun + 9, 1: begun + 5}) == begun + 5


@pytest.mark.parametrize("hang", [None, "suspected"])
def test_who_does_not_wait_has_no_wait(hang: str | None) -> None:
    assert oldest_wait_ns(Situation(make_case({0: ["barrier@main:3"]}, world=2, hang=hang)), {0: 5}) == 0
