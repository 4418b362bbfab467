"""Numbers that are none: the tests by which a program asks for them, and the lines at which they may begin."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from unhang.analyze.program.source import around, frame_at, nearest
from unhang.analyze.program.trees import inside, last_name, program_nodes, remembered
from unhang.model import Frame

_NOT_FINITE = re.compile(r"is_?nan|is_?inf|is_?finite", re.IGNORECASE)
# What keeps a divisor or an argument from zero.
_BOUNDED = (
    "clamp",
    "clamp_min",
    "clip",
    "maximum",
    "max",
    "relu",
    "softplus",
    "exp",
    "softmax",
    "sigmoid",
    "where",
    "log1p",
)
_LOGS = ("log", "log2", "log10")
_COUNTS = ("sum", "std", "norm", "count_nonzero", "var")


def asks_for_finite(test: ast.expr) -> bool:
    """Whether a test asks if a number is one at all: `not math.isfinite(loss)`, `loss != loss`."""
    names = [last_name(n) for n in ast.walk(test) if isinstance(n, ast.Name | ast.Attribute)]
    sides = [(n.left, n.comparators[0]) for n in ast.walk(test) if isinstance(n, ast.Compare)]
    return any(map(_NOT_FINITE.search, names)) or any(ast.dump(a) == ast.dump(b) for a, b in sides)


def raised_for(line: Frame | None) -> bool:
    """Whether a line raises since a number is none."""
    if line is None or nearest(line.file, line.line, ast.Raise) is None:
        return False
    conditions = around(line).conditions
    return bool(conditions) and asks_for_finite(conditions[-1].test)


class Origin(NamedTuple):
    """`text`, at `at`, is no number where `of` is zero; `safe` is the same with a bound."""

    at: Frame
    text: str
    of: str
    safe: str


@remembered
def origin_in(folder: str) -> Origin | None:
    """The one place of the program that divides by a sum, or takes a logarithm, without a bound."""
    found = [x for path, node in program_nodes(folder) if (x := _unbounded(path, node)) is not None]
    return found[0] if len(found) == 1 else None


def _unbounded(path: str, node: ast.AST) -> Origin | None:
    match node:
        case ast.BinOp(op=ast.Div(), right=ast.Call(func=ast.Attribute(attr=name)) as divisor) if name in _COUNTS:
            return _origin(path, node, divisor, "1" if name in ("sum", "count_nonzero") else "1e-6")
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name), args=[given]) if name in _LOGS:
            return _origin(path, node, given, "1e-6")
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=[]) if name in _LOGS:
            return _origin(path, node, value, "1e-6")
    return None


def _origin(path: str, node: ast.expr, bounded: ast.expr, least: str) -> Origin | None:
    calls = [last_name(c.func) for c in inside(bounded, ast.Call)]
    adds = any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Add) for n in ast.walk(bounded))
    if adds or any(name in _BOUNDED for name in calls):
        return None
    text, of = ast.unparse(node), ast.unparse(bounded)
    return Origin(frame_at(path, node.lineno), text, of, text.replace(of, f"{of}.clamp(min={least})"))
