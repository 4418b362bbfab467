"""Rules on waits that nobody ends: keys of a store that nobody sets, groups that not all ranks make."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from unhang.analyze.calls.align import StuckCollective, majority
from unhang.analyze.calls.streams import Streams, stack_path
from unhang.analyze.program.callpath import Path, fork_of, innermost, loops_on, user_path
from unhang.analyze.program.peers import Behind, groups_in_turn, made_in_a_loop
from unhang.analyze.program.sides import started_ns
from unhang.analyze.program.source import Condition, around, frame_at
from unhang.analyze.program.trees import files_beside, last_name, line_text, nodes_of
from unhang.analyze.program.values import are_a_round_ahead
from unhang.analyze.program.ways_out import only_way_past, ways_past
from unhang.analyze.situation import LateRank, Situation
from unhang.analyze.waits.open_calls import all_in_unknown_calls
from unhang.analyze.waits.order import predicted, tokens_of
from unhang.analyze.waits.waits_for import setter_of, under_way
from unhang.model import CollectiveCall, EvidenceLine, Fix, Frame, PendingCall, user_frames
from unhang.rules import wording as w
from unhang.rules.advice import decided_together, deciding, gate_of, said_plainly
from unhang.rules.base import CLEAN, Found, edit, rule
from unhang.rules.late import found_late

_RANK = re.compile(r"\d+")
_ASKED_NONE = re.compile(r"([\w.]+) is not None")


@rule("subgroup-not-created-by-all", needs=("ranks",))
def subgroup_not_created_by_all(s: Situation) -> Found | None:
    """The first `new_group` that differs, if someone waits in one, or all in a group of which NCCL makes the communicator."""
    if not any(e.kind == "new_group" and e.targets for e in s.waits.edges) and not all_in_unknown_calls(s):
        return None
    made = {r: [c for c in e.pending if c.kind == "new_group"] for r, e in s.case.ranks.items()}
    waits = {r: calls[-1] for r, calls in made.items() if calls and calls[-1].ended_ns is None}
    if any(c.tag for c in waits.values()):  # the members alone make it, each pair in its own time
        details = {r: c.detail for r, c in waits.items()}
        return _not_by_all(s, {r: [c] for r, c in waits.items()}, details, 0) if _are_crossed(waits) else None
    made = {r: [c for c in calls if not c.tag] for r, calls in made.items()}
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
    crossed = _are_crossed({r: calls[i] for r, calls in made.items() if i < len(calls)})
    words = {
        "pairs": w.listed([f"rank {r} that of {d}" for r, d in sorted(details.items())]),
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
        () if crossed else culprits,
        [EvidenceLine(f"rank {r} new_group", text) for r, text in seen.items()],
        words,
        "apart" if crossed else say,
        fixes=_one_turn(call) if crossed else ("on every rank",),
        location=frame,
        collective={"op": "new_group", "seq": call.index},
        condition=None if crossed else gate_of(gate),
    )


def _are_crossed(calls: Mapping[int, PendingCall]) -> bool:
    """Whether each rank waits at one line in a group of its own and one other rank, which waits in another group there."""
    groups = {r: set(_RANK.findall(c.detail)) for r, c in calls.items() if c.ended_ns is None}
    is_own = all(str(r) in members and len(members) == 2 for r, members in groups.items())
    ways = {user_path(c.frames) for c in calls.values()}
    is_waited = all({str(r) for r in groups} >= members for members in groups.values())
    return (
        len(groups) > 2
        and is_own
        and is_waited
        and len(ways) == 1
        and len({*map(frozenset, groups.values())}) == len(groups)
    )


def _one_turn(call: PendingCall) -> tuple[str | Fix, ...]:
    """To make the groups at the start is not enough where each rank comes to them in an order of its own: it then waits so in the calls of the groups."""
    mine = user_frames(call.frames)
    if (behind := made_in_a_loop(mine[0]) if mine and call.tag else None) is not None:
        return (_behind_the_loop(behind),)
    if (turn := groups_in_turn(mine) if mine else None) is None:
        return ("in one order",)
    start = (
        f"in __init__() of {turn.owner}, which every rank makes" if turn.owner else "right after init_process_group()"
    )
    return (
        edit(
            "Make the groups on every rank at the start, and come to them in one order",
            f"# {w.spot(turn.made)}, not here but {start}\n{turn.text}\n"
            f"# {w.spot(turn.head)}: go over it in the order of the groups, in place of `{turn.old}`\n{turn.new}",
            does="every rank calls",
        ),
    )


def _behind_the_loop(found: Behind) -> Fix:
    members = f"{found.name}s"
    return edit(
        "Make the groups behind the loop, in one order: each rank comes to them in an order of its own",
        f"# in front of the loop: {members} = []\n# {w.spot(found.made)}, in place of the statement there\n{members}.append({found.name})\n"
        f"# behind the loop\nfor {found.name} in sorted({members}):\n    {found.statement}",
        verify=CLEAN,
    )


@rule("round-left-out", needs=("stacks",))
def round_left_out(s: Situation) -> Found | None:
    """Ranks that are in a later round of a loop than those that wait for them to make the group of theirs, and the one test that leads past a round there."""
    waits = [e for e in s.waits.edges if e.kind == "rendezvous" and e.targets]
    if not waits or s.divergence is not None or s.primary_failure is not None or s.case.hang is None:
        return None
    waiting = tuple(sorted({e.waiter for e in waits}))
    awaited = sorted({t for e in waits for t in e.targets} & s.case.ranks.keys())
    for frame, loop in {(f, x): 0 for r in awaited for _, f, x in loops_on(stack_path(s.case, r) or ())}:
        ahead = tuple(r for r in awaited if are_a_round_ahead(s.case, (r,), waiting, frame, loop.header + 1))
        ways = [way for way in ways_past(frame.file, loop, frame.line) if way.goes_on]
        conditions = around(frame_at(frame.file, ways[0].leaves_at)).conditions if len(ways) == 1 else ()
        if not ahead or not conditions or len(ahead) >= len(waiting) + len(awaited) - len(ahead):
            continue
        place, gate = frame_at(frame.file, ways[0].leaves_at), conditions[-1]
        words = {
            "who": w.name_ranks(ahead), "are": w.verb(ahead, "⟨is|was⟩", "⟨are|were⟩"), "test": gate.text, "at": w.at(place),
            "others": w.name_ranks(waiting), "loop": w.line_at(frame.file, loop.header), "call": w.spot(frame),
        }  # fmt: skip
        seen = [x for r in (ahead[0], waiting[0]) for x in w.stack_lines(s.case.ranks[r], 3)]
        return Found(
            0.93, ahead, [*seen, *w.code_line(place, "source")], words, fixes=("in its group",), condition=gate_of(gate),
            victims=tuple(r for r in s.case.in_sight if r not in ahead), location=place,
        )  # fmt: skip
    return None


@rule("waits-for-store", needs=("stacks",))
def waits_for_store(s: Situation) -> Iterator[Found]:
    """Nobody is left who could set the key; or each call that was made twice or left out."""
    if s.divergence is not None or s.primary_failure is not None or not s.judges_waits:
        return
    yield from (_made_twice(s, stuck) for stuck in s.stuck if _is_made_twice(s, stuck))
    omitted = [_left_out(s, stuck) for stuck in s.stuck if _is_left_out(s, stuck)]
    yield from omitted
    if not omitted and (passed := _passed_over(s)) is not None:
        yield passed
        return
    waiting = [r for r in s.late if r.activity.kind == "communication" and _waits_for_key(s, r.rank)]
    concerned = {r for late in waiting for r in (late.rank, *late.victims)}
    is_one_key = len({e.what for late in waiting for e in s.waits.edges_of(late.rank)}) == 1 or len(waiting) == 1
    for late in waiting if is_one_key and not omitted and concerned >= set(s.case.world) else ():
        keys = [e.what for e in s.waits.edges_of(late.rank)]
        lines = [EvidenceLine(f"rank {late.rank} waits", f"for {key}") for key in keys]
        if (found := _never_set(s, late, lines)) is not None:
            yield found
            return
        words: dict[str, object] = {"key": keys[0].removesuffix(" of the store")}
        deleted = _deleted_at(s, late)
        words |= {"deleted": w.spot(deleted)} if deleted else {}
        fixes = ("keep the key",) if deleted else _USUAL
        yield found_late(s, late, 0.85, words, say="waits", evidence=lines, fixes=fixes)


_USUAL = ("always", "one protocol")


def _deleted_at(s: Situation, late: LateRank) -> Frame | None:
    """The one line by which the program deletes keys of a store, in the files of the line that waits for one."""
    frame = late.activity.frame
    found = [
        frame_at(path, n.lineno)
        for path in (files_beside(frame.file) if frame else ())
        for n in nodes_of(path)
        if isinstance(n, ast.Call) and last_name(n.func) == "delete_key"
    ]
    return found[0] if len(found) == 1 else None


def _never_set(s: Situation, late: LateRank, lines: Sequence[EvidenceLine]) -> Found | None:
    """All wait for a key, also the one rank that set every key like it before."""
    wait = under_way(s.case.ranks[late.rank], "store_wait")
    setter = setter_of(s.case, wait) if wait is not None else None
    if wait is None or setter is None or setter[0] != late.rank:
        return None
    last = setter[1]
    frame = next(iter(last.frames), None)
    words = {"key": wait.detail, "times": last.index, "last": last.detail, "line": w.place(frame)}
    evidence = [*lines, EvidenceLine(f"rank {late.rank} last set", repr(last.detail), frame.line if frame else None)]
    found = found_late(s, late, 0.85, words, say="never_set", evidence=evidence, fixes=_USUAL)
    return replace(found, location=frame or found.location)


def _passed_over(s: Situation) -> Found | None:
    """The rank that set all keys like the awaited one, and waits in another call for those who wait for the key."""
    for edge in (e for e in s.waits.edges if e.kind == "store" and len(e.targets) == 1):
        wait = under_way(s.case.ranks[edge.waiter], "store_wait")
        setter = setter_of(s.case, wait) if wait is not None else None
        if wait is None or setter is None or not any({edge.waiter, setter[0]} <= set(c) for c in s.waits.cycles):
            continue
        rank, last = setter
        waiting = tuple(sorted(e.waiter for e in s.waits.edges if e.kind == "store" and e.targets == (rank,)))
        own = s.waits.edges_of(rank)[0]
        frame, condition = _decided_at(s, last)
        words = {
            "rank": rank, "key": _missing_key(s, wait), "times": last.index, "last": last.detail, "line": w.place(frame), "call": own.what,
            "waiting": w.name_ranks(waiting), "wait": w.verb(waiting, "waits", "wait"),
            "peers": "The others have set theirs." if "," in wait.detail else "No other rank has set such a key.",
            "test": f" It is set only if `{condition.text}`." if condition else "",
        }  # fmt: skip
        evidence = (
            *map(w.waiting_line, (edge, own)),
            EvidenceLine(f"rank {rank} last set", repr(last.detail), frame.line if frame else None),
            *w.stack_lines(s.case.ranks.get(edge.waiter), 3),
        )
        way = _way_past(last)
        words |= way or {}
        # Ranks decide together only where all of them come; who leaves it out with others is still waited for.
        together = condition if not way and not _is_by_rank(s, last) else None
        fixes: tuple[str | Fix, ...] = ("always at" if way else "always",)
        if together is not None:
            fixes = (*fixes, decided_together(frame, together))
        return Found(0.88, (rank,), evidence, words, "passed_over", fixes, location=frame, condition=gate_of(together))
    return None


def _missing_key(s: Situation, wait: PendingCall) -> str:
    """The first of the awaited keys that no rank has set last."""
    last = {call.detail for e in s.case.ranks.values() for call in e.pending if call.kind == "store_set"}
    return next((key for key in wait.detail.split(",") if key not in last), wait.detail)


def _way_past(last: PendingCall) -> Mapping[str, object] | None:
    """The words of the fix for the one test that leads past a key, on the way to it."""
    ways = ((f, way) for f in last.frames if f.is_user and (way := only_way_past(f)) is not None)
    found = next(ways, None)
    if found is None:
        return None
    frame, way = found
    spot, setting = w.line_at(frame.file, way.leaves_at or way.line), line_text(frame.file, frame.line)
    asked = _ASKED_NONE.search(way.text)
    is_none = asked is not None and re.search(rf"\b{re.escape(asked[1])}\b", setting) is not None
    none = f"; `{asked[1]}` is None there, and those that read it have to go on without it" if asked and is_none else ""
    return {"spot": spot, "way": way.text, "set_at": frame.line, "setting": setting, "none": none}


def _decided_at(s: Situation, last: PendingCall) -> tuple[Frame | None, Condition | None]:
    """The line on the way to the last key of its sort that does not always run, with its condition; else the one that set it.

    A condition on the rank alone is passed by the rank that has set them all.
    """
    for frame in last.frames:
        open_ones = [c for c in around(frame, started_ns(s.case)).conditions if not c.depends_on_rank]
        if open_ones:
            return frame, deciding(open_ones)
    return next(iter(last.frames), None), None


def _is_by_rank(s: Situation, last: PendingCall) -> bool:
    """Whether a condition on the rank stands on the way to the key."""
    return any(c.depends_on_rank for f in last.frames for c in around(f, started_ns(s.case)).conditions)


def _is_made_twice(s: Situation, stuck: StuckCollective) -> bool:
    """Whether the few who wait have just made the same call, which nobody made twice before, and the others wait for a key."""
    few, others = stuck.waiting, tuple(stuck.missing)
    if not 0 < len(few) < len(others) or not all(_waits_for_key(s, r) for r in others):
        return False
    left = s.departures((*few, *others))
    if left != {r: stuck.calls[r].row for r in few}:
        return False
    twice = {r: _repetitions(s, r, stuck.index) for r in (*few, *others)}
    return all(rows == ([left[r]] if r in left else []) for r, rows in twice.items())


def _repetitions(s: Situation, rank: int, group: int) -> list[int]:
    """The rows of a rank's calls of a group that are like the one before."""
    rows = s.case.calls.rows(rank=rank, group=group)
    tokens = s.habits.tokens[rows]
    return [int(row) for row in rows[1:][tokens[1:] == tokens[:-1]]]


