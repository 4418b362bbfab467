"""Rules on ranks whose programs part at a collective: another branch, a call left out, an exception that was caught."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from unhang.analyze.calls.align import calls_at
from unhang.analyze.calls.divergence import Divergence, library_tests
from unhang.analyze.calls.framework_loops import left_framework
from unhang.analyze.calls.framework_settings import hidden_forward
from unhang.analyze.calls.handled import handled_before, swallowed_by
from unhang.analyze.calls.positions import bare_op
from unhang.analyze.program.callpath import Path, innermost, user_path
from unhang.analyze.program.sides import is_split_by, started_ns
from unhang.analyze.program.source import Condition, around
from unhang.analyze.program.trees import line_text
from unhang.analyze.program.ways_out import WayOut, asks_a_method, caught_raise, is_of_data, way_past, ways_between
from unhang.analyze.situation import Situation
from unhang.analyze.waits import leaving, order
from unhang.analyze.waits.overtaking import line_passed
from unhang.model import EvidenceLine, Fix, Frame
from unhang.rules import wording as w
from unhang.rules.advice import (
    LONGER_TIMEOUT,
    at_test,
    decided_together,
    deciding,
    fixes_of,
    gate_of,
    look_inside,
    on_every_way,
    said_plainly,
    say_the_condition,
)
from unhang.rules.base import Found, rule
from unhang.rules.framework_advice import of_apart, of_best_metric
from unhang.rules.remedies import NO_REMEDY, led_by_python, remedy_of
from unhang.rules.repairs import guarded_in_role, in_one_order, of_copies


@rule("rank-dependent-collective", needs=("calls",))
def rank_dependent_collective(s: Situation) -> Found | None:
    """The first divergence that no more specific rule explains; without one, a call that only the waiting ranks made."""
    d = s.divergence
    if d is None:
        return None if leaving.made_other_rounds(s) else _call_of_some(s)
    if d.left_loop or order.is_of_size_alone(s, d) or order.is_dispatch_race(d) or order.is_thread_race(s, d):
        return None
    if swallowed_by(s, d.odd) or leaving.exhausted_by(s, d) or left_framework(s) or leaving.parted_with_exception(s):
        return None
    if s.primary_failure is not None and s.primary_failure.kind == "exception":
        return None
    return of_copies(s, d, _parted(s, _as_skip(s, d)))


def _call_of_some(s: Situation) -> Found | None:
    """A call that only the waiting ranks made, before the others came to the end of their program.

    Where as many wait as have ended, and no condition on the rank tells who is odd, either may be wrong.
    """
    found = leaving.ended_before(s) if s.primary_failure is None else None
    return _made_by_some(s, found, found.path) if found and found.path and found.shows_a_call else None


def _made_by_some(s: Situation, e: leaving.EndedBefore, path: Path) -> Found:
    odd, frame = e.odd, e.by_condition.frame if e.by_condition else path[-1]
    call, others = w.name_call(e.call), e.waiting if e.odd == e.ended else e.ended
    gate = e.by_condition.condition if odd and e.by_condition else None
    variant = "left out before the end" if odd == e.ended else "made before the end"
    say, more = said_plainly(gate, frame, odd, others, bare_op(e.call.op), odd == e.ended)
    words = {
        "who": w.name_ranks(odd),
        "others": w.name_ranks(others),
        **more,
        "ended": w.name_ranks(e.ended),
        "waiting": w.name_ranks(e.waiting),
        "wait": w.verb(e.waiting, "waits", "wait"),
        "their": w.verb(e.ended, "its", "their"),
        "line": w.place(frame),
        "call": f"{call} #{e.call.seq} of {e.call.group}",
        "why": "There is no majority: which side is wrong has to be read from the line."
        if not odd
        else say_the_condition(e.by_condition)
        if e.by_condition
        else "Fewer ranks made it than did not.",
    }
    evidence = (
        w.path_line(e.call.rank, f"#{e.call.seq} {call} (waits)", user_path(e.call.frames)),
        *w.code_line(frame, f"rank {e.waiting[0]} source"),
        *(EvidenceLine(f"rank {rank} exit", "end of the program") for rank in e.ended[:3]),
    )
    return Found(
        0.85 if odd else 0.45,
        odd or tuple(sorted((*e.ended, *e.waiting))),
        evidence,
        words,
        f"{say}/{variant}" if say else variant,
        fixes_of(frame, e.by_condition.condition if e.by_condition else None, w.name_ranks(odd)) if odd else (),
        s.others(odd) if odd else (),
        **w.at_call(e.call, frame if odd else None),
        condition=gate_of(gate),
    )


def _as_skip(s: Situation, d: Divergence) -> Divergence:
    """The same, as a call left out where the odd ranks stand behind the line at which the others wait."""
    if d.skipped or d.added or not d.has_majority or d.fork is None:
        return d
    if not line_text(d.fork.left.file, d.fork.left.line):
        return d
    theirs, mine = (order.most_suspicion(p[d.fork.depth :]) for p in (d.reference_path, d.odd_path))
    if theirs < mine and d.fork.right.line < d.fork.left.line:
        return d  # in another round: what a rank makes by its own data is more likely one more than what all make is left out
    return replace(d, skipped=line_passed(d.reference_path, d.odd_path, _met(s, d)) is not None)


def _met(s: Situation, d: Divergence) -> Path:
    """The way to the last call before that the odd ranks made from a line: the autograd engine's, on a device, have none."""
    group = s.case.calls.groups.index(d.group)
    for seq in range(d.seq - 1, max(0, d.seq - 64), -1):
        before = calls_at(s.index, group, seq).get(d.odd[0])
        if before is None or (path := user_path(before.frames)):
            return path if before is not None else ()
    return ()


