"""Real jobs whose ranks cannot share memory, as on several machines: `align` and `together` go over a group."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from .guard_jobs import run
from .test_guard_align import A_RANK_DIES

OVER_A_GROUP = """
from unhang.inside.guards import exchange
exchange.process_numbers = lambda: f"machine {rank}"
"""
ONE_CANNOT_OPEN = """
from unhang.inside.guards import shared_memory
if rank == 1:
    shared_memory.opened = lambda *_: None
"""


@pytest.mark.parametrize("apart", [OVER_A_GROUP, ONE_CANNOT_OPEN])
def test_ranks_that_share_no_memory_exchange_over_a_group(tmp_path: Path, apart: str) -> None:
    body = """
    begin(30)
    steps = []
    for epoch in range(2):
        steps.append(0)
        for batch in align([1.0] * (12 if rank == 1 else 14), mode="stop_together", name="train"):
            steps[-1] += step(batch)
            assert together(rank == 1, name="odd").ranks == (1,)
    say(steps, job.current().side is not None, job.current().shared)
    try:
        for batch in align(iter([1.0] * (3 - rank))):
            step(batch)
    except RanksDiffer as error:
        say(error)
    end()
    """
    ended = run(tmp_path, 2, apart + textwrap.dedent(body))
    first, second = ended.said_by_all(2).split("\n")
    assert first == "[24.0, 24.0] True None", ended
    assert second.startswith("rank 1 has 2 batches; rank 0 has 3 or more batches; use drop_last"), ended


def test_over_a_group_a_rank_that_dies_is_noticed_too(tmp_path: Path) -> None:
    ended = run(tmp_path, 3, OVER_A_GROUP + A_RANK_DIES)
    assert (ended.said(0), ended.said(2)) == (["True"], ["True"]), ended
