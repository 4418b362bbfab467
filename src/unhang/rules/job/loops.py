"""The rule on ranks that make another number of rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unhang.analyze.calls import loop_heads
from unhang.analyze.calls.divergence import Divergence
from unhang.analyze.calls.framework_loops import below, left_framework
from unhang.analyze.calls.handled import BegunAnew, begun_anew
from unhang.analyze.calls.streams import stack_path
from unhang.analyze.program import early_ends, rounds, ways_out
from unhang.analyze.program.callpath import Path, user_path
from unhang.analyze.program.may_differ import SAME
from unhang.analyze.program.shared_state import ListOfCalls, list_of_calls
from unhang.analyze.program.source import Loop, is_up_to_the_rank
from unhang.analyze.program.trees import line_text
from unhang.analyze.situation import Situation
from unhang.analyze.waits.leaving import (
    ended_in_loop,
    exhausted_by,
    lead_of_waiting,
    made_other_rounds,
    other_transfers,
)
from unhang.analyze.waits.transfers import LeftTransfers, OtherCount
from unhang.model import CollectiveCall, EvidenceLine, Frame, RankEvidence
from unhang.rules import wording as w
from unhang.rules.advice import call_first
from unhang.rules.base import Found, rule
from unhang.rules.early_ends import ended_early, in_order_of_set
from unhang.rules.framework_advice import at_gone, of_gone, say_gone, why_gone
from unhang.rules.remedies import fail_together
from unhang.rules.repairs import of_list
from unhang.rules.start_repairs import resumed_apart

_SKIPS = "round skipped"
_ALL_ALIKE = {"skipped": "together", "left early": "leave together", _SKIPS: "leave out together"}  # else: skip together  # fmt: skip
_EVEN = ("agree", "join", "even")


@rule("uneven-inputs")
def uneven_inputs(s: Situation) -> Found | None:
    """A loop that some ranks left, by a call outside of it or by the end of their program."""
    if not made_other_rounds(s):
        return None
    d = s.divergence
    if d is not None:
        if (found := in_order_of_set(s, d)) is not None:
            return found
        if d.left_loop is not None:
            return _left_loop(s, d)
        return _exhausted(s, d, end) if (end := exhausted_by(s, d)) else _left_framework(s, d)
    if (ended := ended_in_loop(s)) is not None:
        return _ended(s, *ended)
    transfers = other_transfers(s)
    return _left_transfers(s, transfers) if transfers is not None else None


def _left_loop(s: Situation, d: Divergence) -> Found:
    loop = d.left_loop
    assert loop is not None
    words = {
        "leavers": w.name_ranks(loop.leavers),
        "stayers": w.name_ranks(loop.stayers),
        "are": w.verb(loop.stayers, "is", "are"),
        "have": w.verb(loop.leavers, "has", "have"),
        **{"loop": w.place(loop.frame), "header": loop.header, "before": d.seq - 1, "seq": d.seq, "group": d.group},
        "steps": w.steps_apart(s.case.ranks),
    }
    header = loop.head
    found = Found(
        0.94 if d.has_majority else 0.85,
        d.odd,
        (*w.both_sides(d), *w.code_line(header, "loop")),
        words,
        "left",
        _EVEN,
        **w.at_fork(d, header),
    )
    if loop.has_none:
        return replace(found, say="no round")
    if (start := loop_heads.other_start(s.case, d)) is not None:
        return _began_elsewhere(found, d, start)
    if (bound := loop_heads.changed_bound(loop.frame, loop.header)) is not None:
        return _by_changed_bound(found, bound, loop, d.has_majority)
    if (end := loop_heads.end_of_generator(header.file, header.line)) is not None:
        return _by_generator(found, *end)
    if (files := rounds.counted_by_files(header.file, header.line)) is not None:
        return _by_files(found, files)
    sides = (d.reference_path, d.reference_call), (d.odd_path, d.odd_call)
    (stay, stayed), (left, gone) = sides if loop.stayers == d.reference else sides[::-1]
    if is_data := rounds.ran_out(s.case, loop.leavers, loop.stayers, gone.created_ns, header):
        return resumed_apart(found, header)
    if (start := loop_heads.counted_start(stay, left)) is not None:
        return _began_elsewhere(found, d, start)
    if (many := list_of_calls(stayed.frames or ())) is not None and (is_data is False or many.is_chosen):
        return _by_list(found, many)
    if (anew := begun_anew(stayed.frames or (), left, loop.frame, loop.header, is_data is False)) is not None:
        return _done_anew(found, anew)
    return _by_its_end(s, d, found, (stay, left), is_data)


def _by_its_end(s: Situation, d: Divergence, found: Found, ways: tuple[Path, Path], is_data: bool | None) -> Found:
    """What may have ended the rounds, where nothing before the loop tells. `ways`: of those who stay, of those who left."""
    loop, (stay, left) = d.left_loop, ways
    assert loop is not None
    header, way = loop.head, ways_out.way_out_of(s.case, stay, left, loop.leavers)
    if way is None and (keys := loop_heads.keys_gone_over(header.file, header.line)):
        return _by_keys(found, keys, header)
    if way is None and is_data is False:
        files = rounds.ended_by_files(header.file, header.line)
        return _by_files(found, files) if files is not None else _not_the_data(found)
    if way is None and (skip := early_ends.skipped_round(loop.frame)) is not None:
        return _by_way_out(found, skip, d.has_majority, says=_SKIPS)
    if way is None:
        return ended_early(s, loop, found)
    if not d.has_majority:  # those who took the way out did what the others did not
        found = replace(found, culprits=loop.leavers)
    if (around := ways_out.loop_left_by(way, stay)) is not None:
        at, header_line = around
        found = replace(found, words={**found.words, "loop": w.place(at), "header": header_line})
    said, asked = _by_way_out(found, way, d.has_majority), call_first(below(stay, way[0]))
    return replace(said, fixes=(asked,)) if asked is not None else said


def _left_framework(s: Situation, d: Divergence) -> Found:
    gone = left_framework(s)
    assert gone is not None
    is_decided = gone.stop is not None or gone.has_data
    who = gone.leavers if is_decided else d.odd if d.has_majority else gone.stayers
    where = at_gone(gone, below(d.reference_path if gone.stayers == d.reference else d.odd_path, gone.line))
    words = {
        "leavers": w.name_ranks(gone.leavers), "stayers": w.name_ranks(gone.stayers), "call": gone.call, "line": w.place(gone.line),
        "loop": w.place(gone.loop), "before": d.seq - 1, "seq": d.seq, "group": d.group, "why": why_gone(gone), "steps": w.steps_apart(s.case.ranks),
        **({"stop": w.place(gone.stop), "text": line_text(gone.stop.file, gone.stop.line)} if gone.stop else {}),
    }  # fmt: skip
    return Found(
        0.86 if is_decided else 0.94 if d.has_majority else 0.8,
        who,
        (*w.both_sides(d), *w.code_line(where, "way out" if gone.stop else "source")),
        words,
        say_gone(gone),
        of_gone(s, d, gone, _EVEN),
        **w.at_fork(d, where),
        cause="code-divergence" if is_decided else "",
    )


def _retold(found: Found, say: str, words: Mapping[str, object], at: Frame, label: str, **more: Any) -> Found:
    """The same rounds, of which a line of the program tells why they are not as many. `label`: what that line is, as evidence; `more`: other fields of `Found`."""
    told = {"cause": "code-divergence", "evidence": (*found.evidence, *w.code_line(at, label)), "location": at, **more}
    return replace(found, say=say, words={**found.words, **words}, **told)


def _began_elsewhere(found: Found, d: Divergence, start: loop_heads.Start) -> Found:
    """Not the data but the first round differs: read from a checkpoint, a file or a setting that not all ranks had."""
    words = {
        "who": w.name_ranks(d.odd),
        "others": w.name_ranks(d.reference),
        **{"name": start.name, "mine": start.mine, "theirs": start.theirs, "text": start.text, "header": start.header},
        **{"set": w.place(start.frame), "begin_loop": w.place(replace(start.frame, line=start.header))},
    }
    sure, say = (0.93 if d.has_majority else 0.85, "began elsewhere") if start.mine else (0.8, "counts from")
    return _retold(found, say, words, start.frame, "first round", confidence=sure, fixes=("begin",))


def _by_changed_bound(
    found: Found,
    bound: loop_heads.Bound,
    sides: rounds.LeftLoop | LeftTransfers,
    is_decided: bool,
    because: str = "other bound",
) -> Found:
    """The rounds are counted by a number that the program changes as it goes, where a condition came true."""
    counts = "the list that it goes over" if bound.is_list else "its number of rounds"
    changed = () if bound.grows is None else sides.stayers if bound.grows else sides.leavers
    words = {"name": bound.name, "text": bound.text, "set": w.place(bound.frame), "counts": counts}
    first: dict[str, object] = {"head": bound.header, "src": min(changed, default=0)}
    sure, say = 0.86 if is_decided else 0.78, f"other bound/{because}"
    told = _retold(found, say, {**words, **first}, bound.frame, "rounds", confidence=sure, fixes=("one count",))
    seen = [EvidenceLine(f"rank {r} rounds", f"{bound.name} has changed there") for r in changed[:1]]
    return replace(told, evidence=(*told.evidence, *seen))


def _by_way_out(
    found: Found, way: tuple[Frame, ways_out.WayOut], is_decided: bool, because: str = "", says: str = ""
) -> Found:
    """Not the data but the program may have made the rounds fewer: a test that leaves the loop, or a handler that skips a round."""
    frame, out = way
    test = out.text.removeprefix("if ").removesuffix(":")
    words = {"way": w.place(frame), "text": out.text, "test": test, "out_line": out.line}
    says = says or ("skipped" if out.text.startswith("except") else "left early")
    sure, say = 0.86 if is_decided else 0.78, f"{says}/{because or says}"
    label, fixes = "way past" if says == _SKIPS else "way out", (_ALL_ALIKE.get(says, "skip together"),)
    if says == "left early" and is_up_to_the_rank(frame.file, out.line, out.leaves_at):
        fixes = ("each its part",)
    return _retold(found, say, words, frame, label, confidence=sure, fixes=fixes)


def _by_generator(found: Found, frame: Frame, end: ways_out.WayOut) -> Found:
    """What the loop goes over is a generator of the program, which a test ends early."""
    words = {"way": w.place(frame), "text": end.text, "out_line": end.line}
    return _retold(found, "generator", words, frame, "end of the generator", cause=found.cause)


def _by_files(found: Found, files: rounds.CountOfFiles) -> Found:
    """How many rounds there are hangs on the files that each rank finds for itself."""
    words = {"name": files.name, "text": files.text, "spot": w.spot(files.at)}
    return _retold(found, "files", words, files.at, "files", cause="filesystem-race", fixes=("one looks",))


def _by_list(found: Found, many: ListOfCalls) -> Found:
    """One line gathers a list item by item, and the ranks have not as many."""
    words, sure = {"line": w.place(many.at), "call": many.call}, min(found.confidence, 0.88)
    return _retold(_but_the_loop(found), "list", words, many.at, "list", confidence=sure, fixes=(of_list(many),))


def _by_keys(found: Found, keys: str, header: Frame) -> Found:
    """What the loop goes over is a dictionary of the program, to which each rank has added what it met."""
    return _retold(found, "other keys", {"keys": keys, "spot": w.spot(header)}, header, "keys", fixes=("same keys",))


def _done_anew(found: Found, anew: BegunAnew) -> Found:
    """An exception led out of the loop and was handled above: what the loop is in was done once more on those ranks alone."""
    by = f"by `{anew.by}` ({w.spot(anew.at)})" if anew.by else f"from {w.place(anew.at)}"
    told = {"confidence": min(found.confidence, 0.86), "location": found.location}
    words = {"again": anew.function, "by": by}
    fixes = (fail_together(anew), "together")
    return _retold(_but_the_loop(found), "done anew", words, anew.at, "begun anew", fixes=fixes, **told)


def _not_the_data(found: Found) -> Found:
    """The loader is known to have more, and nothing in the loop tells why it was left."""
    sure, fixes = min(found.confidence, 0.8), ("together", "agree")
    return replace(_but_the_loop(found), cause="code-divergence", confidence=sure, say="not the data", fixes=fixes)


def _but_the_loop(found: Found) -> Found:
    """Without the head of the loop as evidence: what that goes over has not ended it."""
    return replace(found, evidence=tuple(e for e in found.evidence if e.source != "loop"))


def _exhausted(s: Situation, d: Divergence, end: tuple[int | None, str]) -> Found:
    assert d.fork is not None
    line, variable = end
    frame = d.fork.right
    handler = Frame(frame.file, line, frame.function) if line else None
    words = {
        "who": w.name_ranks(d.odd),
        "mine": w.name_call(d.odd_call),
        "theirs": w.name_call(d.reference_call),
        "line": w.place(frame),
        "variable": repr(variable),
        "caught": f"; StopIteration is caught at line {line}" if line else "",
        "steps": w.steps_apart(s.case.ranks),
    }
    return Found(
        0.9 if d.has_majority else 0.6,
        d.odd,
        (*w.both_sides(d), *(w.code_line(handler, "handler") if handler else ())),
        words,
        "exhausted",
        _EVEN,
        **w.at_fork(d, handler or frame),
    )


def _left_transfers(s: Situation, gone: LeftTransfers) -> Found:
    is_even = len(gone.leavers) == len(gone.stayers) and gone.other is None
    culprits = gone.stayers if len(gone.stayers) < len(gone.leavers) else gone.leavers
    if gone.other is not None:
        culprits = (gone.other.rank,)
    header = Frame(gone.frame.file, gone.loop.header, gone.frame.function)
    words = {
        "leavers": w.name_ranks(gone.leavers),
        "stayers": w.name_ranks(gone.stayers),
        "are": w.verb(gone.stayers, "is", "are"),
        "wait": w.verb(gone.leavers, "waits", "wait"),
        "loop": w.place(header),
        "waiter": gone.waiter,
        "what": gone.what,
        "steps": w.steps_apart(s.case.ranks),
    }
    edges = [e for r in (gone.waiter, *gone.leavers[:1]) for e in s.waits.edges_of(r)]
    how = "another group" if gone.is_collective else "transfers"
    found = Found(
        0.75 if is_even else 0.9,
        culprits,
        (
            *map(w.waiting_line, edges),
            *w.code_line(header, "loop"),
            *w.stack_lines(s.case.ranks.get(gone.leavers[0]), 3),
        ),
        words,
        "own loops" if gone.are_own else f"transfers/{how}",
        ("agree", "even"),
        location=header,
    )
    early = ways_out.way_before(header) if gone.are_own and gone.other is None else None
    if early is not None:  # it came to that function as ever, and went by the loop in it
        return _by_way_out(found, (replace(header, line=early.line), early), not is_even, says="left before")
    if gone.of_any:
        return replace(found, say="of any", culprits=(), fixes=("sum of counts",), confidence=0.8)
    if (gone.other or not gone.are_own) and (
        bound := loop_heads.changed_bound(gone.frame, gone.loop.header)
    ) is not None:
        return _by_changed_bound(found, bound, gone, not is_even, "transfers")
    way = None if gone.are_own or gone.other else _way_out_of_transfers(s, gone)
    if way is not None:
        return _by_way_out(found, way, not is_even, how)
    if not (gone.other or gone.is_collective) and (by_role := _by_role(found, header)):
        return by_role
    if rounds.rounds_of(gone.frame, gone.loop.header) == SAME:  # not the data: it makes as many rounds on all ranks
        stay = stack_path(s.case, gone.waiter) if gone.is_collective else None
        if stay and (past := ways_out.way_past_above(stay, gone.frame)):
            return _by_way_out(found, past, not is_even, "past", "past")
        found = replace(found, cause="code-divergence", fixes=("together", "agree"))
    return found if gone.other is None else _of_another_count(s, found, gone, gone.other)


def _by_role(found: Found, header: Frame) -> Found | None:
    """One loop of all roles goes over what each of them sets for itself: these are not as many."""
    name, numbers = loop_heads.set_by_role(header.file, header.line)
    if not (lines := [replace(header, line=n) for n in numbers]):
        return None
    head = found.location.line if found.location else 0
    words = {"name": name, "set": w.lines_of(lines), "src": 0, "head": head}
    told = _retold(found, "set by role", words, lines[0], "rounds", fixes=("one length",))
    return replace(told, evidence=(*told.evidence, *(line for f in lines[1:] for line in w.code_line(f, "rounds"))))


def _way_out_of_transfers(s: Situation, gone: LeftTransfers) -> tuple[Frame, ways_out.WayOut] | None:
    ways = ((gone.frame, way) for way in ways_out.ways_out(gone.frame.file, gone.loop, gone.frame.line))
    found = ways_out.likeliest(s.case, ways, gone.leavers)
    return (replace(found[0], line=found[1].line), found[1]) if found else None


def _of_another_count(s: Situation, found: Found, gone: LeftTransfers, other: OtherCount) -> Found:
    """The rank whose transfers in a row were not as many as each time before, and what in its loop may be the reason."""
    side = "sends to" if other.is_send else "receives from"
    way = (
        next(iter(ways_out.ways_past(gone.frame.file, gone.loop, gone.frame.line)), None)
        if other.made < other.usual
        else None
    )
    words = {"rank": other.rank, "made": other.made, "usual": other.usual, "side": f"{side} rank {other.peer}"}
    found = replace(found, words={**found.words, **words, "at": w.at(gone.frame)}, say="other count", confidence=0.88)
    if way is None:
        if by_role := _by_role(found, replace(gone.frame, line=gone.loop.header)):
            return by_role
        across = other.peer if other.rank == gone.waiter else gone.waiter
        apart = rounds.counted_apart(gone.frame, gone.loop.header, stack_path(s.case, across) or ())
        return found if apart is None else _by_both_counts(found, apart, other)
    frame = replace(gone.frame, line=way.line)
    words = {"text": way.text, "way": w.place(frame)}
    return _retold(found, "round without", words, frame, "way past", fixes=("together", "agree"))


def _by_both_counts(found: Found, apart: rounds.CountedApart, other: OtherCount) -> Found:
    """The two loops, and how the one comes to as many rounds as the other."""
    words = {
        **found.words, "mine_at": w.spot(apart.mine), "mine_over": apart.mine_over, "theirs_at": w.spot(apart.theirs),
        "theirs_over": apart.theirs_over, "target": apart.theirs_target, "peer": other.peer, "counter": other.rank,
    }  # fmt: skip
    name = "the same count" if apart.can_name else "send the count" if other.is_send else ""
    return replace(found, words=words, fixes=(name,)) if name else found


def _ended(s: Situation, evidence: RankEvidence, call: CollectiveCall, frame: Frame, loop: Loop) -> Found:
    rank, header = evidence.rank, Frame(frame.file, loop.header, frame.function)
    others = next(stuck.waiting for stuck in s.stuck if rank in stuck.missing)
    culprits = (rank,) if lead_of_waiting(s, evidence) > 0 else others
    words = {
        "rank": rank,
        "loop": w.place(header),
        "others": w.name_ranks(others),
        "call": f"{w.name_call(call)} #{call.seq} of {call.group}",
        "steps": w.steps_apart(s.case.ranks),
    }
    evidence_lines = (
        w.path_line(call.rank, f"#{call.seq} {w.name_call(call)}", user_path(call.frames)),
        EvidenceLine(f"rank {rank} exit", "normal end of the program"),
    )
    found = Found(
        0.93 if culprits == (rank,) else 0.8, culprits, evidence_lines, words, "ended", _EVEN, **w.at_call(call, header)
    )
    until_ns = evidence.exit.time_ns if evidence.exit else 0
    is_data = bool(until_ns) and rounds.ran_out(s.case, (rank,), others, until_ns, header)
    is_even = rounds.rounds_of(frame, loop.header) == SAME
    way = None if is_data else ways_out.way_out_of(s.case, user_path(call.frames), (), (rank,), is_even)
    if way is None:
        return resumed_apart(found, header)
    frame, out = way
    told = {"cause": "rank-exited-early", "confidence": min(found.confidence, 0.86), "culprits": (rank,)}
    words = {"way": w.place(frame), "text": out.text}
    return _retold(found, "returned", words, frame, "way out", fixes=("leave together",), **told)