def _made_twice(s: Situation, stuck: StuckCollective) -> Found:
    few, others = stuck.waiting, tuple(sorted(stuck.missing))
    words = {"make": w.verb(few, "makes", "make"), "wait": w.verb(others, "waits", "wait")}
    return _of_few(s, few, others, stuck.calls[few[0]], words, "twice", _awaited_lines(s, others))


def _of_few(
    s: Situation,
    few: tuple[int, ...],
    others: Sequence[int],
    call: CollectiveCall,
    words: Mapping[str, object],
    say: str,
    more: Iterable[EvidenceLine],
) -> Found:
    path, name = user_path(call.frames), w.name_call(call)
    return Found(
        0.75,
        few,
        (w.path_line(call.rank, f"#{call.seq} {name} (waits)", path), *more),
        {"few": w.name_ranks(few), "others": w.name_ranks(others), "call": name, "at": w.at_end_of(path), **words},
        say,
        ("one protocol",),
        **w.at_call(call, innermost(path)),
    )


def _awaited_lines(s: Situation, ranks: Iterable[int]) -> list[EvidenceLine]:
    return [w.waiting_line(e) for r in list(ranks)[:4] for e in s.waits.edges_of(r)[:1]]


def _is_left_out(s: Situation, stuck: StuckCollective) -> bool:
    """Whether the few who are missing always made this call next, and have left the function in which they did."""
    few, others = tuple(stuck.missing), stuck.waiting
    if not 0 < len(few) < len(others) or not all(_waits_for_key(s, r) for r in s.case.world if r not in others):
        return False
    here = tokens_of(s.case, {stuck.seq: stuck.calls[others[0]].row})[stuck.seq]
    streams = Streams(s.case, stuck.index, stuck.seq)
    for rank in few:
        made, stack = tokens_of(s.case, streams.rows.get(rank, {})), stack_path(s.case, rank)
        if stuck.seq - 1 not in made or not stack or predicted(made, stuck.seq)[:1] != [here]:
            return False
        if _shared(stack, here[1]) >= _shared(made[stuck.seq - 1][1], here[1]):
            return False
    return True


def _shared(left: Path, right: Path) -> int:
    """How many functions two paths share, from the outermost one on."""
    if left == right:
        return len(left)
    fork = fork_of(left, right)
    return fork.depth + 1 if fork is not None else 0


def _waits_for_key(s: Situation, rank: int) -> bool:
    edges = s.waits.edges_of(rank)
    return bool(edges) and all(e.kind == "store" for e in edges)


def _left_out(s: Situation, stuck: StuckCollective) -> Found:
    few, others = tuple(sorted(stuck.missing)), stuck.waiting
    wait, few_wait = w.verb(others, "waits", "wait"), w.verb(few, "waits", "wait")
    words = {"wait": wait, "few_wait": few_wait, "they": w.verb(few, "it has", "they have")}
    stacks = [line for r in few[:2] for line in w.stack_lines(s.case.ranks.get(r), 3)]
    return _of_few(s, few, others, stuck.calls[others[0]], words, "left_out", (*stacks, *_awaited_lines(s, few)))
