"""How likely an expression has another value on each rank, by what the source binds to its names.

A condition on a step counter comes out alike everywhere, one on a batch, a clock or a file need not. What ranks have agreed on by
a collective is the same again. What the source does not tell is told by the name; else it is open.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import NamedTuple

from unhang.analyze.bindings import SCOPES, Function, Scopes, argument_of, last_name, parameters_of
from unhang.analyze.rank_names import kind_of_name
from unhang.analyze.trees import imports_beside, tree_of
from unhang.model.lazy_pattern import lazy_pattern

SAME, OPEN, OWN = 0, 1, 2
_MOST_STEPS = 600
_DATA = lazy_pattern(
    r"nan|inf$|isinf|finite|bad|skip|overflow|found|loss|grad|none|exists|isfile|isdir|empty|valid|error|fail|^any$|^all$",
    re.IGNORECASE,
)
_ROUNDS = lazy_pattern(
    r"(?:global_?|cur(?:rent)?_?|num_?|max_?|n_?)?(?:step|epoch|iter|iteration|update)s?(?:_?(?:idx|no|num))?|it|i|batch_idx|every",
    re.IGNORECASE,
)
_LOADED = lazy_pattern(r"load|data|batch|sample|stream|reader|shard", re.IGNORECASE)
_AGREES = lazy_pattern(r"all_?reduce|broadcast|gather|^reduce$")
_GIVES_ALL = lazy_pattern(r"all_?reduce|broadcast|all_?gather")  # in its first argument
_BUILT_IN = frozenset(
    ("len", "int", "float", "bool", "str", "abs", "min", "max", "sum", "any", "all", "round", "sorted", "list", "tuple", "set", "dict",
     "enumerate", "zip", "range", "reversed", "iter", "next", "isinstance", "type", "divmod", "trange", "tqdm", "islice", "ceil", "floor")
)  # fmt: skip
_CHANGES = frozenset(
    ("append", "appendleft", "add", "extend", "insert", "pop", "popleft", "remove", "clear", "discard")
)
_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_SEEN_HERE = frozenset(
    ("exists", "isfile", "isdir", "is_file", "is_dir", "is_set", "qsize", "get_nowait", "listdir", "glob", "iterdir", "monotonic",
     "perf_counter", "time", "gethostname", "getpid", "getmtime", "memory_allocated", "max_memory_allocated", "virtual_memory", "random")
)  # fmt: skip
_OF_MANY = ("len", "any", "all")
_OWN_NUMBERS = ("rank", "local", "zero", "local zero", "last")
_ALIKE = frozenset(("is_initialized", "is_available", "get_world_size"))
_THROUGH = frozenset(("item", "keys", "values", "items", "get", "tolist", "cpu", "detach", "float", "numel", "size", "sum", "mean", "max", "min"))  # fmt: skip


class _Bound(NamedTuple):
    """What is bound to a name: an expression, or what a loop goes over; `tests`: what has to hold for that."""

    value: ast.expr | None
    is_round: bool
    tests: tuple[ast.expr, ...]
    in_handler: bool
    scopes: Scopes


@dataclass
class _File:
    """The bindings of a file: by scope for variables, for the whole file for attributes and functions; names on which ranks agreed."""

    path: str
    variables: dict[tuple[ast.AST, str], list[_Bound]] = field(default_factory=dict)
    attributes: dict[str, list[_Bound]] = field(default_factory=dict)
    functions: dict[str, list[tuple[Function, Scopes]]] = field(default_factory=dict)
    classes: set[str] = field(default_factory=set)
    calls: dict[str, list[tuple[ast.Call, Scopes]]] = field(default_factory=dict)
    agreed: set[tuple[ast.AST | None, str]] = field(default_factory=set)

    def walk(self, node: ast.AST, scopes: Scopes, tests: tuple[ast.expr, ...] = (), in_handler: bool = False) -> None:
        """Notes what a node and all below it bind."""
        self._note(node, scopes, tests, in_handler)
        inner = (*scopes, node) if isinstance(node, SCOPES) and node is not scopes[-1] else scopes
        if len(inner) > len(scopes):
            tests, in_handler = (), False
        asks = (node.test,) if isinstance(node, ast.If | ast.While) else ()
        for name, child in ast.iter_fields(node):
            of = (*tests, *asks) if name in ("body", "orelse") else tests
            for c in child if isinstance(child, list) else [child]:
                if isinstance(c, ast.AST):
                    self.walk(c, inner, of, in_handler or isinstance(node, ast.ExceptHandler))
                    if isinstance(c, ast.If) and isinstance(c.body[-1], _LEAVES):
                        of = (*of, c.test)

    def _note(self, node: ast.AST, scopes: Scopes, tests: tuple[ast.expr, ...], in_handler: bool) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.functions.setdefault(node.name, []).append((node, scopes))
            case ast.ClassDef():
                self.classes.add(node.name)
            case ast.Call():
                name = last_name(node.func)
                self.calls.setdefault(name, []).append((node, scopes))
                if _GIVES_ALL.search(name) and node.args:
                    self._agree(node.args[0], scopes)
                if name in _CHANGES and isinstance(node.func, ast.Attribute):
                    given = ast.Tuple([*node.args]) if node.args else ast.Constant(None)
                    self._bind(node.func.value, _Bound(given, False, tests, in_handler, scopes))
            case ast.Assign():
                for target in node.targets:
                    self._bind(target, _Bound(node.value, False, tests, in_handler, scopes))
            case ast.AnnAssign() | ast.NamedExpr() | ast.AugAssign():
                self._bind(node.target, _Bound(node.value, False, tests, in_handler, scopes))
            case ast.For() | ast.AsyncFor():
                self._bind(node.target, _Bound(node.iter, True, tests, in_handler, scopes))
            case ast.comprehension():
                self._bind(node.target, _Bound(node.iter, True, (), in_handler, scopes))
            case ast.withitem() if node.optional_vars is not None:
                self._bind(node.optional_vars, _Bound(None, False, tests, in_handler, scopes))

    def _agree(self, node: ast.expr, scopes: Scopes) -> None:
        for n in node.elts if isinstance(node, ast.List | ast.Tuple) else [node]:
            if isinstance(n, ast.Name):
                self.agreed.add((_scope(scopes), n.id))
            elif isinstance(n, ast.Attribute):
                self.agreed.add((None, n.attr))

    def _bind(self, target: ast.expr, bound: _Bound) -> None:
        match target, bound.value:
            case (ast.Tuple(), ast.Tuple()) if len(target.elts) == len(bound.value.elts) and not bound.is_round:
                for t, v in zip(target.elts, bound.value.elts, strict=True):
                    self._bind(t, bound._replace(value=v))
            case (ast.Tuple(elts=[first, *rest]), ast.Call(func=ast.Name(id="enumerate"), args=[over, *_])) if (
                bound.is_round
            ):
                self._bind(first, bound._replace(value=ast.Constant(0)))
                for t in rest:
                    self._bind(t, bound._replace(value=over))
            case (ast.Tuple() | ast.List(), _):
                for t in target.elts:
                    self._bind(t, bound)
            case (ast.Starred() | ast.Subscript(), _):
                self._bind(target.value, bound)
            case (ast.Name(id=name), _):
                scope = _scope(bound.scopes)
                if any(isinstance(n, ast.Global) and name in n.names for n in getattr(scope, "body", ())):
                    scope = bound.scopes[0]
                self.variables.setdefault((scope, name), []).append(bound)
                if isinstance(scope, ast.ClassDef):
                    self.attributes.setdefault(name, []).append(bound)
            case (ast.Attribute(attr=name), _):
                self.attributes.setdefault(name, []).append(bound)


def _scope(scopes: Scopes) -> ast.AST:
    return next(s for s in reversed(scopes) if not isinstance(s, ast.Lambda))


@lru_cache(maxsize=64)
def _file(path: str) -> _File:
    found, tree = _File(path), tree_of(path)
    if tree is not None:
        found.walk(tree, (tree,))
    return found


def may_differ(path: str, node: ast.expr, scopes: Scopes, by_rank: bool = True) -> int:
    """SAME: the same on all ranks; OWN: a rank has its own, as it comes from its data, its number, a clock, a file; OPEN: not known.

    `by_rank`: whether the rank's number counts where the expression itself names it.
    """
    return _Judge(path, by_rank).of(node, scopes)


class _Judge:
    """Judges expressions of one file, and those of files beside it that they lead to; never raises."""

    def __init__(self, path: str, by_rank: bool) -> None:
        self._by_rank = by_rank
        self._at = self._first = _file(path)
        self._steps = 0
        self._within: set[object] = set()
        self._given: list[tuple[Function, dict[str, int]]] = []

    def _word(self, name: str) -> int:
        is_direct = not self._within and not self._by_rank
        return SAME if is_direct and kind_of_name(name) in _OWN_NUMBERS else by_word(name)

    def of(self, node: ast.expr | None, scopes: Scopes) -> int:
        self._steps += 1
        if node is None or self._steps > _MOST_STEPS:
            return OPEN
        match node:
            case ast.Constant() | ast.Lambda():
                return SAME
            case ast.Name():
                return self._name(node.id, scopes)
            case ast.Attribute():
                return self._attribute(node, scopes)
            case ast.Call():
                return self._call(node, scopes)
        return self._most(_parts(node), scopes)

    def _most(self, nodes: Iterable[ast.expr], scopes: Scopes) -> int:
        most = SAME
        for node in nodes:
            most = max(most, self.of(node, scopes))
            if most == OWN:
                break
        return most

    def _name(self, name: str, scopes: Scopes) -> int:
        for scope in reversed(scopes):
            if isinstance(scope, ast.ClassDef) and scope is not scopes[-1]:
                continue
            if (scope, name) in self._at.agreed:
                return SAME
            if (scope, name) in self._at.variables:
                return self._bound(self._at.variables[scope, name], ("name", scope, name))
            if isinstance(scope, Function) and name in _all_parameters(scope):
                return self._argument(scope, name)
        beside = imports_beside(self._at.path).get(name)
        tree = tree_of(beside) if beside else None
        if beside and tree is not None:
            return self._in(beside, partial(self._name_there, name, tree))
        return SAME if name in self._at.functions or name in self._at.classes else self._word(name)

    def _name_there(self, name: str, tree: ast.Module) -> int:
        bound = self._at.variables.get((tree, name))
        return self._bound(bound, ("name", tree, name)) if bound else SAME

    def _bound(self, bound: Iterable[_Bound], key: object) -> int:
        if key in self._within:
            return SAME
        self._within.add(key)
        most = max((self._of_bound(b) for b in bound), default=OPEN)
        self._within.discard(key)
        return most

    def _of_bound(self, b: _Bound) -> int:
        if b.in_handler:
            return OWN
        value = b.value
        if b.is_round and isinstance(value, ast.Call) and last_name(value.func) in ("range", "trange", "count"):
            own = self._most(
                value.args[:1] if len(value.args) > 1 or last_name(value.func) == "count" else (), b.scopes
            )
        else:
            own = self.of(value, b.scopes)
            if b.is_round and own == OPEN and value is not None and _LOADED.search(ast.unparse(value)):
                own = OWN
        return max(own, self._most(b.tests, b.scopes)) if own < OWN else own

    def _argument(self, function: Function, name: str) -> int:
        for called, given in reversed(self._given):
            if called is function and name in given:
                return given[name]
        word = self._word(name)
        if word != OPEN or name in ("self", "cls"):
            return SAME if name in ("self", "cls") else word
        key = ("argument", function, name)
        if key in self._within:
            return OPEN
        self._within.add(key)
        found = []
        for path in dict.fromkeys((self._at.path, self._first.path)):
            for call, scopes in _file(path).calls.get(function.name, ()):
                if (given_there := argument_of(call, function, name)) is not None:
                    found.append(self._in(path, partial(self.of, given_there, scopes)))
        self._within.discard(key)
        return max(found, default=OPEN)

    def _attribute(self, node: ast.Attribute, scopes: Scopes) -> int:
        attr = node.attr
        for path in self._files():
            there = _file(path)
            if (None, attr) in there.agreed:
                return SAME
            if attr in there.functions:
                return self._in(path, partial(self._returned, attr, {}))
            if attr in there.attributes:
                return self._in(path, partial(self._bound, there.attributes[attr], ("attribute", attr)))
        word = self._word(attr)
        return word if word != OPEN else max(word, self.of(node.value, scopes))

    def _files(self) -> Iterator[str]:
        yield self._at.path
        yield from dict.fromkeys(imports_beside(self._at.path).values())

    def _in(self, path: str, ask: Callable[[], int]) -> int:
        """The answer to a question that is asked in another file."""
        here, self._at = self._at, _file(path)
        try:
            return ask()
        finally:
            self._at = here

    def _call(self, node: ast.Call, scopes: Scopes) -> int:
        name, arguments = last_name(node.func), [*node.args, *(k.value for k in node.keywords)]
        if _AGREES.search(name) or name in _ALIKE:
            return SAME
        if name in _SEEN_HERE:
            return OWN
        if kind_of_name(name) in _OWN_NUMBERS:
            return self._word(name)
        if isinstance(node.func, ast.Name) and name in _BUILT_IN:
            most = self._most(arguments, scopes)
            return OWN if most == OPEN and name in _OF_MANY else most
        for path in self._files():
            if name in _file(path).functions:
                given = {i: self.of(a, scopes) for i, a in enumerate(node.args)}
                named = {k.arg: self.of(k.value, scopes) for k in node.keywords if k.arg}
                return self._in(path, partial(self._returned, name, {**given, **named}))
            if name in _file(path).classes:
                return self._most(arguments, scopes)
        base = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        own = self._most((*base, *arguments), scopes)
        return own if name in _THROUGH and base else max(own, OPEN, self._word(name))

    def _returned(self, name: str, given: dict[int | str | None, int]) -> int:
        """What the functions of this name return, given what may differ of their arguments."""
        return max((self._result(f, around, given) for f, around in self._at.functions[name]), default=OPEN)

    def _result(self, function: Function, around: Scopes, given: dict[int | str | None, int]) -> int:
        key = ("function", function)
        if key in self._within:
            return SAME
        parameters = [p for p in parameters_of(function) if p not in ("self", "cls")]
        known = {p: given.get(i, given.get(p, SAME)) for i, p in enumerate(parameters)}
        self._within.add(key)
        self._given.append((function, known))
        scopes, most = (*around, function), SAME
        for value, tests in _returns(function.body, ()):
            most = max(most, self._most((value, *tests) if value is not None else tests, scopes))
        self._given.pop()
        self._within.discard(key)
        return most


def _all_parameters(function: Function) -> list[str]:
    a = function.args
    return [*parameters_of(function), *(p.arg for p in (a.vararg, a.kwarg) if p is not None)]


def _parts(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions next below a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.comprehension):
            yield from (child.iter, *child.ifs)


def _returns(
    body: Iterable[ast.stmt], tests: tuple[ast.expr, ...]
) -> Iterator[tuple[ast.expr | None, tuple[ast.expr, ...]]]:
    """What a function returns or yields, and under which tests."""
    for s in body:
        match s:
            case ast.Return():
                yield s.value, tests
            case ast.Expr(value=ast.Yield(value=value) | ast.YieldFrom(value=value)):
                yield value, tests
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                continue
            case _:
                asks = (s.test,) if isinstance(s, ast.If | ast.While) else (s.iter,) if isinstance(s, ast.For) else ()
                for block in (getattr(s, n, None) for n in ("body", "orelse", "finalbody")):
                    if isinstance(block, list):
                        yield from _returns(block, (*tests, *asks))
                for handler in getattr(s, "handlers", ()):
                    yield from _returns(handler.body, tests)


def by_word(name: str) -> int:
    """What a name alone says: counters of rounds are the same everywhere, what is found in data or on a disk is not."""
    kind = kind_of_name(name)
    if kind == "world" or name.isupper() or _ROUNDS.fullmatch(name):
        return SAME
    return OWN if kind in _OWN_NUMBERS or _DATA.search(name) else OPEN
