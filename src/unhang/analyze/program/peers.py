"""How a program names its peers: of a send or receive by a number or a place in a list of ranks, of a group of two by its members."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from unhang.analyze.program.rank_names import kind_of_name
from unhang.analyze.program.source import function_at, loop_at, nearest, nodes_around, surroundings
from unhang.analyze.program.trees import Function, argument_of, calls_on, inside, last_name, parameters_of
from unhang.model import Frame

SENDS, RECEIVES = ("send", "isend"), ("recv", "irecv")


class Places(NamedTuple):
    """Calls in one function whose peers are places in a list of ranks, `members`. `given`: (line, what the call is given, its peer)."""

    members: str
    given: tuple[tuple[int, str, str], ...]


def places_for_ranks(frame: Frame) -> Places | None:
    """Of a line that sends or receives: peers that are counted modulo the length of a list in which the rank itself has been looked up."""
    function = function_at(frame.file, frame.line)
    scope: ast.AST | None = nearest(frame.file, frame.line, ast.ClassDef) or function
    calls = [c for c in inside(function, ast.Call) if last_name(c.func) in (*SENDS, *RECEIVES)]
    peers = [(c.lineno, k.arg, k.value) for c in calls for k in c.keywords if k.arg in ("src", "dst")]
    found = [(line, f"{arg}={ast.unparse(e)}", ast.unparse(e), _counted_in(scope, e)) for line, arg, e in peers]
    lists = {members for *_, members in found}
    if len(lists) != 1 or len(found) != len(calls) or not (members := lists.pop()):
        return None
    known = function is scope or members.startswith("self.")
    return Places(members, tuple((line, given, f"{members}[{e}]") for line, given, e, _ in found)) if known else None


def _counted_in(scope: ast.AST | None, peer: ast.expr) -> str:
    """The list whose places an expression counts, as `(me + 1) % len(members)`; empty where it is none of ranks."""
    match _meant(scope, peer):
        case ast.BinOp(op=ast.Mod(), right=right):
            count = _meant(scope, right)
        case _:
            return ""
    match count:
        case ast.Call(func=ast.Name(id="len"), args=[ast.Name() | ast.Attribute() as of]):
            looked_up = {ast.unparse(c.func.value) for c in inside(scope, ast.Call) if _asks_for_own_place(c)}  # type: ignore[attr-defined]
            kept = [
                ast.unparse(n.targets[0]) for n in inside(scope, ast.Assign) if ast.unparse(n.value) == ast.unparse(of)
            ]
            names = {ast.unparse(of), *kept}
            named = sorted(names, key=lambda name: not name.startswith("self."))
            return named[0] if names & looked_up else ""
    return ""


def _asks_for_own_place(call: ast.Call) -> bool:
    """Whether it is `members.index(dist.get_rank())`."""
    asked = call.args[0] if len(call.args) == 1 and last_name(call.func) == "index" else None
    name = last_name(asked.func) if isinstance(asked, ast.Call) else last_name(asked) if asked is not None else ""
    return isinstance(call.func, ast.Attribute) and kind_of_name(name) == "rank"


def _meant(scope: ast.AST | None, value: ast.expr) -> ast.expr:
    """What a name stands for that is set once, or a property that only returns something; else the expression itself."""
    name = ast.unparse(value) if isinstance(value, ast.Name | ast.Attribute) else ""
    sets = [n.value for n in inside(scope, ast.Assign) if [ast.unparse(t) for t in n.targets] == [name]]
    gives = [
        r.value
        for f in inside(scope, ast.FunctionDef)
        if f"self.{f.name}" == name and any(last_name(d) == "property" for d in f.decorator_list)
        for r in inside(f, ast.Return)
    ]
    found = [v for v in (*sets, *gives) if v is not None]
    return found[0] if len(found) == 1 else value


def names_the_peer(frame: Frame) -> bool:
    """Whether the peer of a send or receive stands at its line as a number."""
    calls = [c for c in calls_on(frame.file, frame.line) if last_name(c.func) in (*SENDS, *RECEIVES)]
    peers = [
        *(k.value for c in calls for k in c.keywords if k.arg in ("src", "dst")),
        *(a for c in calls for a in c.args[1:2]),
    ]
    return bool(peers) and all(isinstance(p, ast.Constant) for p in peers)


class InTurn(NamedTuple):
    """Groups of two that each rank makes in the order of a loop of its own. `made`: the line that makes one, `text`: it for all pairs at once.

    `head`: the line of the loop, `old` what that goes over, `new` the same in an order that all ranks have.
    """

    made: Frame
    text: str
    owner: str
    head: Frame
    old: str
    new: str


def groups_in_turn(way: Sequence[Frame]) -> InTurn | None:
    """Of the way to a line that makes a group and keeps it by its members (`groups[pair] = new_group(list(pair))`), innermost first."""
    made, function = way[0], function_at(way[0].file, way[0].line)
    keeps = [
        n for n in inside(function, ast.Assign) if n.lineno == made.line and isinstance(n.targets[0], ast.Subscript)
    ]
    match keeps[0] if keeps else None:
        case ast.Assign(targets=[ast.Subscript(value=kept, slice=ast.Name(id=pair))], value=ast.Call(args=[given, *_])):
            pass
        case _:
            return None
    sets = [n.value for n in inside(function, ast.Assign) if [ast.unparse(x) for x in n.targets] == [pair]]
    is_list = ast.unparse(given) in (f"list({pair})", pair)
    owner = next((n.name for n in nodes_around(made.file, made.line) if isinstance(n, ast.ClassDef)), "")
    if not is_list or len(sets) != 1 or not ast.unparse(sets[0]).startswith("tuple(sorted("):
        return None
    for above in way:
        loops = surroundings(above.file, above.line).loops
        loop = loop_at(above.file, loops[-1].header) if loops else None
        key = _key_of(sets[0], function, above, loop) if isinstance(loop, ast.For) and function is not None else None
        if isinstance(loop, ast.For):
            if key is None:
                return None
            over = (
                loop.iter.args[0]
                if isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) == "sorted"
                else loop.iter
            )
            new = f"sorted({ast.unparse(over)}, key={key})"
            each = f"for {pair} in itertools.combinations(range(dist.get_world_size()), 2):\n    {ast.unparse(kept)}[{pair}] = dist.new_group({ast.unparse(given)})"
            return InTurn(made, each, owner, replace(above, line=loop.lineno), ast.unparse(loop.iter), new)
    return None


class Behind(NamedTuple):
    """Groups that a loop makes one by one, in an order of the rank's own, by nothing but `statement` at `made`. `name`: the members of one."""

    made: Frame
    statement: str
    name: str


