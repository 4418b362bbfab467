"""How a program names the peer of a send or receive: by a number, or by a place in a list of ranks."""

from __future__ import annotations

import ast
from typing import NamedTuple

from unhang.analyze.rank_names import kind_of_name
from unhang.analyze.source import function_at, nearest
from unhang.analyze.trees import calls_on, inside, last_name
from unhang.analyze.waits_for import RECEIVES, SENDS
from unhang.model import Frame


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
