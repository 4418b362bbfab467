"""Conditions that come out by the number of a rank, evaluated for one rank: `rank == 0`, also through what the file names so.

Variables, properties, functions and arguments are followed within the file, what a class is made with also in the files that
import it; what they do not tell is told by its name (`is_main_process`, `local_rank`). What cannot be told is left open, never guessed.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from unhang.analyze.program.rank_names import kind_of_name
from unhang.analyze.program.trees import (
    Bound,
    File,
    Function,
    Scopes,
    argument_of,
    file_of,
    importers_beside,
    inside,
    last_name,
    parameters_of,
)

_MOST_STEPS = 400
_NO_RANKS = re.compile(r"lora|matrix_rank", re.IGNORECASE)  # a rank of a matrix
_ALWAYS = ("is_initialized", "is_available")
_CONVERSIONS: dict[str, Callable[[Any], Any]] = {"int": int, "bool": bool, "str": str, "float": float}
OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.eq, ast.IsNot: operator.ne, ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b, ast.Add: operator.add, ast.Sub: operator.sub, ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip


class _Open:
    """A value that is not known."""

    def __repr__(self) -> str:
        return "?"


_OPEN = _Open()
T = TypeVar("T")


class Value(NamedTuple):
    """What an expression gives on a rank; `by_rank`: the number of the rank has a part in it."""

    value: Any = _OPEN
    by_rank: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the value is not known."""
        return self.value is _OPEN

    @property
    def passes(self) -> bool | None:
        """Whether it counts as true, None where that is not known."""
        return None if self.is_open else bool(self.value)


def named_like_a_rank(name: str) -> bool:
    """Whether a name says which process it means: the main one, the first of a node, the last."""
    return kind_of_name(name) in ("zero", "local zero", "last")


class RankView(NamedTuple):
    """A rank as its program sees it: its number, that on its node, and the number of all ranks; None where not known."""

    rank: int
    local_rank: int | None
    world_size: int | None


_OF_ARGUMENTS = ("should_save", "should_log")  # of the TrainingArguments of transformers


