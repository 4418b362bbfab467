"""Actors of Ray, as the source has them: who waits for whom, who asks again and again, and what an actor forgets that is started anew."""

from __future__ import annotations

import ast
from typing import NamedTuple

from unhang.analyze.bindings import last_name
from unhang.analyze.locks import FUNCTION as _FUNCTION
from unhang.analyze.source import function_at, loop_around, nodes_around
from unhang.analyze.trees import covers, files_beside, nodes_of, tree_of
from unhang.model import Frame


class ActorCircle(NamedTuple):
    """An actor's method waits at `wait` for a method of another one, which asks at `back` for `asked` of the first: its class, `actor`, at line `at`."""

    wait: Frame
    back: Frame
    asked: str
    actor: str
    decorator: str
    at: Frame


def actor_circle(wait: Frame) -> ActorCircle | None:
    """Of a line of an actor of Ray that waits for another actor: where that one waits for the first, by the source."""
    nodes = nodes_around(wait.file, wait.line)
    mine = next((n for n in nodes if isinstance(n, ast.ClassDef)), None)
    statement = next((n for n in reversed(nodes) if isinstance(n, ast.stmt)), None)
    decorator = _remote(mine) if mine is not None and _asked_of_actors(statement) else None
    if mine is None or decorator is None or "max_concurrency" in ast.unparse(decorator):
        return None
    own = {f.name for f in mine.body if isinstance(f, _FUNCTION)}
    for path in files_beside(wait.file):
        tree = tree_of(path)
        for other in (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)) if tree is not None else ():
            asks = _asks_back(other, _asked_of_actors(statement), own) if other is not mine and _remote(other) else None
            if asks is not None:
                back, line = asks
                at = Frame(wait.file, decorator.lineno, mine.name)
                return ActorCircle(wait, Frame(path, line, other.name), back, mine.name, ast.unparse(decorator), at)
    return None


def _asks_back(actor: ast.ClassDef, asked: set[str], own: set[str]) -> tuple[str, int] | None:
    """(the method, the line) by which one of an actor's methods `asked`, or one that it calls, waits for a method of `own`."""
    methods = {f.name: f for f in actor.body if isinstance(f, _FUNCTION)}
    reached = [f for name in sorted(asked & methods.keys()) for f in _reached(methods, name)]
    calls = (n for f in reached for n in ast.walk(f) if isinstance(n, ast.Call))
    return next(((min(back), c.lineno) for c in calls if (back := own & _asked_of_actors(c))), None)


def _asked_of_actors(node: ast.AST | None) -> set[str]:
    """The methods of actors whose results a statement waits for: `x` of `ray.get(self.a.x.remote())`."""
    gets = [n for n in ast.walk(node) if isinstance(n, ast.Call) and ast.unparse(n.func) == "ray.get"] if node else []
    asked = [n for g in gets for n in ast.walk(g) if isinstance(n, ast.Attribute) and n.attr == "remote"]
    return {n.value.attr for n in asked if isinstance(n.value, ast.Attribute)}


def asks_ray(frame: Frame) -> bool:
    """Whether a line waits for Ray, or asks something of an actor."""
    calls = (n for n in nodes_of(frame.file) if isinstance(n, ast.Call) and covers(n, frame.line))
    return any(ast.unparse(c.func) in ("ray.get", "ray.wait") or last_name(c.func) == "remote" for c in calls)


def polls_ray(frame: Frame) -> bool:
    """Whether the loop around a line asks Ray for another answer in each of its rounds."""
    return bool(_asked_of_actors(loop_around(frame.file, frame.line)))


class Forgetful(NamedTuple):
    """An actor that may be started again, without what it had: its class at `at`. `handed`: the statement before a loop that told it something."""

    actor: str
    decorator: str
    at: Frame
    handed: str


def forgetful_actor(frame: Frame) -> Forgetful | None:
    """The actor that the loop around a line asks again and again, if Ray may start it anew, and it was told something once, before the loop."""
    loop, function = loop_around(frame.file, frame.line), function_at(frame.file, frame.line)
    asked = _asked_of_actors(loop)
    if loop is None or function is None or not asked:
        return None
    for path in files_beside(frame.file):
        for actor in (n for n in nodes_of(path) if isinstance(n, ast.ClassDef)):
            decorator, own = _remote(actor), {f.name for f in actor.body if isinstance(f, _FUNCTION)}
            if decorator is None or not asked <= own or not _is_restarted(decorator):
                continue
            told = [x for x in function.body if x.lineno < loop.lineno and _asked_of_actors(x) & own]
            if told:
                at = Frame(path, decorator.lineno, actor.name)
                return Forgetful(actor.name, ast.unparse(decorator), at, ast.unparse(told[-1]))
    return None


def named_actor(frame: Frame) -> tuple[Frame, str] | None:
    """(line, call) of the one actor that a program names and that ends with its maker's handle, where the loop around a line looks for actors by name."""
    loop = loop_around(frame.file, frame.line)
    if loop is None or not any(isinstance(n, ast.Call) and last_name(n.func) == "get_actor" for n in ast.walk(loop)):
        return None
    found = [
        (Frame(path, n.lineno, ""), n)
        for path in files_beside(frame.file)
        for n in nodes_of(path)
        if isinstance(n, ast.Call)
        and last_name(n.func) == "options"
        and "name" in (given := {k.arg for k in n.keywords})
        if not given & {"lifetime", "get_if_exists", None}
    ]
    return (found[0][0], ast.unparse(found[0][1])) if len(found) == 1 else None


def _is_restarted(decorator: ast.expr) -> bool:
    given = {k.arg: ast.unparse(k.value) for k in getattr(decorator, "keywords", ())}
    return given.get("max_restarts", "0") != "0"


def method_of(path: str, call: str) -> Frame | None:
    """Where a call such as `Board.newer_than` waits first, in a file or one beside it: its first `await`, else where it begins."""
    owner, _, name = call.rpartition(".")
    for file in files_beside(path) if owner else ():
        for node in nodes_of(file):
            body = node.body if isinstance(node, ast.ClassDef) and node.name == owner else ()
            if method := next((f for f in body if isinstance(f, _FUNCTION) and f.name == name), None):
                awaits = sorted(n.lineno for n in ast.walk(method) if isinstance(n, ast.Await))
                return Frame(file, awaits[0] if awaits else method.lineno, name)
    return None


def _remote(node: ast.ClassDef) -> ast.expr | None:
    return next((d for d in node.decorator_list if ast.unparse(d).startswith("ray.remote")), None)


def _reached(methods: dict[str, ast.FunctionDef | ast.AsyncFunctionDef], name: str) -> list[ast.AST]:
    """A method and those of the same object that it calls."""
    found: dict[str, ast.AST] = {}
    todo = [name]
    while todo:
        one = todo.pop()
        if one in methods and one not in found:
            found[one] = methods[one]
            calls = (n.func for n in ast.walk(methods[one]) if isinstance(n, ast.Call))
            todo += [f.attr for f in calls if isinstance(f, ast.Attribute) and ast.unparse(f.value) == "self"]
    return list(found.values())
