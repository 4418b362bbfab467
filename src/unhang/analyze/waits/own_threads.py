"""Waits for threads of the same process that cannot end: who would end one imports, has raised, has left by a way without it, has ended, or waits at a barrier."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from unhang.analyze.program.callpath import library_above
from unhang.analyze.program.source import frame_at, function_at, nodes_around
from unhang.analyze.program.trees import Function, calls_on, covers, inside, last_name, line_text, tree_of
from unhang.analyze.waits.given_back import (
    LOOPS,
    answers_to,
    asked_in,
    calls_in,
    final_statements,
    own_nodes,
    program_of,
    way_past,
)
from unhang.analyze.waits.host_waits import forked_lock
from unhang.analyze.waits.locks import scope_of
from unhang.analyze.waits.outside_waits import waits_in_fork
from unhang.model import Frame, RaisedError, RankEvidence, ThreadStack, user_frames

_IMPORT = "importlib._bootstrap"
_OF_A_POOL = "/concurrent/futures/thread.py"
_POOLS = (_OF_A_POOL, "/multiprocessing/pool.py")  # the latter: threads, as a process has no others of it
_GIVES_WORK = ("submit", "map", "starmap", "apply", "apply_async", "map_async", "imap", "imap_unordered")
_JOINS_THREADS = (("/threading.py", "_shutdown"), (_OF_A_POOL, "_python_exit"))


class OwnPool(NamedTuple):
    """`function` runs in the threads of `pool`, made by `made`, and waits at `waits` for what it submits to that at `submits`."""

    waits: Frame
    submits: Frame
    function: str
    pool: str
    made: str


def own_pool(threads: Iterable[ThreadStack]) -> OwnPool | None:
    """Of the threads of a process: the first of a pool that waits for a result, where its function is given to the pool to which it submits."""
    of_pools = [t for t in threads if any(f.file.endswith(_POOLS) for f in t.frames)]
    running = {f.function for t in of_pools for f in user_frames(t.frames)}
    for frame in (f for t in of_pools for f in user_frames(t.frames)):
        function = function_at(frame.file, frame.line)
        inner = {last_name(c.args[0]) for c in _submitted(function) if c.args} - {frame.function}
        if inner & running:
            continue  # what it waits for has begun
        for call in _submitted(function):
            pool = _receiver(call)
            given = [c.args[0] for c in _submitted(scope_of(frame, pool)) if _receiver(c) == pool and c.args]
            if function is not None and function.name in map(last_name, given):
                sets = inside(scope_of(frame, pool), ast.Assign)
                made = [ast.unparse(n.value) for n in sets if ast.unparse(n.targets[0]) == pool]
                submits = Frame(frame.file, call.lineno, function.name)
                return OwnPool(frame, submits, function.name, pool, made[0] if made else "ThreadPoolExecutor(8)")
    return None


def _receiver(call: ast.Call) -> str:
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _submitted(node: ast.AST | None) -> list[ast.Call]:
    return [c for c in inside(node, ast.Call) if isinstance(c.func, ast.Attribute) and c.func.attr in _GIVES_WORK]


class BodyWaits(NamedTuple):
    """A module's body waits at `body`, while it is imported, for a thread that waits at `imports` for the lock of that import.

    `made`: what stands there, as the body of a function named `function`; `use`: what takes its place.
    """

    body: Frame
    imports: Frame
    function: str
    made: str
    use: str


def body_waits(threads: Sequence[ThreadStack]) -> BodyWaits | None:
    """Of the threads of a process: one in a module's body that is being imported, where the only other one that imports waits for a lock of imports."""
    importing = [t for t in threads if any(_IMPORT in f.file for f in t.frames)]
    waiting = [t for t in importing if _waits_for_import(t)]
    bodies = [(t, f) for t in importing if t not in waiting and (f := _body_of(t)) is not None]
    if len(bodies) != 1 or not waiting or len(waiting) + 1 != len(importing):
        return None
    thread, body = bodies[0]
    above = thread.frames[: thread.frames.index(body)]
    if not any(f.file.endswith(("/threading.py", "/concurrent/futures/_base.py", "/queue.py")) for f in above):
        return None
    return BodyWaits(body, user_frames(waiting[0].frames)[0], *_as_function(body))


def _as_function(body: Frame) -> tuple[str, str, str]:
    """(name, body, what calls it) of a function that does what a module's body does at a line; of a value that it sets, gives that."""
    statements = [n for n in nodes_around(body.file, body.line) if isinstance(n, ast.stmt)]
    whole = ast.unparse(statements[0]) if statements else line_text(body.file, body.line)
    match statements[-1] if statements else None:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) as node if whole.count(ast.unparse(node)) == 1:
            function = name.lower() if name.lower() != name else f"make_{name}"
            made = whole.replace(ast.unparse(node), f"return {ast.unparse(value)}")
            return function, made, f"{function}() in place of {name}"
    return "begin", whole, "begin() where the program begins its work, outside of any import"


