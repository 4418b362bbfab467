"""Waits within the program that cannot end, as the source has them: who would end one waits itself, or has left it out.

Each is told by the line in which a thread, task, process or actor of Ray stands, and by what the program does around it. Where the source does
not show it for certain nothing is said.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from unhang.analyze.program.callpath import library_above
from unhang.analyze.program.source import frame_at, function_at, loop_around, loop_at, nodes_around, surroundings
from unhang.analyze.program.trees import Function, calls_on, covers, files_beside, inside, last_name, line_text, tree_of
from unhang.analyze.program.ways_out import WayOut, ways_past
from unhang.analyze.waits.locks import blocks_at, held_by, scope_of
from unhang.model import Frame, ThreadStack, user_frames
from unhang.model.frames import WaitingTask

_LOCKS = ("Lock", "RLock", "Condition", "Semaphore")
_ANSWERS = ("write", "send", "sendall", "send_json", "send_bytes", "send_string", "flush", "drain", "put")


def _calls_at(path: str, line: int, name: str) -> list[ast.Call]:
    """The calls on a line of a method of that name."""
    return [c for c in calls_on(path, line) if isinstance(c.func, ast.Attribute) and c.func.attr == name]


def _receiver(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Attribute)
    return ast.unparse(call.func.value)


class FullQueue(NamedTuple):
    """`thread`, for the end of which `join` waits, stands at `put` and waits for room in `queue`, which nobody empties meanwhile."""

    join: Frame
    put: Frame
    thread: str
    queue: str


def full_queue(join: Frame, threads: Iterable[ThreadStack]) -> FullQueue | None:
    """Of a line that waits for the end of a thread: that thread, where it waits for room in a queue that the line can name."""
    joins = _calls_at(join.file, join.line, "join")
    waiting = [user_frames(t.frames)[0] for t in threads if puts(t)]
    if len(joins) != 1 or len(waiting) != 1 or waiting[0].file != join.file:
        return None
    put, thread = waiting[0], _receiver(joins[0])
    queues = {_receiver(c) for c in _calls_at(put.file, put.line, "put")}
    named = [q for q in queues if (scope := scope_of(put, q)) is not None and scope is scope_of(join, q)]
    return FullQueue(join, put, thread, named[0]) if len(queues) == len(named) == 1 else None


def queue_at(frame: Frame) -> str:
    """The one queue into which a line puts something."""
    queues = {_receiver(c) for c in _calls_at(frame.file, frame.line, "put")}
    return queues.pop() if len(queues) == 1 else ""


def puts(thread: ThreadStack) -> bool:
    """Whether a thread waits for room in a queue, at a line of the program."""
    above = library_above(thread.frames)
    return any(f.function == "put" and f.file.endswith(("/queue.py", "/queues.py")) for f in above)


def feeds(thread: ThreadStack) -> bool:
    """Whether a thread writes what a process has put into a queue of multiprocessing."""
    return any(f.function == "_feed" and f.file.endswith("/multiprocessing/queues.py") for f in thread.frames)


class OwnLoop(NamedTuple):
    """A coroutine that the loop of the thread runs called `plain`, no coroutine, at `calls`, and that waits for another one of the same loop at `waits`."""

    waits: Frame
    calls: Frame
    plain: str


def own_loop(threads: Iterable[ThreadStack]) -> OwnLoop | None:
    """Of the threads of a process: the one in which an event loop stands, as what it runs waits for the result of what it should run."""
    for thread in threads:
        above = next((i for i, f in enumerate(thread.frames) if f.file.endswith("/asyncio/base_events.py")), 0)
        mine = user_frames(thread.frames[:above])
        library = library_above(thread.frames[:above])
        is_result = any(f.function == "result" and f.file.endswith("/concurrent/futures/_base.py") for f in library)
        if not is_result or "run_coroutine_threadsafe" not in line_text(mine[0].file, mine[0].line):
            continue
        is_task = [isinstance(function_at(f.file, f.line), ast.AsyncFunctionDef) for f in mine]
        if True in is_task[1:]:
            i = is_task.index(True, 1)
            return OwnLoop(mine[0], mine[i], mine[i - 1].function)
    return None


class ForkedLock(NamedTuple):
    """A lock that a forked process got as it was, held by a thread that it does not have. `at`: where it is made, by `made`."""

    at: Frame
    what: str
    made: str


def forked_lock(place: Frame) -> ForkedLock | None:
    """Of a line at which a forked process waits at a `with`: the lock of the class or module, where that is made in one place."""
    for what in {w for b in blocks_at(place) for w in held_by(b)}:
        scope = scope_of(place, what)
        sets = (n for n in inside(scope, ast.Assign) if what in map(ast.unparse, n.targets))
        made = [n for n in sets if isinstance(n.value, ast.Call) and last_name(n.value.func) in _LOCKS]
        if len(made) == 1 and isinstance(scope, ast.ClassDef | ast.Module):
            at = frame_at(place.file, made[0].lineno)
            return ForkedLock(at, what, ast.unparse(made[0].value))
    return None


class EndedTask(NamedTuple):
    """`task`, made at line `made` of `path` from `coroutine`, takes from `queue`, and has ended."""

    path: str
    made: int
    task: str
    coroutine: str
    queue: str


def ended_task(at: Frame, tasks: Iterable[WaitingTask]) -> EndedTask | None:
    """Of a line that waits until something is put into a queue of asyncio: the one task that takes from it, where that is no more."""
    tree, queue = tree_of(at.file), queue_at(at)
    running = {f.function for t in tasks for f in t.frames}
    found = []
    for node in inside(tree, ast.Assign) if queue else ():
        match node:
            case ast.Assign(targets=[target], value=ast.Call(args=[ast.Call(func=made), *_]) as call):
                name = last_name(made)
                if last_name(call.func) == "create_task" and name not in running and _takes_from(tree, name, queue):
                    found.append(EndedTask(at.file, node.lineno, ast.unparse(target), ast.unparse(made), queue))
    return found[0] if len(found) == 1 else None


def _takes_from(tree: ast.AST | None, name: str, queue: str) -> bool:
    calls = (c for f in inside(tree, ast.AsyncFunctionDef) if f.name == name for c in inside(f, ast.Call))
    return any(ast.unparse(c.func) == f"{queue}.get" for c in calls)


def unread_errors(path: str) -> int:
    """The line at which a file starts a process with a pipe for its errors, where the file reads them nowhere, but to say why it ended; else 0."""
    tree = tree_of(path)
    at_the_end = {id(n) for r in inside(tree, ast.Raise) for n in ast.walk(r)}
    named = (n for n in inside(tree, ast.Attribute) if id(n) not in at_the_end)
    reads = any(n.attr in ("stderr", "communicate") for n in named)
    given = (k for c in inside(tree, ast.Call) if last_name(c.func) == "Popen" for k in c.keywords)
    lines = {k.value.lineno for k in given if k.arg == "stderr" and last_name(k.value) == "PIPE"}
    return lines.pop() if len(lines) == 1 and not reads else 0


def writes_to_child(path: str) -> bool:
    """Whether a file writes to the standard input of a process that it starts."""
    parts = inside(tree_of(path), ast.Attribute)
    return any(n.attr in ("write", "close") and last_name(n.value) == "stdin" for n in parts)


class ReadLater(NamedTuple):
    """The parent waits at `join` for its workers, and reads their `queue` only then, at line `get`, by `statement`. `spawn`: it started them there."""

    join: Frame
    get: int
    queue: str
    statement: str
    spawn: str


def read_later(join: Frame) -> ReadLater | None:
    """Of a parent's line that waits for processes: what it takes out of a queue further down in the function."""
    calls = inside(function_at(join.file, join.line), ast.Call)
    here = [c for c in calls if covers(c, join.line) and last_name(c.func) in ("spawn", "start_processes", "join")]
    gets = [c for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr == "get" and c.lineno > join.line]
    gets = [c for c in gets if not c.args or isinstance(c.args[0], ast.Constant)]
    queues = {_receiver(c) for c in gets}
    if not here or len(queues) != 1:
        return None
    inner = [n for n in nodes_around(join.file, gets[0].lineno) if isinstance(n, ast.Expr | ast.Assign)]
    statement = ast.unparse(inner[-1]) if inner else f"taken.append({ast.unparse(gets[0])})"
    spawn = ast.unparse(here[0].func) if last_name(here[0].func) != "join" else ""
    return ReadLater(join, gets[0].lineno, queues.pop(), statement, spawn)


