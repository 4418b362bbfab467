"""What lets a rank leave a loop, or a round of it, as the source has it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from unhang.analyze.program.callpath import Path, loops_on
from unhang.analyze.program.may_differ import OPEN, SAME
from unhang.analyze.program.rounds import goes_through, is_in
from unhang.analyze.program.sides import view_of
from unhang.analyze.program.source import (
    Condition,
    Loop,
    frame_at,
    function_at,
    loop_at,
    negated,
    nodes_around,
    raise_of,
    step_names,
    surroundings,
)
from unhang.analyze.program.trees import covers, inside, last_name, tree_of
from unhang.analyze.program.values import holds_on
from unhang.model import Case, Frame, RaisedError, user_frames


class WayOut(NamedTuple):
    """What lets one rank make fewer rounds of a loop: a test or handler at `line`, as it is written; `returns`: out of the function.

    `leaves_at`: the line of the `break`, `return` or `continue`, or of the handler. `goes_on`: with the next round.
    """

    line: int
    text: str
    returns: bool = False
    leaves_at: int = 0
    goes_on: bool = False


@lru_cache(maxsize=256)
def ways_out(path: str, loop: Loop, line: int) -> tuple[WayOut, ...]:
    """Tests before a `break` or `return` in a loop, but for those on a counter, and handlers around `line` after which it goes on."""
    node = loop_at(path, loop.header)
    return tuple(_ways(node.body, line, None, in_loop=True)) if node is not None else ()


def ways_of(body: Iterable[ast.AST], in_loop: bool) -> tuple[WayOut, ...]:
    """Tests before a `break` or `return` among statements, but for those on a counter. `in_loop`: they are the body of a loop."""
    return tuple(_ways(body, 0, None, in_loop))


def ways_past(path: str, loop: Loop, line: int) -> tuple[WayOut, ...]:
    """What lets a rank leave the loop, or make a round without the line: an `if` around it, a `continue` before it. Not what asks for the rank."""
    node = loop_at(path, loop.header)
    of_rank = {c.line for c in surroundings(path, line).conditions if c.depends_on_rank}
    found = _ways(node.body, line, None, in_loop=True, is_round=True) if node is not None else ()
    return tuple(way for way in found if way.line not in of_rank)


def only_way_past(frame: Frame) -> WayOut | None:
    """The one test that leads past a line: within the loop around it, else by a `return` before it."""
    loops = surroundings(frame.file, frame.line).loops
    if not loops:
        return way_before(frame)
    ways = ways_past(frame.file, loops[-1], frame.line)
    return ways[0] if len(ways) == 1 else None


def way_before(frame: Frame) -> WayOut | None:
    """The one `return` under a test before a line of its function."""
    function = function_at(frame.file, frame.line)
    found = ways_of(function.body, in_loop=False) if function else ()
    ways = [way for way in found if way.leaves_at < frame.line]
    return ways[0] if len(ways) == 1 else None


_TESTS = (ast.If, ast.While, ast.For, ast.Try, ast.Match)


def way_past(frame: Frame | None, gate: Condition | None, is_switch: bool = False) -> Frame | None:
    """The line of a test that leads past the frame's, by leaving the function or the round, or by what it sets; None where the frame's line stands within it.

    `is_switch`: only a line that is no test itself, and sets what the call goes by.
    """
    if frame is None or gate is None or gate.path != frame.file or gate.line == frame.line:
        return None
    chain = nodes_around(gate.path, gate.line)
    at = next((n for n in reversed(chain) if isinstance(n, ast.stmt) and n.lineno == gate.line), None)
    is_around = at is None or (isinstance(at, _TESTS) and (is_switch or covers(at, frame.line)))
    return None if is_around else frame_at(gate.path, gate.line)


def way_past_above(path: Path, frame: Frame) -> tuple[Frame, WayOut] | None:
    """The one test that leads past the call of a frame's function, in the nearest function above that has one."""
    above = reversed(path[: path.index(frame)] if frame in path else path)
    found = ((f, way) for f in above if (way := only_way_past(f)) is not None)
    return next(((replace(f, line=way.line), way) for f, way in found), None)


