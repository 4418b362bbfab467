"""Calls that every member has issued and that do not complete, and the devices that are behind in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from unhang.analyze.align import members_of
from unhang.analyze.situation import Situation
from unhang.model import CallState, CollectiveCall

STALLED = "has not begun it on its device, though every call before it has completed"
FROZEN = "has not completed it where its peers have: its device, or what watches it, stopped there"


class InFlight(NamedTuple):
    """A call that all members have issued and that is open. `behind`: members whose device is not as far as the others'."""

    call: CollectiveCall
    members: tuple[int, ...]
    behind: tuple[int, ...]
    how: str


def in_flight(s: Situation) -> tuple[InFlight, ...]:
    """The calls in which ranks wait although every member has come to them, one per position, oldest first.

    Those before them that a device of its own account has not begun.
    """
    table, seen = s.case.calls, {}  # type: ignore[var-annotated]
    for rank in s.recorded.fronts:
        for row in s.recorded.in_flight(rank):
            other = s.recorded.transfers.get(row)
            if not table["is_p2p"][row]:
                seen.setdefault((int(table["group"][row]), int(table["seq"][row])), row)
            elif other is not None:
                seen.setdefault(tuple(sorted((row, other))), row)
    found = [*_stalled(s), *(_in_flight_at(s, row) for row in seen.values())]
    return tuple(sorted(found, key=lambda f: (not f.behind, f.call.created_ns)))


def _stalled(s: Situation) -> Iterable[InFlight]:
    """One for each call that is the next one of devices that stand still."""
    ranks: dict[tuple[int, ...], list[int]] = {}
    table, frozen = s.case.calls, s.recorded.frozen.devices
    rows = {rank: frozen[rank] if rank in frozen else s.recorded.fronts[rank][0] for rank in s.recorded.stalled}
    for rank, row in sorted(rows.items()):
        key = (int(table["group"][row]), int(table["seq"][row]), *([rank] if table["is_p2p"][row] else []))
        ranks.setdefault(key, []).append(rank)
    for (group, *_), behind in ranks.items():
        how = FROZEN if behind[0] in frozen else STALLED
        yield InFlight(table.call(rows[behind[0]]), members_of(s.index, group), tuple(behind), how)


def _in_flight_at(s: Situation, row: int) -> InFlight:
    table = s.case.calls
    group, seq = int(table["group"][row]), int(table["seq"][row])
    if table["is_p2p"][row]:
        rows = np.array([row, s.recorded.transfers[row]])
        ranks, states = table["rank"][rows], table["state"][rows]
        members = tuple(sorted(ranks.tolist()))
    else:
        position = s.index.position(group, seq)
        assert position is not None
        ranks, states, members = position.ranks, position.states, members_of(s.index, group)
    done = states == CallState.COMPLETED
    begun = states != CallState.SCHEDULED
    if not (states == CallState.STARTED).any():
        begun = np.ones(len(states), dtype=bool)  # the dumps do not tell
    for how, is_ahead, most in (
        ("has not completed it on its device, where the others have", done, (len(ranks) - 1) // 2),
        ("has not begun it on its device, where its peers have", begun, len(ranks) // 2),
    ):
        behind = tuple(sorted(ranks[~is_ahead].tolist()))
        if 0 < len(behind) <= most:
            return InFlight(table.call(row), members, behind, how)
    return InFlight(table.call(row), members, (), "")