class NotReleased(NamedTuple):
    """`what` is taken at line `taken` and given back at line `released` of `path`, after `work`, but not where that raises."""

    path: str
    taken: int
    released: int
    what: str
    work: str


@lru_cache(maxsize=64)
def not_released(path: str, line: int) -> NotReleased | None:
    """Of a line that waits for a lock: where the same function or class gives one back only if what it did did not raise."""
    waits = [c for name in ("wait", "acquire") for c in _calls_at(path, line, name)]
    whats = {_receiver(c) for c in waits} or {w for b in blocks_at(Frame(path, line, "")) for w in held_by(b)}
    for what in whats:
        for node in inside(scope_of(Frame(path, line, ""), what), ast.AST):
            for block in (getattr(node, name, None) for name in ("body", "orelse")):
                if isinstance(block, list) and (found := _without_finally(path, block, what, node)):
                    return found
    return None


def _without_finally(path: str, block: list[ast.stmt], what: str, holder: ast.AST) -> NotReleased | None:
    """A block that gives back what its own statement before, or the test that leads to it, has taken; calls stand between."""
    after = [i for i, s in enumerate(block) if isinstance(s, ast.Expr) and _is_call(s.value, what, "release")]
    if len(after) != 1:
        return None
    before = block[: after[0]]
    taken = next((i for i, s in enumerate(before) if isinstance(s, ast.Expr) and _takes(s.value, what)), -1)
    by_test = (
        isinstance(holder, ast.If) and holder.body is block and any(_takes(n, what) for n in ast.walk(holder.test))
    )
    work = before[taken + 1 :]
    if (taken < 0 and not by_test) or not any(isinstance(n, ast.Call) for s in work for n in ast.walk(s)):
        return None
    at = before[taken].lineno if taken >= 0 else getattr(holder, "lineno", 0)
    return NotReleased(path, at, block[after[0]].lineno, what, "\n".join(map(ast.unparse, work)))