def ways_between(
    case: Case, frame: Frame, since: int, gate: Condition, others: Sequence[Condition], ranks: Sequence[int], left: Path
) -> tuple[WayOut, ...]:
    """What may have led ranks past a line, in order; nothing where the `gate` is the only one, or the values of the ranks tell that it did.

    `since`: the line of their last call in that function; what leaves the round before it was not taken. Where that is the same
    line, the call may have been left out in any round before, and values of this one tell nothing. `others`: further conditions of
    the line; `left`: the way to the call that they made instead: in the loop they have not left it.
    Counted is what is at least as likely as the gate to come out differently on the ranks.
    """
    held = holds_on(case, ranks, frame, gate) if since != frame.line else None
    if held is False:
        return ()
    loops = surroundings(frame.file, frame.line).loops
    node = loop_at(frame.file, loops[-1].header) if loops else function_at(frame.file, frame.line)
    is_in_loop = bool(loops) and goes_through(left, frame, loops[-1])
    first = since if since < frame.line else 0
    taken = list[WayOut]()
    for way in _ways(node.body, frame.line, None, in_loop=bool(loops), is_round=True) if node is not None else ():
        is_before = first < way.line and 0 < way.leaves_at < frame.line and (way.goes_on or not is_in_loop)
        if not (_may_raise(frame, first, way.line) if _is_handler(way) else is_before):
            continue
        conditions = [c for c in surroundings(frame.file, way.leaves_at).conditions if c.line == way.line]
        weight = _weight(conditions, way)
        is_open = not any(holds_on(case, ranks, frame, c) is False for c in conditions)
        is_the_gate = any(c.is_opposite_of(gate) for c in conditions)  # it is that this way out was not taken
        if is_open and weight >= max(gate.suspicion, OPEN) and not is_the_gate:
            taken.append(way)
    around = [
        c for c in others if held and first < c.line and holds_on(case, ranks, frame, c) is not True and c.suspicion
    ]
    ways = [*taken, *(_past(c) for c in around if all(c.line != t.line for t in taken))]
    own = [] if held or not ways else [_past(gate)]
    return tuple(sorted((*ways, *own), key=lambda way: way.line))


def _past(condition: Condition) -> WayOut:
    """The other outcome of a condition."""
    return WayOut(condition.line, f"if {ast.unparse(negated(condition.test))}")


def _is_handler(way: WayOut) -> bool:
    return way.text.startswith("except")


def _weight(conditions: Iterable[Condition], way: WayOut) -> int:
    """How likely a way out is taken on some ranks alone, by the conditions around its end."""
    return max((c.suspicion for c in conditions), default=OPEN if _is_handler(way) else SAME)


def _may_raise(frame: Frame, first: int, handler: int) -> bool:
    """Whether a call stands between a line and the frame's within what the handler is for."""
    tries = (n for n in nodes_around(frame.file, frame.line) if isinstance(n, ast.Try))
    body = next((n.body for n in tries if any(h.lineno == handler for h in n.handlers)), [])
    return any(first < c.lineno < frame.line for statement in body for c in inside(statement, ast.Call))


def end_of_while(path: str, loop: Loop) -> WayOut | None:
    """What ends a `while`, as far as it is no counter: the opposite of that part of its test."""
    node = loop_at(path, loop.header)
    if not isinstance(node, ast.While):
        return None
    parts = node.test.values if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And) else [node.test]
    own = next((p for p in parts if not isinstance(p, ast.Constant) and not is_counted(p)), None)
    return WayOut(node.lineno, ast.unparse(negated(own))) if own is not None else None


def _ways(
    body: Iterable[ast.AST], line: int, test: ast.expr | None, in_loop: bool, is_round: bool = False
) -> Iterator[WayOut]:
    """`test`: the innermost one around the body; `in_loop`: a `break` here would leave the loop; `is_round`: also what leaves a round."""
    for node in body:
        match node:
            case ast.Continue() if is_round and in_loop and test is not None and node.lineno < line:
                if not is_counted(test):
                    yield WayOut(test.lineno, f"if {ast.unparse(test)}", leaves_at=node.lineno, goes_on=True)
            case ast.Break() | ast.Return() if test is not None and (in_loop or isinstance(node, ast.Return)):
                if not is_counted(test):
                    yield WayOut(test.lineno, f"if {ast.unparse(test)}", isinstance(node, ast.Return), node.lineno)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                continue
            case ast.If():
                if is_round and any(covers(s, line) for s in node.body) and not is_counted(node.test):
                    yield WayOut(node.lineno, f"if {ast.unparse(node.test)}")
                yield from _ways(node.body, line, node.test, in_loop, is_round)
                yield from _ways(node.orelse, line, negated(node.test), in_loop, is_round)
            case ast.For() | ast.AsyncFor() | ast.While():
                yield from _ways((*node.body, *node.orelse), line, test, in_loop=False)
            case ast.Try():
                yield from _ways((*node.body, *node.orelse, *node.finalbody), line, test, in_loop, is_round)
                if any(covers(s, line) for s in node.body):
                    handlers = (h for h in node.handlers if not isinstance(h.body[-1], ast.Raise))
                    yield from (WayOut(h.lineno, head_of(h), leaves_at=h.lineno) for h in handlers)
            case ast.With() | ast.AsyncWith():
                yield from _ways(node.body, line, test, in_loop, is_round)