def _left_out_inside(s: Situation, d: Divergence) -> Frame | None:
    """The line of the call left out, where the odd ranks made the one before it there too: they did go the way to it. Else the nearest on it that hangs on a test."""
    if not d.skipped or d.fork is None or d.location != d.fork.left or _met(s, d) != d.reference_path:
        return None
    below = reversed(d.reference_path[d.fork.depth + 1 :])
    return next((f for f in below if any(c.suspicion > 0 for c in _own_conditions(s, d, f))), d.reference_path[-1])


def _below(s: Situation, d: Divergence) -> Frame | None:
    """The line of the call left out, or made, where nothing decides whether a rank goes to the function that makes it, but a test within does."""
    side, path = (d.fork.left, d.reference_path) if d.skipped and d.fork else (d.fork and d.fork.right, d.odd_path)
    if d.fork is None or d.location != side or list(_own_conditions(s, d, d.location)):
        return None
    below = path[d.fork.depth + 1 :]
    return next((f for f in below if any(c.suspicion > 0 for c in _own_conditions(s, d, f))), None)


def _undecided_at(d: Divergence, one_sided: tuple[Frame, Condition] | None) -> Frame | None:
    return one_sided[0] if one_sided else d.location if d.in_library else guarded_in_role(d)


def _parted(s: Situation, d: Divergence) -> Found:
    hidden = hidden_forward(d) if d.is_decided else None
    frame = hidden or _left_out_inside(s, d) or _below(s, d) or d.location
    own = _own_conditions(s, d, frame) or order.left_out_of_round(s, d, frame)
    by_python = led_by_python(d)
    decisive = None if by_python else d.by_condition.condition if d.by_condition else deciding(own)
    inside = d.in_library if d.is_decided and not hidden else None
    odd = tuple(sorted({*d.odd, *_odd_in_like_groups(s, d)}))
    fixes = _usual_fixes(d, frame, decisive, hidden, inside)
    one_sided = None if d.is_decided else _one_sided(s, d)
    say, more = _did(s, d, hidden) if d.is_decided else ("side by side", _undecided(d, one_sided))
    gate = _gate(s, d, frame, decisive, hidden) if d.is_decided and inside is None else None
    is_open = d.skipped and d.by_condition is None
    past = _ways_past(s, d, frame, gate) if gate and is_open and say != "hidden forward" else ()
    if past:
        broken = (c for c in _own_conditions(s, d, frame) if len(past) == 1 and c.line == past[0].line)
        likeliest, gate = gate, next(broken, None)
        say, fixes = "left out", fixes_of(frame, gate or likeliest, w.name_ranks(d.odd))
    say, more = _named(d, gate, frame, hidden, say, more)
    remedy = (by_python or remedy_of(s, d, frame, list(own))) if gate is None and hidden is None else NO_REMEDY
    usual = fixes[len(remedy.fixes) :] if d.is_decided else in_one_order(d) if not remedy.fixes else ()
    fixes, gate = (*remedy.fixes, *usual), remedy.gate or gate
    if (own_side := _on_every_way(d, gate)) is not None:
        fixes = (own_side, *fixes[-1:])
    if one_sided and not remedy.fixes and not d.of_roles:
        fixes, gate = (decided_together(*one_sided),), one_sided[1]
    caught = caught_raise(gate, d.reference_path, d.fork.depth + 1) if gate and d.fork and say == "skipped" else None
    is_plain = (is_one := say in ("skipped", "alone")) and d.by_condition is None
    parts = at_test(frame, gate) if frame is not None and is_one else frame
    passed = way_past(frame, gate, is_switch=say == "alone") if is_one else None
    told = caught[0] if caught else remedy.at or passed or (parts if d.is_decided else _undecided_at(d, one_sided))
    if passed is not None and told == passed:
        how = "switched" if say == "alone" else "led past"
        say, more = f"{how}/{say}", {**more, **_way_words(passed)}
    words = {
        "who": w.name_ranks(odd),
        "others": w.name_ranks(d.reference),
        "asks": remedy.asks,
        "mine": w.name_call(d.odd_call),
        "theirs": w.name_call(d.reference_call),
        "line": f"{w.place(inside[d.skipped])}, below {w.place(frame)}" if inside else w.place(frame),
        "lead": w.lead(frame),
        "are": w.verb(odd, "is", "are"),
        "first": f"Call #{d.seq} of {d.group} is the first in which the ranks differ.",
        "paired": _paired(d),
        "why": remedy.why or _reason(s, d, frame, caught, past, is_plain),
        "mine_at": w.at(innermost(d.odd_path)),
        "theirs_at": w.at(innermost(d.made_path)),
        **more,
    }
    return Found(
        (0.85 if past else 0.93) if d.has_majority else 0.85 if d.is_decided else 0.45,
        odd if d.is_decided else d.culprits,
        _evidence(s, d),
        words,
        say,
        fixes,
        **w.at_fork(d, told),
        condition=gate_of(gate),
    )


