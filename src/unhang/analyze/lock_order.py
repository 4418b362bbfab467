"""Two locks that two threads of one process take in two orders, so that each has what the other waits for, as the source has it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from unhang.analyze.bindings import last_name, parameters_of
from unhang.analyze.source import nodes_around
from unhang.analyze.trees import covers, imports_beside, tree_of
from unhang.model import Frame, ThreadStack, user_frames

_BLOCK = (ast.With, ast.AsyncWith)
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_MOST_FILES = 40
_LOCKS = ("Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore")


class Lock(NamedTuple):
    """Where a lock is kept: a file, the class or function that has it (empty for the file itself), and its name there."""

    path: str
    owner: str
    name: str


class Held(NamedTuple):
    """A lock that a thread has at `at`, taken at line `since` of the same function as `text`; by a context manager's function, `is_given` says."""

    lock: Lock
    at: Frame
    since: int
    text: str
    is_given: bool


class Crosswise(NamedTuple):
    """One thread, which has `mine`, waits at `wants` for `want`; the other has that as `theirs`, and waits at `their_wants` for the first one's, there `their_want`."""

    mine: Held
    wants: Frame
    want: str
    theirs: Held
    their_wants: Frame
    their_want: str

    @property
    def turned(self) -> Crosswise:
        """The same, as the other thread sees it."""
        return Crosswise(self.theirs, self.their_wants, self.their_want, self.mine, self.wants, self.want)

    @property
    def may_leave_first(self) -> bool:
        """Whether what goes on to wait, by a call, is the last thing in the block that has the lock."""
        return self.mine.at != self.wants and not self.mine.is_given and _is_last(self.mine)

    @property
    def has_both_names(self) -> bool:
        """Whether the function that takes the first lock takes the second one, too."""
        return self.mine.at == self.wants and not self.mine.is_given


def crosswise(stacks: Sequence[ThreadStack]) -> Crosswise | None:
    """Of the threads of one process: the first two that have what the other one waits for."""
    threads = [(frames, one) for t in stacks if (frames := user_frames(t.frames)) for one in _waits_at(frames[0])]
    for (mine, (want, wanted)), (other, (their_want, theirs_wanted)) in combinations(threads, 2):
        if mine is other or want == their_want:
            continue
        my_hold = next((h for h in _held_in(mine) if h.lock == their_want), None)
        their_hold = next((h for h in _held_in(other) if h.lock == want), None)
        if my_hold and their_hold and not any(h.lock == want for h in _held_in(mine)):
            return Crosswise(my_hold, mine[0], wanted, their_hold, other[0], theirs_wanted)
    return None


def _waits_at(frame: Frame) -> Iterator[tuple[Lock, str]]:
    """What a line takes: by the head of a `with`, or by an `acquire()` without a limit."""
    nodes = nodes_around(frame.file, frame.line)
    heads = [i.context_expr for n in nodes if isinstance(n, _BLOCK) for i in n.items if covers(i.context_expr, frame.line)]
    calls = [c for c in _calls_of(frame, "acquire") if covers(c, frame.line) and not c.args and not c.keywords]
    for node in (*heads, *(c.func.value for c in calls if isinstance(c.func, ast.Attribute))):
        if lock := _kept_at(frame, node):
            yield lock, ast.unparse(node)


def _held_in(frames: Sequence[Frame]) -> Iterator[Held]:
    """The locks that the functions of a stack have at the lines at which they stand."""
    for frame in frames:
        for node in nodes_around(frame.file, frame.line):
            if isinstance(node, _BLOCK) and any(covers(s, frame.line) for s in node.body):
                yield from (h for i in node.items for h in _of_item(frame, node, i.context_expr))
        for call in _calls_of(frame, "acquire"):
            what = call.func.value if isinstance(call.func, ast.Attribute) else call
            back = [r.lineno for r in _calls_of(frame, "release") if ast.unparse(r.func) == f"{ast.unparse(what)}.release"]
            is_held = call.lineno < frame.line and not any(call.lineno < line <= frame.line for line in back)
            if is_held and (lock := _kept_at(frame, what)):
                yield Held(lock, frame, call.lineno, ast.unparse(what), False)


