"""Sends and receives between ranks: whose partner is another one, and who left the loop in which they were made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import NamedTuple

from unhang.analyze.calls.streams import stack_path
from unhang.analyze.hosts import ON_DEVICE
from unhang.analyze.program.callpath import Path, is_same_function, loops_on, user_path
from unhang.analyze.program.may_differ import SAME
from unhang.analyze.program.peers import RECEIVES, SENDS
from unhang.analyze.program.rounds import goes_through, rounds_of
from unhang.analyze.program.source import Loop, surroundings
from unhang.analyze.program.ways_out import ways_out
from unhang.analyze.situation import Situation
from unhang.analyze.waits.sends import awaited_transfer, unmatched_p2p
from unhang.model import CallState, Frame, PendingCall, WaitEdge

_LEAST_PAST, _LEAST_STRETCH = 3, 3
_LEAST_TIMES = 4


def wrong_peers(s: Situation) -> tuple[tuple[int, PendingCall, int], ...]:
    """(rank, its call, the rank that waits for the other side of it) of calls whose peer expects nothing of the kind.

    Not where the rank has made such a transfer with this peer before: then the peer is the right one, and has gone elsewhere; but for
    one who waits for it in a first transfer: then others take part now than before.
    """
    open_calls = {e.waiter: unmatched_p2p(s.case, e.waiter) for e in s.waits.edges if e.kind == "p2p"}
    found = []
    for rank, calls in open_calls.items():
        for call in calls[:1]:
            wanted = RECEIVES if call.kind in SENDS else SENDS
            peer_expects = any(c.peer == rank for c in open_calls.get(call.peer if call.peer is not None else -1, ()))
            awaited = (r for r, of in open_calls.items() if any(c.kind in wanted and c.peer == rank for c in of[:1]))
            others = [r for r in awaited if r != call.peer]
            is_kept = _is_new(s, rank) is False and not _has_joined(s, others)
            if others and not peer_expects and not is_kept:
                found.append((rank, call, others[0]))
    new = with_new_transfer(s, [rank for rank, _, _ in found])
    return tuple(f for f in found if not new or f[0] in new)


def _has_joined(s: Situation, ranks: Sequence[int]) -> bool:
    """Whether one of the ranks waits in a transfer and has ended none before."""
    made = {r: bool(len(s.case.calls.rows(rank=r, is_p2p=1, state=int(CallState.COMPLETED)))) for r in ranks}
    return any(not has_made and all(c.ended_ns is None for c in _noted(s, r)) for r, has_made in made.items())


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
    return any(c.tag == tag and c.ended_ns is not None for c in _noted(s, rank))


def _noted(s: Situation, rank: int) -> list[PendingCall]:
    """The sends and receives of a rank."""
    return [c for c in s.case.ranks[rank].pending if c.kind in (*SENDS, *RECEIVES)]


def _left_its_tags(s: Situation, rank: int, call: PendingCall) -> bool:
    """Whether the tags of the rank's transfers from this place went up by the same number each time, and do not here."""
    place = call.kind, call.peer, call.frames
    like = [c.tag for c in s.case.ranks[rank].pending if (c.kind, c.peer, c.frames) == place]
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
    made = [c for c in _noted(s, rank) if c.ended_ns is not None]
    if call is None or len(made) < _LEAST_PAST:
        return None
    side = SENDS if call.kind in SENDS else RECEIVES
    return not any(c.kind in side and c.peer == call.peer for c in made)


_LEAST_RUNS = 2


class LeftOutTransfer(NamedTuple):
    """A rank that waits in `instead`, where each time before it made `usual`, of the round before, for which its peer waits."""

    rank: int
    usual: PendingCall
    instead: PendingCall


def left_out_transfer(s: Situation, cycle: Sequence[int]) -> LeftOutTransfer | None:
    """The one member of a circle that went on without the transfer that it has always made there."""
    found = [x for r in cycle if (x := _left_out_by(s, r)) is not None]
    return found[0] if len(found) == 1 and found[0].usual.peer in cycle else None


def _left_out_by(s: Situation, rank: int) -> LeftOutTransfer | None:
    noted = _noted(s, rank) if rank in s.case.ranks else []
    if len(noted) < _LEAST_TIMES or noted[-1].ended_ns is not None:
        return None
    *before, last = noted
    after = [b for a, b in pairwise(before) if _place(a) == _place(before[-1])]
    places = set(map(_place, after))
    is_usual_too = _place(last) in map(_place, before)  # else it makes a transfer that it never made
    is_always = len(after) >= _LEAST_TIMES and len(places) == 1 and is_usual_too and _place(last) not in places
    return LeftOutTransfer(rank, after[-1], last) if is_always else None


