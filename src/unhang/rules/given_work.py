"""A rank whose wait is for work that somebody gave away: an exception ended that unseen, the driver gave this rank none, half of it was sent, or it kept on when it was to end."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TypeGuard

from unhang.analyze.activity import TASK_OF_RAY, awaited_in
from unhang.analyze.program.source import frame_at, function_at, nearest, nodes_around, surroundings
from unhang.analyze.program.trees import (
    Function,
    calls_on,
    covers,
    functions_in,
    inside,
    last_name,
    line_text,
    nodes_of,
    program_nodes,
    tree_of,
)
from unhang.analyze.program.values import holds_on
from unhang.analyze.situation import LateRank, Situation
from unhang.analyze.waits import own_threads
from unhang.analyze.waits.given_back import program_of
from unhang.analyze.waits.open_calls import driver_stack
from unhang.analyze.waits.outside_waits import exception_not_sent
from unhang.model import EvidenceLine, Fix, Frame, user_frames
from unhang.rules import wording as w
from unhang.rules.base import Found
from unhang.rules.failure import FirstException, found_at_first
from unhang.rules.host_waits import end_the_thread
from unhang.rules.late import driver, found_late
from unhang.rules.log_lines import quote
from unhang.rules.repairs import of_exception
from unhang.rules.start_repairs import left_by_asking


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


def asked_apart(s: Situation, late: LateRank) -> Found | None:
    """An actor of Ray without a task that left the loop in which its peers began another round, by what it was told of another actor."""
    left = left_by_asking(s, late) if late.activity.awaits == TASK_OF_RAY else None
    if left is None:
        return None
    at, test, fix = left
    words = {"test": test, "spot": w.spot(at)}
    lines = tuple(w.code_line(at, "way out"))
    found = found_late(s, late, 0.88, words, say="asked apart", cause="code-divergence", fixes=(fix,), evidence=lines)
    return replace(found, location=at)


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


def dealt_by_pool(s: Situation, late: LateRank) -> Found | None:
    """A pool of actors that gives each item to whoever is free, where a task of these waits for all of them in a collective: who had one more waits for who had none."""
    main = driver_stack(s) if late.activity.awaits == TASK_OF_RAY else None
    if main is None or not any(f.file.endswith(_POOL_OF_RAY) for f in main.frames):
        return None
    place, count = w.own_line(main.frames), len(s.case.world)
    calls = calls_on(place.file, place.line) if place is not None else ()
    maps = [c for c in calls if last_name(c.func) in ("map", "map_unordered") and len(c.args) == _FUNCTION_AND_ITEMS]
    items = ast.unparse(maps[0].args[1]) if len(maps) == 1 else ""
    words = {"spot": w.spot(place) if place else "the driver", "place": w.at(place), "items": items, "count": count}
    found = found_late(
        s,
        late,
        0.88,
        words,
        say="dealt out",
        cause="uneven-inputs",
        fixes=("even shares",) if items else ("in rounds",),
    )
    return replace(found, culprits=(), victims=late.victims, location=place)


_POOL_OF_RAY, _FUNCTION_AND_ITEMS = "/ray/util/actor_pool.py", 2


def answered_by_nobody(s: Situation, late: LateRank) -> Found | None:
    """A rank that waits for an answer over a connection, where the event loop of one that waits for it, and that has tasks which would answer, stands in the collective itself."""
    if late.activity.awaits != "a socket":
        return None
    for rank in (r for r in late.victims if r in s.case.ranks):
        evidence = s.case.ranks[rank]
        main = evidence.main_stack
        runs_loop = main is not None and any(f.file.endswith(_RUNS_TASKS) for f in main.frames)
        serving = [mine[-1] for t in evidence.tasks if (mine := user_frames(t.frames)) and _serves(mine[-1])]
        if main is None or not runs_loop or not serving:
            continue
        inner = user_frames(main.frames)
        at = next((f for f in inner if isinstance(function_at(f.file, f.line), ast.AsyncFunctionDef)), None)
        if at is None:
            continue
        words = {
            "instead": _awaited_in_a_thread(at, inner),
            "server": f"rank {rank}",
            "spot": w.spot(at),
            "line": line_text(at.file, at.line),
            "task": w.place(serving[0]),
        }
        lines = (*w.code_line(at, f"rank {rank} source"), EvidenceLine(f"rank {rank} task", w.place(serving[0])))
        found = found_late(s, late, 0.88, words, say="loop held", fixes=("in a thread",), evidence=lines)
        return replace(found, culprits=(*sorted((rank, late.rank)),), victims=s.others((rank, late.rank)), location=at)
    return None


def _awaited_in_a_thread(at: Frame, path: tuple[Frame, ...]) -> str:
    """The line of a coroutine with the call through which `path` goes on from there given to a thread; in general words where it is not one call."""
    called = path[path.index(at) - 1].function if path.index(at) else ""
    calls = [c for c in calls_on(at.file, at.line) if not called or last_name(c.func) == called]
    text, call = line_text(at.file, at.line), ast.unparse(calls[0]) if len(calls) == 1 else ""
    if not call or call not in text:
        return "await asyncio.to_thread(f, x, ...)   # in place of the call f(x, ...) that waits for the other ranks"
    given = [ast.unparse(x) for x in (calls[0].func, *calls[0].args, *calls[0].keywords)]
    return text.replace(call, f"await asyncio.to_thread({', '.join(given)})")


_RUNS_TASKS = "/asyncio/events.py"
_SERVERS = ("start_server", "start_unix_server", "serve")


def _serves(frame: Frame) -> bool:
    """Whether the program hands this function to a server of asyncio: it is called for each connection."""
    calls = (c for path in program_of(frame.file) for n in nodes_of(path) if isinstance(c := n, ast.Call))
    handed = {last_name(a) for c in calls if last_name(c.func) in _SERVERS for a in c.args}
    return frame.function in handed


def run_again(s: Situation, late: LateRank) -> Found | None:
    """A rank on which Ray runs a method anew after an exception, with the calls that it had made already, while the others are through with theirs."""
    if late.activity.awaits != TASK_OF_RAY:
        return None
    again = {e["task"].rpartition(".")[2]: e for e in s.events.of("launchers.task_retried")}
    for rank in (r for r in late.victims if r in s.case.ranks):
        mine = user_frames(s.case.ranks[rank].main_frames)
        at = next((f for f in mine if f.function in again), None)
        node = function_at(at.file, at.line) if at is not None else None
        if at is None or node is None:
            continue
        retries = [d for d in node.decorator_list if "retr" in ast.unparse(d)]
        place = frame_at(at.file, (retries[0] if retries else node).lineno)
        words = {"again": f"rank {rank}", "method": at.function, "spot": w.spot(place), "place": w.at(at)}
        lines = (*w.code_line(place, f"rank {rank} source"), *quote([again[at.function]]))
        found = found_late(
            s, late, 0.9, words, say="again", cause="code-divergence", fixes=("retry within",), evidence=lines
        )
        return replace(found, culprits=(rank,), victims=s.others((rank,)), location=place)
    return None


def by_given_work(s: Situation, late: LateRank) -> Found | None:
    """The first of these that holds."""
    ways = (
        by_ended_work,
        run_again,
        asked_apart,
        dealt_by_pool,
        left_out_by_driver,
        answered_by_nobody,
        sent_in_part,
        kept_on_cancelled,
    )
    return next((found for way in ways if (found := way(s, late)) is not None), None)


def sent_in_part(s: Situation, late: LateRank) -> Found | None:
    """What a rank sends by `sock.send(...)`, which may take a part of it, where it waits for the answer and the other side for the rest."""
    frame = late.activity.frame
    if frame is None or late.activity.awaits != "a socket":
        return None
    others = (t for r, e in s.case.ranks.items() if r != late.rank for t in e.own_stacks)
    if not any(awaited_in(t) == "a socket" and user_frames(t.frames)[:1] == (frame,) for t in others):
        return None
    sends = [(path, n.value) for path in program_of(frame.file) for n in nodes_of(path) if _drops_the_count(n)]
    if len(sends) != 1:
        return None
    path, call = sends[0]
    at, text = frame_at(path, call.lineno), ast.unparse(call)
    words = {"spot": w.spot(at), "sends": text, "all": text.replace(".send(", ".sendall(", 1)}
    found = found_late(
        s, late, 0.86, words, say="sent in part", fixes=("send all",), evidence=tuple(w.code_line(at, "sent by"))
    )
    return replace(found, location=at)


def _drops_the_count(node: ast.AST) -> TypeGuard[ast.Expr]:
    """Whether it is a statement `sock.send(x)`, of a name for a socket: how much was taken is lost. A connection of processes sends all."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=of, attr="send"), args=[_], keywords=[])):
            return re.search(r"(?i)sock", last_name(of)) is not None
    return False


