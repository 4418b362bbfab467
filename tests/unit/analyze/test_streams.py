"""Where a call came from that a dump keeps without its frames: the stack of the thread that made it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unhang.analyze.calls.streams import stack_of_call
from unhang.model import Case, Frame, ThreadStack
from unhang.testing import make_case

MAIN, SECOND = 140000000000001, 140000000000002


def _case(thread: str, *idents: int) -> Case:
    case = make_case({0: ["all_reduce[8] !"]}, world=1)
    stacks = tuple(
        ThreadStack(f"t{i}", (Frame("train.py", i, "f"),), is_main=i == MAIN, ident=i, process_id=None) for i in idents
    )
    ranks = {0: replace(case.ranks[0], stacks=stacks)}
    return replace(case, ranks=ranks, calls=replace(case.calls, threads=(thread,) * len(case.calls.threads)))


@pytest.mark.parametrize(
    ("thread", "expected"),
    [(f"python {SECOND}", SECOND), (f"python {MAIN}", MAIN), ("main", MAIN), (f"python {SECOND + 7}", None)],
)
def test_a_call_stands_where_its_own_thread_does(thread: str, expected: int | None) -> None:
    stack = stack_of_call(_case(thread, MAIN, SECOND), 0)
    assert (stack.ident if stack else None) == expected


def test_where_threads_have_no_number_the_main_one_is_meant() -> None:
    case = _case(f"python {SECOND}", MAIN)
    stack = replace(case.ranks[0].stacks[0], ident=None)
    case = replace(case, ranks={0: replace(case.ranks[0], stacks=(stack,))})
    assert stack_of_call(case, 0) is stack
