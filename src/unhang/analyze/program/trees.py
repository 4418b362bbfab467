"""Source files as trees: the files of the program beside one, what names are bound to, and on what the ranks agree by a collective."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from unhang.model.lazy_pattern import lazy_pattern

_MOST_BYTES = 2_000_000
# Blocks and decorators under which torch builds no graph for a backward pass.
WITHOUT_GRAPH = ("no_grad", "inference_mode")

Node = TypeVar("Node", bound=ast.AST)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@lru_cache(maxsize=64)
def read_source(path: str) -> tuple[ast.Module, tuple[str, ...]] | None:
    """The file as a tree and as its lines, or None where it cannot be read."""
    lines = linecache.getlines(path)
    if not lines or sum(map(len, lines)) > _MOST_BYTES:
        return None
    try:
        return ast.parse("".join(lines)), tuple(lines)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def tree_of(path: str) -> ast.Module | None:
    """The file as a tree, or None where it cannot be read."""
    found = read_source(path)
    return found[0] if found else None


def nodes_of(path: str) -> Iterator[ast.AST]:
    """All nodes of the file; none where it cannot be read."""
    tree = tree_of(path)
    return ast.walk(tree) if tree is not None else iter(())


def inside(node: ast.AST | None, kind: type[Node]) -> list[Node]:
    """All nodes of a kind in a node, itself among them; none in nothing."""
    return [n for n in ast.walk(node) if isinstance(n, kind)] if node is not None else []


def functions_in(node: ast.AST | None) -> list[Function]:
    """All functions in a node, itself among them; none in nothing."""
    return [n for n in ast.walk(node) if isinstance(n, Function)] if node is not None else []


def calls_on(path: str, line: int) -> list[ast.Call]:
    """The calls of a file that cover a line."""
    return [c for c in inside(tree_of(path), ast.Call) if covers(c, line)]


def blocks_of(node: ast.AST) -> list[list[ast.stmt]]:
    """The blocks of statements of a node, but for those of its handlers."""
    found = (getattr(node, name, None) for name in ("body", "orelse", "finalbody"))
    return [block for block in found if isinstance(block, list)]


def names_in(node: ast.AST) -> set[str]:
    """The variables that a node names."""
    return {n.id for n in inside(node, ast.Name)}


def imported_by(path: str) -> set[str]:
    """The modules that the file imports, or from which it does, as it names them."""
    found: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def line_text(path: str, line: int) -> str:
    """The source line, stripped, or an empty string where it cannot be read."""
    found = read_source(path)
    return found[1][line - 1].strip() if found and 0 < line <= len(found[1]) else ""


def covers(node: ast.AST, line: int) -> bool:
    """Whether a line is one of a node's."""
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return first is not None and last is not None and first <= line <= last


@lru_cache(maxsize=64)
def imports_beside(path: str) -> dict[str, str]:
    """What a file imports from files beside it, or below: the name -> that file; a module by its own name."""
    folder = Path(path).parent
    found: dict[str, str] = {}
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom):
            for a in node.names:
                parts = (node.module or "").split(".") if node.module else []
                for where in (folder.joinpath(*parts, a.name), folder.joinpath(*parts)):
                    if where.with_suffix(".py").is_file():
                        found.setdefault(a.asname or a.name, str(where.with_suffix(".py")))
                        break
        elif isinstance(node, ast.Import):
            for a in node.names:
                where = folder.joinpath(*a.name.split(".")).with_suffix(".py")
                if where.is_file():
                    found[a.asname or a.name.partition(".")[0]] = str(where)
    return found


_MOST_BESIDE, _MOST_FILES, _MOST_IMPORTS = 40, 100, 3
_NOT_THERE = frozenset(("site-packages", "node_modules", "__pycache__"))


_scripts: frozenset[str] = frozenset()  # that the processes which are judged have run
_of_programs: list[Callable[[], None]] = []
T = TypeVar("T")


