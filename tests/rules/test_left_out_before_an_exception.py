"""An exception after a collective that the rank left out is told as what it may be: a consequence of that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from unhang.model import Case
from unhang.rules.registry import judge
from unhang.testing import ended, make_case

ECHO = "RuntimeError: Connection closed by peer [127.0.0.1]:4242@main:10>gather:3"
FEATURES, PEOPLE = "all_gather[8] Float@main:10>gather:3", "all_gather[8] Long@main:10>gather:3"
GRADIENTS = "all_reduce[64] Float@main:12"
ROUND = [FEATURES, PEOPLE, GRADIENTS]
SOURCE = """\
def gather(x):
    parts = []
    dist.all_gather(parts, x)

def main():
    for step in range(steps):
        begin()
        try:
            a = first()
            loss = gather(x), gather(y)
            after()
            loss.backward()
            b = second()
        except ValueError:
            save()
"""


def crash(
    rounds: list[str],
    last: str,
    missed: str,
    error: str,
    peers: Iterable[int] = (0, 2, 3),
    others: Mapping[int, str] | None = None,
) -> Case:
    """Rank 1 raises after `last`; its peers made `missed`, too, and wait in it. `others`: what those without a dump raised."""
    calls = {r: [*rounds, last, f"{missed} !"] for r in peers}
    case = make_case(
        {**calls, 1: [*rounds, last]},
        source=SOURCE,
        errors={1: error, 0: ECHO, 2: ECHO, **(others or {})},
        exits={1: ended("exit", 1)},
        hang=None,
        exit_code=1,
    )
    file = case.calls.stacks[-1][0].file
    ranks = dict(case.ranks)
    for rank in (1, *(others or ())):
        raised = ranks[rank].error
        assert raised is not None
        frames = tuple(replace(f, file=file) for f in raised.frames)
        ranks[rank] = replace(ranks[rank], error=replace(raised, frames=frames))
    return replace(case, ranks=ranks)


def told(case: Case) -> tuple[str, tuple[int, ...], int | None]:
    first = judge(case).findings[0]
    return first.cause, first.culprit_ranks, first.location.line if first.location else None


LEFT_OUT = {
    "the second of a line's two calls": (ROUND * 3, FEATURES, PEOPLE, "IndexError: 260081@main:12>backward:20", 3),
    "once, and then a call from the line that failed": (
        ROUND, FEATURES, PEOPLE, "IndexError: 260081@main:12>backward:20", 3),
    "the next line": (["barrier@main:9", "barrier@main:11"] * 3, "barrier@main:9", "barrier@main:11",
                      "ValueError: x@main:13", 11),
}  # fmt: skip
RAISED = {
    "one call a round": ([FEATURES] * 6, FEATURES, FEATURES, "IndexError: 1@main:12", 12),
    "the last call of a round": (ROUND * 3, PEOPLE, GRADIENTS, "IndexError: 1@main:11", 11),
    "the next round's first call": ([FEATURES, PEOPLE] * 3 + [FEATURES], PEOPLE, FEATURES, "IndexError: 1@main:12", 12),
    "two calls a round, of which either may be the first": (
        [FEATURES, PEOPLE] * 3, FEATURES, PEOPLE, "IndexError: 1@main:12", 12),
    "before the line": (ROUND * 3, GRADIENTS, FEATURES, "IndexError: 1@main:7", 7),
    "a jump to a handler": (ROUND * 3, FEATURES, PEOPLE, "OSError: full@main:15", 15),
    "once, and nothing from the line that failed": (ROUND, FEATURES, PEOPLE, "IndexError: 1@main:13", 13),
    "behind its last call, in the function that made it": (
        ROUND * 3, FEATURES, GRADIENTS, "IndexError: 1@main:10>gather:4", 4),
    "never before": ([], FEATURES, PEOPLE, "IndexError: 1@main:12", 12),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_OUT)
def test_the_call_that_was_left_out_is_named(name: str) -> None:
    *parts, line = LEFT_OUT[name]
    assert told(crash(*parts)) == ("code-divergence", (1,), line)


@pytest.mark.parametrize("name", RAISED)
def test_an_exception_alone_stays_an_exception(name: str) -> None:
    *parts, line = RAISED[name]
    assert told(crash(*parts)) == ("user-exception", (1,), line)


@pytest.mark.parametrize(("where", "cause"), [("main:10>gather:3", "code-divergence"), ("main:7", "user-exception")])
def test_a_peer_without_a_dump_was_in_the_call_if_its_own_exception_came_out_of_it(where: str, cause: str) -> None:
    *parts, _ = LEFT_OUT["the second of a line's two calls"]
    assert told(crash(*parts, peers=(0, 2), others={3: ECHO.replace("main:10>gather:3", where)}))[0] == cause
