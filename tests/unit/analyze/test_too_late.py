"""Ranks that came to a call behind the limit of those that waited there, and the work of theirs before it."""

from __future__ import annotations

import pytest

from unhang.analyze.situation import Situation
from unhang.analyze.slow_work import too_late
from unhang.rules.registry import judge
from unhang.testing import make_case, raised

_SECOND_NS = 1_000_000_000
_SOURCE = """\
def main():
    train(model)
    if rank == {who}:
        print("now")
        build(index)
    dist.barrier()
"""


def situation(came_s: float, gave_up_s: float = 12.0, who: int = 0) -> Situation:
    """Ranks 1 and 2 raise in the barrier `gave_up_s` after they came there, rank 0 comes `came_s` after them."""
    calls = ["all_reduce[4]@main:2", "barrier@main:6 !"]
    timed_out = "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 12000ms for recv operation to complete@main:6"
    closed = raised("RuntimeError: [pair.cc:553] Connection closed by peer@main:6", came_s + 0.1)
    errors = {0: closed, **{r: raised(timed_out, gave_up_s) for r in (1, 2)}}
    source = _SOURCE.format(who=who)
    case = make_case(dict.fromkeys(range(3), calls), world=3, source=source, hang=None, exit_code=1, errors=errors)
    table = case.calls
    table["timeout_ms"][:] = 12_000
    table["created_ns"][table.rank_rows(0).stop - 1] += int(came_s * _SECOND_NS)
    return Situation(case)


@pytest.mark.parametrize(("who", "line"), [(0, 5), (1, 6)], ids=["a block of its own", "a block of another rank"])
def test_who_came_behind_the_limit_worked_alone(who: int, line: int) -> None:
    found = judge(situation(12.4, who=who)).findings[0]
    assert (found.rule, found.culprit_ranks, found.location and found.location.line) == ("slow-rank0-work", (0,), line)


@pytest.mark.parametrize(
    ("came_s", "gave_up_s"), [(0.0, 12.0), (11.0, 12.0), (3.0, 2.0)], ids=["together", "in time", "no limit ran out"]
)
def test_who_came_in_time_is_not_accused(came_s: float, gave_up_s: float) -> None:
    assert too_late(situation(came_s, gave_up_s)) is None