def _is_call(node: ast.AST, what: str, name: str) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) == name and ast.unparse(node.func) == f"{what}.{name}"


def _takes(node: ast.AST, what: str) -> bool:
    return any(_is_call(node, what, name) for name in ("acquire", "try_acquire"))


class Unanswered(NamedTuple):
    """The other side stands at `head`, and waits for the next request; a round that `way` ends sends nothing. `answer`: how another round does."""

    head: Frame
    way: WayOut
    answer: str


def unanswered(threads: Iterable[ThreadStack]) -> Unanswered | None:
    """The one of these threads that serves requests in a loop of which a round may end without an answer."""
    found = [one for t in threads if (frames := user_frames(t.frames)) for one in _skips_answer(frames[0])]
    return found[0] if len(found) == 1 else None


def _skips_answer(head: Frame) -> Iterator[Unanswered]:
    loops = surroundings(head.file, head.line).loops
    loop = loop_at(head.file, loops[-1].header) if loops else None
    answers = [s for s in loop.body if _answers(s)] if loop is not None else []
    ways = ways_past(head.file, loops[-1], answers[0].lineno) if answers else ()
    for way in ways:
        tests = [n for n in inside(loop, ast.If) if n.lineno == way.line]
        if way.goes_on and not any(_answers(s) for t in tests for s in inside(t, ast.stmt)):
            yield Unanswered(head, way, "\n".join(map(ast.unparse, answers)))


def _answers(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(attr=name)) | ast.Await(value=ast.Call(func=ast.Attribute(attr=name)))
        ):
            return name in _ANSWERS
    return False


class ActorCircle(NamedTuple):
    """An actor's method waits at `wait` for a method of another one, which asks at `back` for `asked` of the first: its class, `actor`, at line `at`."""

    wait: Frame
    back: Frame
    asked: str
    actor: str
    decorator: str
    at: Frame


def actor_circle(wait: Frame) -> ActorCircle | None:
    """Of a line of an actor of Ray that waits for another actor: where that one waits for the first, by the source."""
    nodes = nodes_around(wait.file, wait.line)
    mine = next((n for n in nodes if isinstance(n, ast.ClassDef)), None)
    statement = next((n for n in reversed(nodes) if isinstance(n, ast.stmt)), None)
    decorator = _remote(mine) if mine is not None and _asked_of_actors(statement) else None
    if mine is None or decorator is None or "max_concurrency" in ast.unparse(decorator):
        return None
    for path in files_beside(wait.file):
        for other in inside(tree_of(path), ast.ClassDef):
            is_other = other is not mine and _remote(other)
            asks = _asks_back(other, _asked_of_actors(statement), {*_methods_of(mine)}) if is_other else None
            if asks is not None:
                back, line = asks
                at = Frame(wait.file, decorator.lineno, mine.name)
                return ActorCircle(wait, Frame(path, line, other.name), back, mine.name, ast.unparse(decorator), at)
    return None


def _asks_back(actor: ast.ClassDef, asked: set[str], own: set[str]) -> tuple[str, int] | None:
    """(the method, the line) by which one of an actor's methods `asked`, or one that it calls, waits for a method of `own`."""
    methods = _methods_of(actor)
    reached = [f for name in sorted(asked & methods.keys()) for f in _reached(methods, name)]
    calls = (c for f in reached for c in inside(f, ast.Call))
    return next(((min(back), c.lineno) for c in calls if (back := own & _asked_of_actors(c))), None)