def _way_words(passed: Frame) -> dict[str, object]:
    return {"way": w.spot(passed), "test": line_text(passed.file, passed.line).rstrip(":")}


def _on_every_way(d: Divergence, gate: Condition | None) -> Fix | None:
    """For a call that the odd ranks make on a line of their own."""
    if d.own_side is None or gate is None:
        return None
    return on_every_way(d.own_side, gate, w.name_ranks(d.odd), innermost(d.made_path))


def _usual_fixes(
    d: Divergence,
    frame: Frame | None,
    decisive: Condition | None,
    hidden: Frame | None,
    inside: tuple[Frame, Frame] | None,
) -> Sequence[str | Fix]:
    """By the condition around the line, where there is one."""
    if hidden is not None:
        return ("no wrapper",)
    if inside is not None:
        asked = next(iter(library_tests(d)), None)
        return (of_best_metric(d) or look_inside(frame, inside, w.name_ranks(d.odd), d.skipped, asked), LONGER_TIMEOUT)
    made = (d.reference_call.frames if d.skipped else d.odd_call.frames if decisive else ()) or ()
    return fixes_of(frame, decisive, w.name_ranks(d.odd), made, of_apart(d))


def _reason(
    s: Situation,
    d: Divergence,
    frame: Frame | None,
    caught: tuple[Frame, Frame] | None,
    past: Sequence[WayOut],
    is_plain: bool,
) -> str:
    """What led the odd ranks there, in further sentences."""
    if caught is not None:
        return f" Else {w.place(caught[0])} raises, and {w.place(caught[1])} lets the program go on."
    return _say_ways(frame, past) if past else "" if is_plain else _why(s, d)