def remembered(find: Callable[..., T]) -> Callable[..., T]:
    """As `lru_cache`, of what is read out of the files of a program: forgotten when another program is judged."""
    kept = lru_cache(maxsize=64)(find)
    _of_programs.append(kept.cache_clear)
    return kept


def judge_program_of(scripts: Iterable[str]) -> None:
    """Say which scripts the processes run that are judged now: other scripts in their folders are other programs."""
    global _scripts
    if (new := frozenset(scripts)) != _scripts:
        _scripts = new
        for forget in _of_programs:
            forget()


def program_files(folder: str) -> list[str]:
    """The files of a program: those of a folder, and of the folders in it, but for scripts beside the one that runs."""
    here = Path(folder)
    found = sorted(p for pattern in ("*.py", "*/*.py") for p in here.glob(pattern) if _NOT_THERE.isdisjoint(p.parts))
    files = [str(p) for p in found[:_MOST_FILES]]
    if not any(str(Path(script).parent) == folder for script in _scripts):
        return files
    mine = {f for script in _scripts for f in files_of_script(script)}
    return [f for f in files if f in mine or not _is_script(f)]


@lru_cache(maxsize=256)
def _is_script(path: str) -> bool:
    """Whether a file does something when it is run: behind `if __name__ == "__main__"`, or by a call of its own function at the end."""
    tree = tree_of(path)
    body = tree.body if tree is not None else []
    own = {n.name for n in body if isinstance(n, Function)}
    called = {last_name(n.value.func) for n in body if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)}
    return bool(own & called) or any(isinstance(n, ast.If) and "__name__" in ast.unparse(n.test) for n in body)


def program_nodes(folder: str) -> Iterator[tuple[str, ast.AST]]:
    """(file, node) of all nodes of a program's files; none where no folder is known."""
    for path in program_files(folder) if folder else ():
        for node in nodes_of(path):
            yield path, node


def assignments(tree: ast.AST | None) -> Iterator[tuple[ast.expr | ast.stmt, list[ast.expr], ast.expr]]:
    """(node, targets, value) of all that gives variables and attributes a value."""
    for node in ast.walk(tree) if tree is not None else ():
        match node:
            case ast.Assign(targets=targets, value=value):
                yield node, targets, value
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
                yield node, [target], value


def bound_to(tree: ast.AST | None, name: str) -> Iterator[ast.expr]:
    """What is given to a variable, or to attributes of that name."""
    return (value for _, targets, value in assignments(tree) if name in map(last_name, targets))


@remembered
def signal_handlers(path: str) -> frozenset[str]:
    """The names of the functions that a file makes handlers of signals."""
    sets = (c for c in inside(tree_of(path), ast.Call) if last_name(c.func) in ("signal", "add_signal_handler"))
    return frozenset(last_name(a) for c in sets for a in c.args[1:])


def functions_named(folder: str, name: str) -> list[tuple[str, ast.FunctionDef]]:
    """(file, function) of all functions and methods of that name in a program's files."""
    return [(path, n) for path, n in program_nodes(folder) if isinstance(n, ast.FunctionDef) and n.name == name]


def files_beside(path: str) -> list[str]:
    """A file of a program, and the others of the program."""
    return [path, *(p for p in program_files(str(Path(path).parent)) if p != path)]


@lru_cache(maxsize=64)
def importers_beside(path: str) -> tuple[str, ...]:
    """The files beside one, or in the folder above, that import something from it."""
    folder = Path(path).parent
    files = sorted({*folder.glob("*.py"), *folder.parent.glob("*.py")})
    return tuple(str(f) for f in files[:_MOST_BESIDE] if path in imports_beside(str(f)).values())


