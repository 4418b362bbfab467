"""What the names of a source file are bound to, by scope and under which tests, and on what its ranks agree by a collective."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from unhang.analyze.trees import tree_of
from unhang.model.lazy_pattern import lazy_pattern

Function = ast.FunctionDef | ast.AsyncFunctionDef
SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
Scopes = tuple[ast.AST, ...]  # the module, classes and functions around a place, outermost first


@dataclass
class Names:
    """What a file binds to names: by scope for variables, for the whole file for attributes and functions.

    `elsewhere`: the names of the files that import something of it.
    """

    variables: dict[tuple[ast.AST, str], list[tuple[ast.expr | None, Scopes]]] = field(default_factory=dict)
    attributes: dict[str, list[tuple[ast.expr | None, Scopes]]] = field(default_factory=dict)
    functions: dict[str, list[tuple[Function, Scopes]]] = field(default_factory=dict)
    calls: dict[str, list[tuple[ast.Call, Scopes]]] = field(default_factory=dict)
    elsewhere: Callable[[], list[Names]] = list

    @classmethod
    def of(cls, tree: ast.Module, elsewhere: Callable[[], list[Names]] = list) -> Names:
        """The names of a file."""
        names = cls(elsewhere=elsewhere)
        names._walk(tree, (tree,))
        return names

    def _walk(self, node: ast.AST, scopes: Scopes) -> None:
        todo: list[tuple[ast.AST, Scopes]] = [(node, scopes)]
        while todo:
            node, scopes = todo.pop()
            self._note(node, scopes)
            inner = (*scopes, node) if isinstance(node, Function | ast.Lambda | ast.ClassDef) else scopes
            todo += [(child, inner) for child in ast.iter_child_nodes(node)]

    def _note(self, node: ast.AST, scopes: Scopes) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.functions.setdefault(node.name, []).append((node, scopes))
            case ast.Call():
                self.calls.setdefault(last_name(node.func), []).append((node, scopes))
            case ast.Assign():
                for target in node.targets:
                    self._bind(target, node.value, scopes)
            case ast.AnnAssign() | ast.NamedExpr():
                self._bind(node.target, node.value, scopes)
            case ast.For() | ast.AsyncFor() | ast.comprehension() | ast.AugAssign():
                self._bind(node.target, None, scopes)
            case ast.withitem() if node.optional_vars is not None:
                self._bind(node.optional_vars, None, scopes)

    def _bind(self, target: ast.expr, value: ast.expr | None, scopes: Scopes) -> None:
        match target, value:
            case (ast.Tuple(), ast.Tuple()) if len(target.elts) == len(value.elts):
                for t, v in zip(target.elts, value.elts, strict=True):
                    self._bind(t, v, scopes)
            case (ast.Tuple() | ast.List(), _):
                for t in target.elts:
                    self._bind(t, None, scopes)
            case (ast.Name(id=name), _):
                scope = next(s for s in reversed(scopes) if not isinstance(s, ast.Lambda))
                if any(isinstance(n, ast.Global) and name in n.names for n in getattr(scope, "body", ())):
                    scope = scopes[0]
                self.variables.setdefault((scope, name), []).append((value, scopes))
                if isinstance(scope, ast.ClassDef):
                    self.attributes.setdefault(name, []).append((value, scopes))
            case (ast.Attribute(attr=name), _):
                self.attributes.setdefault(name, []).append((value, scopes))


def last_name(node: ast.expr) -> str:
    """`a.b.c` -> `c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


_LOCAL_NAMESAKES = frozenset(("broadcast_to", "broadcast_tensors", "broadcast_shapes"))
_LOCAL_MODULES = frozenset(("functools", "einops", "np", "numpy", "torch", "F", "jnp"))


def is_local_namesake(call: ast.Call) -> bool:
    """Whether a call only bears the name of a collective: `x.gather(-1, index)`, `functools.reduce(add, xs)`, `torch.broadcast_to(x, shape)`."""
    name = last_name(call.func)
    if name not in ("gather", "reduce"):
        return name in _LOCAL_NAMESAKES
    if not isinstance(call.func, ast.Attribute):
        return name == "reduce" and len(call.args) > 1 and not isinstance(call.args[0], ast.Constant)
    if isinstance(call.func.value, ast.Name) and call.func.value.id in _LOCAL_MODULES:
        return True
    first = call.args[0] if call.args else None
    first = first.operand if isinstance(first, ast.UnaryOp) else first
    is_dim = isinstance(first, ast.Constant) and isinstance(first.value, int)
    return name == "gather" and (is_dim or any(k.arg in ("dim", "index") for k in call.keywords))


def parameters_of(function: Function) -> list[str]:
    """The names of its parameters, in order."""
    a = function.args
    return [p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)]


def argument_of(call: ast.Call, function: Function, name: str) -> ast.expr | None:
    """What a call gives for a parameter, None for nothing."""
    parameters = parameters_of(function)
    if parameters[:1] in (["self"], ["cls"]):
        parameters = parameters[1:]
    named = next((k.value for k in call.keywords if k.arg == name), None)
    at = parameters.index(name) if name in parameters else len(call.args)
    return named or (call.args[at] if at < len(call.args) else None)


_GIVES_ALL = lazy_pattern(r"all_?reduce|broadcast|all_?gather")  # in its first argument
_CHANGES = frozenset(
    ("append", "appendleft", "add", "extend", "insert", "pop", "popleft", "remove", "clear", "discard")
)
_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)


class Bound(NamedTuple):
    """What is bound to a name: an expression, or what a loop goes over; `tests`: what has to hold for that."""

    value: ast.expr | None
    is_round: bool
    tests: tuple[ast.expr, ...]
    in_handler: bool
    scopes: Scopes


@dataclass
class File:
    """The bindings of a file: by scope for variables, for the whole file for attributes and functions; names on which ranks agreed."""

    path: str
    variables: dict[tuple[ast.AST, str], list[Bound]] = field(default_factory=dict)
    attributes: dict[str, list[Bound]] = field(default_factory=dict)
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
                if _GIVES_ALL.search(name) and node.args and not is_local_namesake(node):
                    self._agree(node.args[0], scopes)
                if name in _CHANGES and isinstance(node.func, ast.Attribute):
                    given = ast.Tuple([*node.args]) if node.args else ast.Constant(None)
                    self._bind(node.func.value, Bound(given, False, tests, in_handler, scopes))
            case ast.Assign():
                for target in node.targets:
                    self._bind(target, Bound(node.value, False, tests, in_handler, scopes))
            case ast.AnnAssign() | ast.NamedExpr() | ast.AugAssign():
                self._bind(node.target, Bound(node.value, False, tests, in_handler, scopes))
            case ast.For() | ast.AsyncFor():
                self._bind(node.target, Bound(node.iter, True, tests, in_handler, scopes))
            case ast.comprehension():
                self._bind(node.target, Bound(node.iter, True, (), in_handler, scopes))
            case ast.withitem() if node.optional_vars is not None:
                self._bind(node.optional_vars, Bound(None, False, tests, in_handler, scopes))

    def _agree(self, node: ast.expr, scopes: Scopes) -> None:
        for n in node.elts if isinstance(node, ast.List | ast.Tuple) else [node]:
            if isinstance(n, ast.Name):
                self.agreed.add((_scope(scopes), n.id))
            elif isinstance(n, ast.Attribute) and last_name(n.value) == "self":
                self.agreed.add((None, n.attr))

    def _bind(self, target: ast.expr, bound: Bound) -> None:
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
def file_of(path: str) -> File:
    """The bindings of a file; none where it cannot be read."""
    found, tree = File(path), tree_of(path)
    try:
        if tree is not None:
            found.walk(tree, (tree,))
    except RecursionError:
        return File(path)
    return found