def _waits_for_import(thread: ThreadStack) -> bool:
    above = library_above(thread.frames)
    return bool(above) and above[0].function in ("acquire", "__enter__") and _IMPORT in above[0].file


def _body_of(thread: ThreadStack) -> Frame | None:
    """The innermost module's body of the program in which a thread stands as it imports that."""
    bodies = ((i, f) for i, f in enumerate(thread.frames) if f.is_user and f.function == "<module>")
    return next((f for i, f in bodies if any(_IMPORT in g.file for g in thread.frames[i + 1 : i + 4])), None)


class KeepsAlive(NamedTuple):
    """A thread for which the interpreter waits at its end: it stands at `stands`, and was made at line `made`, by `thread`; 0 and empty for one of a pool.

    `does`: get, put or wait, with `what` it stands at; empty where it is another thing.
    """

    stands: Frame
    function: str
    made: int
    thread: str
    does: str
    what: str


def keeps_alive(evidence: RankEvidence) -> KeepsAlive | None:
    """Of a process at its end, which waits for its threads: the first that is no daemon and waits for something of the program."""
    main = evidence.main_frames
    if not any(f.file.endswith(file) and f.function == name for f in main for file, name in _JOINS_THREADS):
        return None
    threads = [t for t in evidence.own_stacks if not t.is_main and user_frames(t.frames)]
    for thread in threads if not any(t.is_active is True for t in threads) else ():
        mine = user_frames(thread.frames)
        does, what = _waits_at(mine[0])
        if any(f.file.endswith(_OF_A_POOL) for f in thread.frames):
            return KeepsAlive(mine[0], mine[-1].function, 0, "", does, what) if does else None
        made = list(_makers(mine[-1]))
        if len(made) == 1 and does:
            return KeepsAlive(
                mine[0], mine[-1].function, made[0].lineno, f"{ast.unparse(made[0])[:-1]}, daemon=True)", does, what
            )
    return None


def _waits_at(frame: Frame) -> tuple[str, str]:
    """(get, put or wait, of what) at a line, where it is one without a limit."""
    for call in calls_on(frame.file, frame.line):
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("get", "put", "wait"):
            most = 1 if call.func.attr == "put" else 0
            if len(call.args) <= most and not call.keywords:
                return call.func.attr, ast.unparse(call.func.value)
    return "", ""


def _makers(begins: Frame) -> Iterator[ast.Call]:
    """The calls that make a thread of a function, where none of them makes it a daemon."""
    tree = tree_of(begins.file)
    calls = [c for c in inside(tree, ast.Call) if last_name(c.func) == "Thread"]
    targets = [(c, k.value) for c in calls for k in c.keywords if k.arg == "target"]
    made = [c for c, target in targets if last_name(target) == begins.function]
    sets = (n for n in inside(tree, ast.Attribute) if isinstance(n.ctx, ast.Store))
    if not any(n.attr == "daemon" for n in sets) and not any(k.arg == "daemon" for c in made for k in c.keywords):
        yield from made


def of_threading(path: str, maker: ast.expr) -> bool:
    """Whether a thing is made by the module of threads, and not by that of the same names for processes, or tasks."""
    if isinstance(maker, ast.Name):
        given = (n for n in inside(tree_of(path), ast.ImportFrom) if n.module == "threading")
        return any(maker.id in (a.asname, a.name) for n in given for a in n.names)
    return ast.unparse(maker).startswith("threading.")


class FewParties(NamedTuple):
    """A barrier, made at line `made` for so many `parties`, at which all threads of the process stand that are left: `here` of them."""

    made: int
    barrier: str
    parties: int
    here: int


def few_parties(frame: Frame, threads: Iterable[ThreadStack]) -> FewParties | None:
    """Of a line that waits at a barrier of threads: how many it counts, where fewer are left and each of them waits there."""
    names = {last_name(f.value) for f in asked_in(frame) if f.attr == "wait"}
    made = [
        (n.lineno, n.value.args[0])
        for n in inside(tree_of(frame.file), ast.Assign)
        if last_name(n.targets[0]) in names and isinstance(n.value, ast.Call) and n.value.args
        if last_name(n.value.func) == "Barrier" and of_threading(frame.file, n.value.func)
    ]
    mine = [t for t in threads if user_frames(t.frames)]
    at = [t for t in mine if any(f.function == "_wait" and f.file.endswith("/threading.py") for f in t.frames[:3])]
    if len(made) != 1 or len(at) != len(mine) or len(names) != 1:
        return None
    line, count = made[0]
    parties = count.value if isinstance(count, ast.Constant) else None
    is_few = isinstance(parties, int) and len(at) < parties
    return FewParties(line, names.pop(), parties, len(at)) if is_few and isinstance(parties, int) else None


