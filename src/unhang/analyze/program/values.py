"""What the variables of the ranks held when the job stood: what a condition gave by them, and on what the ranks disagree."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from unhang.analyze.program.callpath import is_same_function
from unhang.analyze.program.rank_conditions import OPERATORS
from unhang.analyze.program.sides import view_of
from unhang.analyze.program.source import Condition, function_at, loop_at, surroundings
from unhang.analyze.program.trees import covers, inside, names_in, tree_of
from unhang.model import Case, Frame

_RANK_ITSELF = re.compile(r"(global_|local_)?rank|rk|r|local_world_rank|pid|seed|port|device\w*", re.IGNORECASE)
_OPEN = object()


def variables_of(case: Case, rank: int, frame: Frame) -> dict[str, str]:
    """What a rank's main thread held in the innermost call of the frame's function: text by expression (`n`, `len(self.rows)`, `x.shape`)."""
    found: dict[str, str] = {}
    for seen, name, value in _variables(case, rank):
        if is_same_function(seen, frame):
            found.setdefault(name, value)
    return found


def _variables(case: Case, rank: int) -> tuple[tuple[Frame, str, str], ...]:
    return case.ranks[rank].variables if rank in case.ranks else ()


def holds_on(case: Case, ranks: Iterable[int], frame: Frame, condition: Condition) -> bool | None:
    """What a condition in the frame's function gives on all of these ranks, by their number or variables; None where these do not tell.

    Counted is only what was not written since it was asked.
    """
    found = {_holds(case, rank, frame, condition) for rank in ranks}
    return found.pop() if len(found) == 1 else None


def _holds(case: Case, rank: int, frame: Frame, condition: Condition) -> bool | None:
    by_number = condition.on(view_of(case, rank)).passes
    if by_number is not None:
        return by_number
    now = next((f for f, _, _ in _variables(case, rank) if is_same_function(f, frame)), None)
    function = function_at(frame.file, condition.line) or tree_of(frame.file)
    if now is None or function is None or _was_written(function, condition, now, _is_innermost(case, rank, now)):
        return None
    value = _value(condition.test, variables_of(case, rank, frame))
    return None if value in (_OPEN, _Something) else bool(value)


def _is_innermost(case: Case, rank: int, now: Frame) -> bool:
    return _variables(case, rank)[0][0] == now


_CHANGES = frozenset(
    ("append", "add", "extend", "insert", "pop", "popleft", "clear", "remove", "discard", "update", "appendleft", "setdefault", "sort")
)  # fmt: skip


def _was_written(function: ast.AST, condition: Condition, now: Frame, is_innermost: bool) -> bool:
    """Whether what a condition asks for was set, or may have been changed, between it and the line at which the rank is."""
    names, (since, until) = names_in(condition.test), sorted((condition.line, now.line))
    is_later, has_owner = now.line > condition.line, bool(inside(condition.test, ast.Attribute))
    written = {n.lineno for n in inside(function, ast.Name) if n.id in names and not isinstance(n.ctx, ast.Load)}
    kept = (n for n in ast.walk(function) if isinstance(n, ast.Attribute | ast.Subscript))
    written |= {n.lineno for n in kept if isinstance(n.ctx, ast.Store) and names_in(n) & names}
    for call in inside(function, ast.Call):
        changes = isinstance(call.func, ast.Attribute) and call.func.attr in _CHANGES and names_in(call.func) & names
        is_of_owner = has_owner and bool(names_in(call.func) & names) and not covers(condition.test, call.lineno)
        if changes or (is_of_owner and (call.lineno != now.line or not is_innermost)):
            written.add(call.lineno)
    return any((since < line <= until) is is_later for line in written)


def _value(node: ast.expr, given: Mapping[str, str]) -> Any:
    """The value of an expression by what is known of variables; `_OPEN` where that does not tell."""
    text = ast.unparse(node)
    if text in given:
        return _read(given[text])
    match node:
        case ast.Constant():
            return node.value
        case ast.Name() | ast.Attribute():
            sizes = (given.get(f"len({text})"), given.get(f"{text}.shape"))
            return int(sizes[0]) if sizes[0] is not None else _Something if sizes[1] is not None else _OPEN
        case ast.Call() | ast.Subscript():
            return _size(node, given)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            value = _value(inner, given)
            return _OPEN if value in (_OPEN, _Something) else not value
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _compared(op, left, right, given)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            sides = [_value(n, given) for n in (left, right)]
            numbers = all(type(x) in (int, float) for x in sides) and not (
                sides[1] == 0 and isinstance(op, ast.Mod | ast.FloorDiv)
            )
            return OPERATORS[type(op)](*sides) if numbers else _OPEN
        case ast.BoolOp(op=op, values=values):
            found = [_value(v, given) for v in values]
            known = [bool(v) for v in found if v is not _OPEN and v is not _Something]
            decisive = isinstance(op, ast.Or)
            return decisive if decisive in known else _OPEN if len(known) < len(found) else not decisive
    return _OPEN


class _Something:
    """What is there, and of no known truth: a tensor, a text, an iterator."""


def _read(text: str) -> Any:
    if text in ("nan", "inf", "-inf"):
        return float(text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return _Something if text else _OPEN


def _size(node: ast.Call | ast.Subscript, given: Mapping[str, str]) -> Any:
    """`len(x)`, `x.numel()`, `x.size(0)`, `x.shape[0]` of what has a known shape."""
    at: Any = 0
    match node:
        case ast.Call(func=ast.Name(id="len"), args=[of], keywords=[]):
            owner = of
        case ast.Call(func=ast.Attribute(value=of, attr="numel"), args=[]):
            owner, at = of, None
        case ast.Call(func=ast.Attribute(value=of, attr="size"), args=[ast.expr() as index]):
            owner, at = of, _read(ast.unparse(index))
        case ast.Subscript(value=ast.Attribute(value=of, attr="shape"), slice=ast.expr() as index):
            owner, at = of, _read(ast.unparse(index))
        case _:
            return _OPEN
    shape = _read(given.get(f"{ast.unparse(owner)}.shape", ""))
    if not isinstance(shape, list):
        return _OPEN
    if at is None:
        total = 1
        for size in shape:
            total *= size
        return total
    return shape[at] if type(at) is int and -len(shape) <= at < len(shape) else _OPEN


def _compared(op: ast.cmpop, left: ast.expr, right: ast.expr, given: Mapping[str, str]) -> Any:
    sides = [_value(n, given) for n in (left, right)]
    if isinstance(op, ast.Is | ast.IsNot) and isinstance(right, ast.Constant) and right.value is None:
        known = sides[0] is not _OPEN
        return (sides[0] is None) is isinstance(op, ast.Is) if known else _OPEN
    if isinstance(op, ast.Eq | ast.NotEq | ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        return OPERATORS[type(op)](*sides) if all(isinstance(x, int | float) for x in sides) else _OPEN
    return _OPEN


def differing(
    case: Case, odd: Sequence[int], reference: Sequence[int], frame: Frame
) -> tuple[tuple[str, str, str], ...]:
    """(name, value on the odd ranks, value on the others) of variables on which the sides disagree and each side agrees.

    A rank that is not in the function, or left no values, says nothing. The rank's own number differs by nature and is left out.
    """
    left, right = ([v for r in ranks if (v := variables_of(case, r, frame))] for ranks in (odd, reference))
    found = []
    missing = [n for n, text in right[0].items() if text == "None" and n not in left[0]] if left and right else []
    for name in (*left[0], *missing) if left and right else ():
        ours, theirs = {_held(v, name) for v in left}, {_held(v, name) for v in right}
        is_known = len(ours) == len(theirs) == 1 and None not in ours | theirs
        if is_known and ours != theirs and not _is_the_rank(name):
            found.append((name, str(ours.pop()), str(theirs.pop())))
    return tuple(found)


def are_a_round_ahead(case: Case, ahead: Sequence[int], behind: Sequence[int], frame: Frame, header: int) -> bool:
    """Whether by its own variable one of the loops around that at `header`, which the frame's line is in, is in a later round on all of `ahead`."""
    for loop in (x for x in surroundings(frame.file, frame.line).loops if x.header < header):
        head = loop_at(frame.file, loop.header)
        for name in names_in(head.target) if isinstance(head, ast.For) else ():
            mine, theirs = ([variables_of(case, r, frame).get(name, "") for r in ranks] for ranks in (ahead, behind))
            is_told = mine and theirs and all(v.isdecimal() for v in (*mine, *theirs))
            if is_told and min(map(int, mine)) > max(map(int, theirs)):
                return True
    return False


