"""Which few ranks deserve to be read whole, after the last calls of all have been seen."""

from __future__ import annotations

from collections.abc import Iterable

from unhang.analyze.graph import edges_on
from unhang.analyze.situation import Situation

MOST_RANKS = 96
_OF_EACH, _PEERS = 8, 3


def ranks_that_matter(s: Situation) -> tuple[int, ...]:
    """Culprits in question and some of their peers, whose earlier calls and stacks decide what is said; at most 96."""
    found: dict[int, None] = {}
    for rank in _in_order_of_weight(s):
        if len(found) >= MOST_RANKS:
            break
        found.setdefault(rank)
    return tuple(sorted(found))


def _in_order_of_weight(s: Situation) -> Iterable[int]:
    for stuck in [x for x in s.stuck if x.is_mismatch][:_OF_EACH]:
        for members in stuck.classes[::-1]:
            yield from members[:_OF_EACH]
    waits = edges_on(s.waits, [late.rank for late in s.late[:_OF_EACH]])
    for late in s.late[:_OF_EACH]:
        yield late.rank
        edges = sorted(waits[late.rank], key=lambda e: (e.kind != "collective", e.since_ns or 0))
        yield from (e.waiter for e in edges[:_PEERS])
    for cycle in sorted(s.waits.cycles, key=len)[:_OF_EACH]:
        yield from cycle[: 2 * _OF_EACH]
    if not s.late:
        yield from (rank for rank, _ in zip(s.recorded.fronts, range(_OF_EACH), strict=False))
