"""Calls that do not complete although every member has issued them; and the call that a silent rank should have made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from unhang.analyze.align import members_of
from unhang.analyze.situation import Situation
from unhang.model import CallState, CollectiveCall, CollectiveTable, WaitEdge
from unhang.numeric import np

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


_MOST_WAITERS = 64


def _counts(table: CollectiveTable, rank: int, completed_only: bool) -> dict[str, int]:
    """Kind of group -> the last sequence number that the rank issued, or that it completed."""
    found: dict[str, int] = {}
    rows = table.rank_rows(rank)
    for group, seq, state, is_p2p in zip(
        *(table[n][rows].tolist() for n in ("group", "seq", "state", "is_p2p")), strict=True
    ):
        if not is_p2p and (state == CallState.COMPLETED or not completed_only):
            kind = table.groups[group].desc or table.groups[group].name
            found[kind] = max(found.get(kind, 0), seq)
    return found


def awaited_call(
    table: CollectiveTable, rank: int, edges: Iterable[WaitEdge], fronts: Mapping[int, Sequence[int]]
) -> CollectiveCall | None:
    """The call that the rank's peers made next, where the rank made none.

    `edges`: the waits for the rank. `fronts`: the rows of the calls in which each rank waits.

    Several peers may wait in different calls. The one whose completed calls are those that the rank has issued is at the
    very next one.
    """
    waits = sorted(edges, key=lambda e: (e.kind != "collective", e.since_ns or 0))[:_MOST_WAITERS]
    mine = _counts(table, rank, completed_only=False)
    best: tuple[tuple[int, int, int], CollectiveCall] | None = None
    for edge in waits:
        theirs = _counts(table, edge.waiter, completed_only=True)
        distance = sum(abs(n - theirs.get(kind, 0)) for kind, n in mine.items())
        for row in fronts.get(edge.waiter, ()):
            call = table.call(row)
            if call.group.name != edge.group or (call.seq != edge.seq and not call.is_p2p):
                continue
            key = (int(edge.kind != "collective"), distance, edge.since_ns or 0)
            if best is None or key < best[0]:
                best = key, call
    return best[1] if best else None