def _held(values: Mapping[str, str], name: str) -> str | None:
    """What an expression gave; of a list or tensor itself, that there is something."""
    is_there = f"len({name})" in values or f"{name}.shape" in values
    return values.get(name) or ("something" if is_there else None)


_OF = re.compile(r"len\((.*)\)|items of (.*)|(.*)\.shape")


def _of_what(expression: str) -> str:
    """What a size or the items are of: `rows` of `len(rows)`."""
    match = _OF.fullmatch(expression)
    return next(filter(None, match.groups()), "") if match else expression


def _is_the_rank(expression: str) -> bool:
    """Whether by its name it is the rank's own number, or follows from that."""
    return bool(_RANK_ITSELF.fullmatch(_of_what(expression).rpartition(".")[2]))


class Disagreement(NamedTuple):
    """Of one function: an expression, and what it gave on the ranks in question and on all others."""

    frame: Frame
    expression: str
    ours: str
    theirs: str


def disagreements(case: Case, ranks: Sequence[int]) -> Iterator[Disagreement]:
    """What has one value on these ranks and another on all others, in the functions in which all of them are; innermost first.

    What is each rank's own by nature says nothing: its number, a loss; of two ranks also a text and a list of items.
    """
    others = [r for r in case.ranks if r not in ranks and case.ranks[r].variables]
    first = next((r for r in ranks if r in case.ranks), None)
    frames = dict.fromkeys(f for f, _, _ in _variables(case, first)) if first is not None else ()
    for frame in frames:
        if not all(variables_of(case, r, frame) for r in (*ranks, *others)):
            continue
        for expression, ours, theirs in differing(case, ranks, others, frame):
            is_own = _is_measured(ours) and _is_measured(theirs)
            is_content = any(t.startswith(("#", "a text (")) for t in (ours, theirs)) and len(ranks) + len(others) < 3
            if not is_own and not is_content:
                yield Disagreement(frame, expression, ours, theirs)


def _is_measured(text: str) -> bool:
    """Whether it is a number with a fraction: a loss, a time."""
    return isinstance(value := _read(text), float) and math.isfinite(value)


def is_number(d: Disagreement) -> bool:
    """Whether both of its values can be shown as they are."""
    return all(isinstance(_read(text), int | float | list) or text == "None" for text in (d.ours, d.theirs))


def is_asked(test: str, expression: str) -> bool:
    """Whether a condition names it: `len(rows)` in `len(rows) > 3`, and in `not rows`."""
    return bool(re.search(rf"(?<![\w.]){re.escape(_of_what(expression))}(?![\w.(])", test))