def head_of(handler: ast.ExceptHandler) -> str:
    """How a handler begins, as it is written."""
    return f"except {ast.unparse(handler.type)}" if handler.type is not None else "except"


def is_counted(test: ast.expr) -> bool:
    """Whether a test only compares counters and settings: these are equal on all ranks."""
    if isinstance(test, ast.BoolOp):
        return all(map(is_counted, test.values))
    calls = inside(test, ast.Call)
    is_plain = all(isinstance(c.func, ast.Name) and c.func.id in ("len", "int", "min", "max") for c in calls)
    return is_plain and bool(step_names.search(ast.unparse(test)))


def way_out_of(
    case: Case, stay: Path, left: Path, leavers: Sequence[int], is_even: bool = False
) -> tuple[Frame, WayOut] | None:
    """What let ranks leave the loops in which others are once more: the way out that most likely was open to them alone.

    Else what the head of a `while` asks, where that is more than a counter. `is_even`: the loops give all ranks as many rounds, so that
    one of the ways out was taken.
    """
    gone = [(frame, loop) for depth, frame, loop in loops_on(stay) if not is_in(left, stay, depth, loop)]
    common = {at for *_, handler in handled_by_all(case) if handler is not None for at in _handlers_of(handler)}
    ways = [
        (frame, way)
        for frame, loop in gone
        for way in ways_out(frame.file, loop, frame.line)
        if (frame.file, way.line) not in common
    ]
    heads = [(frame, way) for frame, loop in gone if (way := end_of_while(frame.file, loop)) is not None]
    found = likeliest(case, ways, leavers, SAME - 1 if is_even else SAME) or next(iter(heads), None)
    return (Frame(found[0].file, found[1].line, found[0].function), found[1]) if found else None


def _handlers_of(at: Frame) -> Iterator[tuple[str, int]]:
    """(file, first line) of the handlers that a line is in."""
    for node in nodes_around(at.file, at.line):
        if isinstance(node, ast.ExceptHandler):
            yield at.file, node.lineno


Handled = tuple[str, Frame | None, Frame | None]


def how_handled(error: RaisedError) -> Handled:
    """The type of an exception, the line of the program that raised it, and where it was handled."""
    return error.type, next(iter(user_frames(error.frames)), None), error.handler


def handled_by_all(case: Case) -> set[Handled]:
    """What every rank raised at one line and handled at one, as often: all went the same way there."""
    counts = [Counter(map(how_handled, e.handled)) for r, e in case.ranks.items() if r in case.world]
    first = counts[0] if counts and len(counts) == len(case.world) > 1 else Counter[Handled]()
    return {kind for kind, n in first.items() if all(c[kind] == n for c in counts)}


def loop_left_by(way: tuple[Frame, WayOut], stay: Path) -> tuple[Frame, int] | None:
    """(where the others are in the loop that the way out leaves, its first line); None where they are in none such."""
    found = ((f, lp.header) for _, f, lp in reversed(loops_on(stay)) if way[1] in ways_out(f.file, lp, f.line))
    return next((at for at in found if at[0].file == way[0].file), None)


def likeliest(
    case: Case, ways: Iterable[tuple[Frame, WayOut]], leavers: Sequence[int], least: int = SAME
) -> tuple[Frame, WayOut] | None:
    """The first of those ways out that most likely are taken on some ranks alone, more than `least`, and that the leavers may have taken."""
    found, most = None, least
    for frame, way in ways:
        conditions = surroundings(frame.file, way.leaves_at).conditions
        is_open = not any(c.on(view_of(case, r)).passes is False for c in conditions for r in leavers)
        weight = _weight(conditions, way)
        if is_open and weight > most:
            found, most = (frame, way), weight
    return found


def caught_raise(condition: Condition, path: Path, shared: int) -> tuple[Frame, Frame] | None:
    """(the line that raises where the condition does not hold, the handler that goes on after it), by the source.

    `path`: a way to a line under the condition; the handler has to be in one of its first `shared` functions.
    """
    raised = raise_of(condition)
    found = (i for i, f in enumerate(path) if condition in surroundings(f.file, f.line).conditions)
    at = next(found, None)
    if raised is None or at is None:
        return None
    line = Frame(condition.path, raised.lineno, path[at].function)
    for frame in reversed((*path[:at], line)):
        for handler in _handlers(frame):
            if not _takes(handler, raised):
                continue
            goes_on = not inside(handler, ast.Raise) and frame in (*path[:shared], line)
            return (line, Frame(frame.file, handler.lineno, frame.function)) if goes_on else None
    return None