def kept_on_cancelled(s: Situation, late: LateRank) -> Found | None:
    """A task that was cancelled and went on, as it caught that itself, where another one waits for its end."""
    evidence = s.case.ranks.get(late.rank)
    tasks = {t.name: user_frames(t.frames) for t in (evidence.tasks if evidence else ())}
    for waiting in (t for t in (evidence.tasks if evidence else ()) if t.awaits):
        mine = user_frames(waiting.frames)
        function = function_at(mine[0].file, mine[0].line) if mine else None
        asked = any(last_name(c.func) == "cancel" and c.lineno <= mine[0].line for c in inside(function, ast.Call))
        for frame in (tasks[name][0] for name in waiting.awaits if asked and tasks.get(name)):
            if (handler := _catches_the_end(frame)) is None:
                continue
            at = replace(frame, line=handler.lineno)
            words = {
                "spot": w.spot(at),
                "asks": w.spot(mine[0]),
                "function": frame.function,
                "handler": line_text(at.file, at.line),
            }
            lines = tuple(w.code_line(at, "caught by"))
            found = found_late(s, late, 0.88, words, say="kept on", fixes=("let it end",), evidence=lines)
            return replace(found, location=at)
    return None


def _catches_the_end(frame: Frame) -> ast.ExceptHandler | None:
    """The handler in a loop of a task's function that catches its cancellation, and neither raises nor leaves."""
    for loop in (n for n in nodes_around(frame.file, frame.line) if isinstance(n, ast.While | ast.For | ast.AsyncFor)):
        for handler in inside(loop, ast.ExceptHandler):
            kinds = [last_name(n) for n in ast.walk(handler.type or handler) if isinstance(n, ast.Attribute | ast.Name)]
            caught = handler.type is None or not {"CancelledError", "BaseException"}.isdisjoint(kinds)
            leaves = any(isinstance(n, ast.Raise | ast.Return | ast.Break) for n in ast.walk(handler))
            if caught and not leaves:
                return handler
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
                why += [text for g in one.generators if (text := _picked_by(place.file, function, g.iter))]
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


