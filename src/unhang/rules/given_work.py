"""A rank whose wait is for work that somebody gave away: an exception ended that unseen, or the driver gave this rank none."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from unhang.analyze.activity import TASK_OF_RAY
from unhang.analyze.program.source import frame_at, function_at, nearest, nodes_around
from unhang.analyze.program.trees import calls_on, covers, inside, last_name
from unhang.analyze.situation import LateRank, Situation
from unhang.analyze.waits import own_threads
from unhang.model import EvidenceLine, Fix, Frame, user_frames
from unhang.rules import wording as w
from unhang.rules.base import Found
from unhang.rules.late import driver, found_late
from unhang.rules.repairs import of_exception


def by_ended_work(s: Situation, late: LateRank) -> Found | None:
    """The exception that ended the work by which the rank's wait would have ended, and that a future or a task keeps."""
    frame, evidence = late.activity.frame, s.case.ranks.get(late.rank)
    told = own_threads.not_told_by_work(frame, evidence.kept) if frame is not None and evidence is not None else None
    if evidence is None or told is None or own_threads.is_running(evidence, told[1].at):
        return None
    (error, left), (given, call) = told, own_threads.work_given(told[1].at) or (None, "")
    words = {
        "awaits": late.activity.awaits, "type": error.type, "head": error.message.split("\n")[0][:100], "raised": w.at(left.at),
        "function": left.at.function, "give": left.give, "until": left.until, "given": f", {w.spot(given)}: `{call}`" if given else "",
        "spot": w.spot(left.at),
    }  # fmt: skip
    mended = (fix for fix in of_exception(error, left.at, s.case)[0] if isinstance(fix, Fix))
    line = EvidenceLine(f"rank {late.rank} exception", f"{error.text[:200]}, kept by a future or a task", left.at.line)
    fixes = (*mended, "ask the work")
    found = found_late(s, late, 0.9, words, say="by ended work", cause="user-exception", fixes=fixes, evidence=(line,))
    return replace(found, location=left.at)


def left_out_by_driver(s: Situation, late: LateRank) -> Found | None:
    """What leaves an actor of Ray out where its driver gives the others the task in which they wait for it."""
    place = driver(s) if late.activity.awaits == TASK_OF_RAY else None
    for at, method, why in _given_to_some(place) if place is not None else ():
        waits = [f for r in late.victims if r in s.case.ranks for f in user_frames(s.case.ranks[r].main_frames)]
        inside_it = [f for f in waits if f.function == method]
        if not inside_it or any(map(_may_return_before, inside_it)):
            continue
        words = {"spot": w.spot(at), "method": method, "why_out": why, "place": w.at(at)}
        lines = w.code_line(at, "driver source")
        found = found_late(
            s, late, 0.9, words, say="left out", cause="code-divergence", fixes=("ask all",), evidence=tuple(lines)
        )
        return replace(found, location=at)
    return None


def _given_to_some(place: Frame) -> Iterator[tuple[Frame, str, str]]:
    """(line, method, what leaves some out) of the tasks for whose results a driver waits at a line."""
    function = function_at(place.file, place.line)
    waits = [c for c in calls_on(place.file, place.line) if ast.unparse(c.func) in ("ray.get", "ray.wait")]
    for given in (c.args[0] for c in waits if c.args):
        name = ast.unparse(given)
        sets = [n.value for n in inside(function, ast.Assign) if name in map(ast.unparse, n.targets)]
        for made in (given, *sets):
            for one in inside(made, ast.ListComp):
                why = [f"if {ast.unparse(test)}" for g in one.generators for test in g.ifs]
                why += [ast.unparse(g.iter) for g in one.generators if _is_part(g.iter)]
                yield from ((frame_at(place.file, one.lineno), m, why[0]) for m in _asked(one.elt) if why)
        fills = [c for c in inside(function, ast.Call) if ast.unparse(c.func) == f"{name}.append" and c.args]
        for fill in fills:
            loop, gate = nearest(place.file, fill.lineno, ast.For), nearest(place.file, fill.lineno, ast.If)
            if loop is not None and not covers(loop, place.line):
                why = [f"if {ast.unparse(gate.test)}"] if gate is not None and covers(loop, gate.lineno) else []
                why += [ast.unparse(loop.iter)] if _is_part(loop.iter) else []
                yield from ((frame_at(place.file, fill.lineno), m, why[0]) for m in _asked(fill.args[0]) if why)


def _is_part(node: ast.expr) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)


def _asked(node: ast.AST) -> Iterator[str]:
    """The methods that an expression asks of actors: `step` of `worker.step.remote(x)`."""
    calls = (c.func for c in inside(node, ast.Call) if last_name(c.func) == "remote")
    yield from (f.value.attr for f in calls if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Attribute))


def _may_return_before(frame: Frame) -> bool:
    """Whether a function has a way out above a line: then a rank may have been given the task, and have left it."""
    function = next((n for n in reversed(nodes_around(frame.file, frame.line)) if isinstance(n, ast.FunctionDef)), None)
    return any(n.lineno < frame.line for n in inside(function, ast.Return))
