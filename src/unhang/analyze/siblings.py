"""The call that a silent rank should have made, told by a rank that runs the same program and came one call further."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from unhang.model import CallState, CollectiveCall, CollectiveTable, WaitEdge

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