def _place(call: PendingCall) -> tuple[bool, int | None, tuple[Frame, ...]]:
    return call.kind in SENDS, call.peer, call.frames


class OtherCount(NamedTuple):
    """A rank that made `made` transfers with a peer in a row, from one place, and `usual` of them each time before. `since_ns`: the first of them."""

    rank: int
    peer: int
    is_send: bool
    made: int
    usual: int
    way: Path
    since_ns: int = 0


@dataclass(frozen=True)
class LeftTransfers:
    """Ranks that left a loop in which they made transfers, one of which `waiter` still waits for.

    `are_own`: the stayers are in loops of their own in the same function, as pipeline stages or two sides of a queue are.
    `is_collective`: it is a collective, and the leavers are in one of another group. `of_any`: the waiter takes whoever sends, and `loop` is its own.
    `other`: who made another number of transfers in a row than each time before, where that is known.
    """

    leavers: tuple[int, ...]
    stayers: tuple[int, ...]
    waiter: int
    what: str
    frame: Frame
    loop: Loop
    are_own: bool = False
    other: OtherCount | None = None
    is_collective: bool = False
    of_any: bool = False


def left_transfers(s: Situation) -> LeftTransfers | None:
    """The first transfer whose other side has left the loop in which it took part before: it waits outside of it, or has ended."""
    for edge in s.waits.edges if s.divergence is None and s.primary_failure is None and s.judges_waits else ():
        if edge.kind == "collective" and (of_group := _left_to_another_group(s, edge)) is not None:
            return of_group
        if edge.of_any and (by_all := _left_by_all_senders(s, edge)) is not None:
            return by_all
        peer = edge.targets[0] if edge.kind == "p2p" and len(edge.targets) == 1 and not edge.of_any else None
        evidence, stay = s.case.ranks.get(-1 if peer is None else peer), stack_path(s.case, edge.waiter)
        if peer is None or evidence is None or not stay:
            continue
        has_ended = evidence.exit is not None and evidence.exit.kind == "exit" and not evidence.exit.code
        left = () if has_ended else stack_path(s.case, peer) if peer in s.proven else None
        if left is not None and (counted := _counted(s, edge, peer, stay, left)) is not None:
            return counted
        if left and _is_held_in_a_circle(s, edge, peer, left):
            continue
        before = _last_transfer(s, peer, edge.waiter)
        found = _loop_left(stay, left, before) if left is not None and before else None
        if found is not None and _has_joined(s, _sides(s, *found)[1]):
            continue
        if found is not None:
            return LeftTransfers(*_sides(s, *found), edge.waiter, edge.what, *found)
        own = _own_loop_left(stay, left, before) if left is not None and before else None
        if own is not None:
            paths = {r: stack_path(s.case, r) or () for r in s.case.ranks if r != peer}
            stayers = tuple(r for r, path in sorted(paths.items()) if _is_in_a_loop_of(path, own[0]))
            return LeftTransfers((peer,), stayers, edge.waiter, edge.what, *own, are_own=True)
    return None


def _left_by_all_senders(s: Situation, edge: WaitEdge) -> LeftTransfers | None:
    """Of a receive from whoever sends: all others wait, or have ended, outside of the loops from which they sent."""
    stay = stack_path(s.case, edge.waiter)
    loops, senders = loops_on(stay or ()), [t for e in s.waits.edges_of(edge.waiter) for t in e.targets]
    sent = {r: p for r in senders if r in s.case.ranks and (p := _last_transfer(s, r, edge.waiter))}
    if not loops or not sent or not {edge.waiter, *senders} <= set(s.proven):
        return None
    ways = {r: stack_path(s.case, r) or () for r in sent}
    gone = [r for r in sent if any(not goes_through(ways[r], f, loop) for _, f, loop in loops_on(sent[r]))]
    told = LeftTransfers(tuple(gone), (edge.waiter,), edge.waiter, edge.what, *loops[-1][1:], of_any=True)
    return told if len(gone) == len(sent) else None