def _odd_in_like_groups(s: Situation, d: Divergence) -> set[int]:
    """The odd ranks of other groups that parted in the same way: a condition on a rank's place in its group holds once in each."""
    alike = [o for o in s.divergences if o.group != d.group and o.is_decided and o.skipped == d.skipped]
    return {
        r
        for o in alike
        if (o.location, o.odd_path, o.odd_call.op) == (d.location, d.odd_path, d.odd_call.op)
        for r in o.odd
    }


def _gate(
    s: Situation, d: Divergence, frame: Frame | None, decisive: Condition | None, hidden: Frame | None
) -> Condition | None:
    if hidden is not None:
        return deciding(around(hidden, started_ns(s.case)).conditions)
    return decisive if frame is not None and decisive is not None and decisive.suspicion else None


def _named(
    d: Divergence, gate: Condition | None, frame: Frame | None, hidden: Frame | None, say: str, more: dict[str, object]
) -> tuple[str, dict[str, object]]:
    """The variant that names the condition, where there is one and the call is made, or skipped, under it."""
    is_skipped = d.skipped or (d.by_condition is not None and d.by_condition.is_left_out)
    if say not in ("another way", "left out", "hidden forward") or (
        hidden is None and not is_skipped and frame not in d.odd_path
    ):
        return say, more
    op = "the DDP model" if hidden else bare_op((d.reference_call if is_skipped else d.odd_call).op)
    plainly, words = said_plainly(gate, frame, d.odd, d.reference, op, is_skipped and hidden is None)
    return (plainly, {**more, **words}) if plainly else (say, more)


def _one_sided(s: Situation, d: Divergence) -> tuple[Frame, Condition] | None:
    """The line and the condition of the one side whose call hangs on the data, where the other side's hangs on nothing of the kind."""
    ways = [
        [(f, c) for f in path for c in around(f, started_ns(s.case)).conditions]
        for path in (d.odd_path, d.reference_path)
    ]
    for differs in (is_of_data, asks_a_method):
        sides = [
            [(f, c) for f, c in mine if c not in {c for _, c in theirs} and differs(c) and not c.depends_on_rank]
            for mine, theirs in (ways, ways[::-1])
        ]
        if own := [side for side in sides if side]:
            return max(reversed(own[0]), key=lambda x: x[1].suspicion) if len(own) == 1 else None
    return None


def _undecided(d: Divergence, one_sided: tuple[Frame, Condition] | None) -> dict[str, object]:
    """What either side does, and the condition that may have come out differently."""
    of_data = ""
    if one_sided is not None:
        frame, condition = one_sided
        of_data = f" Only one of them is conditional: {w.place(frame)} runs if `{condition.text}`."
    return {"sides": _side_by_side(d), "conditional": of_data}


def _did(s: Situation, d: Divergence, hidden: Frame | None) -> tuple[str, dict[str, object]]:
    """What the odd ranks did: the variant of the card, and its words."""
    if hidden is not None:
        return "hidden forward", {"runs": w.verb(d.odd, "runs", "run")}
    if d.differs == "size" and d.fork is None:
        functions = order.functions_called(s, d)
        if functions:
            return "another function", {"called": functions[0], "their_function": functions[1]}
        return "shifted", {"shift": order.shift_at(s.case, d).value}
    return "once more" if d.added else "left out" if d.skipped else "another way", {}