def _picked_by(path: str, function: ast.AST | None, over: ast.expr) -> str:
    """The call of a function of the file that gave the list which is gone over, if that puts some alone into it: within a `try`, or under an `if`."""
    for made in (n.value for n in inside(function, ast.Assign) if ast.unparse(over) in map(ast.unparse, n.targets)):
        name = last_name(made.func) if isinstance(made, ast.Call) else ""
        for picks in (f for f in functions_in(tree_of(path)) if f.name == name):
            fills = [c for c in inside(picks, ast.Call) if last_name(c.func) == "append"]
            around = (n for kind in (ast.If, ast.Try) for n in inside(picks, kind))
            if any(covers(n, c.lineno) for n in around for c in fills):
                return ast.unparse(made)
    return ""


def _asked(node: ast.AST) -> Iterator[str]:
    """The methods that an expression asks of actors: `step` of `worker.step.remote(x)`."""
    calls = (c.func for c in inside(node, ast.Call) if last_name(c.func) == "remote")
    yield from (f.value.attr for f in calls if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Attribute))


def _may_return_before(frame: Frame) -> bool:
    """Whether a function has a way out above a line: then a rank may have been given the task, and have left it."""
    function = next((n for n in reversed(nodes_around(frame.file, frame.line)) if isinstance(n, ast.FunctionDef)), None)
    return any(n.lineno < frame.line for n in inside(function, ast.Return))


