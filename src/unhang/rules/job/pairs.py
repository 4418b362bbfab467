"""Rules on sends and receives without another side: who is sent to, or received from, is another one than waits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from unhang.analyze.calls.left_out import left_out_step
from unhang.analyze.program.callpath import innermost, user_path
from unhang.analyze.program.peers import SENDS, Places, names_the_peer, places_for_ranks
from unhang.analyze.program.trees import line_text
from unhang.analyze.situation import Situation
from unhang.analyze.waits.transfers import TagsApart, partners_apart, tags_apart, wrong_peers
from unhang.model import CallState, CollectiveCall, CollectiveTable, Fix, Frame, PendingCall, user_frames
from unhang.rules import wording as w
from unhang.rules.advice import fixes_of, gate_of
from unhang.rules.base import CLEAN, Found, edit, rule


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
                (_right_rank(frame),),
                **w.at_pending(call, frame),
            )


def _right_rank(frame: Frame | None) -> str | Fix:
    """A change only where the line shows what is wrong with the peer: a number, or a place in a list of ranks."""
    places = places_for_ranks(frame) if frame is not None else None
    if frame is not None and places is not None:
        return _take_the_rank(frame, places)
    return "right rank" if frame is None or names_the_peer(frame) else "see the peer"


def _take_the_rank(frame: Frame, places: Places) -> Fix:
    lines = [
        f"# {w.line_at(frame.file, line)}, in place of `{given}`\n{given.partition('=')[0]}={peer}"
        for line, given, peer in places.given
    ]
    return edit(
        f"Take the rank out of `{places.members}`: the peer is a place in that list, which is its rank only while no rank is left out",
        "\n".join(lines),
        verify=CLEAN,
    )


def _apart(s: Situation, partners: Mapping[int, PendingCall]) -> Found:
    """Each of the ranks has begun to send to a peer and to receive from it, and the peer does so with another one."""
    pairs = w.listed([f"rank {rank} with rank {call.peer}" for rank, call in partners.items()])
    frame = w.own_line(next(iter(partners.values())).frames)
    edges = [e for r in partners for e in s.waits.edges_of(r)]
    return Found(
        0.88,
        (),
        (*map(w.waiting_line, edges[:6]), *w.code_line(frame, "exchange")),
        {"ranks": w.name_ranks(tuple(partners)), "pairs": pairs, "line": w.place(frame), "lead": w.lead(frame)},
        "apart",
        ("one draw",),
        location=frame,
    )


def _other_tags(s: Situation, tags: TagsApart) -> Found:
    """The tags are what keeps the two sides apart, not their order."""
    mine, theirs = (w.own_line(c.frames) for c in (tags.send, tags.receive))
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
        "tags",
        ("one tag",),
        **w.at_pending(tags.send, where),
    )


def open_transfers(s: Situation) -> Iterator[CollectiveCall]:
    """The sends and receives in which ranks without a stack wait."""
    table = s.case.calls
    rows = (row for rows in s.recorded.fronts.values() for row in rows)
    yield from (table.call(row) for row in rows if table["is_p2p"][row] and table["peer"][row] >= 0)


def _is_new_partner(table: CollectiveTable, call: CollectiveCall) -> bool:
    """Whether the rank made this kind of call before, and never with this peer."""
    if call.rank in table.active_ranks:
        return False  # its history is not in the dump
    rows = table.rank_rows(call.rank)
    is_same = table["is_p2p"][rows] & (table["op"][rows] == table["op"][call.row])
    peers = table["peer"][rows][is_same & (table["state"][rows] == CallState.COMPLETED)]
    return len(peers) > 0 and call.peer not in peers.tolist()


def step_left_out(s: Situation, cycle: tuple[int, ...]) -> Found | None:
    """Of a circle: that ranks of it left a step of the optimizer out, and are elsewhere in the program since."""
    found = left_out_step(s.case, cycle)
    if found is None:
        return None
    by = f"`{line_text(found.way.file, found.way.line).rstrip(':')}` ({w.spot(found.way)}) leads past it"
    words = {
        "who": w.name_ranks(found.ranks),
        "are": w.verb(found.ranks, "is", "are"),
        "others": w.name_ranks(found.others),
        "led": by if found.way != found.at else f"it runs only if `{found.test.text}`",
        **{"few": found.steps[0], "many": found.steps[1]},
        **{"at": w.place(found.at), "mine": w.place(found.mine), "theirs": w.place(found.theirs)},
    }
    waits = [e for r in cycle for e in s.waits.edges_of(r)]
    return Found(
        0.92,
        found.ranks,
        (*map(w.waiting_line, waits[:4]), *w.code_line(found.at, "step"), *w.code_line(found.way, "way past it")),
        words,
        "step left out",
        fixes_of(found.at, found.test, w.name_ranks(found.ranks)),
        s.others(found.ranks),
        **w.at_wait(waits[0], found.way),
        cause="code-divergence",
        condition=gate_of(found.test),
    )


def made_before(s: Situation, cycle: tuple[int, ...]) -> Found | None:
    """What explains a circle by what was done before it: a step that some left out, or groups that threads have made in an order of their own."""
    return step_left_out(s, cycle) or groups_of_threads(s, cycle)


def groups_of_threads(s: Situation, cycle: tuple[int, ...]) -> Found | None:
    """Of a circle over several groups: that threads made these, whose order is each rank's own, and torch pairs groups in the order in which they are made."""
    edges = [e for r in cycle for e in s.waits.edges_of(r)[:1]]
    names = {e.group for e in edges if e.kind == "collective"}
    made = [c for r in cycle for c in s.case.ranks[r].pending if c.kind == "new_group" and str(c.index) in names]
    places = {c.frames[0] for c in made if c.frames}
    begins = {c.frames[-1].function for c in made if c.frames}
    if (
        len(names) < _SEVERAL
        or len(made) != len(names) * len(cycle)
        or len(places) != 1
        or not _are_threads(s, names, begins)
    ):
        return None
    at = places.pop()
    words = {
        "ranks": w.name_ranks(cycle), "at": w.at(at), "spot": w.spot(at), "groups": w.listed(sorted(names)), "begins": made[0].frames[-1].function,
        "waits": "; ".join(f"rank {e.waiter} waits for {w.name_ranks(e.targets)} in {e.what}" for e in edges[:6]),
    }  # fmt: skip
    lines = (*map(w.waiting_line, edges[:4]), *w.code_line(at, "makes the groups"))
    return Found(0.9, (), lines, words, "groups of threads", ("make before",), **w.at_wait(edges[0], at))


_SEVERAL, _THREAD_BEGINS = 2, "_bootstrap"


def _are_threads(s: Situation, groups: Collection[str], begins: Collection[str]) -> bool:
    """Whether threads that Python started make the calls of these groups, below the functions below which the groups were made."""
    table = s.case.calls
    for number in (i for i, g in enumerate(table.groups) if g.name in groups):
        rows = table.rows(group=number)
        frames = table.call(int(rows[-1])).frames or () if len(rows) else ()
        if not frames or frames[-1].function != _THREAD_BEGINS or user_frames(frames)[-1].function not in begins:
            return False
    return True


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
            seen = w.path_line(call.rank, f"{w.name_call(call)} {side} rank {call.peer} (open)", path)
            yield Found(
                0.92,
                (call.rank,),
                (seen, *map(w.waiting_line, s.waits.edges_of(call.rank)[:2])),
                {"rank": call.rank, "call": call.op, "side": side, "peer": call.peer, "at": w.at_end_of(path)},
                **w.at_call(call, innermost(path)),
            )