def _ways_past(s: Situation, d: Divergence, frame: Frame | None, gate: Condition) -> tuple[WayOut, ...]:
    """What may have led the odd ranks past the line, where more than the condition around it may, or that held."""
    if frame is None or d.fork is None or is_split_by(s.case, gate, d.reference, d.odd):
        return ()
    met = next((f for f in _met(s, d) if (f.file, f.function) == (frame.file, frame.function)), None)
    others = [c for c in _own_conditions(s, d, frame) if c != gate]
    return ways_between(s.case, frame, met.line if met else 0, gate, others, d.odd, d.odd_path)


def _say_ways(frame: Frame | None, ways: Sequence[WayOut]) -> str:
    """What may have led a rank past a line."""
    name = w.base_name(frame.file) if frame else ""
    told = [f"`{way.text}` ({name}:{way.line})" for way in ways[:4]]
    if len(told) == 1:
        return f" The condition around the line held there; what leads past it is {told[0]}."
    return f" More than one thing leads past it, and nothing tells which did: {w.listed(told)}."


def _own_conditions(s: Situation, d: Divergence, frame: Frame | None) -> Iterable[Condition]:
    """The conditions around a line of one side that the other side's lines do not stand under."""
    since_ns = started_ns(s.case)
    against = d.reference_path if frame in d.odd_path else d.odd_path
    theirs = {c for f in against for c in around(f, since_ns).conditions}
    return [c for c in around(frame, since_ns).conditions if c not in theirs] if frame else ()


def _side_by_side(d: Divergence) -> str:
    """What either side does, where nothing tells which is wrong; in the library's functions where the program's line is the same."""
    at = d.in_library or (innermost(d.odd_path), innermost(d.made_path))
    sides = ((d.odd, d.odd_call, at[0]), (d.reference, d.reference_call, at[1]))
    told = " and ".join(
        f"{w.name_ranks(ranks)} {w.verb(ranks, 'is', 'are')} in {w.name_call(call)} from {w.place(frame)}"
        for ranks, call, frame in sorted(sides, key=lambda side: side[0])
    )
    return f"{told}, both below {w.place(d.location)}" if d.in_library else told


def _paired(d: Divergence) -> str:
    if d.seq >= d.stuck_seq:
        return ""
    return f" The calls #{d.seq} to #{d.stuck_seq - 1} paired silently, since op and size are equal; #{d.stuck_seq} cannot complete."


def _why(s: Situation, d: Divergence) -> str:
    """By which conditions the lines run, and whether there is a majority."""
    since_ns = started_ns(s.case)
    if d.is_decided and d.by_condition is not None:
        return f" There is no majority. {say_the_condition(d.by_condition)}"
    if d.is_decided:
        tests = around(d.location, since_ns).tests if d.location else ()
        return f" The line runs only if {' and '.join(tests[-2:])}." if tests else ""
    if d.in_library:
        return " There is no majority. Below that line the library went two ways: a callback, a stop or a limit came out differently on the ranks."
    text = " There is no majority: which side is wrong has to be read from the two lines."
    for line in (f for f in ((d.fork.right, d.fork.left) if d.fork else ()) if f.line):
        tests = around(line, since_ns).tests
        text += f" Line {line.line} runs only if {' and '.join(tests[-2:])}." if tests else ""
    return text


def _evidence(s: Situation, d: Divergence) -> Iterator[EvidenceLine]:
    yield from w.both_sides(d)
    for rank, inner in zip((d.odd[0], d.reference[0]), d.in_library or (), strict=False):
        yield EvidenceLine(f"rank {rank} in the library", str(inner), inner.line)
    if d.fork is not None:
        taken, other = (d.fork.right, d.location) if d.skipped else (d.location, d.fork.left)
        yield from w.code_line(taken, f"rank {d.odd[0]} source")
        yield from w.code_line(other, f"rank {d.reference[0]} source")
        for error in sorted(handled_before(s, d.odd), key=lambda e: -e.time_ns)[:1]:
            yield EvidenceLine(
                "handled before", f"{error.type}: {error.message} at {w.place(w.own_line(error.frames))}"
            )
    yield from w.stack_lines(s.case.ranks.get(d.odd[0]))
