"""Sends and receives whose other side is another rank, or carries another tag."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from unhang.analyze.situation import Situation
from unhang.analyze.waits_for import RECEIVES, SENDS, awaited_transfer, unmatched_p2p
from unhang.model import PendingCall

_LEAST_PAST, _LEAST_STRETCH = 3, 3


def wrong_peers(s: Situation) -> tuple[tuple[int, PendingCall, int], ...]:
    """(rank, its call, the rank that waits for the other side of it) of calls whose peer expects nothing of the kind.

    Not where the rank has made such a transfer with this peer before: then the peer is the right one, and has gone elsewhere.
    """
    open_calls = {e.waiter: unmatched_p2p(s.case, e.waiter) for e in s.waits.edges if e.kind == "p2p"}
    found = []
    for rank, calls in open_calls.items():
        for call in calls[:1]:
            wanted = RECEIVES if call.kind in SENDS else SENDS
            peer_expects = any(c.peer == rank for c in open_calls.get(call.peer if call.peer is not None else -1, ()))
            others = [
                r
                for r, theirs in open_calls.items()
                if r != call.peer and any(c.kind in wanted and c.peer == rank for c in theirs[:1])
            ]
            if others and not peer_expects and _is_new(s, rank) is not False:
                found.append((rank, call, others[0]))
    new = with_new_transfer(s, [rank for rank, _, _ in found])
    return tuple(f for f in found if not new or f[0] in new)


class TagsApart(NamedTuple):
    """A send and a receive of one pair of ranks that carry different tags. `odd`: the rank whose tag left its own row; empty where none or both did."""

    send: PendingCall
    receive: PendingCall
    sender: int
    receiver: int
    odd: tuple[int, ...]


def tags_apart(s: Situation) -> TagsApart | None:
    """The first open send of a rank whose receiver waits for one with another tag, as never before on either side."""
    for sender in sorted({e.waiter for e in s.waits.edges if e.kind == "p2p"}):
        for send in (c for c in unmatched_p2p(s.case, sender) if c.kind in SENDS):
            receiver = -1 if send.peer is None else send.peer
            if receiver not in s.proven or receiver not in s.case.ranks or sender not in s.proven:
                continue
            theirs = [c for c in unmatched_p2p(s.case, receiver) if c.kind in RECEIVES and c.peer == sender]
            receive = next((c for c in theirs if c.group == send.group and c.tag != send.tag), None)
            if receive is not None and not _has_met(s, sender, receive.tag) and not _has_met(s, receiver, send.tag):
                left = {r: _left_its_tags(s, r, c) for r, c in ((sender, send), (receiver, receive))}
                odd = tuple(r for r, is_so in left.items() if is_so)
                return TagsApart(send, receive, sender, receiver, odd if len(odd) == 1 else ())
    return None


def _has_met(s: Situation, rank: int, tag: int) -> bool:
    """Whether a transfer of the rank with this tag has ended: then two that both sides make are in another order."""
    made = (c for c in s.case.ranks[rank].pending if c.kind in (*SENDS, *RECEIVES))
    return any(c.tag == tag and c.ended_ns is not None for c in made)


def _left_its_tags(s: Situation, rank: int, call: PendingCall) -> bool:
    """Whether the tags of the rank's transfers from this place went up by the same number each time, and do not here."""
    like = [
        c.tag for c in s.case.ranks[rank].pending if (c.kind, c.peer, c.frames) == (call.kind, call.peer, call.frames)
    ]
    steps = [b - a for a, b in pairwise(like)]
    return len(steps) > _LEAST_STRETCH and len(set(steps[:-1])) == 1 and steps[-1] != steps[0]


def partners_apart(s: Situation) -> dict[int, PendingCall]:
    """The sends of ranks each of which has begun to send to one peer and to receive from it, where not all pairs are mutual.

    Their order cannot be the reason, as both directions are under way: they do not agree on who exchanges with whom.
    Only where all ranks that wait crosswise do so.
    """
    found: dict[int, PendingCall] = {}
    for rank in sorted({e.waiter for e in s.waits.edges if e.kind == "p2p"}):
        calls = unmatched_p2p(s.case, rank)
        send = next((c for c in calls if c.kind in SENDS), None)
        receives = [c for c in calls if c.kind in RECEIVES]
        if send is not None and receives and {c.peer for c in calls} == {send.peer}:
            found[rank] = send
    circles = [c for c in s.waits.cycles if len(c) > 2 and found.keys() >= set(c)]
    return found if circles and len(circles) == len(s.waits.cycles) else {}


def with_new_transfer(s: Situation, ranks: Sequence[int]) -> tuple[int, ...]:
    """Those of the ranks that wait in a send or receive with a peer, or in a direction, that they have not had before.

    Nothing where that tells nobody from the others: where it is new to all, or the past of one is too short to tell.
    """
    is_new = {rank: _is_new(s, rank) for rank in ranks}
    new = tuple(rank for rank, is_so in is_new.items() if is_so)
    return new if None not in is_new.values() and 0 < len(new) < len(is_new) else ()


def _is_new(s: Situation, rank: int) -> bool | None:
    """Whether the rank made no transfer like the one in which it waits before; None where its past is too short."""
    call = awaited_transfer(s.case, rank)
    made = [c for c in s.case.ranks[rank].pending if c.kind in (*SENDS, *RECEIVES) and c.ended_ns is not None]
    if call is None or len(made) < _LEAST_PAST:
        return None
    side = SENDS if call.kind in SENDS else RECEIVES
    return not any(c.kind in side and c.peer == call.peer for c in made)