class Evaluation:
    """Evaluates expressions of one file for one rank. What it cannot evaluate is open; it never raises."""

    def __init__(self, names: File, view: RankView) -> None:
        self._names, self._view = names, view
        self._steps = 0
        self._within: list[object] = []
        self._given: list[tuple[Function, dict[str, Value]]] = []

    def of(self, node: ast.expr | None, scopes: Scopes) -> Value:
        """The value of an expression that stands in these scopes."""
        self._steps += 1
        if node is None or self._steps > _MOST_STEPS:
            return Value()
        try:
            return self._of(node, scopes)
        except (TypeError, ValueError, ArithmeticError, RecursionError):
            return Value()

    def _of(self, node: ast.expr, scopes: Scopes) -> Value:
        match node:
            case ast.Constant():
                return Value(node.value)
            case ast.Name():
                return self._name(node.id, scopes)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Call():
                return self._call(node, scopes)
            case ast.Subscript(value=ast.expr() as of, slice=ast.Constant(value=str() as key)) if (
                last_name(of) == "environ"
            ):
                return _as_text(self._of_the_view(key))
            case ast.NamedExpr():
                return self.of(node.value, scopes)
            case ast.UnaryOp(op=ast.Not()):
                inner = self.of(node.operand, scopes)
                return inner if inner.is_open else Value(not inner.value, inner.by_rank)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as number)):
                return Value(-number)
            case ast.IfExp():
                test = self.of(node.test, scopes)
                if test.is_open:
                    return Value(_OPEN, test.by_rank)
                taken = self.of(node.body if test.value else node.orelse, scopes)
                return Value(taken.value, taken.by_rank or test.by_rank)
            case _:
                return self._combined(node, scopes)

    def _combined(self, node: ast.expr, scopes: Scopes) -> Value:
        match node:
            case ast.BoolOp():
                values = [self.of(v, scopes) for v in node.values]
                return _joined(values, stops_at=isinstance(node.op, ast.Or))
            case ast.Compare(ops=[op], comparators=[right]):
                is_set = self.of(_set_under(node, scopes), scopes)
                if is_set.by_rank and not is_set.is_open:
                    return Value(bool(is_set.value) is isinstance(op, ast.IsNot), by_rank=True)
                return _applied(op, self.of(node.left, scopes), self.of(right, scopes))
            case ast.Compare():
                sides = [self.of(v, scopes) for v in (node.left, *node.comparators)]
                pairs = zip(node.ops, sides, sides[1:], strict=False)
                return _joined([_applied(op, a, b) for op, a, b in pairs], stops_at=False)
            case ast.BinOp():
                return _applied(node.op, self.of(node.left, scopes), self.of(node.right, scopes))
            case ast.Tuple() | ast.List() | ast.Set():
                values = [self.of(v, scopes) for v in node.elts]
                by_rank = any(v.by_rank for v in values)
                return Value(_OPEN if any(v.is_open for v in values) else tuple(v.value for v in values), by_rank)
        return Value()

    def _of_the_view(self, name: str, has_arguments: bool = False) -> Value:
        """What a name stands for that the file does not define."""
        kind = kind_of_name(name)
        rank, local_rank, world_size = self._view
        if kind is None:
            return Value()
        if kind == "world":
            return Value(_OPEN if world_size is None or has_arguments else world_size)
        values = {
            "zero": rank == 0,
            "rank": rank,
            "local": local_rank,
            "local zero": None if local_rank is None else local_rank == 0,
            "last": None if world_size is None else rank == world_size - 1,
        }.get(kind)
        return Value(_OPEN if values is None or has_arguments else values, by_rank=True)

    def _name(self, name: str, scopes: Scopes) -> Value:
        for scope in reversed(scopes):
            if isinstance(scope, ast.ClassDef) and scope is not scopes[-1]:
                continue  # its names are not seen in its methods
            if isinstance(scope, Function) and name in parameters_of(scope):
                return self._argument(scope, name)
            if bound := _as_set(self._names.variables.get((scope, name), ())):
                if any(e is not None and _NO_RANKS.search(ast.unparse(e)) for e, _ in bound):
                    return Value()
                found = self._any_of(bound, ("name", scope, name))
                return self._of_the_view(name) if found.is_open and not found.by_rank else found
        return self._of_the_view(name)

    def _argument(self, function: Function, name: str) -> Value:
        for called, given in reversed(self._given):
            value: Value = given.get(name, Value())
            if called is function and (value.by_rank or not value.is_open):
                return value
        values = self._of_the_view("local_rank" if self._is_number_in_spawn(function, name) else name)
        if values.by_rank:
            return values
        return self._once(("argument", function, name), partial(self._from_callers, function, name)) or Value()

    def _is_number_in_spawn(self, function: Function, name: str) -> bool:
        """Whether it is the number that `spawn` gives to each process that runs the function."""
        spawned = [call.args[0] for call, _ in self._names.calls.get("spawn", ()) if call.args]
        return name in parameters_of(function)[:1] and function.name in map(last_name, spawned)

    def _from_callers(self, function: Function, name: str) -> Value:
        made = self._names.functions.get("__init__", ()) if function.name == "__init__" else ()
        of_class = next((getattr(around[-1], "name", "") for one, around in made if one is function), "")
        found = []
        importers = importers_beside(self._names.path) if of_class else ()
        for names in (self._names, *map(file_of, importers)):
            there = self if names is self._names else Evaluation(names, self._view)
            for call, scopes in names.calls.get(of_class or function.name, ()):
                found.append(there.of(argument_of(call, function, name), scopes))
        return found[0] if found and all(v == found[0] for v in found) else Value()

    def _attribute(self, node: ast.Attribute) -> Value:
        if _NO_RANKS.search(ast.unparse(node)):
            return Value()
        if node.attr in _OF_ARGUMENTS and last_name(node.value) == "args":
            return self._of_the_view("is_main_process")
        found = Value()
        if node.attr in self._names.functions:
            found = self._returned(node.attr, None, ())
        if not found.by_rank and (bound := _as_set(self._names.attributes.get(node.attr, ()))):
            found = self._any_of(bound, ("attribute", node.attr))
        # A constant is what it was before somebody set it.
        return found if found.by_rank else self._of_the_view(node.attr)

    def _call(self, node: ast.Call, scopes: Scopes) -> Value:
        name = last_name(node.func)
        arguments = [*node.args, *(k.value for k in node.keywords)]
        if name in _CONVERSIONS and len(node.args) == 1:
            inner = self.of(node.args[0], scopes)
            return inner if inner.is_open else Value(_CONVERSIONS[name](inner.value), inner.by_rank)
        first = node.args[0] if node.args else None
        if name == "isinstance":  # of which class the program made it may be up to the rank: a progress bar of rank 0
            return Value(_OPEN, self.of(first, scopes).by_rank)
        if name in ("get", "getenv") and isinstance(first, ast.Constant) and "env" in ast.unparse(node.func):
            return _as_text(self._of_the_view(str(first.value)))
        if name == "getattr" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            return self._of_the_view(str(node.args[1].value))
        if name in _ALWAYS:
            return Value(value=True)
        if name in self._names.functions:
            found = self._returned(name, node, scopes)
            if found.by_rank:
                return found
        return Value() if _NO_RANKS.search(name) else self._of_the_view(name, has_arguments=bool(arguments))

    def _returned(self, name: str, call: ast.Call | None, scopes: Scopes) -> Value:
        """What the functions of this name return."""
        found = []
        for function, around in self._names.functions[name]:
            parameters = parameters_of(function)
            bound = {p: argument_of(call, function, p) for p in parameters} if call is not None else {}
            given = {p: self.of(e, scopes) for p, e in bound.items() if e is not None}
            self._given.append((function, given))
            body = partial(self._run, function.body, (*around, function))
            found.append(self._once(("function", function), body) or Value())
            self._given.pop()
        return found[0] if all(v == found[0] for v in found) else Value()

    def _run(self, body: Sequence[ast.stmt], scopes: Scopes) -> Value | None:
        """What a function's statements return; None where they come to their end."""
        for statement in body:
            match statement:
                case ast.Return():
                    return self.of(statement.value or ast.Constant(None), scopes)
                case ast.Raise():
                    return Value()
                case ast.If():
                    test = self.of(statement.test, scopes)
                    branches = [self._run(b, scopes) for b in (statement.body, statement.orelse)]
                    if test.is_open and any(b is not None for b in branches):
                        return Value(_OPEN, test.by_rank or any(b.by_rank for b in branches if b))
                    taken = branches[0 if test.value else 1]
                    if taken is not None:
                        return Value(taken.value, taken.by_rank or test.by_rank)
                case ast.For() | ast.While() | ast.With() | ast.Try():
                    if any(isinstance(n, ast.Return) for n in ast.walk(statement)):
                        return Value()
        return None

    def _any_of(self, bound: Sequence[tuple[ast.expr | None, Scopes]], key: object) -> Value:
        """The value of what is bound in several places: where the rank decides one, the constants are defaults."""
        values = self._once(key, lambda: [self.of(e, scopes) for e, scopes in bound]) or [Value()]
        by_rank = [v for v in values if v.by_rank]
        if by_rank:
            return by_rank[0] if all(v == by_rank[0] for v in by_rank) else Value(_OPEN, by_rank=True)
        return values[0] if len(values) == 1 else Value()

    def _once(self, key: object, ask: Callable[[], T | None]) -> T | None:
        """The answer; None where it is being asked already: a name that is defined by itself."""
        if key in self._within:
            return None
        self._within.append(key)
        try:
            return ask()
        finally:
            self._within.pop()