def not_received(s: Situation, first: FirstException) -> Found | None:
    """What is known of an exception that a rank could not receive from a process of its own, or after which its process cannot end."""
    kept = s.case.ranks.get(first.ranks[0]) if len(first.ranks) == 1 else None
    if kept is not None and (fix := end_the_thread(kept)) is not None:
        of = {"type": first.error.type, "head": first.head}
        return found_at_first(s, first, 0.9, of, say="raised", fixes=(fix, "mend", "no timeout"))
    beside = [f for e in s.case.ranks.values() for f in user_frames(e.main_frames)[:1]]
    lost = exception_not_sent(first.error, beside)
    if lost is None:
        return None
    words = {
        "name": lost.at.function,
        "class_at": w.spot(lost.at),
        "given": lost.given,
        "head": first.head,
        "at": w.at(lost.at),
    }
    found = found_at_first(s, first, 0.95, words, say="lost", fixes=("can be sent", "no timeout"))
    return replace(found, location=lost.at)


def answered_apart(s: Situation, first: FirstException) -> Found | None:
    """Of an exception that a library raised on some ranks: the one function of the program that gives it nothing on just these, by the number of the rank."""
    others = [r for r in s.case.world if r not in first.ranks]
    frame = first.frame
    if frame is None or not others or not first.error.frames or first.error.frames[0].is_user:
        return None
    found = list(_nothing_on(s, first.ranks, others, frame.file.rpartition("/")[0]))
    if len(found) != 1:
        return None
    at, test, given = found[0]
    words = {
        "type": first.error.type, "head": first.head, "spot": w.spot(at), "place": w.at(at), "function": at.function, "given": given, "test": test,
        "ranks": w.name_ranks(first.ranks),
    }  # fmt: skip
    found_there = found_at_first(s, first, 0.9, words, say="answered apart", fixes=("same answer", "no timeout"))
    return replace(found_there, location=at, evidence=(*found_there.evidence, *w.code_line(at, "answer")))


def _nothing_on(
    s: Situation, ranks: Collection[int], others: Collection[int], folder: str
) -> Iterator[tuple[Frame, str, str]]:
    """(line, test, what is given) where a function of the program that gives something on others gives nothing on these ranks."""
    for path, function in ((p, n) for p, n in program_nodes(folder) if isinstance(n, Function)):
        given = [n for n in inside(function, ast.Return) if n.value is not None]
        empty = [n for n in given if _is_nothing(n.value)]
        if len(empty) != 1 or len(given) == len(empty):
            continue
        at = frame_at(path, empty[0].lineno)
        tests = [c for c in surroundings(path, at.line).conditions if c.depends_on_rank]
        if tests and holds_on(s.case, ranks, at, tests[-1]) and holds_on(s.case, others, at, tests[-1]) is False:
            yield at, tests[-1].text, ast.unparse(empty[0])


def _is_nothing(node: ast.expr | None) -> bool:
    match node:
        case ast.Constant(value=None) | ast.Dict(keys=[]) | ast.List(elts=[]) | ast.Tuple(elts=[]):
            return True
    return False