_OF_A_LIMIT = frozenset(("RuntimeError", "Exception", "BaseException", "DistError", "DistBackendError"))
_ENDS_THE_PROCESS = ("exit", "_exit", "abort")
_SUPPRESSES = frozenset(("suppress", "raises", "assertRaises", "assertRaisesRegex"))


def catches_a_limit(path: Path) -> bool:
    """Whether the program goes on, by its source, where a call on that way raises since its own limit is over.

    A handler that raises something else hands on that; one that raises on a condition alone goes on.
    """
    raised = _OF_A_LIMIT
    for frame in reversed(path):
        for block in _guards(frame):
            if isinstance(block, ast.With):
                if any(last_name(a) in raised for c in _suppressing(block) for a in c.args):
                    return True
            elif (handler := next((h for h in block.handlers if _types_of(h) & raised), None)) is not None:
                again = _raises_again(handler.body)
                if again is None:
                    return True
                is_same = again.exc is None or any(n.id == handler.name for n in inside(_thrown(again), ast.Name))
                raised = raised if is_same else _classes_of(frame.file, _thrown(again))
    return False


def _guards(frame: Frame) -> list[ast.Try | ast.With]:
    """What may catch what is raised at a line, in its own function, innermost first."""
    tree, own = tree_of(frame.file), surroundings(frame.file, frame.line).function
    tries = [n for n in inside(tree, ast.Try) if any(covers(s, frame.line) for s in n.body)]
    around: list[ast.Try | ast.With] = [*tries, *(n for n in inside(tree, ast.With) if covers(n, frame.line))]
    mine = (n for n in around if surroundings(frame.file, n.body[0].lineno).function == own)
    return sorted(mine, key=lambda n: -n.lineno)


def _suppressing(block: ast.With) -> Iterator[ast.Call]:
    calls = (i.context_expr for i in block.items if isinstance(i.context_expr, ast.Call))
    return (c for c in calls if last_name(c.func) in _SUPPRESSES)


def _raises_again(body: Iterable[ast.stmt]) -> ast.Raise | None:
    """What a block raises under no condition; a call that ends the process counts as such."""
    for node in body:
        if isinstance(node, ast.Raise):
            return node
        called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
        if called is not None and last_name(called) in _ENDS_THE_PROCESS:
            return ast.Raise(exc=ast.Name("SystemExit"))
        if isinstance(node, ast.With) and (found := _raises_again(node.body)) is not None:
            return found
    return None


def _thrown(again: ast.Raise) -> ast.expr:
    """What is raised, or what it is made by."""
    assert again.exc is not None
    return again.exc.func if isinstance(again.exc, ast.Call) else again.exc


def _classes_of(path: str, raised: ast.expr) -> frozenset[str]:
    """The names of the classes of what is raised, as far as the file tells."""
    name = last_name(raised)
    known = {c.name: c for c in inside(tree_of(path), ast.ClassDef)}
    found, pending = {"BaseException"} | ({"Exception"} if name != "SystemExit" else set()), [name]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += [last_name(b) for b in known[name].bases] if name in known else []
    return frozenset(found)


def _handlers(frame: Frame) -> Iterator[ast.ExceptHandler]:
    """Those around a line in its own function, innermost first."""
    own = surroundings(frame.file, frame.line).function
    around = (n for n in inside(tree_of(frame.file), ast.Try) if any(covers(s, frame.line) for s in n.body))
    for node in sorted(around, key=lambda n: -n.lineno):
        if surroundings(frame.file, node.lineno).function == own:
            yield from node.handlers


def _takes(handler: ast.ExceptHandler, raised: ast.Raise) -> bool:
    """Whether the handler takes it, by its name; of a class above it nothing is known."""
    what = raised.exc.func if isinstance(raised.exc, ast.Call) else raised.exc
    return bool(_types_of(handler) & {"Exception", "BaseException", last_name(what) if what is not None else ""})


def _types_of(handler: ast.ExceptHandler) -> set[str]:
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {last_name(t) if t is not None else "BaseException" for t in types}


def is_of_data(condition: Condition) -> bool:
    """Whether a condition asks for what may differ between ranks by itself: data, times, files."""
    return condition.suspicion > 1


def asks_a_method(condition: Condition) -> bool:
    """Whether it asks for what a method answers: its object may be in another state on each rank."""
    asks = any(isinstance(c.func, ast.Attribute) for c in inside(condition.test, ast.Call))
    return asks and condition.suspicion > 0