def _set_under(asked: ast.Compare, scopes: Scopes) -> ast.expr | None:
    """Of `x is not None` and `x is None`: the one test under which a variable, or attribute of the object, that begins as None is set to something."""
    match asked:
        case ast.Compare(
            left=ast.Name() | ast.Attribute() as of,
            ops=[ast.Is() | ast.IsNot()],
            comparators=[ast.Constant(value=None)],
        ):
            text = ast.unparse(of)
        case _:
            return None
    kinds = ast.ClassDef if isinstance(of, ast.Attribute) else Function | ast.Module
    scope = next((s for s in reversed(scopes) if isinstance(s, kinds)), None)
    sets = [n for n in inside(scope, ast.Assign) if text in map(ast.unparse, n.targets)]
    given = {n for n in sets if not (isinstance(n.value, ast.Constant) and n.value.value is None)}
    if not given or len(given) == len(sets):
        return None
    tests = [n.test for n in inside(scope, ast.If) if given <= {x for s in n.body for x in ast.walk(s)}]
    return tests[0] if len(tests) == 1 else None


def _as_set(bound: Iterable[Bound]) -> list[tuple[ast.expr | None, Scopes]]:
    """What a name is set to; None where it is but a part of something."""
    return [(b.value if b.how == "whole" else None, b.scopes) for b in bound if b.how != "change"]


def _as_text(value: Value) -> Value:
    return value if value.is_open else Value(str(value.value), value.by_rank)


def _applied(op: ast.AST, left: Value, right: Value) -> Value:
    by_rank = left.by_rank or right.by_rank
    apply = OPERATORS.get(type(op))
    if apply is None or left.is_open or right.is_open:
        return Value(_OPEN, by_rank)
    return Value(apply(left.value, right.value), by_rank)


def _joined(values: Sequence[Value], stops_at: bool) -> Value:
    """`and` (stops at a false value) or `or` of values of which some may be open."""
    by_rank = any(v.by_rank for v in values)
    decisive = next((v for v in values if v.passes is stops_at), None)
    if decisive is not None:
        return Value(decisive.value, by_rank)
    return Value(_OPEN if any(v.is_open for v in values) else values[-1].value, by_rank)
