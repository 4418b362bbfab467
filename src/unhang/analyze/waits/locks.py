"""Locks, places and conditions that cannot come free, as the source has it: each is held, or was told, by who waits itself."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from unhang.analyze.activity import in_communication
from unhang.analyze.program.source import function_at, nearest, nodes_around
from unhang.analyze.program.trees import (
    Function,
    covers,
    files_beside,
    functions_in,
    imports_beside,
    inside,
    last_name,
    parameters_of,
    tree_of,
)
from unhang.model import Case, Frame, ThreadStack, grouped, user_frames
from unhang.model.frames import WaitingTask

_BLOCK = (ast.With, ast.AsyncWith)
_LOCKS = ("Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore")


def scope_of(frame: Frame, text: str) -> ast.AST | None:
    """What has the thing that a line names: the class for `self.x`, the file for a name that no function binds."""
    nodes = nodes_around(frame.file, frame.line)
    if text.startswith("self."):
        return nearest(frame.file, frame.line, ast.ClassDef)
    functions = [n for n in nodes if isinstance(n, Function)]
    bound = {a.arg for f in functions for a in inside(f, ast.arg)} | {name for f in functions for name in _set_in(f)}
    return nodes[0] if nodes and text.partition(".")[0] not in bound else next(iter(functions), None)


class HeldTwice(NamedTuple):
    """A lock or place that the code at `outer` has, since line `since`, and for which the code at `inner`, called from there, waits."""

    inner: Frame
    outer: Frame
    since: int
    what: str


def held_twice(ways: Iterable[Sequence[Frame]]) -> HeldTwice | None:
    """The first of these stacks (innermost first) that waits at a `with` for what a caller of its own holds by a `with`."""
    for way in ways:
        frames = user_frames(tuple(way))
        if frames and (found := _held_above(frames[0], frames[1:])):
            return found
    return None


def _held_above(inner: Frame, above: Sequence[Frame]) -> HeldTwice | None:
    """What a line waits for at a `with`, and the first of the frames above it that holds that by a `with`."""
    for what in dict.fromkeys(ast.unparse(i.context_expr) for b in blocks_at(inner) for i in b.items):
        scope = scope_of(inner, what)
        if scope is None or may_be_held_twice(scope, what):
            continue
        for outer in above:
            since = next((b.lineno for b in blocks_around(outer) if what in held_by(b)), 0)
            if since and scope is scope_of(outer, what):
                return HeldTwice(inner, outer, since, what)
    return None


def blocks_at(frame: Frame) -> list[ast.With | ast.AsyncWith]:
    """The `with` whose head a line is."""
    nodes = nodes_around(frame.file, frame.line)
    return [n for n in nodes if isinstance(n, _BLOCK) and n.lineno <= frame.line < n.body[0].lineno]


def blocks_around(frame: Frame) -> list[ast.With | ast.AsyncWith]:
    """Those in whose body it stands."""
    nodes = nodes_around(frame.file, frame.line)
    return [n for n in nodes if isinstance(n, _BLOCK) and any(covers(s, frame.line) for s in n.body)]


def held_by(block: ast.With | ast.AsyncWith) -> set[str]:
    """What a `with` takes, as it is written there."""
    return {ast.unparse(i.context_expr) for i in block.items}


def may_be_held_twice(scope: ast.AST, what: str) -> bool:
    """Whether it is made as a lock that its holder may take again; a condition is one, too."""
    made = [n.value for n in inside(scope, ast.Assign) if what in map(ast.unparse, n.targets)]
    return not made or any(isinstance(v, ast.Call) and last_name(v.func) in ("RLock", "Condition") for v in made)


class HeldOverCall(NamedTuple):
    """A lock of the process that one thread holds while it waits for other ranks, and for which another one of its threads waits.

    `holds`, `waits`: the lines of the `with` by which each takes it, as `what`.
    """

    holds: Frame
    waits: Frame
    what: str


def held_over_call(stacks: Sequence[ThreadStack]) -> HeldOverCall | None:
    """Of the threads of one process: the one that is in a call, and one that waits for what the first took before it."""
    calling = [t for t in stacks if in_communication(t)]
    for thread in stacks:
        if thread in calling:
            continue
        heads = [(f, b) for f in user_frames(thread.frames) for b in blocks_at(f)]
        for frame, block in heads:
            for holder in (f for t in calling for f in user_frames(t.frames)):
                held = next((b for b in blocks_around(holder) if held_by(b) & held_by(block)), None)
                if held is not None and not thread.is_active:
                    what = min(held_by(held) & held_by(block))
                    return HeldOverCall(Frame(holder.file, held.lineno, holder.function), frame, what)
    return None


def held_over_calls(case: Case, cycle: Sequence[int]) -> list[HeldOverCall]:
    """The lock of each rank of a circle that one of its threads holds over a call of a group of its own; nothing where not all have one."""
    found = [held_over_call(case.ranks[r].stacks) if r in case.ranks else None for r in cycle]
    return [x for x in found if x is not None] if all(found) else []


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
    threads = [(frames, one) for t in stacks if (frames := user_frames(t.frames)) for one in waits_at(frames[0])]
    for (mine, (want, wanted)), (other, (their_want, theirs_wanted)) in combinations(threads, 2):
        if mine is other or want == their_want:
            continue
        my_hold = next((h for h in held_in(mine) if h.lock == their_want), None)
        their_hold = next((h for h in held_in(other) if h.lock == want), None)
        if my_hold and their_hold and not any(h.lock == want for h in held_in(mine)):
            return Crosswise(my_hold, mine[0], wanted, their_hold, other[0], theirs_wanted)
    return None


def waits_at(frame: Frame) -> Iterator[tuple[Lock, str]]:
    """What a line takes: by the head of a `with`, or by an `acquire()` without a limit."""
    nodes = nodes_around(frame.file, frame.line)
    heads = [
        i.context_expr for n in nodes if isinstance(n, _BLOCK) for i in n.items if covers(i.context_expr, frame.line)
    ]
    calls = [c for c in _calls_of(frame, "acquire") if covers(c, frame.line) and not c.args and not c.keywords]
    for node in (*heads, *(c.func.value for c in calls if isinstance(c.func, ast.Attribute))):
        if lock := _kept_at(frame, node):
            yield lock, ast.unparse(node)


def held_in(frames: Sequence[Frame]) -> Iterator[Held]:
    """The locks that the functions of a stack have at the lines at which they stand."""
    for frame in frames:
        for block in blocks_around(frame):
            yield from (h for i in block.items for h in _of_item(frame, block, i.context_expr))
        for call in _calls_of(frame, "acquire"):
            what = call.func.value if isinstance(call.func, ast.Attribute) else call
            back = [
                r.lineno for r in _calls_of(frame, "release") if ast.unparse(r.func) == f"{ast.unparse(what)}.release"
            ]
            is_held = call.lineno < frame.line and not any(call.lineno < line <= frame.line for line in back)
            if is_held and (lock := _kept_at(frame, what)):
                yield Held(lock, frame, call.lineno, ast.unparse(what), False)


def _of_item(frame: Frame, block: ast.With | ast.AsyncWith, node: ast.expr) -> Iterator[Held]:
    if not isinstance(node, ast.Call):
        if lock := _kept_at(frame, node):
            yield Held(lock, frame, block.lineno, ast.unparse(node), False)
        return
    for path, function in _functions_named(frame.file, last_name(node.func)):
        gives = inside(function, ast.Yield)[:1]
        for inner in (b for n in gives for b in blocks_around(Frame(path, n.lineno, function.name))):
            at = Frame(path, inner.lineno, function.name)
            locks = (_kept_at(at, i.context_expr) for i in inner.items)
            yield from (Held(x, frame, block.lineno, ast.unparse(node), True) for x in locks if x)


def _calls_of(frame: Frame, name: str) -> list[ast.Call]:
    """The calls of a method of that name in the function of a line."""
    calls = inside(function_at(frame.file, frame.line), ast.Call)
    return [c for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr == name]


def _kept_at(frame: Frame, node: ast.expr) -> Lock | None:
    """Where the lock is kept that an expression names; None where the source does not show it for certain."""
    functions = [n for n in nodes_around(frame.file, frame.line) if isinstance(n, Function)]
    owner = nearest(frame.file, frame.line, ast.ClassDef)
    match node:
        case ast.Attribute(value=ast.Name(id="self")) if owner is not None:
            return Lock(frame.file, owner.name, node.attr)
        case ast.Attribute(value=ast.Name(id=name)) if (path := imports_beside(frame.file).get(name)) and not _class_of(
            node.attr, frame.file
        ):
            return Lock(path, "", node.attr)
        case ast.Attribute():
            return _class_of(node.attr, frame.file)
        case ast.Name(id=name):
            if any(name in parameters_of(f) for f in functions):
                return None
            maker = next((f for f in functions if name in _set_in(f)), None)
            return Lock(imports_beside(frame.file).get(name, frame.file), maker.name if maker else "", name)
    return None


def _set_in(function: ast.AST) -> set[str]:
    """The variables that a function sets."""
    return {n.id for n in inside(function, ast.Name) if isinstance(n.ctx, ast.Store)}


def _class_of(name: str, path: str) -> Lock | None:
    """The one class of the program that makes a lock as `self.name`."""
    found = set()
    for file in files_beside(path):
        for owner in inside(tree_of(file), ast.ClassDef):
            sets = [n for n in inside(owner, ast.Assign) if f"self.{name}" in map(ast.unparse, n.targets)]
            if any(isinstance(n.value, ast.Call) and last_name(n.value.func) in _LOCKS for n in sets):
                found.add(Lock(file, owner.name, name))
    return found.pop() if len(found) == 1 else None


def _functions_named(path: str, name: str) -> list[tuple[str, Function]]:
    """The one function of that name in the program, which a `with` goes through."""
    found = [(file, f) for file in files_beside(path) for f in functions_in(tree_of(file)) if f.name == name]
    found = [x for x in found if any("contextmanager" in ast.unparse(d) for d in x[1].decorator_list)]
    return found if len(found) == 1 else []


def _is_last(held: Held) -> bool:
    """Whether the line at which the thread stands is the end of the block that took the lock."""
    nodes = nodes_around(held.at.file, held.at.line)
    at = (i for i, n in enumerate(nodes) if isinstance(n, _BLOCK) and n.lineno == held.since)
    inner = nodes[next(at, len(nodes)) :]
    bodies = [b for n in inner for name in ("body", "orelse") if isinstance(b := getattr(n, name, None), list) and b]
    around = [b for b in bodies if any(covers(s, held.at.line) for s in b)]
    is_end = bool(around) and all(covers(b[-1], held.at.line) for b in around)
    return is_end and not any(isinstance(n, ast.For | ast.While | ast.Try) for n in inner)


def held_by_parent(tasks: Sequence[WaitingTask]) -> HeldTwice | None:
    """The first task that waits at a `with` for what another one has by a `with` while it awaits that task."""
    parents = grouped((name, task) for task in tasks for name in task.awaits)
    for task in tasks:
        frames = user_frames(task.frames)
        above = [f for p in _above(task, parents) for f in user_frames(p.frames)] if frames else []
        if frames and (found := _held_above(frames[0], above)):
            return found
    return None


def _above(task: WaitingTask, parents: Mapping[str, Sequence[WaitingTask]]) -> Iterator[WaitingTask]:
    """The tasks that wait for a task, and those that wait for them."""
    todo, seen = [task.name], {task.name}
    while todo:
        for parent in parents.get(todo.pop(), ()):
            if parent.name not in seen:
                seen.add(parent.name)
                todo.append(parent.name)
                yield parent


class LostNotice(NamedTuple):
    """A line that waits for a condition to be notified, whether or not that has come before: `holds` is what the notice tells of."""

    what: str
    holds: str


def lost_notice(frame: Frame) -> LostNotice | None:
    """Of a line with `x.wait()` in no `while` of its `with x`: what the one that notifies has set before."""
    nodes = nodes_around(frame.file, frame.line)
    calls = [c for c in _calls_of(frame, "wait") if covers(c, frame.line) and not c.args and not c.keywords]
    for what in {ast.unparse(c.func.value) for c in calls if isinstance(c.func, ast.Attribute)}:
        at = next((i for i, n in enumerate(nodes) if isinstance(n, _BLOCK) and what in held_by(n)), len(nodes))
        scope = scope_of(frame, what)
        if at == len(nodes) or scope is None or any(isinstance(n, ast.While) for n in nodes[at:]):
            continue
        tellers = [n for n in ast.walk(scope) if isinstance(n, _BLOCK) and what in held_by(n) and _notifies(n, what)]
        of_others = [b for b in tellers if _is_of_a_thread(frame.file, b)] or tellers
        holds = {h for b in of_others for s in b.body if (h := _told_by(s))}
        if len(holds) == 1:
            return LostNotice(what, holds.pop())
    return None


def _is_of_a_thread(path: str, node: ast.stmt) -> bool:
    """Whether it stands in a function that the file gives to a thread."""
    function = function_at(path, node.lineno)
    given = (k.value for c in inside(tree_of(path), ast.Call) for k in c.keywords if k.arg == "target")
    return function is not None and any(last_name(v) == function.name for v in given)


def _notifies(block: ast.AST, what: str) -> bool:
    calls = (c.func for c in inside(block, ast.Call))
    return any(last_name(f) in ("notify", "notify_all") and ast.unparse(f).startswith(f"{what}.") for f in calls)


def _told_by(statement: ast.stmt) -> str:
    """What is true behind a statement: of `self.item = item` that it is not None."""
    match statement:
        case ast.Assign(targets=[ast.Attribute() | ast.Name() as target], value=ast.Constant(value=bool(value))):
            return ast.unparse(target) if value else f"not {ast.unparse(target)}"
        case ast.Assign(targets=[ast.Attribute() as target], value=value):
            is_none = isinstance(value, ast.Constant) and value.value is None
            return f"{ast.unparse(target)} is {'' if is_none else 'not '}None"
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=of, attr="append" | "appendleft" | "add"))):
            return ast.unparse(of)
    return ""


def kept_block(frames: Sequence[Frame], taken: Frame) -> tuple[Frame, int, str] | None:
    """(where a stack stands in it, its line, its head) of the `with` that has the lock on a file which another process takes at `taken`."""
    function, around = function_at(taken.file, taken.line), nearest(taken.file, taken.line, ast.ClassDef)
    is_enter = function is not None and function.name in ("__enter__", "acquire")
    owner = around.name if around is not None and is_enter else ""
    for frame in user_frames(tuple(frames)):
        for block in reversed(blocks_around(frame)):
            for item in (i.context_expr for i in block.items):
                called = last_name(item.func) if isinstance(item, ast.Call) else ""
                if called and (called == owner or "lock" in called.lower()):
                    return frame, block.lineno, ast.unparse(item)
    return None


_LOCKS_FILE = ("flock", "lockf", "FileLock")


def locked_above(frames: Sequence[Frame]) -> tuple[Frame, int] | None:
    """Of a stack that waits for the lock on a file which its own process has: (the caller that took it, the line at which it did)."""
    for frame in user_frames(tuple(frames))[1:]:
        calls = inside(function_at(frame.file, frame.line), ast.Call)
        before = [c for c in calls if last_name(c.func) in _LOCKS_FILE and c.lineno < frame.line]
        taken = [c.lineno for c in before if "LOCK_UN" not in ast.unparse(c)]
        if taken:
            return frame, max(taken)
    return None
