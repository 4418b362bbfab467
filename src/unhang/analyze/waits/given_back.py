"""What a function takes and does not give back on every way: a place, an item of a queue, a connection of a library's pool.

Told from the source alone; who calls makes sure that nobody has it at the moment, and is about to give it back. Where it is handed on nothing
is said.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from unhang.analyze.program.source import function_at, nearest, negated, nodes_around
from unhang.analyze.program.trees import (
    Function,
    calls_on,
    covers,
    functions_in,
    imported_by,
    importers_beside,
    imports_beside,
    inside,
    last_name,
    names_in,
    tree_of,
)
from unhang.analyze.program.ways_out import head_of
from unhang.analyze.waits.locks import held_by, scope_of
from unhang.model import Frame

_NEW_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_ADDS = ("append", "add")

Gives = Callable[[ast.AST], bool]


class Kept(NamedTuple):
    """A function takes something by `call` at line `taken`, as `name`, and gives it back by `give` at line `until`.

    Not on the way that ends at line `leaves`, where `test` leads; `leaves` is 0 where it gives it back on none.
    """

    path: str
    taken: int
    call: str
    name: str
    give: str = ""
    until: int = 0
    leaves: int = 0
    test: str = ""


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of the functions in it."""
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, _NEW_SCOPE):
            todo += ast.iter_child_nodes(node)