def _of_item(frame: Frame, block: ast.With | ast.AsyncWith, node: ast.expr) -> Iterator[Held]:
    if not isinstance(node, ast.Call):
        if lock := _kept_at(frame, node):
            yield Held(lock, frame, block.lineno, ast.unparse(node), False)
        return
    for path, function in _functions_named(frame.file, last_name(node.func)):
        gives = next((n for n in ast.walk(function) if isinstance(n, ast.Yield)), None)
        for inner in nodes_around(path, gives.lineno) if gives is not None else ():
            if isinstance(inner, _BLOCK) and any(covers(s, gives.lineno) for s in inner.body):  # type: ignore[union-attr]
                at = Frame(path, inner.lineno, function.name)
                locks = (_kept_at(at, i.context_expr) for i in inner.items)
                yield from (Held(x, frame, block.lineno, ast.unparse(node), True) for x in locks if x)


def _calls_of(frame: Frame, name: str) -> list[ast.Call]:
    """The calls of a method of that name in the function of a line."""
    function = next((n for n in reversed(nodes_around(frame.file, frame.line)) if isinstance(n, _FUNCTION)), None)
    calls = [n for n in ast.walk(function) if isinstance(n, ast.Call)] if function is not None else []
    return [c for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr == name]


def _kept_at(frame: Frame, node: ast.expr) -> Lock | None:
    """Where the lock is kept that an expression names; None where the source does not show it for certain."""
    nodes, text = nodes_around(frame.file, frame.line), ast.unparse(node)
    functions = [n for n in nodes if isinstance(n, _FUNCTION)]
    owner = next((n for n in reversed(nodes) if isinstance(n, ast.ClassDef)), None)
    match node:
        case ast.Attribute(value=ast.Name(id="self")) if owner is not None:
            return Lock(frame.file, owner.name, node.attr)
        case ast.Attribute(value=ast.Name(id=name)) if (path := imports_beside(frame.file).get(name)) and not _class_of(node.attr, frame.file):
            return Lock(path, "", node.attr)
        case ast.Attribute():
            return _class_of(node.attr, frame.file)
        case ast.Name(id=name):
            if any(name in parameters_of(f) for f in functions):
                return None
            maker = next((f for f in functions if _makes(f, name)), None)
            return Lock(imports_beside(frame.file).get(name, frame.file), maker.name if maker else "", name)
    return None if text else None


def _makes(function: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in ast.walk(function))


def _files_beside(path: str) -> list[str]:
    near = sorted(Path(path).parent.glob("*.py"))[:_MOST_FILES]
    return sorted({path, *imports_beside(path).values(), *map(str, near)})


def _class_of(name: str, path: str) -> Lock | None:
    """The one class of the program that makes a lock as `self.name`."""
    found = set()
    for file in _files_beside(path):
        tree = tree_of(file)
        for owner in (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)) if tree is not None else ():
            sets = [n for n in ast.walk(owner) if isinstance(n, ast.Assign) and f"self.{name}" in map(ast.unparse, n.targets)]
            if any(isinstance(n.value, ast.Call) and last_name(n.value.func) in _LOCKS for n in sets):
                found.add(Lock(file, owner.name, name))
    return found.pop() if len(found) == 1 else None


def _functions_named(path: str, name: str) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The one function of that name in the program, which a `with` goes through."""
    trees = [(file, tree) for file in _files_beside(path) if (tree := tree_of(file)) is not None]
    found = [(file, n) for file, tree in trees for n in ast.walk(tree) if isinstance(n, _FUNCTION) and n.name == name]
    found = [x for x in found if any("contextmanager" in ast.unparse(d) for d in x[1].decorator_list)]
    return found if len(found) == 1 else []


def _is_last(held: Held) -> bool:
    """Whether the line at which the thread stands is the end of the block that took the lock."""
    nodes = nodes_around(held.at.file, held.at.line)
    inner = nodes[next((i for i, n in enumerate(nodes) if isinstance(n, _BLOCK) and n.lineno == held.since), len(nodes)) :]
    bodies = [b for n in inner for name in ("body", "orelse") if isinstance(b := getattr(n, name, None), list) and b]
    around = [b for b in bodies if any(covers(s, held.at.line) for s in b)]
    return bool(around) and all(covers(b[-1], held.at.line) for b in around) and not any(isinstance(n, ast.For | ast.While | ast.Try) for n in inner)
