"""Ranks in two branches of one `if` have a role each; behind it, one has gone on where the others wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.analyze.situation import Situation
from unhang.model import Frame
from unhang.rules.late import _are_roles
from unhang.testing import make_case

STEP = """def step(rank):
    if rank == 0:
        feed()
    elif rank < 2:
        pass_on()
    else:
        take(targets())
    dist.barrier()
    work()
"""


@pytest.mark.parametrize(
    ("wait", "here", "are_roles"), [(3, 7, True), (5, 7, True), (3, 9, False), (8, 9, False)], ids=str
)
def test_branches_of_one_if_are_roles(wait: int, here: int, are_roles: bool, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(STEP)
    assert _are_roles(Frame(str(file), wait, "step"), Frame(str(file), here, "step")) is are_roles


_SYNC = """def main(rank):
    if rank == 0:
        learn()
    else:
        roll_out()

def learn():
    for step in steps:
        broadcast(weights)
        gather(rows)

def roll_out():
    for step in steps:
        broadcast(weights)
        gather(rows)
"""
_ALONE = _SYNC.replace("    else:\n        roll_out()", "        return\n    roll_out()")


def test_equal_calls_of_two_roles_are_meant_to_meet_and_no_role_is_the_usual_one() -> None:
    learns = [*["broadcast[8]@main:3>learn:9", "gather[8]@main:3>learn:10"] * 2, "gather[8]@main:3>learn:10 !"]
    rolls = [*["broadcast[8]@main:5>roll_out:14", "gather[8]@main:5>roll_out:15"] * 2]
    calls = {0: learns, **{r: [*rolls, "broadcast[8]@main:5>roll_out:14 !"] for r in (1, 2)}}
    d = Situation(make_case(calls, world=3, source=_SYNC)).divergence
    assert d is not None
    assert (d.seq, d.is_decided, d.culprits) == (5, False, (0, 1, 2))


def test_a_call_on_one_rank_that_pairs_with_the_next_one_of_the_others_is_no_role() -> None:
    """The rank comes back to what all do: its own call has met the next one of theirs."""
    text = "def main(rank):\n    for step in steps:\n        if rank == 0:\n            score()\n        train()\n"
    text += "def score():\n    all_reduce(x)\ndef train():\n    all_reduce(x)\n    gather(x)\n"
    train = ["all_reduce[8]@main:5>train:9", "gather[8]@main:5>train:10"]
    calls = {
        0: [*train, "all_reduce[8]@main:4>score:7", "all_reduce[8]@main:5>train:9 !"],
        **{r: [*train, train[0], f"{train[1]} !"] for r in (1, 2)},
    }
    d = Situation(make_case(calls, world=3, source=text)).divergence
    assert d is not None
    assert (d.seq, d.culprits) == (3, (0,))