def forked_place(children: Iterable[ThreadStack]) -> Frame | None:
    """Where a forked process of the program waits at a `with` for a lock of threads, as the source has it."""
    found = (t.frames[0] for t in children if waits_in_fork(t) and t.frames[0].is_user)
    locks = ((f, lock) for f in found if (lock := forked_lock(f)) is not None)
    return next((f for f, k in locks if of_threading(f.file, _maker(k.made))), None)


def _maker(made: str) -> ast.expr:
    value = ast.parse(made, mode="eval").body
    return value.func if isinstance(value, ast.Call) else value


_ENDED_BY = {"wait": ("set", "notify", "notify_all"), "get": ("put", "put_nowait"), "acquire": ("release",)}
_LONGEST = 60
_FILLS = ("append", "add", "pop", "popleft", "remove", "discard", "extend", "update")
_MAKES_TASK = ("create_task", "ensure_future")
_ENDED_BY_WORK = {**_ENDED_BY, "put": ("get", "get_nowait"), "join": ("task_done",)}


class NotTold(NamedTuple):
    """`error` was raised at `at`, in a function that would have ended the wait further down, at line `until`, by `give`."""

    at: Frame
    error: str
    until: int
    give: str


def not_told(frame: Frame, errors: Iterable[RaisedError]) -> NotTold | None:
    """Of a line that waits: an exception that was caught, before the function in which it was raised had done what the wait is for."""
    return next(_left_before(frame, errors, _ENDED_BY), None)


def not_told_by_work(frame: Frame, errors: Iterable[RaisedError]) -> tuple[RaisedError, NotTold] | None:
    """As `not_told`, of exceptions with which work ended that was given to an executor or made a task: the latest such one."""
    told = ((e, found) for e in errors for found in _left_before(frame, (e,), _ENDED_BY_WORK, in_rounds=True))
    return max(told, key=lambda x: x[0].time_ns, default=None)


def work_given(at: Frame) -> tuple[Frame, str] | None:
    """(line, call) by which the program gives a function to an executor, or makes a task of it, where that is one place."""
    found = []
    for path in program_of(at.file):
        for call in calls_in(inside(tree_of(path), ast.Call)):
            given = {last_name(a.func if isinstance(a, ast.Call) else a) for a in call.args}
            if last_name(call.func) in (*_GIVES_WORK, *_MAKES_TASK) and at.function in given:
                found.append((frame_at(path, call.lineno), ast.unparse(call)))
    return found[0] if len(found) == 1 else None


def is_running(evidence: RankEvidence, function: Frame) -> bool:
    """Whether a thread or a task of a process is in the function of that frame."""
    stacks = (*(t.frames for t in evidence.own_stacks), *(t.frames for t in evidence.tasks))
    return any((f.file, f.function) == (function.file, function.function) for frames in stacks for f in frames)


def _left_before(
    frame: Frame, errors: Iterable[RaisedError], ended_by: Mapping[str, tuple[str, ...]], in_rounds: bool = False
) -> Iterator[NotTold]:
    """`in_rounds`: also where a later round of a loop around both lines would have done it, or the line itself."""
    waits = {(last_name(f.value), f.attr) for f in asked_in(frame) if f.attr in ended_by}
    for error in errors:
        for at in user_frames(error.frames):
            function = function_at(at.file, at.line)
            if function is None or any(isinstance(n, ast.Try) and n.handlers for n in nodes_around(at.file, at.line)):
                continue
            loops = [n for n in own_nodes(function) if isinstance(n, LOOPS) and covers(n, at.line)] if in_rounds else []
            for call in calls_in(own_nodes(function)):
                if call.lineno <= at.line and not any(covers(loop, call.lineno) for loop in loops):
                    continue
                ends = isinstance(call.func, ast.Attribute) and any(
                    call.func.attr in ended_by[verb] and last_name(call.func.value) == name for name, verb in waits
                )
                if ends and not any(covers(s, call.lineno) for s in final_statements(function)):
                    yield NotTold(_of_function(at, function), error.type, call.lineno, _in_short(call))


def _in_short(call: ast.Call) -> str:
    text = ast.unparse(call)
    return text if len(text) <= _LONGEST else f"{ast.unparse(call.func)}(...)"


def _of_function(at: Frame, function: Function) -> Frame:
    """A line under the name of its function, also where a comprehension has a frame of its own."""
    return Frame(at.file, at.line, function.name) if at.function.startswith("<") else at


class Untold(NamedTuple):
    """`function` says by `give` at line `until` of `path` what is awaited, but not where `test` leads at line `leaves`."""

    path: str
    function: str
    give: str
    until: int
    leaves: int
    test: str