def _is_held_in_a_circle(s: Situation, edge: WaitEdge, peer: int, left: Path) -> bool:
    """Whether the peer waits crosswise with others in sends or receives, and where it is may still come to what the waiter waits for.

    A waiter outside of the circle waits for what it holds up; one within, if the peer has made such transfers from the loop in which it is.
    """
    circles = [c for c in s.waits.cycles if peer in c and all(e.kind == "p2p" for r in c for e in s.waits.edges_of(r))]
    if not circles or all(edge.waiter not in c for c in circles):
        return bool(circles)
    wanted = RECEIVES if edge.what.split(" ")[0] in SENDS else SENDS
    made = (c for c in s.case.ranks[peer].pending if c.peer == edge.waiter and c.kind in wanted and c.ended_ns)
    inner = loops_on(left)[-1:]
    return any(goes_through(user_path(c.frames), frame, loop) for _, frame, loop in inner for c in made)


def _left_to_another_group(s: Situation, edge: WaitEdge) -> LeftTransfers | None:
    """The same of a collective: the peer has left the loop to one of another group, in which it waits for the waiter's side."""
    stay = stack_path(s.case, edge.waiter)
    for peer in edge.targets if stay and not edge.mismatch else ():
        left = stack_path(s.case, peer) if any({edge.waiter, peer} <= set(c) for c in s.waits.cycles) else None
        before = _last_in_group(s, peer, edge.group) if left and peer in s.proven else None
        gone = _loop_left(stay, left, before) if stay and left and before else None
        if gone is not None and not _is_a_round_ahead(s, edge.waiter, peer, *gone):
            return LeftTransfers(*_sides(s, *gone), edge.waiter, edge.what, *gone, is_collective=True)
    return None


def _is_a_round_ahead(s: Situation, waiter: int, peer: int, frame: Frame, loop: Loop) -> bool:
    """Whether the waiter came to the loop anew, by a call outside of it, and the peer has made none since its last round: it has not left that early."""
    is_within = [goes_through(path, frame, loop) if (path := _path_before(s, r)) else None for r in (waiter, peer)]
    return is_within == [False, True]


def _path_before(s: Situation, rank: int) -> Path:
    """The way to the call before the one in which a rank waits."""
    rows = s.case.calls.rank_rows(rank)
    return user_path(s.case.calls.call(rows.stop - 2).frames) if rows.stop - rows.start > 1 else ()


def _sides(s: Situation, frame: Frame, loop: Loop) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Who has left a loop, and who is in it."""
    paths = {r: stack_path(s.case, r) or () for r in s.case.ranks}
    stayers = tuple(r for r, path in sorted(paths.items()) if goes_through(path, frame, loop))
    return tuple(r for r in sorted(paths) if r not in stayers and _has_been_in(s, r, frame, loop)), stayers


def _last_in_group(s: Situation, rank: int, group: str) -> Path:
    """From where a rank made its last call of a group that ended."""
    index = next((i for i, g in enumerate(s.case.calls.groups) if g.name == group), None)
    if index is None:
        return ()
    rows = s.case.calls.rows(rank=rank, group=index, state=int(CallState.COMPLETED))
    return user_path(s.case.calls.call(int(rows[-1])).frames) if len(rows) else ()


def _counted(s: Situation, edge: WaitEdge, peer: int, stay: Path, left: Path) -> LeftTransfers | None:
    """The same, told by the numbers of transfers in a row: of the peer, which made fewer, or of the waiter, which makes more."""
    mine, theirs = _runs(s, edge.waiter, peer), _runs(s, peer, edge.waiter)
    under_way = [r for r in mine if any(c.ended_ns is None for c in r)]
    if not under_way:
        return None
    last = under_way[0 if _left_on_device(s, edge.waiter) else -1]
    is_send = last[0].kind in RECEIVES  # of the peer
    done = [r for r in theirs if (r[0].kind in SENDS) is is_send]
    other = _other_count(peer, done, done[-1], is_fewer=True) if done else None
    other = other or _other_count(edge.waiter, mine, last, is_fewer=False)
    # Where the header of a loop makes the call, that is not one of its rounds.
    around = [(f, x) for _, f, x in loops_on(other.way if other else ()) if x.header != f.line]
    if other is None or not around:
        return None
    place = around[-1]
    if other.rank == peer and theirs[-1] is done[-1] and goes_through(left, *place):
        return None
    are_own = not goes_through(stay if other.rank == peer else left, *place)
    return LeftTransfers((peer,), (edge.waiter,), edge.waiter, edge.what, *place, are_own, other)


def _transfers(s: Situation, rank: int) -> Sequence[PendingCall]:
    """All sends and receives of a rank as it noted them. A host is done with one at once: what its device has not done, its dump tells."""
    noted, left = _noted(s, rank), _left_on_device(s, rank)
    found: list[PendingCall] = []
    for call in reversed(noted if left else ()):
        key = call.peer, call.kind in SENDS
        left[key] = left.get(key, 0) - 1
        found.append(replace(call, ended_ns=None) if left[key] >= 0 else call)
    return found[::-1] or noted


def _left_on_device(s: Situation, rank: int) -> dict[tuple[int | None, bool], int]:
    """(peer, whether it is a send) -> how many the device has not done."""
    table = s.case.calls
    rows = table.rows(rank=rank, is_p2p=1)
    calls = [table.call(int(row)) for row in rows[table["state"][rows] != CallState.COMPLETED]]
    return Counter((c.peer, c.op == "send") for c in calls if c.group.backend == ON_DEVICE and c.op in ("send", "recv"))


def _runs(s: Situation, rank: int, peer: int) -> list[list[PendingCall]]:
    """A rank's transfers with a peer, those together that follow one another from one place; without a first run that may be cut."""
    calls = [c for c in _transfers(s, rank) if c.peer == peer]
    runs = [list(run) for _, run in groupby(calls, lambda c: (c.kind in SENDS, c.frames))]
    return runs if runs and runs[0][0].nth == 1 else runs[1:]


