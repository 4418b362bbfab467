"""A receive from whoever sends first waits for all that may send: only if none of them can is it for ever."""

from __future__ import annotations

import pytest

from unhang.analyze.situation import Situation
from unhang.model import Case
from unhang.rules.registry import judge
from unhang.testing import make_case, pending

_SOURCE = """\
def serve(n):
    for _ in range(n):
        dist.recv(x)
def work(data):
    for x in data:
        dist.send(x, 0)
def main(rank, n, data):
    if rank == 0:
        serve(n)
    else:
        work(data)
    dist.reduce(x, 0)
    dist.broadcast(x, 0)
"""


def _case(working: tuple[int, ...] = (), sending: bool = False) -> Case:
    """Rank 0 receives from any; the others are behind their loops, but for those that are `working`."""
    sent = [pending("send", 0, True, where="main:11>work:6") for _ in range(3)]
    stacks = {0: "main:9>serve:3>~comm", 1: "main:12>~comm", 2: "main:13>~comm"}
    calls = {1: ["reduce[4] root 0@main:12 !"], 2: ["reduce[4] root 0@main:12", "broadcast[4] root 0@main:13 !"]}
    calls = {r: c for r, c in calls.items() if r not in working}
    stacks |= dict.fromkeys(working, "main:11>work:5")
    took = [pending("recv", None, True, where="main:9>serve:3")] * 6 + [pending("recv", where="main:9>serve:3")]
    waits = {0: took, 1: sent, 2: [*sent, *([pending("send", 0, where="main:11>work:6")] if sending else [])]}
    return make_case(calls, world=3, source=_SOURCE, stacks=stacks, pending=waits)


def test_it_waits_for_ever_where_nobody_can_send() -> None:
    assert Situation(_case()).proven == (0, 1, 2)
    found = judge(_case()).findings[0]
    assert (found.cause, found.culprit_ranks) == ("uneven-inputs", ())
    assert found.location is not None
    assert (found.location.line, found.location.function) == (2, "serve")


@pytest.mark.parametrize("case", [_case(working=(1,)), _case(sending=True)])
def test_it_may_end_where_one_is_at_work_or_sends(case: Case) -> None:
    assert Situation(case).proven == ()
