"""Loops over sets of texts or objects: their order is another one in each process, unless somebody sorts them."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from unhang.analyze.program.source import loop_at, surroundings
from unhang.analyze.program.trees import bound_to, functions_named, inside, last_name, line_text, tree_of
from unhang.model import Frame

_WRAPPERS = ("enumerate", "list", "tuple", "iter", "tqdm", "reversed")
_OF_SETS = ("union", "difference", "intersection", "symmetric_difference", "copy")
_MOST_STEPS = 40


def loop_over_set(path: Sequence[Frame]) -> tuple[Frame, str] | None:
    """The head of the innermost loop on a way to a call that goes over a set, and what it goes over; None where none surely does."""
    for frame in reversed(path):
        for loop in reversed(surroundings(frame.file, frame.line).loops):
            head = loop_at(frame.file, loop.header)
            over = unwrapped(head.iter) if isinstance(head, ast.For) else None
            if over is not None and _is_set(frame.file, over):
                return Frame(frame.file, loop.header, frame.function), ast.unparse(over)
        if line_text(frame.file, frame.line) == "":
            return None
    return None


def unwrapped(node: ast.expr) -> ast.expr:
    """What a loop goes over, without `enumerate` and the like."""
    while isinstance(node, ast.Call) and last_name(node.func) in _WRAPPERS and node.args:
        node = node.args[0]
    return node


def _is_set(path: str, node: ast.expr) -> bool:
    """Whether an expression is a set in all that its file binds to it, and not one of numbers, whose order is the same everywhere."""
    todo, known, is_set = [(path, node)], set[str](), False
    for _ in range(_MOST_STEPS):
        if not todo:
            return is_set
        file, one = todo.pop()
        match unwrapped(one):
            case ast.Set(elts=of) if not all(isinstance(e, ast.Constant) and isinstance(e.value, int) for e in of):
                is_set = True
            case ast.SetComp():
                is_set = True
            case ast.Call(func=ast.Name(id="set" | "frozenset"), args=args):
                is_set = is_set or bool(args)
            case ast.Call(func=ast.Attribute(value=of, attr=name)) if name in _OF_SETS:
                todo.append((file, of))
            case ast.BinOp(op=ast.Sub() | ast.BitOr() | ast.BitAnd() | ast.BitXor(), left=left):
                todo.append((file, left))
            case ast.Call(func=ast.Name(id=name)) if name not in known and (given := _given_by(file, name)):
                known.add(name)
                todo += given
            case ast.Name() | ast.Attribute() as named:
                name = last_name(named)
                bound = [(file, v) for v in bound_to(tree_of(file), name)] if name not in known else []
                if name not in known and not bound:
                    return False
                known.add(name)
                todo += bound
            case _:
                return False
    return False


def _given_by(path: str, name: str) -> list[tuple[str, ast.expr]]:
    """What the one function of the program of this name gives back, with its file."""
    found = functions_named(path.rpartition("/")[0], name)
    given = [(file, n.value) for file, f in found for n in inside(f, ast.Return) if n.value is not None]
    return given if len(found) == 1 else []
