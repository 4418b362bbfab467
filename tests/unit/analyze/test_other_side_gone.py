"""Sends and receives whose other side has gone on: that of whoever sends first is for ever only if none can send."""

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


_EXCHANGES = """\
def exchange(field):
    %s
    for peer in field.peers:
        dist.isend(x, peer)
        dist.irecv(x, peer)
    for request in requests:
        request.wait()
def main(field):
    for step in range(9):
        exchange(field)
        dist.all_reduce(x)
"""


@pytest.mark.parametrize(
    ("first", "cause", "line"),
    [("if not field.wet: return", "code-divergence", 2), ("requests = []", "uneven-inputs", 3)],
)
def test_who_left_the_function_before_its_loop(first: str, cause: str, line: int) -> None:
    at = "main:10>exchange:4"
    met = {r: [pending(k, 1 - r, True, where=at) for k in ("isend", "irecv")] * 3 for r in (0, 1)}
    waits = {0: [*met[0], pending("isend", 1, where="main:10>exchange:7")], 1: met[1]}
    stacks = {0: "main:10>exchange:7>~comm", 1: "main:11>~comm"}
    calls = {0: ["all_reduce[4]@main:11"] * 3, 1: [*["all_reduce[4]@main:11"] * 3, "all_reduce[4]@main:11 !"]}
    found = judge(make_case(calls, world=2, source=_EXCHANGES % first, stacks=stacks, pending=waits)).findings[0]
    assert found.location is not None
    assert (found.cause, found.location.line) == (cause, line)
