"""What the head of a loop tells: where it begins and ends on each rank, in which order it goes, and what ends its generator."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path as Folder
from typing import NamedTuple

from unhang.analyze.calls.divergence import Divergence
from unhang.analyze.program.callpath import Path, loops_on
from unhang.analyze.program.may_differ import OWN, may_differ
from unhang.analyze.program.rounds import is_in
from unhang.analyze.program.sets import unwrapped
from unhang.analyze.program.source import condition_of, frame_at, function_at, loop_at, scopes_at, surroundings
from unhang.analyze.program.trees import (
    Function,
    assignments,
    bound_to,
    functions_in,
    functions_named,
    inside,
    last_name,
    line_text,
    names_in,
    program_nodes,
    remembered,
    tree_of,
)
from unhang.analyze.program.values import differing
from unhang.analyze.program.ways_out import WayOut, ways_of
from unhang.model import Case, Frame

_COUNTED = ("range", "trange")


class Start(NamedTuple):
    """Ranks that began a loop elsewhere. `frame`: the line that sets `name`, `header`: of the loop; `mine`, `theirs`: its value on the odd ranks, on the others.

    The values are empty where only the end of the loop tells: the program counts its rounds in `name`.
    """

    frame: Frame
    header: int
    name: str
    text: str
    mine: str
    theirs: str


def other_start(case: Case, d: Divergence) -> Start | None:
    """The first round of a loop that some ranks left, where the two sides began at different ones. The outermost such loop."""
    if d.left_loop is None:
        return None
    is_odd_gone = d.left_loop.leavers == d.odd
    stay, left = (d.reference_path, d.odd_path) if is_odd_gone else (d.odd_path, d.reference_path)
    for depth, frame, loop in loops_on(stay):
        values = {name: (mine, theirs) for name, mine, theirs in differing(case, d.odd, d.reference, frame)}
        for name, line in starts_of(frame.file, loop.header) if not is_in(left, stay, depth, loop) else ():
            if name in values:
                at = Frame(frame.file, line, frame.function)
                return Start(at, loop.header, name, line_text(frame.file, line), *values[name])
    return None


def counted_start(stay: Path, left: Path) -> Start | None:
    """Where the end of a loop that some ranks left hangs on a number that each of them began to count from what a call or a file gave."""
    gone = [(frame.file, loop.header) for depth, frame, loop in loops_on(stay) if not is_in(left, stay, depth, loop)]
    counted = (_counted_from(*loop) for loop in gone)
    return next((start for start in counted if start is not None), None)


@remembered
def _counted_from(path: str, header: int) -> Start | None:
    loop, function = loop_at(path, header), function_at(path, header)
    if loop is None:
        return None
    tests = [loop.test] if isinstance(loop, ast.While) else []
    tests += [n.test for n in inside(loop, ast.If) if len(n.body) == 1 and isinstance(n.body[0], ast.Break)]
    for test in tests:
        name = test.left.id if isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) else ""
        steps = [n for n in inside(loop, ast.AugAssign) if isinstance(n.target, ast.Name) and n.target.id == name]
        is_step = len(steps) == 1 and isinstance(steps[0].op, ast.Add) and isinstance(steps[0].value, ast.Constant)
        set_at = max(_set_before(function, name, header), default=0)
        if name and is_step and set_at and not _may_be_passed(loop, steps[0]):
            return Start(frame_at(path, set_at), header, name, line_text(path, set_at), "", "")
    return None


def _may_be_passed(loop: ast.AST, step: ast.AugAssign) -> bool:
    """Whether a round may end without that step: under a condition, or by a `continue` before it."""
    holders = [
        n for n in ast.walk(loop) if any(step in getattr(n, part, ()) for part in ("body", "orelse", "handlers"))
    ]
    is_apart = not all(isinstance(n, ast.For | ast.AsyncFor | ast.While | ast.With) for n in holders)
    return is_apart or any(n.lineno < step.lineno for n in inside(loop, ast.Continue))


class Bound(NamedTuple):
    """A number of rounds, or a list of them, that the program changes as it goes. `frame`: the condition under which it does, `header`: of the loop.

    `grows`: those who changed it make more rounds, not fewer; None where the source does not tell.
    """

    frame: Frame
    header: int
    name: str
    text: str
    is_list: bool
    grows: bool | None


def changed_bound(frame: Frame, header: int) -> Bound | None:
    """Of the loop around a frame that some ranks left: the number of its rounds, where one rank may have changed it alone."""
    name, line, text, is_list, grows = _bound_of(frame.file, header)
    at = frame_at(frame.file, line)
    return Bound(at, header, name, text, is_list, grows) if line else None


@remembered
def set_by_role(path: str, header: int) -> tuple[str, tuple[int, ...]]:
    """(name, lines) where a function sets what its loop goes over, or counts to, for each role by itself.

    That is under conditions on the rank that exclude each other, or by the two sides of one such condition.
    """
    loop, around = loop_at(path, header), function_at(path, header)
    if not isinstance(loop, ast.For) or around is None:
        return "", ()
    for name in sorted({last_name(n) for n in _gone_over(loop) if isinstance(n, ast.Name)}):
        bound = [*_assigned(around, name, header)]
        lines = sorted({node.lineno for node, _ in bound})
        if len(bound) == 1 and isinstance(choice := bound[0][1], ast.IfExp):
            if last_name(unwrapped(loop.iter)) == name and condition_of(path, choice.test).depends_on_rank:
                return name, tuple(lines)
            continue
        roles = [[c for c in surroundings(path, line).conditions if c.depends_on_rank] for line in lines]
        if len(lines) > 1 and all(
            any(a.is_opposite_of(b) for a in one for b in other) for one, other in combinations(roles, 2)
        ):
            return name, tuple(lines)
    return "", ()


def _gone_over(loop: ast.For) -> Iterator[ast.expr]:
    """What a loop goes over, and the last number of its `range`."""
    over = unwrapped(loop.iter)
    yield over
    if isinstance(over, ast.Call) and last_name(over.func) in _COUNTED and 0 < len(over.args) < 3:
        yield over.args[-1]


@remembered
def _bound_of(path: str, header: int) -> tuple[str, int, str, bool, bool | None]:
    loop = loop_at(path, header)
    calls = inside(loop.iter if isinstance(loop, ast.For) else None, ast.Call)
    bounds = [c.args[-1] for c in calls if last_name(c.func) in _COUNTED and 0 < len(c.args) < 3]
    names = {last_name(b): ast.unparse(b) for b in bounds if last_name(b)}
    over = unwrapped(loop.iter) if isinstance(loop, ast.For) else None
    lists = {last_name(over): ast.unparse(over)} if isinstance(over, ast.Name | ast.Attribute) else {}
    for test in inside(tree_of(path) if names or lists else None, ast.If):
        for node in (n for statement in test.body for n in ast.walk(statement)):
            for name in (_grows(node) & names.keys()) | (_shortens(node) & lists.keys()):
                grows = False if name in lists else _is_more(node, name)
                return {**lists, **names}[name], test.lineno, f"if {ast.unparse(test.test)}", name in lists, grows
    return "", 0, "", False, None


def _is_more(node: ast.AST, name: str) -> bool | None:
    """Whether a statement makes a number larger; None where its operators do not tell."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            parts: list[ast.AST] = [v for t, v in zip(targets, values, strict=False) if last_name(t) == name]
        case _:
            parts = [node]
    found = {type(n.op) for part in parts for n in ast.walk(part) if isinstance(n, ast.AugAssign | ast.BinOp)}
    more, less = found & {ast.Add, ast.Mult}, found & {ast.Sub, ast.Div, ast.FloorDiv}
    return None if bool(more) is bool(less) else bool(more)