@lru_cache(maxsize=64)
def files_of_script(path: str) -> tuple[str, ...]:
    """A script, and what it imports from files beside it, and what these import: other scripts of the folder are other programs."""
    found = {path: None}
    for _ in range(_MOST_IMPORTS):
        found |= dict.fromkeys(f for one in tuple(found) for f in imports_beside(one).values())
    return tuple(found)[:_MOST_BESIDE]


def script_nodes(script: str) -> Iterator[tuple[str, ast.AST]]:
    """(file, node) of all nodes of a script and of what it imports."""
    for path in files_of_script(script):
        for node in nodes_of(path):
            yield path, node


SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
Scopes = tuple[ast.AST, ...]  # the module, classes and functions around a place, outermost first


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
    """What is bound to a name: an expression, or what a loop goes over; `tests`: what has to hold for that.

    `how`: whole (the name is the value), part, round (of a loop), change (of what was bound before, by a call or within).
    """

    value: ast.expr | None
    how: str
    tests: tuple[ast.expr, ...]
    in_handler: bool
    scopes: Scopes

    @property
    def is_round(self) -> bool:
        """Whether it is one after the other of what a loop goes over."""
        return self.how == "round"


@dataclass
class File:
    """What a file binds to names: by scope for variables, for the whole file for attributes and functions; on which of them ranks agreed."""

    path: str
    variables: dict[tuple[ast.AST, str], list[Bound]] = field(default_factory=dict)
    attributes: dict[str, list[Bound]] = field(default_factory=dict)
    functions: dict[str, list[tuple[Function, Scopes]]] = field(default_factory=dict)
    classes: set[str] = field(default_factory=set)
    calls: dict[str, list[tuple[ast.Call, Scopes]]] = field(default_factory=dict)
    agreed: set[tuple[ast.AST | None, str]] = field(default_factory=set)

    def walk(self, tree: ast.Module) -> None:
        """Notes what the file binds."""
        todo: list[tuple[ast.AST, Scopes, tuple[ast.expr, ...], bool]] = [(tree, (tree,), (), False)]
        while todo:
            node, scopes, tests, in_handler = todo.pop()
            self._note(node, scopes, tests, in_handler)
            if isinstance(node, SCOPES) and node is not tree:
                scopes, tests, in_handler = (*scopes, node), (), False
            asks = (node.test,) if isinstance(node, ast.If | ast.While) else ()
            below = []
            for name, child in ast.iter_fields(node):
                of = (*tests, *asks) if name in ("body", "orelse") else tests
                for c in child if isinstance(child, list) else [child]:
                    if isinstance(c, ast.AST):
                        below.append((c, scopes, of, in_handler or isinstance(node, ast.ExceptHandler)))
                        if isinstance(c, ast.If) and isinstance(c.body[-1], _LEAVES):
                            of = (*of, c.test)
            todo += reversed(below)

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
                    self._bind(node.func.value, Bound(given, "change", tests, in_handler, scopes))
            case ast.Assign():
                for target in node.targets:
                    self._bind(target, Bound(node.value, "whole", tests, in_handler, scopes))
            case ast.AnnAssign() | ast.NamedExpr():
                self._bind(node.target, Bound(node.value, "whole", tests, in_handler, scopes))
            case ast.AugAssign():
                self._bind(node.target, Bound(node.value, "part", tests, in_handler, scopes))
            case ast.For() | ast.AsyncFor():
                self._bind(node.target, Bound(node.iter, "round", tests, in_handler, scopes))
            case ast.comprehension():
                self._bind(node.target, Bound(node.iter, "round", (), in_handler, scopes))
            case ast.withitem() if node.optional_vars is not None:
                self._bind(node.optional_vars, Bound(None, "part", tests, in_handler, scopes))

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
                    self._bind(t, bound._replace(how="part") if bound.how == "whole" else bound)
            case (ast.Starred() | ast.Subscript(), _):
                self._bind(target.value, bound if bound.is_round else bound._replace(how="change"))
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
    if tree is not None:
        found.walk(tree)
    return found
