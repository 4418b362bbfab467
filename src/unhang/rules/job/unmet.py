"""Rules on waits that nobody ends: sends and receives whose other side is another one or nowhere, a call that a rank went past, a group not made by all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from unhang.analyze.align import majority
from unhang.analyze.callpath import user_path
from unhang.analyze.open_calls import all_in_unknown_calls
from unhang.analyze.order import left_out
from unhang.analyze.overtaking import Overtaking
from unhang.analyze.sides import started_ns
from unhang.analyze.situation import Situation
from unhang.analyze.source import around
from unhang.analyze.transfers import TagsApart, partners_apart, tags_apart, wrong_peers
from unhang.analyze.waits_for import SENDS
from unhang.model import CallState, CollectiveCall, CollectiveTable, EvidenceLine, PendingCall, user_frames
from unhang.rules import wording as w
from unhang.rules.advice import deciding, fixes_of, gate_of, said_plainly
from unhang.rules.base import Found, rule


@rule("wrong-peer", needs=("ranks",))
def wrong_peer(s: Situation) -> Iterator[Found]:
    """Each call with a peer that expects nothing of it, while another rank waits for its rank."""
    if s.divergence is not None or s.primary_failure is not None or s.late or not s.judges_waits:
        return
    if apart := partners_apart(s):
        yield _apart(s, apart)
        return
    if tags := tags_apart(s):
        yield _other_tags(s, tags)
        return
    for rank, call, waiter in wrong_peers(s):
        if rank in s.proven:
            frame = next(iter(call.frames), None)
            words = {
                "rank": rank,
                "call": call.kind,
                "side": "to" if call.kind in SENDS else "from",
                "peer": call.peer,
                "line": w.place(frame),
                "lead": w.lead(frame),
                "waiter": waiter,
            }
            yield Found(
                0.92,
                (rank,),
                (*(w.waiting_line(e) for e in s.waits.edges[:4]), *w.stack_lines(s.case.ranks.get(rank), 3)),
                words,
                "peer",
                ("right rank",),
                location=frame,
                group=w.group_named(call.group),
                collective={"op": call.kind, "seq": call.index},
            )


def _apart(s: Situation, partners: Mapping[int, PendingCall]) -> Found:
    """Each of the ranks has begun to send to a peer and to receive from it, and the peer does so with another one."""
    pairs = w.listed([f"rank {rank} with rank {call.peer}" for rank, call in partners.items()])
    frame = next(iter(user_frames(next(iter(partners.values())).frames)), None)
    edges = [e for r in partners for e in s.waits.edges_of(r)]
    return Found(
        0.88,
        (),
        (*map(w.waiting_line, edges[:6]), *w.code_line(frame, "exchange")),
        {"ranks": w.name_ranks(tuple(partners)), "pairs": pairs, "line": w.place(frame), "lead": w.lead(frame)},
        "apart/apart",
        ("one draw",),
        location=frame,
    )


def _other_tags(s: Situation, tags: TagsApart) -> Found:
    """The tags are what keeps the two sides apart, not their order."""
    mine, theirs = (next(iter(user_frames(c.frames)), None) for c in (tags.send, tags.receive))
    where = theirs if tags.odd == (tags.receiver,) else mine
    words = {
        "sender": tags.sender, "receiver": tags.receiver, "tag": tags.send.tag, "wanted": tags.receive.tag,
        "send_at": w.place(mine), "receive_at": w.place(theirs),
        "odd": f" The tags of rank {tags.odd[0]} went up by the same number each time before, and did not here." if tags.odd else "",
    }  # fmt: skip
    edges = [e for r in (tags.sender, tags.receiver) for e in s.waits.edges_of(r)]
    return Found(
        0.92 if tags.odd else 0.85,
        tags.odd,
        (*map(w.waiting_line, edges[:4]), *w.code_line(mine, "send"), *w.code_line(theirs, "receive")),
        words,
        "tags/tags",
        ("one tag",),
        location=where,
        group=w.group_named(tags.send.group),
        collective={"op": tags.send.kind, "seq": tags.send.index},
    )


def open_transfers(s: Situation) -> Iterator[CollectiveCall]:
    """The sends and receives in which ranks without a stack wait."""
    table = s.case.calls
    for rows in s.recorded.fronts.values():
        for row in rows:
            if table["is_p2p"][row] and table["peer"][row] >= 0:
                yield table.call(row)


def _is_new_partner(table: CollectiveTable, call: CollectiveCall) -> bool:
    """Whether the rank made this kind of call before, and never with this peer."""
    if call.rank in table.active_ranks:
        return False  # its history is not in the dump
    rows = table.rank_rows(call.rank)
    is_same = table["is_p2p"][rows] & (table["op"][rows] == table["op"][call.row])
    peers = table["peer"][rows][is_same & (table["state"][rows] == CallState.COMPLETED)]
    return len(peers) > 0 and call.peer not in peers.tolist()


@rule("new-partner", needs=("calls",))
def new_partner(s: Situation) -> Iterator[Found]:
    """Each call with a peer that is new and does not answer."""
    for call in open_transfers(s) if s.judges_waits and not s.failures else ():
        is_answered = s.recorded.transfers.get(call.row) is not None
        if is_answered or call.peer in s.case.out_of_sight or not _is_new_partner(s.case.calls, call):
            continue
        if s.departures([call.rank]).get(call.rank) == call.row:
            path = user_path(call.frames)
            side = "to" if call.op == "send" else "from"
            at = f" at {w.place(path[-1])}" if path else ""
            seen = w.path_line(call.rank, f"{w.name_call(call)} {side} rank {call.peer} (open)", path)
            yield Found(
                0.92,
                (call.rank,),
                (seen, *map(w.waiting_line, s.waits.edges_of(call.rank)[:2])),
                {"rank": call.rank, "call": call.op, "side": side, "peer": call.peer, "at": at},
                **w.at_call(call, path[-1] if path else None),
            )


@rule("transfer-mismatch", needs=("calls",))
def transfer_mismatch(s: Situation) -> Iterator[Found]:
    """Each pair of a send and its receive that differ in size or dtype."""
    seen: set[tuple[int, ...]] = set()
    for call in open_transfers(s) if s.judges_waits else ():
        edge = next((e for e in s.waits.edges_of(call.rank) if e.kind == "p2p" and e.mismatch), None)
        other = s.recorded.transfers.get(call.row)
        pair = tuple(sorted((call.rank, call.peer or 0)))
        if edge is not None and other is not None and pair not in seen and edge.targets == (call.peer,):
            seen.add(pair)
            yield _mismatch(s, call, s.case.calls.call(other))


def _mismatch(s: Situation, call: CollectiveCall, other: CollectiveCall) -> Found:
    new = s.departures((call.rank, other.rank))
    culprits = tuple(sorted(new)) if len(new) == 1 else tuple(sorted((call.rank, other.rank)))
    wrong, right = (call, other) if call.rank == culprits[0] else (other, call)
    path, is_sure = user_path(wrong.frames), len(culprits) == 1
    words = {
        "wrong": f"rank {wrong.rank} called {w.name_call(wrong)}",
        "right": f"rank {right.rank} called {w.name_call(right)}",
        "unsure": "" if is_sure else " Nothing tells which side is wrong.",
    }
    evidence = (
        w.path_line(wrong.rank, f"{w.name_call(wrong)} (open)", path),
        w.path_line(right.rank, f"{w.name_call(right)} (open)", user_path(right.frames)),
        EvidenceLine("pair", f"rank {wrong.rank} and rank {right.rank} in {wrong.group}"),
    )
    return Found(0.9 if is_sure else 0.6, culprits, evidence, words, **w.at_call(wrong, path[-1] if path else None))


@rule("call-left-out", needs=("ranks",))
def call_left_out(s: Situation) -> Iterator[Found]:
    """Each circle that ranks closed by going past a call."""
    for cycle in s.waits.cycles if s.divergence is None and s.judges_waits else ():
        if set(cycle) <= set(s.proven) and (found := left_out(s, cycle)):
            yield _went_past(s, found)


def _went_past(s: Situation, found: Sequence[Overtaking]) -> Found:
    culprits, first = tuple(sorted({o.rank for o in found})), found[0]
    call = (first.edge.kind, first.edge.group, first.edge.seq)
    is_shared = first.edge.kind == "collective"
    waits = [e for e in s.waits.edges if (e.kind, e.group, e.seq) == call] if is_shared else [first.edge]
    waiters = tuple(sorted({e.waiter for e in waits}))
    decisive = deciding(around(first.passed).conditions)
    evidence = s.case.ranks.get(waiters[0])
    made = evidence.main_frames if evidence else ()
    mine = [e for r in culprits for e in s.waits.edges_of(r)[:1]]
    words = {
        "who": w.name_ranks(culprits),
        "call": first.edge.what,
        "line": w.place(first.passed),
        "waiters": w.name_ranks(waiters),
        "wait": w.verb(waiters, "waits", "wait"),
        "function": first.passed.function,
        "stand": w.verb(culprits, "stands", "stand"),
        "waits": "; ".join(f"rank {e.waiter} waits for {w.name_ranks(e.targets)} in {e.what}" for e in mine[:4]),
    }
    stacks = [
        line
        for e in (*mine[:2], *waits[:2])
        for line in (w.waiting_line(e), *w.stack_lines(s.case.ranks.get(e.waiter), 2))
    ]
    say, more = said_plainly(decisive, first.passed, culprits, waiters, first.edge.what.split(" ")[0], is_skipped=True)
    return Found(
        0.85,
        culprits,
        (*w.code_line(first.passed, f"rank {waiters[0]} source"), *stacks),
        {**words, "others": w.name_ranks(waiters), **more},
        say,
        fixes=fixes_of(first.passed, decisive, w.name_ranks(culprits), made),
        condition=gate_of(decisive),
        location=first.passed,
        group=w.group_named(first.edge.group),
        collective={"op": first.edge.what.split(" ")[0], "seq": first.edge.seq},
    )


# The rule on groups that not all ranks made alike.


@rule("subgroup-not-created-by-all", needs=("ranks",))
def subgroup_not_created_by_all(s: Situation) -> Found | None:
    """The first `new_group` that differs, if someone waits in one, or all in a group of which NCCL makes the communicator."""
    if not any(e.kind == "new_group" and e.targets for e in s.waits.edges) and not all_in_unknown_calls(s):
        return None
    made = {r: [c for c in e.pending if c.kind == "new_group"] for r, e in s.case.ranks.items()}
    for i in range(max((len(calls) for calls in made.values()), default=0)):
        details = {r: calls[i].detail if i < len(calls) else "" for r, calls in made.items()}
        if len(set(details.values())) > 1:
            return _not_by_all(s, made, details, i)
    return None


def _not_by_all(
    s: Situation, made: Mapping[int, Sequence[PendingCall]], details: Mapping[int, str], i: int
) -> Found | None:
    named = {d for d in details.values() if d}
    behind = {r for r, d in details.items() if not d}
    if len(named) == 1 and any(late.rank in behind for late in s.late):
        return None  # those behind simply have not come yet: the rules on late ranks say where they are
    narrow = min(named, key=lambda d: (d.count(","), d))
    makers = tuple(sorted(r for r, d in details.items() if d == narrow))
    call = made[makers[0]][i]
    _, other, has_majority = majority(dict(details))
    culprits = other if has_majority else makers  # without a majority those that made the narrower group
    frame = next(iter(call.frames), None)
    gate = deciding(around(frame, started_ns(s.case)).conditions) if frame else None
    others = [r for r in s.case.in_sight if r not in makers]
    say, more = said_plainly(gate, frame, makers, others, "new_group", is_skipped=False)
    words = {
        "who": w.name_ranks(makers),
        "call": call.detail,
        "line": w.place(frame),
        "others": w.name_ranks(others),
        **more,
    }
    seen = {
        r: "; ".join(f"#{c.index} {c.detail}" + ("" if c.ended_ns else " (waits)") for c in calls) or "no call"
        for r, calls in sorted(made.items())[:8]
    }
    return Found(
        0.94,
        culprits,
        [EvidenceLine(f"rank {r} new_group", text) for r, text in seen.items()],
        words,
        say,
        location=frame,
        collective={"op": "new_group", "seq": call.index},
        condition=gate_of(gate),
    )