def untold(frame: Frame) -> Untold | None:
    """Of a line that waits to be told (`x.wait()`): a way through the one function that tells it on which it does not."""
    tells = answers_to(frame, "wait", _ENDED_BY["wait"])
    if len(tells) != 1:
        return None
    path, function, call = tells[0]
    head = ast.Pass(lineno=function.lineno, end_lineno=function.body[0].lineno - 1)
    way = way_past(path, function, head, lambda n: n is call)
    assert isinstance(call.func, ast.Attribute)
    name = last_name(call.func.value)
    if way is None or re.search(rf"\b{name}\b", way[2]):  # the way asks whether there is one at all
        return None
    if any(re.search(rf"(?<![\w.]){re.escape(counted)}(?!\w)", way[2]) for counted in _counted_in(function)):
        return None  # the last of several tells
    return Untold(path, function.name, ast.unparse(call), *way)


def _counted_in(function: ast.AST) -> set[str]:
    """What a function counts, or fills, each time that it runs: `self.left`, the receiver of an `append`."""
    nodes = list(own_nodes(function))
    counted = [n.target for n in nodes if isinstance(n, ast.AugAssign)]
    kept = [x.value for n in nodes if isinstance(n, ast.Assign) for x in n.targets if isinstance(x, ast.Subscript)]
    filled = [c.func.value for c in calls_in(nodes) if isinstance(c.func, ast.Attribute) and c.func.attr in _FILLS]
    return {ast.unparse(n) for n in (*counted, *kept, *filled)}


class Ended(NamedTuple):
    """The one function that puts into `queue` ends at line `leaves` of `path`, where `test` leads, without a last item."""

    path: str
    function: str
    queue: str
    leaves: int
    test: str


def ended_producer(frame: Frame) -> Ended | None:
    """Of a line that waits for an item of a queue which no thread is left to fill: the way out on which the one that filled it ends."""
    answers = answers_to(frame, "get", _ENDED_BY["get"])
    if len({a.function for a in answers}) != 1:
        return None
    path, function, puts = answers[0].path, answers[0].function, [a.call for a in answers]
    loops = [n for n in own_nodes(function) if isinstance(n, LOOPS) and any(covers(n, c.lineno) for c in puts)]
    ends = [n for loop in loops for n in ast.walk(loop) if isinstance(n, ast.Return | ast.Break)]
    is_last = any(c.lineno > (loop.end_lineno or 0) for loop in loops for c in puts)
    around = nodes_around(path, ends[0].lineno) if len(ends) == 1 else ()
    tests = [n for n in around if isinstance(n, ast.If)]
    if len(loops) != 1 or len(ends) != 1 or not tests or any(covers(tests[-1], c.lineno) for c in puts):
        return None
    queue = next(ast.unparse(c.func.value) for c in puts if isinstance(c.func, ast.Attribute))
    return None if is_last else Ended(path, function.name, queue, ends[0].lineno, ast.unparse(tests[-1].test))


class EndedServer(NamedTuple):
    """`wait` is for an event that the thread of `function`, kept as `thread`, was to set; it has ended."""

    wait: str
    event: str
    thread: str
    function: str


def ended_server(frame: Frame, threads: Iterable[ThreadStack]) -> EndedServer | None:
    """Of a line that waits for an event of its own, which it gave away before: the one thread of its object, where that runs no more."""
    function, around = function_at(frame.file, frame.line), nodes_around(frame.file, frame.line)
    owner = next((n for n in around if isinstance(n, ast.ClassDef)), None)
    waits = [c for c in calls_on(frame.file, frame.line) if _is_plain_wait(c)]
    if len(waits) != 1 or function is None:
        return None
    event = _receiver(waits[0])
    sets = [n for n in inside(function, ast.Assign) if ast.unparse(n.targets[0]) == event]
    maker = sets[0].value if len(sets) == 1 else None
    is_own = isinstance(maker, ast.Call) and last_name(maker.func) == "Event" and of_threading(frame.file, maker.func)
    given = [c for c in inside(function, ast.Call) if any(ast.unparse(a) == event for a in c.args)]
    kept = [(ast.unparse(n.targets[0]), n.value) for n in inside(owner, ast.Assign) if isinstance(n.value, ast.Call)]
    kept = [(name, made) for name, made in kept if last_name(made.func) == "Thread"]
    if not is_own or not given or len(kept) != 1:
        return None
    thread, made = kept[0]
    target = next((k.value for k in made.keywords if k.arg == "target"), None)
    name = last_name(target) if target is not None else ""
    runs = {f.function.rpartition(".")[2] for t in threads for f in user_frames(t.frames)}
    is_shown = bool(name) and name not in runs and thread.startswith("self.")
    return EndedServer(ast.unparse(waits[0]), event, thread, name) if is_shown else None


def _is_plain_wait(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "wait" and not call.args and not call.keywords
