"""Where a function gives a tensor that it made anew instead of what its layers give: such a tensor has left the graph of autograd."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from unhang.analyze.bindings import last_name
from unhang.analyze.trees import importers_beside, tree_of

_MAKES = ("empty", "zeros", "empty_like", "zeros_like", "new_empty", "new_zeros")


class MadeAnew(NamedTuple):
    """`if test: return made` at `line` of `path`, in `function`, whose other `return` gives what it has computed."""

    path: str
    line: int
    function: str
    test: str
    made: str


@lru_cache(maxsize=64)
def made_anew(path: str) -> MadeAnew | None:
    """The one such place for a tensor without rows, in a file and those that import something of it; None where there are several."""
    found = [one for file in (path, *importers_beside(path)) for one in _in_file(file)]
    return found[0] if len(found) == 1 else None


def _in_file(path: str) -> Iterator[MadeAnew]:
    tree = tree_of(path)
    for function in ast.walk(tree) if tree is not None else ():
        if not isinstance(function, ast.FunctionDef) or function.name == "backward":
            continue
        given = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
        if all(map(_is_made, given)):
            continue
        for node in ast.walk(function):
            match node:
                case ast.If(test=test, body=[*_, ast.Return(value=ast.expr() as value)]) if not node.orelse:
                    if _asks_for_none(test) and _is_made(value):
                        yield MadeAnew(path, node.lineno, function.name, ast.unparse(test), ast.unparse(value))


def _is_made(value: ast.expr) -> bool:
    is_made = isinstance(value, ast.Call) and last_name(value.func) in _MAKES
    return is_made and not any(k.arg == "requires_grad" for k in getattr(value, "keywords", ()))


def _asks_for_none(test: ast.expr) -> bool:
    """Whether a test asks for a tensor without rows: `x.shape[0] == 0`, `len(x) == 0`, `not x.numel()`."""
    match test:
        case ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant(value=0)]):
            return True
        case ast.Compare(ops=[ast.Lt()], comparators=[ast.Constant(value=1)]):
            return True
        case ast.UnaryOp(op=ast.Not(), operand=ast.Call() | ast.Subscript()):
            return True
    return False
