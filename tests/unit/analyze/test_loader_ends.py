"""A loop that some ranks left: as their data ran out, or for another reason, by the ends of loaders that the recorder has noted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from unhang.analyze.calls.divergence import Divergence
from unhang.analyze.situation import Situation
from unhang.model import Case, Frame, PendingCall, Reading
from unhang.testing import judge, make_case

PLAIN = """def main():
    for batch in loader:
        loss = model(batch)
        loss.backward()
    dist.barrier()
"""
BREAKS = """def main():
    for batch in loader:
        loss.backward()
        if budget.is_used_up():
            break
    dist.barrier()
"""
EPOCHS = """def main():
    for epoch in range(9):
        for batch in fetched(loader):
            loss.backward()
        if budget.is_used_up():
            break
    for batch in fetched(test_loader):
        model(batch)
    dist.barrier()
"""
SKIPS = """def main():
    for batch in loader:
        loss = model(batch)
        if not args.alone or rank == 0:
            loss.backward()
    dist.barrier()
"""


def left(source: str, ends: Mapping[int, tuple[int, int]], call: int, behind: int, at: int = 2) -> Case:
    """Rank 2 is in the barrier behind the loop. `ends`: of the loader at line `at` by rank, (how often, after how many batches)."""
    loop = [f"all_reduce[8]@main:{call}"] * 3
    others = {r: [*loop, f"all_reduce[8]@main:{call} !"] for r in range(2)}
    case = make_case({2: [*loop, f"barrier@main:{behind} !"], **others}, world=3, source=source)
    asked = Frame(case.calls.stacks[0][-1].file, at, "main")
    ranks = {
        r: replace(
            e,
            facts=(Reading("program.loader", "", {"ends": True}, r, at=asked),),
            pending=tuple(
                PendingCall("loader_end", ends[r][0], "", None, 1, 1, (asked,), str(ends[r][1]))
                for _ in range(r in ends)
            ),
        )
        for r, e in case.ranks.items()
    }
    return replace(case, ranks=ranks)


@pytest.mark.parametrize(
    ("ends", "cause"),
    [
        ({2: (1, 40)}, "uneven-inputs"),
        ({0: (1, 41), 1: (1, 41), 2: (1, 40)}, "uneven-inputs"),  # those who fetch ahead have come to their end as well
        (dict.fromkeys(range(3), (1, 40)), "code-divergence"),
        ({}, "code-divergence"),
    ],
)
@pytest.mark.parametrize("source", [PLAIN, BREAKS])
def test_the_data_is_to_blame_only_where_a_loader_ended(
    source: str, ends: Mapping[int, tuple[int, int]], cause: str
) -> None:
    call, behind = (4, 5) if source is PLAIN else (3, 6)
    found = judge(left(source, ends, call, behind)).findings[0]
    assert (found.cause, found.culprit_ranks) == (cause, (2,))
    line = 4 if source is BREAKS and cause == "code-divergence" else 2
    assert found.location is not None
    assert found.location.line == line


def test_data_of_another_kind_may_have_ended_where_no_loader_is_asked() -> None:
    found = judge(left(PLAIN, {}, 4, 5, at=9)).findings[0]
    assert found.cause == "uneven-inputs"


def test_what_was_read_behind_the_loop_has_not_ended_it() -> None:
    found = judge(left(EPOCHS, {2: (13, 8)}, 4, 9, at=7)).findings[0]
    assert found.location is not None
    assert (found.cause, found.culprit_ranks, found.location.line) == ("code-divergence", (2,), 5)


def test_a_condition_that_the_leavers_pass_is_no_reason_to_call_it_a_call_left_out() -> None:
    """`rank == 0` stands in the condition, but not args.alone is open: rank 2 may fail it. With a rank that it names, it may not."""
    assert _divergence(left(SKIPS, {}, 5, 6, at=9)).left_loop is None
    passed = SKIPS.replace("rank == 0", "rank != 1")
    assert _divergence(left(passed, {}, 5, 6, at=9)).left_loop is not None


def _divergence(case: Case) -> Divergence:
    found = Situation(case).divergence
    assert found is not None
    return found