def _asked_of_actors(node: ast.AST | None) -> set[str]:
    """The methods of actors whose results a statement waits for: `x` of `ray.get(self.a.x.remote())`."""
    gets = (c for c in inside(node, ast.Call) if ast.unparse(c.func) == "ray.get")
    asked = (n.value for g in gets for n in inside(g, ast.Attribute) if n.attr == "remote")
    return {n.attr for n in asked if isinstance(n, ast.Attribute)}


def asks_ray(frame: Frame) -> bool:
    """Whether a line waits for Ray, or asks something of an actor."""
    calls = calls_on(frame.file, frame.line)
    return any(ast.unparse(c.func) in ("ray.get", "ray.wait") or last_name(c.func) == "remote" for c in calls)


def polls_ray(frame: Frame | None) -> bool:
    """Whether the loop around a line asks Ray for another answer in each of its rounds."""
    return frame is not None and bool(_asked_of_actors(loop_around(frame.file, frame.line)))


class Forgetful(NamedTuple):
    """An actor that may be started again, without what it had: its class at `at`. `handed`: the statement before a loop that told it something."""

    actor: str
    decorator: str
    at: Frame
    handed: str


def forgetful_actor(frame: Frame) -> Forgetful | None:
    """The actor that the loop around a line asks again and again, if Ray may start it anew, and it was told something once, before the loop."""
    loop, function = loop_around(frame.file, frame.line), function_at(frame.file, frame.line)
    asked = _asked_of_actors(loop)
    if loop is None or function is None or not asked:
        return None
    for path in files_beside(frame.file):
        for actor in inside(tree_of(path), ast.ClassDef):
            decorator, own = _remote(actor), {*_methods_of(actor)}
            if decorator is None or not asked <= own or not _is_restarted(decorator):
                continue
            told = [x for x in function.body if x.lineno < loop.lineno and _asked_of_actors(x) & own]
            if told:
                at = Frame(path, decorator.lineno, actor.name)
                return Forgetful(actor.name, ast.unparse(decorator), at, ast.unparse(told[-1]))
    return None


def named_actor(frame: Frame) -> tuple[Frame, str] | None:
    """(line, call) of the one actor that a program names and that ends with its maker's handle, where the loop around a line looks for actors by name."""
    if not any(last_name(c.func) == "get_actor" for c in inside(loop_around(frame.file, frame.line), ast.Call)):
        return None
    calls = ((path, c) for path in files_beside(frame.file) for c in inside(tree_of(path), ast.Call))
    made = [(path, c, {k.arg for k in c.keywords}) for path, c in calls if last_name(c.func) == "options"]
    own = [(path, c) for path, c, given in made if "name" in given and not given & {"lifetime", "get_if_exists", None}]
    return (Frame(own[0][0], own[0][1].lineno, ""), ast.unparse(own[0][1])) if len(own) == 1 else None


def _is_restarted(decorator: ast.expr) -> bool:
    given = {k.arg: ast.unparse(k.value) for k in getattr(decorator, "keywords", ())}
    return given.get("max_restarts", "0") != "0"


def method_of(path: str, call: str) -> Frame | None:
    """Where a call such as `Board.newer_than` waits first, in a file or one beside it: its first `await`, else where it begins."""
    owner, _, name = call.rpartition(".")
    for file in files_beside(path) if owner else ():
        for actor in inside(tree_of(file), ast.ClassDef):
            if actor.name == owner and (method := _methods_of(actor).get(name)):
                awaits = sorted(n.lineno for n in inside(method, ast.Await))
                return Frame(file, awaits[0] if awaits else method.lineno, name)
    return None


def _remote(node: ast.ClassDef) -> ast.expr | None:
    return next((d for d in node.decorator_list if ast.unparse(d).startswith("ray.remote")), None)


def _methods_of(actor: ast.ClassDef) -> dict[str, Function]:
    return {f.name: f for f in actor.body if isinstance(f, Function)}


def _reached(methods: dict[str, Function], name: str) -> list[ast.AST]:
    """A method and those of the same object that it calls."""
    found: dict[str, ast.AST] = {}
    todo = [name]
    while todo:
        one = todo.pop()
        if one in methods and one not in found:
            found[one] = methods[one]
            calls = (c.func for c in inside(methods[one], ast.Call))
            todo += [f.attr for f in calls if isinstance(f, ast.Attribute) and ast.unparse(f.value) == "self"]
    return list(found.values())
