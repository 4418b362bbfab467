"""Loops in an order that each process has for itself: over sets of texts or objects, and over what is sorted by its own figures."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from unhang.analyze.bindings import last_name
from unhang.analyze.source import loop_at, surroundings
from unhang.analyze.trees import line_text, tree_of
from unhang.model import Frame

_WRAPPERS = ("enumerate", "list", "tuple", "iter", "tqdm", "reversed")
_OF_SETS = ("union", "difference", "intersection", "symmetric_difference", "copy")
_MOST_STEPS = 40


def loop_over_set(path: Sequence[Frame]) -> tuple[Frame, str] | None:
    """The head of the innermost loop on a way to a call that goes over a set, and what it goes over; None where none surely does."""
    for frame in reversed(path):
        for loop in reversed(surroundings(frame.file, frame.line).loops):
            head, tree = loop_at(frame.file, loop.header), tree_of(frame.file)
            over = unwrapped(head.iter) if isinstance(head, ast.For) else None
            if over is not None and tree is not None and _is_set(tree, over):
                return Frame(frame.file, loop.header, frame.function), ast.unparse(over)
        if line_text(frame.file, frame.line) == "":
            return None
    return None


class SortedApart(NamedTuple):
    """A loop at `head` over what `sorted` at line `at` puts in order by `key`, out of `what`."""

    head: Frame
    at: int
    key: str
    what: str


def loop_sorted_apart(path: Sequence[Frame]) -> SortedApart | None:
    """The innermost loop on a way to a call whose order comes from a key, in the loop itself or in the one place that binds what it goes over."""
    for frame in reversed(path):
        for loop in reversed(surroundings(frame.file, frame.line).loops):
            head, tree = loop_at(frame.file, loop.header), tree_of(frame.file)
            over = unwrapped(head.iter) if isinstance(head, ast.For) else None
            if isinstance(over, ast.Name | ast.Attribute) and tree is not None:
                bound = [*_bound_to(tree, last_name(over))]
                over = unwrapped(bound[0]) if len(bound) == 1 else over
            match over:
                case ast.Call(func=ast.Name(id="sorted"), args=[what], keywords=given):
                    key = next((k.value for k in given if k.arg == "key"), None)
                    if key is not None:
                        where = Frame(frame.file, loop.header, frame.function)
                        return SortedApart(where, over.lineno, ast.unparse(key), ast.unparse(what))
    return None


def unwrapped(node: ast.expr) -> ast.expr:
    """What a loop goes over, without `enumerate` and the like."""
    while isinstance(node, ast.Call) and last_name(node.func) in _WRAPPERS and node.args:
        node = node.args[0]
    return node


def _is_set(tree: ast.Module, node: ast.expr) -> bool:
    """Whether an expression is a set in all that the file binds to it, and not one of numbers, whose order is the same everywhere."""
    todo, known, is_set = [node], set[str](), False
    for _ in range(_MOST_STEPS):
        if not todo:
            return is_set
        match unwrapped(todo.pop()):
            case ast.Set(elts=elements) if not all(_is_number(e) for e in elements):
                is_set = True
            case ast.SetComp():
                is_set = True
            case ast.Call(func=ast.Name(id="set" | "frozenset"), args=args):
                is_set = is_set or bool(args)
            case ast.Call(func=ast.Attribute(value=of, attr=name)) if name in _OF_SETS:
                todo.append(of)
            case ast.BinOp(op=ast.Sub() | ast.BitOr() | ast.BitAnd() | ast.BitXor(), left=left):
                todo.append(left)
            case ast.Name() | ast.Attribute() as named:
                name = last_name(named)
                bound = list(_bound_to(tree, name)) if name not in known else []
                if name not in known and not bound:
                    return False
                known.add(name)
                todo += bound
            case _:
                return False
    return False


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def _bound_to(tree: ast.Module, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(last_name(t) == name for t in targets):
                yield node.value