def calls_in(nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
    """Those of the nodes that are calls."""
    return (n for n in nodes if isinstance(n, ast.Call))


def final_statements(function: ast.AST) -> list[ast.stmt]:
    """What the function does in each `finally`: it is done on every way out."""
    return [s for n in own_nodes(function) if isinstance(n, ast.Try) for s in n.finalbody]


def way_past(path: str, function: ast.AST, taken: ast.stmt, gives: Gives) -> tuple[int, int, str] | None:
    """(where the function gives back what a statement takes, where a way ends on which it does not, what leads there); None where it always does."""
    lines = sorted(n.lineno for n in own_nodes(function) if gives(n) and isinstance(n, ast.expr))
    lines = [n for n in lines if n > (taken.end_lineno or taken.lineno)]
    if not lines or any(covers(s, n) for s in final_statements(function) for n in lines):
        return None
    ends = [n for n in own_nodes(function) if isinstance(n, _ENDS) and taken.lineno < n.lineno]
    for end in sorted(ends, key=lambda n: n.lineno):
        around = nodes_around(path, end.lineno)
        is_given = any(n <= end.lineno and _is_on_the_way(path, n, around) for n in lines)
        if not is_given and not _is_elsewhere(around, taken, end):
            tests = [ast.unparse(n.test) for n in around if isinstance(n, ast.If) and n.lineno > taken.lineno]
            until = next((n for n in lines if n > end.lineno), lines[-1])
            return until, end.lineno, f"if {tests[-1]}" if tests else ast.unparse(end)
    whole = [n for n in nodes_around(path, lines[0]) if covers(n, lines[-1])]
    names = {n.id for n in inside(taken, ast.Name) if isinstance(n.ctx, ast.Store)}
    for node in (n for n in whole if isinstance(n, ast.If) and n.lineno > taken.lineno):
        if names.isdisjoint(names_in(node.test)) and not any(covers(s, n) for s in node.orelse for n in lines):
            return lines[0], node.lineno, f"if {ast.unparse(negated(node.test))}"
    for tried in (n for n in whole if isinstance(n, ast.Try)):
        handlers = [h for h in tried.handlers if not any(covers(h, n) for n in lines)]
        if handlers and any(covers(s, lines[0]) for s in tried.body) and not inside(handlers[0], ast.Raise):
            return lines[0], handlers[0].lineno, head_of(handlers[0])
    return None


def _is_on_the_way(path: str, line: int, around: Sequence[ast.AST]) -> bool:
    """Whether a line was passed before an end, of which the nodes around it are given: each block that it is in has the end, too."""
    blocks = [n for n in nodes_around(path, line) if isinstance(n, ast.If | ast.Try | ast.Match | ast.ExceptHandler)]
    if any(block not in around for block in blocks):
        return False
    tests = (n for n in blocks if isinstance(n, ast.If))
    end = around[-1].lineno if isinstance(around[-1], ast.stmt) else line
    return all(any(covers(s, line) for s in n.body) == any(covers(s, end) for s in n.body) for n in tests)


def _is_elsewhere(around: Sequence[ast.AST], taken: ast.stmt, end: ast.stmt) -> bool:
    """Whether a way ends where the thing was not taken, is not left, or where the function catches what is raised."""
    loops = [n for n in around if isinstance(n, LOOPS)]
    if isinstance(end, ast.Continue | ast.Break) and not (loops and covers(loops[-1], taken.lineno)):
        return True
    for node in around:
        if isinstance(node, ast.If) and covers(node, taken.lineno):
            sides = [any(covers(s, x.lineno) for s in node.body) for x in (taken, end)]
            if sides[0] != sides[1]:
                return True
        if isinstance(node, ast.Try):
            in_body = any(covers(s, end.lineno) for s in node.body)
            was_taken_there = any(covers(s, taken.lineno) for s in node.body)
            if was_taken_there and not in_body and any(covers(h, end.lineno) for h in node.handlers):
                return True
            if isinstance(end, ast.Raise) and in_body and node.handlers:
                return True
    return False


def kept_place(frame: Frame, beside: Iterable[Frame]) -> Kept | None:
    """Of a line that waits for a place (`x.acquire()`), or for an item of a queue: a way on which a function takes one and keeps it.

    `beside`: where the other threads and tasks of the process stand: one that has it now may give it back.
    """
    standing = [f for f in beside if f.file == frame.file]
    for method in asked_in(frame):
        what, verb = ast.unparse(method.value), method.attr
        scope = scope_of(frame, what) if verb in ("acquire", "get") else None
        if scope is None or any(_may_have(f, what, verb) for f in standing):
            continue
        for function in functions_in(scope):
            for kept in _places_of(frame.file, function, what, verb, _helpers(scope, function, what)):
                return kept
    return None


def _may_have(at: Frame, what: str, verb: str) -> bool:
    """Whether the function takes such a thing at another line than that at which it stands."""
    function = function_at(at.file, at.line)
    nodes = list(own_nodes(function)) if function is not None else []
    takes = [c for c in calls_in(nodes) if ast.unparse(c.func) == f"{what}.{verb}"]
    blocks = [n for n in nodes if isinstance(n, ast.With | ast.AsyncWith) and what in held_by(n)]
    return bool(takes or blocks) and not any(covers(c, at.line) for c in takes)


def _helpers(scope: ast.AST | None, function: ast.AST, what: str) -> set[str]:
    """The other functions that give such a thing back."""
    others = (f for f in functions_in(scope) if f is not function)
    gives = {f"{what}.{name}" for name in ("release", "put", "put_nowait")}
    return {f.name for f in others if any(ast.unparse(c.func) in gives for c in calls_in(own_nodes(f)))}


def _places_of(path: str, function: ast.AST, what: str, verb: str, helpers: set[str]) -> Iterator[Kept]:
    for call in calls_in(own_nodes(function)):
        statement = nearest(path, call.lineno, ast.stmt)
        if ast.unparse(call.func) != f"{what}.{verb}" or not isinstance(statement, ast.Assign | ast.Expr):
            continue
        name = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
        if verb == "get" and not name.isidentifier():
            continue
        give = f"{what}.put({name})" if verb == "get" else f"{what}.release()"

        def gives(node: ast.AST, give: str = give) -> bool:
            is_give = isinstance(node, ast.Call) and ast.unparse(node).replace("put_nowait(", "put(") == give
            return isinstance(node, ast.Call) and (is_give or last_name(node.func) in helpers)

        if way := way_past(path, function, statement, gives):
            yield Kept(path, call.lineno, ast.unparse(call), what, give, *way)


def program_of(path: str) -> list[str]:
    """A file, and those beside it that it imports, or that import it: others of the folder are other programs."""
    return list(dict.fromkeys([path, *imports_beside(path).values(), *importers_beside(path)]))


def asked_in(frame: Frame) -> list[ast.Attribute]:
    """The methods that a line calls, with the objects of which it asks them."""
    return [c.func for c in calls_on(frame.file, frame.line) if isinstance(c.func, ast.Attribute)]


class Answer(NamedTuple):
    """A call of a function of the program, in the file `path`."""

    path: str
    function: Function
    call: ast.Call


def answers_to(frame: Frame, verb: str, answers: Collection[str]) -> list[Answer]:
    """Of a line that asks one object (`q.join()`, with `verb` join): the calls in the program that answer it, by their names, with their functions."""
    names = {last_name(f.value) for f in asked_in(frame) if f.attr == verb}
    return [
        Answer(path, function, call)
        for path in (program_of(frame.file) if len(names) == 1 else ())
        for function in functions_in(tree_of(path))
        for call in calls_in(own_nodes(function))
        if isinstance(call.func, ast.Attribute) and call.func.attr in answers and last_name(call.func.value) in names
    ]


def not_done(frame: Frame) -> Kept | None:
    """Of a line that waits until all items of a queue are done (`q.join()`): the one function that takes them, and does not say so of each."""
    found = answers_to(frame, "join", ("get",))
    if len(found) != 1:
        return None
    path, function, get = found[0]
    assert isinstance(get.func, ast.Attribute)
    done, statement = f"{ast.unparse(get.func.value)}.task_done", nearest(path, get.lineno, ast.stmt)
    kept = Kept(path, get.lineno, ast.unparse(get), last_name(get.func.value), f"{done}()")
    if statement is None:
        return None
    if not any(last_name(c.func) == "task_done" for p in program_of(frame.file) for c in inside(tree_of(p), ast.Call)):
        return kept
    way = way_past(path, function, statement, lambda n: isinstance(n, ast.Call) and ast.unparse(n.func) == done)
    return kept._replace(until=way[0], leaves=way[1], test=way[2]) if way else None


class Takes(NamedTuple):
    """How a library's pool is used: the methods that take, a keyword that they must have, what gives back or reads to the end.

    `is_awaited`: only what is awaited takes. `owners`: the names of objects that have the pool; empty where any may.
    """

    methods: tuple[str, ...]
    keyword: str
    gives: tuple[str, ...]
    is_awaited: bool = False
    owners: tuple[str, ...] = ()

    def is_of(self, call: ast.Call, modules: Iterable[str] = ()) -> bool:
        """Whether a call takes something out of a pool: of an object, not of a module such as `requests.get`."""
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in self.methods:
            return False
        owner, keywords = call.func.value, [f"{k.arg}={ast.unparse(k.value)}" for k in call.keywords]
        is_other = ast.unparse(owner) in modules or (self.owners and last_name(owner) not in self.owners)
        return not is_other and (not self.keyword or self.keyword in keywords)

    def as_at(self, frame: Frame) -> Takes | None:
        """The same of the objects of which a line asks; None where no line tells them and no keyword does."""
        owners = {last_name(f.value) for f in asked_in(frame) if f.attr in self.methods}
        return self if self.keyword else self._replace(owners=tuple(sorted(owners))) if owners else None


def takers(frame: Frame, takes: Takes) -> bool:
    """Whether the function at a frame takes such a thing: who stands there may have one."""
    function = function_at(frame.file, frame.line)
    return function is not None and any(takes.is_of(c) for c in calls_in(own_nodes(function)))


def kept_connections(path: str, takes: Takes) -> list[Kept]:
    """The lines of a program that take something out of a library's pool and do not give it back on every way."""
    found: list[Kept | None] = []
    for file in program_of(path):
        modules = imported_by(file)
        for function in functions_in(tree_of(file)):
            parents = {id(child): n for n in (function, *own_nodes(function)) for child in ast.iter_child_nodes(n)}
            calls = (c for c in calls_in(own_nodes(function)) if takes.is_of(c, modules))
            found += [_kept_connection(file, function, c, parents, takes) for c in calls]
    return sorted(filter(None, found), key=lambda k: (k.path != path, k.path, k.taken))


def _kept_connection(
    path: str, function: ast.AST, call: ast.Call, parents: dict[int, ast.AST], takes: Takes
) -> Kept | None:
    value: ast.AST = call
    parent = parents.get(id(call))
    if isinstance(parent, ast.Await):
        value, parent = parent, parents.get(id(parent))
    elif takes.is_awaited:
        return None
    kept = Kept(path, call.lineno, ast.unparse(call), "")
    match parent:
        case ast.Expr():
            return kept
        case ast.Attribute(attr=attr):
            return None if attr in takes.gives else kept
        case ast.Assign(targets=[ast.Name(id=name)]) if parent.value is value:
            return _kept_name(path, function, parent, kept._replace(name=name), takes)
    return None


def _kept_name(path: str, function: ast.AST, taken: ast.stmt, kept: Kept, takes: Takes) -> Kept | None:
    """Of something that a function takes under a name: where it keeps it; None where it hands it on, or blocks give it back."""
    nodes = list(own_nodes(function))
    parts = [n for n in nodes if isinstance(n, ast.Attribute) and _is_named(n.value, kept.name)]
    of_parts = {id(n.value) for n in parts}
    tests = {id(t) for n in nodes if isinstance(n, ast.If | ast.While | ast.IfExp) for t in _tested(n.test)}
    bare = [n for n in nodes if _is_named(n, kept.name) and id(n) not in of_parts and id(n) not in tests]
    given = [
        c for c in calls_in(nodes) if last_name(c.func) in takes.gives and any(_is_named(a, kept.name) for a in c.args)
    ]
    put_away = {id(a): c for c in calls_in(nodes) if _keeps_on(c) for a in c.args}
    handed = {id(a) for c in given for a in c.args} | put_away.keys()
    if any(isinstance(n.ctx, ast.Load) and id(n) not in handed for n in bare if isinstance(n, ast.Name)):
        return None
    if stays := [put_away[id(n)] for n in bare if id(n) in put_away]:
        return kept._replace(leaves=stays[0].lineno, test=ast.unparse(stays[0]))
    loops = {id(n): loop for loop in nodes if isinstance(loop, ast.For | ast.AsyncFor) for n in ast.walk(loop.iter)}
    for part in parts:
        if part.attr == "raw" or (part.attr.startswith("iter") and id(part) not in loops):
            return None
    left = [n for p in parts if id(p) in loops for n in ast.walk(loops[id(p)]) if isinstance(n, ast.Return | ast.Break)]
    ends = {id(p) for p in parts if p.attr in takes.gives or (id(p) in loops and not left)} | {id(c) for c in given}
    if not ends:
        return kept._replace(leaves=left[0].lineno, test=ast.unparse(left[0])) if left else kept
    way = way_past(path, function, taken, lambda n: id(n) in ends)
    return kept._replace(until=way[0], leaves=way[1], test=way[2]) if way else None


def _keeps_on(call: ast.Call) -> bool:
    """Whether a call puts something into a container that outlives the function: whoever reads it there comes later."""
    method = call.func
    return isinstance(method, ast.Attribute) and method.attr in _ADDS and isinstance(method.value, ast.Attribute)


def _is_named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _tested(test: ast.expr) -> list[ast.AST]:
    """The parts of a test that ask whether something is there."""
    operands = test.values if isinstance(test, ast.BoolOp) else [test]
    plain = [o.operand if isinstance(o, ast.UnaryOp) else o for o in operands]
    return [n for o in plain for n in (ast.walk(o) if isinstance(o, ast.Compare | ast.Name) else ())]
