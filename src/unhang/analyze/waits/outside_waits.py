"""Waits for what is outside of the program's own threads and cannot come: a database's lock, a FIFO, a pool's worker, an actor, a server's pause.

Each is told by the line in which the rank stands, by what its peers and its children do, and by what the program does around it. Where that
does not show it nothing is said.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from unhang.analyze.program.source import frame_at, function_at, loop_around, negated, nodes_around
from unhang.analyze.program.trees import (
    calls_on,
    files_beside,
    functions_in,
    imported_by,
    inside,
    last_name,
    line_text,
    tree_of,
)
from unhang.analyze.program.ways_out import is_counted
from unhang.analyze.waits.locks import blocks_around
from unhang.analyze.waits.polling import mode_of
from unhang.model import Frame, RaisedError, ThreadStack, user_frames

_POOL = "multiprocessing/pool.py"
_FORKS = "/multiprocessing/popen_fork.py"
_CHANGES = ("INSERT", "UPDATE", "DELETE", "REPLACE")  # the first words of statements of SQL


class OpenTransaction(NamedTuple):
    """A rank stands at `stands` in another call, in the block that began a transaction at line `since`, as `what`."""

    stands: Frame
    since: int
    what: str


def open_transaction(frames: Sequence[Frame], waits: Frame) -> OpenTransaction | None:
    """Of the stack of a rank that waits for its peers: the block in which it stands that has the database for which the line waits."""
    begins = _begins_of(waits.file)
    for frame in user_frames(tuple(frames)):
        for block in reversed(blocks_around(frame)):
            for item in block.items:
                named = {last_name(c.func) for c in inside(_made_of(frame, item.context_expr), ast.Call)}
                if named & begins:
                    return OpenTransaction(frame, block.lineno, ast.unparse(item.context_expr))
    return None


def _begins_of(path: str) -> set[str]:
    """The functions of a file that begin a transaction and let their caller work in it."""
    yielding = [f for f in functions_in(tree_of(path)) if inside(f, ast.Yield) or f.name == "__enter__"]
    return {f.name for f in yielding if any("BEGIN" in _words_of(n) for n in inside(f, ast.Constant))}


def _words_of(node: ast.expr) -> list[str]:
    """The words of a statement of SQL, in capitals."""
    return node.value.upper().split() if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def _made_of(frame: Frame, value: ast.expr) -> ast.expr:
    """What a name of the function is set to, where that is done once; else the value itself."""
    sets = inside(function_at(frame.file, frame.line), ast.Assign)
    found = [n.value for n in sets if ast.unparse(value) in map(ast.unparse, n.targets)]
    return found[0] if isinstance(value, ast.Name) and len(found) == 1 else value


def uncommitted(path: str) -> list[int]:
    """The lines of a file that change a database, in functions that neither commit in every case nor stand in a block that does."""
    found = []
    for function in functions_in(tree_of(path)):
        runs = [c for c in inside(function, ast.Call) if last_name(c.func) in ("execute", "executemany") and c.args]
        writes = [c.lineno for c in runs if next(iter(_words_of(c.args[0])), "") in _CHANGES]
        at_once = [s for s in function.body if isinstance(s, ast.Expr) and _commits(s.value, function.name)]
        found += [line for line in writes if not at_once and not blocks_around(Frame(path, line, function.name))]
    return found


def _commits(value: ast.expr, function: str) -> bool:
    """Whether a call commits, or may: by the name of what it calls."""
    name = last_name(value.func) if isinstance(value, ast.Call) else ""
    return name in ("commit", "flush", "save") and name != function


class OpensFifo(NamedTuple):
    """`open` as a line has it, and how it reads where it does not wait for a reader. `name`: what the file becomes; `is_block`: by a `with`."""

    path: str
    how: str
    name: str
    is_block: bool


def opens_fifo(frame: Frame) -> OpensFifo | None:
    """Of a line that waits for the other end of a FIFO: how it opens it to write; None where it is to read."""
    opens = [c for c in calls_on(frame.file, frame.line) if isinstance(c.func, ast.Name) and c.func.id == "open"]
    if len(opens) != 1 or not opens[0].args:
        return None
    call = opens[0]
    if mode_of(call)[:1] not in ("w", "a"):
        return None
    more = [ast.unparse(a) for a in call.args[1:]] + [f"{k.arg}={ast.unparse(k.value)}" for k in call.keywords]
    for node in reversed(nodes_around(frame.file, frame.line)):
        match node:
            case ast.With(items=[ast.withitem(optional_vars=ast.expr() as name)]):
                return OpensFifo(ast.unparse(call.args[0]), ", ".join(more), ast.unparse(name), True)
            case ast.Assign(targets=[name], value=value) if value is call:
                return OpensFifo(ast.unparse(call.args[0]), ", ".join(more), ast.unparse(name), False)
    return None


def lost_worker(stack: ThreadStack, children: Sequence[ThreadStack]) -> str | None:
    """Of a rank that waits for a pool of processes all of which are idle, the call that gave them work: it went with one that died; else None."""
    workers = [t for t in children if _works_in_pool(t)]
    is_at_work = any(user_frames(_above_pool(t)) for t in workers)
    return (_asked_of_pool(stack) or None) if workers and not is_at_work else None


def _works_in_pool(thread: ThreadStack) -> bool:
    return any(f.file.endswith(_POOL) and f.function == "worker" for f in thread.frames)


def _above_pool(thread: ThreadStack) -> tuple[Frame, ...]:
    at = next((i for i, f in enumerate(thread.frames) if f.file.endswith(_POOL)), len(thread.frames))
    return thread.frames[:at]


def _asked_of_pool(stack: ThreadStack) -> str:
    """The call by which a thread gave work to a pool of processes, and waits."""
    mine = next((i for i, f in enumerate(stack.frames) if f.is_user), 0)
    if not any(f.file.endswith(_POOL) and f.function in ("get", "wait", "next") for f in stack.frames[:mine]):
        return ""
    frame = stack.frames[mine]
    calls = [ast.unparse(c.func) for c in calls_on(frame.file, frame.line) if isinstance(c.func, ast.Attribute)]
    return next((c for c in calls if c.rpartition(".")[2].startswith(("map", "imap", "starmap", "apply", "get"))), "")


def waits_in_fork(thread: ThreadStack) -> bool:
    """Whether a thread of a process that was forked sleeps in code of C: in a wait for a thread, it may be one that only its parent has."""
    is_forked = _works_in_pool(thread) or any(f.file.endswith(_FORKS) for f in thread.frames)
    is_asleep = thread.kernel is not None and thread.kernel.call == "futex"
    is_spawned = any("multiprocessing/spawn.py" in f.file or "forkserver.py" in f.file for f in thread.frames)
    return is_forked and is_asleep and not is_spawned


def forked_torch(children: Iterable[ThreadStack]) -> Frame | None:
    """Where a forked process waits for threads that it does not have: in an operation of torch, which ran on several in its parent."""
    for thread in filter(waits_in_fork, children):
        top = thread.frames[0]
        if top.is_user or "/torch/" in top.file:
            mine = user_frames(thread.frames)
            waits_itself = mine and any(last_name(c.func) in _WAITS for c in calls_on(mine[0].file, mine[0].line))
            uses_torch = any(name.partition(".")[0] == "torch" for f in mine for name in imported_by(f.file))
            if mine and uses_torch and not waits_itself:
                return mine[0]
    return None


_WAITS = (
    "acquire",
    "wait",
    "recv",
    "recv_bytes",
    "get",
    "join",
)  # of multiprocessing: in C, without a frame of their own


def asks_at(children: Iterable[ThreadStack], beside: Iterable[ThreadStack]) -> Frame | None:
    """Where a process that a rank started reads its input elsewhere than those of the same program that other ranks started: it has a question."""
    usual = {(f.file, f.line) for t in beside for f in user_frames(t.frames)[:1]}
    for thread in children:
        top = next(iter(user_frames(thread.frames)), None)
        reads = thread.kernel is not None and thread.kernel.call == "read" and thread.kernel.file.startswith("pipe")
        is_there = top is not None and any(file == top.file for file, _ in usual)
        if top is not None and reads and is_there and (top.file, top.line) not in usual:
            return top
    return None


def writes_back(children: Iterable[ThreadStack]) -> Frame | None:
    """Where a process that the rank started waits for room in a socket: it answers, and nobody reads."""
    writing = (t for t in children if t.kernel is not None and t.kernel.call in ("sendto", "sendmsg", "write"))
    return next((f for t in writing if t.kernel and t.kernel.file == "socket" for f in user_frames(t.frames)[:1]), None)


class LeftStream(NamedTuple):
    """The loop at line `loop` leaves a stream of `actor` at line `leaves` before its end; `stream` is its name."""

    loop: int
    leaves: int
    actor: str
    stream: str


def left_stream(frame: Frame) -> LeftStream | None:
    """Of a line that waits for an actor of Ray: where the same file stops to read what that actor yields."""
    actors = {ast.unparse(actor) for c in calls_on(frame.file, frame.line) if (actor := _actor_of(c)) is not None}
    for function in functions_in(tree_of(frame.file)):
        sets = [
            (n.targets, streaming) for n in inside(function, ast.Assign) if (streaming := _streams(n.value)) in actors
        ]
        streams = {ast.unparse(t): streaming for targets, streaming in sets for t in targets}
        for loop in (n for n in inside(function, ast.For) if ast.unparse(n.iter) in streams):
            leaves = [n.lineno for n in ast.walk(loop) if isinstance(n, ast.Break | ast.Return)]
            if leaves:
                stream = ast.unparse(loop.iter)
                return LeftStream(loop.lineno, leaves[0], streams[stream], stream)
    return None


def _actor_of(call: ast.Call) -> ast.expr | None:
    """`actor` of `actor.method.remote(...)`."""
    match call.func:
        case ast.Attribute(attr="remote", value=ast.Attribute(value=actor)):
            return actor
    return None


def _streams(value: ast.expr) -> str:
    """The actor of `actor.method.options(num_returns="streaming").remote()`."""
    match value:
        case ast.Call(
            func=ast.Attribute(
                attr="remote",
                value=ast.Call(func=ast.Attribute(attr="options", value=ast.Attribute(value=actor)), keywords=words),
            )
        ):
            is_stream = any(k.arg == "num_returns" and "streaming" in ast.unparse(k.value) for k in words)
            return ast.unparse(actor) if is_stream else ""
    return ""


class TriesForEver(NamedTuple):
    """A class of actors at line `at` of `path` whose calls Ray makes again and again: `decorator`, and what it should be."""

    path: str
    at: int
    actor: str
    decorator: str


def tries_for_ever(frame: Frame) -> TriesForEver | None:
    """Of a line that waits for a result of Ray: the one class of the program whose calls Ray makes again without end."""
    found = [
        TriesForEver(path, d.lineno, node.name, ast.unparse(d))
        for path in files_beside(frame.file)
        for node in inside(tree_of(path), ast.ClassDef)
        for d in node.decorator_list
        if isinstance(d, ast.Call)
        and any(k.arg == "max_task_retries" and ast.unparse(k.value) == "-1" for k in d.keywords)
    ]
    return found[0] if len(found) == 1 else None


def asks_for_pauses(path: str) -> tuple[str, int] | None:
    """(file, line) at which a program says how requests are tried again, where it lets the server say how long to wait."""
    for one in files_beside(path):
        calls = [c for c in inside(tree_of(one), ast.Call) if last_name(c.func) == "Retry"]
        asked = [c.lineno for c in calls if not any(k.arg == "respect_retry_after_header" for k in c.keywords)]
        if len(asked) == 1:
            return one, asked[0]
    return None


class LeftBarrier(NamedTuple):
    """A thread leaves at line `leaves` the loop in which it met the others; `meetings`: where it does, one after the other."""

    leaves: int
    function: str
    meetings: tuple[str, ...]
    barrier: str


def left_barrier(frame: Frame) -> LeftBarrier | None:
    """Of a line that waits at a barrier of threads: the function of the same class or file whose threads meet there in a loop, and may return."""
    names = {ast.unparse(c.func) for c in calls_on(frame.file, frame.line) if last_name(c.func) == "wait"}
    here = function_at(frame.file, frame.line)
    for function in (f for f in functions_in(tree_of(frame.file)) if f is not here):
        for loop in (n for n in ast.walk(function) if isinstance(n, ast.While | ast.For)):
            met = [s.value for s in loop.body if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call)]
            meetings = [ast.unparse(c) for c in met if last_name(c.func) == "wait"]
            leaves = [n.lineno for n in ast.walk(loop) if isinstance(n, ast.Return | ast.Break)]
            if names & {m.partition("(")[0] for m in meetings} and len(leaves) == 1:
                barrier = min(names).rpartition(".")[0]
                return LeftBarrier(leaves[0], function.name, tuple(meetings), barrier)
    return None


_SETS_TIMER = ("setitimer", "alarm")


def timer_left_on(path: str) -> tuple[str, int, str] | None:
    """(file, line, how to turn it off) of a `finally` that gives SIGALRM its old handler back and leaves the timer running."""
    for one in files_beside(path):
        for node in inside(tree_of(one), ast.Try):
            last = [c for s in node.finalbody for c in inside(s, ast.Call)]
            back = [c for c in last if last_name(c.func) == "signal" and c.args and "SIGALRM" in ast.unparse(c.args[0])]
            calls = inside(function_at(one, node.lineno), ast.Call)
            sets = [c for c in calls if last_name(c.func) in _SETS_TIMER]
            if back and sets and not any(last_name(c.func) in _SETS_TIMER for c in last):
                first = sets[0]
                off = [ast.unparse(a) for a in first.args[:-1]] + ["0"]
                return one, back[0].lineno, f"{ast.unparse(first.func)}({', '.join(off)})"
    return None


class Unbounded(NamedTuple):
    """The loop at line `line` that only its own test ends: `head` counts its rounds, and `after` is what to do when they are over."""

    line: int
    was: str
    head: str
    after: str


def unbounded(frame: Frame) -> Unbounded | None:
    """The innermost loop around a line in its function, where it is a `while` that nothing counts."""
    loop = loop_around(frame.file, frame.line)
    if not isinstance(loop, ast.While) or is_counted(loop.test):
        return None
    head, was = "for _ in range(1000):", f"while {ast.unparse(loop.test)}:"
    if not isinstance(loop.test, ast.Constant):
        return Unbounded(loop.lineno, was, f"{head}\n    if {ast.unparse(negated(loop.test))}: break", "")
    ways = inside(loop, ast.Return)
    return Unbounded(loop.lineno, was, head, ast.unparse(ways[0]) if len(ways) == 1 else "")


def head_of_unbounded(frames: Sequence[Frame]) -> Frame | None:
    """The head of the innermost such loop, where it calls the function in which a rank stands; innermost frame first."""
    mine = user_frames(frames)
    if not mine or loop_around(mine[0].file, mine[0].line) is not None:
        return None
    found = ((f, unbounded(f)) for f in mine[1:])
    return next((frame_at(f.file, loop.line) for f, loop in found if loop), None)


# How Python says that it could not make an exception anew from what a child process had sent of it.
_NOT_MADE = re.compile(r"^TypeError: (\w+)\.__init__\(\) (?:missing \d+ required|takes \d+ positional)")
_RECEIVES = ("/multiprocessing/connection.py", "/multiprocessing/pool.py", "/concurrent/futures/process.py")


class NotSent(NamedTuple):
    """The class at `at` cannot be made anew by pickle; `given`: what its `__init__` takes, as code for `__reduce__`."""

    at: Frame
    given: str


def exception_not_sent(error: RaisedError, beside: Iterable[Frame]) -> NotSent | None:
    """Of an exception with which a process failed to receive another one: the class of that, in the program. `beside`: lines of the program."""
    said = _NOT_MADE.match(error.text)
    if said is None or user_frames(error.frames) or not any(f.file.endswith(_RECEIVES) for f in error.frames):
        return None
    paths = {p for f in beside for p in files_beside(f.file)}
    found = [(path, n) for path in sorted(paths) for n in inside(tree_of(path), ast.ClassDef) if n.name == said[1]]
    if len(found) != 1:
        return None
    path, made = found[0]
    init = next((f for f in made.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
    names = [a.arg for a in init.args.args[1:]] if init is not None else []
    given = ", ".join(f"self.{name}" for name in names)
    return NotSent(Frame(path, made.lineno, made.name), f"({given}{',' if len(names) == 1 else ''})")


class EndedSleepers(NamedTuple):
    """`wakes` waits for an answer of each process that sleeps there; `ends`: the line that ends such processes by force, as `how`."""

    wakes: Frame
    text: str
    ends: Frame
    how: str


def ended_sleepers(frames: Sequence[Frame]) -> EndedSleepers | None:
    """Of a stack in `set()` or `notify()` of multiprocessing: a sleeper is gone, where the program ends processes by force."""
    inner = next((i for i, f in enumerate(frames) if f.is_user), 0)
    stands = [f.function for f in frames[:inner] if f.file.endswith("/multiprocessing/synchronize.py")]
    calls = [c for c in inside(tree_of(frames[inner].file) if inner else None, ast.Call) if not c.args]
    ends = [c for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr in ("terminate", "kill")]
    if "notify" not in stands or not ends:
        return None
    wakes, first = frames[inner], min(ends, key=lambda c: (last_name(c.func) != "terminate", c.lineno))
    return EndedSleepers(
        wakes, line_text(wakes.file, wakes.line), frame_at(wakes.file, first.lineno), ast.unparse(first)
    )
