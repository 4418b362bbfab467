"""Waits in sends and receives: those for which the other side has not come, and who may bring it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from unhang.analyze.activity import is_blocked
from unhang.analyze.program.peers import RECEIVES, SENDS
from unhang.model import Case, PendingCall, RankEvidence, WaitEdge

_P2P = {"send": "recv", "recv": "send", "isend": "irecv", "irecv": "isend"}
_BLOCKING, _TELLS = ("send", "recv"), ("send", "recv", "work_wait")
_MOST_SENDERS = 64


def _count(evidence: RankEvidence | None, kinds: Sequence[str], peer: int | None, tag: int | None = None) -> int:
    calls = evidence.pending if evidence else ()
    return sum(c.kind in kinds and (peer is None or c.peer == peer) and (tag is None or c.tag == tag) for c in calls)


def unmatched_p2p(case: Case, rank: int) -> tuple[PendingCall, ...]:
    """The rank's sends and receives for which the peer has issued too few of the other side; those in which it waits come first."""
    found, seen = [], {}  # type: ignore[var-annotated]
    for call in case.ranks[rank].pending:
        if call.kind not in _P2P or call.peer is None:
            continue
        side = RECEIVES if call.kind in RECEIVES else SENDS
        key = (side, call.peer, call.tag)
        seen[key] = seen.get(key, 0) + 1
        if call.ended_ns is None and _issued(case, rank, call) < (call.nth or seen[key]):
            found.append(call)
    return tuple(sorted(found, key=lambda c: (c.kind not in _BLOCKING, not c.awaited_ns)))


def _issued(case: Case, rank: int, call: PendingCall) -> int:
    """How many of the other side of a rank's transfer its peer has issued, also those that its record no longer holds."""
    evidence = case.ranks.get(-1 if call.peer is None else call.peer)
    other = SENDS if call.kind in RECEIVES else RECEIVES
    if not call.nth:
        return _count(evidence, other, rank, call.tag)
    like = (rank, call.tag, call.group)
    made = [c for c in evidence.pending if c.kind in other] if evidence else []
    return max((c.nth for c in made if (c.peer, c.tag, c.group) == like), default=0)


def awaited_transfer(case: Case, rank: int) -> PendingCall | None:
    """The send or receive in which the rank waits. One that it has merely begun only where nothing tells for which it waits."""
    is_told = any(c.ended_ns is None and (c.kind in _TELLS or c.awaited_ns) for c in case.ranks[rank].pending)
    calls = unmatched_p2p(case, rank)
    return next((c for c in calls if c.kind in _BLOCKING or c.awaited_ns or not is_told), None)


def p2p_edges(case: Case) -> Iterable[WaitEdge]:
    """Waits of ranks in a send or receive whose other side has not come."""
    for rank, evidence in case.ranks.items():
        if not evidence.pending or not any(c.kind in _P2P for c in evidence.pending) or not is_blocked(evidence):
            continue
        call = awaited_transfer(case, rank)
        if call is not None and call.peer is not None:
            arrow = f"from rank {call.peer}" if call.kind in RECEIVES else f"to rank {call.peer}"
            what, since = f"{call.kind} {arrow}", call.awaited_ns or call.started_ns
            yield WaitEdge(rank, (call.peer,), "p2p", what, call.group, call.index, since)
        elif call is None and (of_any := _receive_of_any(case, rank)) is not None:
            what, since = f"{of_any.kind} from any rank", of_any.awaited_ns or of_any.started_ns
            for peer in _members(case, of_any, rank):  # whoever comes ends it: each of them must be unable to
                yield WaitEdge(rank, (peer,), "p2p", what, of_any.group, of_any.index, since, of_any=True)


def _receive_of_any(case: Case, rank: int) -> PendingCall | None:
    """The receive in which the rank waits for whoever sends first; none where a send to it is under way."""
    waits = [c for c in case.ranks[rank].pending if c.ended_ns is None and c.kind in RECEIVES and c.peer is None]
    others = (c for r, e in case.ranks.items() if r != rank for c in e.pending)
    is_sent = any(c.kind in SENDS and c.ended_ns is None and c.peer == rank for c in others)
    return waits[0] if len(waits) == 1 and not is_sent else None


def _members(case: Case, call: PendingCall, rank: int) -> Sequence[int]:
    """The others of a call's group, of which any may send."""
    group = next((g.ranks for g in case.groups if g.name == call.group), ())
    return [r for r in group if r != rank] if len(group) <= _MOST_SENDERS else []
