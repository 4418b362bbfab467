from __future__ import annotations

import re

import pytest

from tests.unit.show.cases import START_NS, evidence
from unhang.model import (
    CallState,
    Case,
    Diagnosis,
    Inventory,
    Job,
    Outcome,
    ProcessGroup,
    TableBuilder,
    WaitEdge,
    WaitsFor,
)
from unhang.model.findings import count_ranks
from unhang.show.text import render_text
from unhang.show.timeline import timeline
from unhang.show.wait_graph import wait_graph
from unhang.show.web_page import page_data

MS = 1_000_000


def pairs(world: int, calls: int = 20, spread: int = 0) -> Case:
    """Ranks in groups of two whose last call never completed; each group began to wait `spread` later than the one before."""
    table = TableBuilder()
    for rank in range(world):
        group = table.group(ProcessGroup(str(rank // 2), "TP", (rank // 2 * 2, rank // 2 * 2 + 1)))
        for seq in range(calls):
            is_last = seq == calls - 1
            at = START_NS + seq * MS + (spread * (rank // 2) if is_last else 0)
            table.add(
                rank=rank, group=group, seq=seq, op="all_reduce", in_sizes=((8,),), dtype="Float", created_ns=at,
                completed_ns=0 if is_last else at + 1000, record_id=seq,
                state=CallState.STARTED if is_last else CallState.COMPLETED,
            )  # fmt: skip
    built = table.build()
    ranks = {r: evidence(r, world=world) for r in range(world)}
    return Case(job=Job(world_size=world, started_ns=START_NS), ranks=ranks, groups=built.groups, calls=built)


def test_groups_for_the_same_purpose_are_one_kind_of_call() -> None:
    shown = timeline(pairs(200))
    assert [kind["group"] for kind in shown.kinds] == ["TP"]
    assert len(shown) == 200 * 20


def test_groups_are_counted_by_purpose() -> None:
    case = pairs(200)
    diagnosis = Diagnosis(Outcome.HANG, case.job, None, (), (), Inventory())
    assert dict(page_data(diagnosis, case, WaitsFor())["facts"])["Groups"] == "100 x TP (2)"


@pytest.mark.parametrize(("spread", "is_in_view"), [(0, True), (80_000, True), (20 * MS, False)])
def test_the_first_view_goes_on_until_most_ranks_wait_unless_that_is_far(spread: int, is_in_view: bool) -> None:
    shown = timeline(pairs(200, spread=spread))
    three_quarters = (19 * MS + 75 * spread) // shown.unit_ns
    assert (three_quarters <= shown.focus[1]) is is_in_view
    assert shown.onset is not None
    assert shown.focus[0] < shown.onset < shown.focus[1]
    assert shown.focus[1] - shown.onset <= 1.5 * (shown.onset - shown.focus[0])


def test_sets_of_ranks_have_names_of_bounded_length() -> None:
    assert count_ranks([4]) == "rank 4"
    assert count_ranks([0, 1, 2, 5]) == "ranks 0-2, 5"
    assert count_ranks(range(3, 16384, 8)) == "2048 ranks (3, 11, 19, ...)"


def test_what_a_rank_has_waited_for_longest_comes_first() -> None:
    edges = tuple(
        WaitEdge(rank, (5,), "collective", what, since_ns=since)
        for rank in range(0, 40, 2)
        for what, since in (("all_reduce #4 of default_pg", 30), ("all_reduce #56 of TP", 10))
    )
    waits = WaitsFor(edges, roots=(5,))
    node = wait_graph(waits).nodes[1]
    assert [wait.what for wait in node.waits] == ["all_reduce #56 of TP", "all_reduce #4 of default_pg"]
    case = pairs(40)
    text = render_text(Diagnosis(Outcome.HANG, case.job, None, (), (), Inventory()), case, waits)
    assert re.search(r"20 ranks \(0, 2, 4, \.\.\.\) +wait for rank 5 +in all_reduce #56 of TP", text)
