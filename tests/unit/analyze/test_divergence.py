"""Which side of a difference is wrong: by number, and where that may still change, by what the ranks always did."""

from __future__ import annotations

from typing import Any

from tests.unit.analyze.small_tables import OPEN, case_of, reduce_, table_of
from unhang.analyze.situation import Situation
from unhang.model import ProcessGroup

_WORLD = ProcessGroup("0", "default_pg", tuple(range(6)), backend="nccl")
_PAIRS = [ProcessGroup(str(i + 1), "ep", (2 * i, 2 * i + 1), backend="nccl") for i in range(3)]


def calls_of(rank: int, *then: dict[str, Any]) -> list[dict[str, Any]]:
    """Three rounds of a call in the pair and one of the world, and what follows."""
    in_pair = {"op": "all_to_all", "group": str(rank // 2 + 1)}
    return [*[in_pair, reduce_()] * 3, *({**call, "group": call.get("group", in_pair["group"])} for call in then)]


def odd_ones(*leavers: int, came: tuple[int, ...]) -> tuple[int, ...]:
    """Who is said to be wrong where some leave the loop and the others wait for them in the pairs, or `came` to the world."""
    leaves = {"op": "barrier", "group": "0", "state": OPEN}
    stays = [{"op": "all_to_all", "state": OPEN}, reduce_(OPEN, group="0")]
    calls = {r: calls_of(r, *([leaves] if r in leavers else stays[: 1 + (r in came)])) for r in range(6)}
    d = Situation(case_of(table_of(calls, _WORLD, *_PAIRS), world=6)).divergence
    assert d is not None
    assert d.has_majority
    return d.odd


def test_those_who_have_come_are_no_majority_where_those_who_have_not_may_join_the_other_side() -> None:
    assert odd_ones(1, 3, 5, came=(0,)) == (1, 3, 5)


def test_one_that_left_the_loop_is_wrong_before_and_after_the_others_have_come() -> None:
    assert odd_ones(1, came=(0, 2, 3, 4, 5)) == (1,)
    assert odd_ones(1, came=(2, 3)) == (1,)


def test_those_who_made_a_new_call_together_are_no_less_a_majority_while_others_have_not_come() -> None:
    evaluates = {"op": "gather", "group": "0", "state": OPEN}
    skips = [{"op": "all_to_all", "state": OPEN}, reduce_(OPEN, group="0")]
    calls = {r: calls_of(r, evaluates) for r in (0, 2, 3)} | {1: calls_of(1, *skips)}
    calls |= {r: calls_of(r, {"op": "all_to_all", "state": OPEN}) for r in (4,)} | {5: calls_of(5)}
    d = Situation(case_of(table_of(calls, _WORLD, *_PAIRS), world=6)).divergence
    assert d is not None
    assert (d.odd, d.has_majority) == ((1,), True)