def _shortens(node: ast.AST) -> set[str]:
    """The lists from which a statement takes something out: `xs.pop()`, `del xs[0]`."""
    match node:
        case ast.Call(func=ast.Attribute(value=of, attr="pop" | "popleft" | "remove" | "clear" | "discard")):
            return {last_name(of)} - {""}
        case ast.Delete(targets=targets):
            return {last_name(t.value) for t in targets if isinstance(t, ast.Subscript)} - {""}
    return set()


def _grows(node: ast.AST) -> set[str]:
    """The variables and attributes that a statement makes from themselves: `a.n *= 2`, `n = n + 1`."""
    if isinstance(node, ast.AugAssign):
        return {last_name(node.target)} - {""}
    if not isinstance(node, ast.Assign):
        return set()
    targets = {last_name(n) for t in node.targets for n in ([*t.elts] if isinstance(t, ast.Tuple) else [t])}
    used = {last_name(n) for n in ast.walk(node.value) if isinstance(n, ast.Name | ast.Attribute)}
    return targets & used - {""}


@remembered
def starts_of(path: str, header: int) -> tuple[tuple[str, int], ...]:
    """(variable, line that sets it last before the loop) of the first round of the loop at line `header`, where it is not a constant."""
    names = dict.fromkeys(_first_of(loop_at(path, header)))
    places = ((name, max(_set_before(tree_of(path), name, header), default=0)) for name in names)
    return tuple((name, line) for name, line in places if line)


def _first_of(loop: ast.AST | None) -> Iterator[str]:
    """START of `for e in range(START, n)`, in whatever wraps the range."""
    for call in inside(loop.iter if isinstance(loop, ast.For) else None, ast.Call):
        match last_name(call.func), call.args:
            case ("range" | "trange", [ast.Name(id=name), _, *_]) | ("count", [ast.Name(id=name), *_]):
                yield name
            case ("islice", [_, ast.Name(id=name), _, *_]):
                yield name


def _set_before(tree: ast.AST | None, name: str, header: int) -> Iterator[int]:
    """Lines before the loop that give the variable what a call or another variable holds."""
    for node, value in _assigned(tree, name, header):
        if any(isinstance(n, ast.Call | ast.Subscript) for n in ast.walk(value)):
            yield node.lineno