def _other_count(
    rank: int, runs: Sequence[list[PendingCall]], last: list[PendingCall], is_fewer: bool
) -> OtherCount | None:
    """What the last run is against those before it from the same place, which were all as long as each other."""
    place = last[0].kind in SENDS, last[0].frames
    before = {len(r) for r in runs if r is not last and (r[0].kind in SENDS, r[0].frames) == place}
    times = sum((r[0].kind in SENDS, r[0].frames) == place for r in runs) - 1
    if times < _LEAST_RUNS or len(before) != 1 or not last[0].frames or last[0].peer is None:
        return None
    usual = before.pop()
    is_other = len(last) < usual if is_fewer else len(last) > usual
    way, since_ns = user_path(last[0].frames), last[0].started_ns
    return OtherCount(rank, last[0].peer, place[0], len(last), usual, way, since_ns) if is_other else None


def _own_loop_left(stay: Path, left: Path, before: Path) -> tuple[Frame, Loop] | None:
    """The same of a peer whose role has a loop of its own in the function in which the waiter is in another one."""
    own = ((frame, loop) for _, frame, loop in loops_on(before) if _is_in_a_loop_of(stay, frame))
    return next((x for x in own if not goes_through(left, *x) and not goes_through(stay, *x)), None)


def _is_in_a_loop_of(path: Path, frame: Frame) -> bool:
    same = (f for f in path if is_same_function(f, frame))
    return any(surroundings(f.file, f.line).loops for f in same)


def _loop_left(stay: Path, left: Path, before: Path) -> tuple[Frame, Loop] | None:
    """(a frame of `stay`, the loop around its line): the outermost loop in which a rank was, and no longer is.

    One that has the same rounds on all ranks, by what it goes over, only where no loop within may have others.
    """
    gone = [(f, x) for _, f, x in loops_on(stay) if goes_through(before, f, x) and not goes_through(left, f, x)]
    open_to = (x for x in gone if rounds_of(x[0], x[1].header) != SAME or ways_out(x[0].file, x[1], x[0].line))
    return next(open_to, gone[0] if gone else None)


def _has_been_in(s: Situation, rank: int, frame: Frame, loop: Loop) -> bool:
    """Whether the rank made a call from within a loop."""
    table, rows = s.case.calls, s.case.calls.rank_rows(rank)
    stacks = [table.stacks[i] for i in {int(i) for i in table["frames"][rows]} if i >= 0]
    stacks += [c.frames for c in s.case.ranks[rank].pending]
    return any(goes_through(user_path(frames), frame, loop) for frames in stacks)


def _last_transfer(s: Situation, rank: int, peer: int) -> Path:
    """From where a rank made its last transfer with a peer that ended."""
    evidence, table = s.case.ranks[rank], s.case.calls
    made = [c for c in evidence.pending if c.peer == peer and c.ended_ns is not None and c.frames]
    if made:
        return user_path(max(made, key=lambda c: c.started_ns).frames)
    rows = table.rows(rank=rank, is_p2p=1, peer=peer, state=int(CallState.COMPLETED))
    return user_path(table.call(int(rows[-1])).frames) if len(rows) else ()