def made_in_a_loop(made: Frame) -> Behind | None:
    """Of a line that makes a group in a loop and keeps it by its members, where the loop asks the groups for nothing: it can stand behind the loop."""
    loops = surroundings(made.file, made.line).loops
    loop = loop_at(made.file, loops[-1].header) if loops else None
    if not isinstance(loop, ast.For) or function_at(made.file, made.line) is not function_at(made.file, loop.lineno):
        return None
    for n in loop.body:
        match n:
            case ast.Assign(targets=[ast.Subscript(value=kept, slice=ast.Name(id=name))]) if n.lineno == made.line:
                asks = [x for x in ast.walk(loop) if isinstance(x, ast.expr) and ast.unparse(x) == ast.unparse(kept)]
                return Behind(made, ast.unparse(n), name) if len(asks) == 1 else None
    return None


def _key_of(members: ast.expr, function: Function, above: Frame, loop: ast.For) -> str | None:
    """By what the rounds of a loop are sorted, so that their groups come in one order: `members`, said of an item of the loop."""
    names = {n.id: n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    item = "item" if isinstance(loop.target, ast.Tuple) else ast.unparse(loop.target)
    if isinstance(loop.target, ast.Tuple):
        names = {n.id: f"item[{i}]" for i, n in enumerate(loop.target.elts) if isinstance(n, ast.Name)}
    said = names
    if function_at(above.file, above.line) is not function:
        calls = [c for c in inside(loop, ast.Call) if c.lineno == above.line and last_name(c.func) == function.name]
        given = {p: argument_of(calls[0], function, p) for p in parameters_of(function)} if len(calls) == 1 else {}
        said = {p: names[e.id] for p, e in given.items() if isinstance(e, ast.Name) and e.id in names}
    used = {n.id for n in ast.walk(members) if isinstance(n, ast.Name)} - {"tuple", "sorted", "self", "dist", "torch"}
    if not used or not used <= said.keys():
        return None
    text = ast.unparse(members)
    for name in used:
        text = re.sub(rf"(?<![.\w]){name}\b", said[name], text)
    return f"lambda {item}: {text}"