def _assigned(tree: ast.AST | None, name: str, header: int) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr]]:
    """What gives the variable a value before the loop, and the value."""
    for node, targets, value in assignments(tree):
        if node.lineno < header and any(name in names_in(t) for t in targets):
            yield node, value


class SortedApart(NamedTuple):
    """A loop at `head` over what `sorted` at line `at` puts in order by `key`, out of `what`."""

    head: Frame
    at: int
    key: str
    what: str


def loop_sorted_apart(path: Sequence[Frame]) -> SortedApart | None:
    """The innermost loop on a way to a call whose order comes from a key, in the loop itself or in the one place that binds what it goes over."""
    for _, frame, loop in reversed(loops_on(tuple(path))):
        head, tree = loop_at(frame.file, loop.header), tree_of(frame.file)
        over = unwrapped(head.iter) if isinstance(head, ast.For) else None
        if isinstance(over, ast.Name | ast.Attribute) and tree is not None:
            bound = [*bound_to(tree, last_name(over))]
            over = unwrapped(bound[0]) if len(bound) == 1 else over
        match over:
            case ast.Call(func=ast.Name(id="sorted"), args=[what], keywords=given):
                key = next((k.value for k in given if k.arg == "key"), None)
                if key is not None:
                    where = Frame(frame.file, loop.header, frame.function)
                    return SortedApart(where, over.lineno, ast.unparse(key), ast.unparse(what))
    return None


def keys_gone_over(path: str, header: int) -> str:
    """The dictionary, as it is written, over whose entries a loop goes; empty where it goes over anything else."""
    loop = loop_at(path, header)
    match unwrapped(loop.iter) if isinstance(loop, ast.For) else None:
        case ast.Call(func=ast.Attribute(value=of, attr="items" | "keys" | "values"), args=[], keywords=[]):
            return ast.unparse(of)
    return ""


@remembered
def end_of_generator(path: str, header: int) -> tuple[Frame, WayOut] | None:
    """The test that ends the generator early over which the loop at a line goes; None where it has several, none, or is not the program's."""
    loop = loop_at(path, header)
    called = unwrapped(loop.iter) if isinstance(loop, ast.For | ast.AsyncFor) else None
    found = _generator(path, last_name(called.func)) if isinstance(called, ast.Call) else None
    if found is None:
        return None
    file, function = found
    loops = [n for n in function.body if isinstance(n, ast.For | ast.AsyncFor | ast.While)]
    others = [n for n in function.body if n not in loops]
    ways = [*ways_of(others, in_loop=False), *(w for n in loops for w in ways_of(n.body, in_loop=True))]
    return (Frame(file, ways[0].line, function.name), ways[0]) if len(ways) == 1 else None


class Place(NamedTuple):
    """Where the program's own iterator goes on from: `name`, an attribute that the line of `frame` sets from outside, as `text`, to what a rank has for itself."""

    frame: Frame
    name: str
    text: str


def resumed_place(path: str, header: int) -> Place | None:
    """Of a loop over an iterator of the program's: the one line that tells it from outside where to go on, if it does so for each rank by itself."""
    loop, folder = loop_at(path, header), str(Folder(path).parent)
    over = unwrapped(loop.iter) if isinstance(loop, ast.For | ast.AsyncFor) else None
    is_method = isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute)
    wanted = last_name(over.func) if isinstance(over, ast.Call) and is_method else "__iter__"
    named = functions_named(folder, wanted) if isinstance(over, ast.Call | ast.Name | ast.Attribute) else []
    begins = {name for _, function in named for name in _begun_at(function)} if len(named) == 1 else set()
    sets = [
        (file, n, n.targets[0].attr)
        for file, n in program_nodes(folder)
        if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Attribute) and n.targets[0].attr in begins
        if last_name(n.targets[0].value) != "self"
    ]
    if len(sets) != 1:
        return None
    file, node, name = sets[0]
    is_own = may_differ(file, node.value, scopes_at(file, node.lineno), is_test=False) == OWN
    return Place(frame_at(file, node.lineno), name, line_text(file, node.lineno)) if is_own else None


def _begun_at(generator: Function) -> Iterator[str]:
    """The attributes of an object at which its generator begins to count."""
    for loop in inside(generator, ast.For):
        match loop.iter:
            case ast.Call(func=ast.Name("range"), args=[ast.Attribute(value=ast.Name("self"), attr=name), _, *_]) if (
                any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(loop))
            ):
                yield name


def _generator(path: str, name: str) -> tuple[str, Function] | None:
    """The one generator of this name in the file, or in the file beside it from which it is imported."""
    for file in (path, *_imported_from(path, name)):
        named = [f for f in functions_in(tree_of(file)) if f.name == name]
        if len(named) == 1 and any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(named[0])):
            return file, named[0]
    return None


def _imported_from(path: str, name: str) -> Iterator[str]:
    for node in inside(tree_of(path), ast.ImportFrom):
        if node.module and any((a.asname or a.name) == name for a in node.names):
            yield str(Folder(path).parent.joinpath(*node.module.split("."))) + ".py"
