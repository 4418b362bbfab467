"""Sets of ranks read alike in the lines of a training and in the reports."""

from __future__ import annotations

import pytest

from unhang.inside.guards.words import name_ranks
from unhang.model import findings
from unhang.rules import wording


@pytest.mark.parametrize("ranks", [[1], [0, 1], [0, 2, 3], [0, 1, 2, 5], [*range(4), 9, *range(20, 24)], [7, 3, 5, 4]])
def test_a_set_of_ranks_is_named_as_in_the_reports(ranks: list[int]) -> None:
    assert name_ranks(ranks) == wording.name_ranks(ranks)


def test_no_rank_and_many_ranks_are_named_as_in_the_reports() -> None:
    assert name_ranks(()) == findings.name_ranks(()) == "no rank"
    many = range(0, 1024, 2)
    assert name_ranks(many).partition(" and ")[2] == findings.name_ranks(many).partition(" and ")[2] == "504 more"
