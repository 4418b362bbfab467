"""A wait for an item of a queue whose fillers are alive and wait themselves: who they are, and whether they starve each other of items that go round.

Queues and events of asyncio are of one event loop: what another thread does to them wakes no loop.
Also a thread that waits for such a thing and has a lock, and a last item that one of several takes away from the others.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from unhang.analyze.activity import awaited_in
from unhang.analyze.program.callpath import library_above
from unhang.analyze.program.source import frame_at, function_at, nearest, nodes_around
from unhang.analyze.program.trees import covers, inside, last_name, program_nodes
from unhang.analyze.waits.given_back import LOOPS, answers_to, asked_in
from unhang.analyze.waits.locks import Lock, held_in, waits_at
from unhang.model import Frame, ThreadStack, user_frames

_WITHIN_A_PROCESS = (
    "a full queue",
    "a queue",
    "a queue to be emptied",
    "an event or condition",
    "the result of another thread",
)
_OF_QUEUES = {"put": ("get", "get_nowait"), "get": ("put", "put_nowait")}


class Filler(NamedTuple):
    """Threads that fill a queue with `puts`, as `function` has it, and wait themselves at `stands`."""

    stands: Frame
    threads: tuple[str, ...]
    function: str
    puts: str


class TakenApart(NamedTuple):
    """Several threads take some items each of `queue` at `at`, by `text`, and none goes on before it has all; what they took comes back behind that."""

    at: Frame
    text: str
    queue: str
    back: str


def waiting_fillers(frame: Frame, threads: Sequence[ThreadStack]) -> Filler | None:
    """Of a line that takes from a queue: the threads of the process that are in a function that fills it, and wait there for another thing."""
    answers = answers_to(frame, "get", ("put", "put_nowait"))
    found: dict[Frame, list[str]] = {}
    first = None
    for thread in threads:
        mine = user_frames(thread.frames)
        filled = [a for a in answers for f in mine if f.file == a.path and covers(a.function, f.line)]
        if filled and frame not in mine and thread.frames[0] != mine[0]:
            first = first or filled[0]
            found.setdefault(mine[0], []).append(thread.name)
    if first is None:
        return None
    stands = max(found, key=lambda at: len(found[at]))
    return Filler(stands, tuple(found[stands]), first.function.name, ast.unparse(first.call.func))


def taken_apart(threads: Sequence[ThreadStack]) -> TakenApart | None:
    """Of threads that wait at one line, each amid taking several items of a queue: where these go round, and who would bring more waits for them to come back."""
    places: dict[Frame, int] = {}
    for mine in (user_frames(t.frames) for t in threads if library_above(t.frames)):
        if mine and mine[0].function in ("<listcomp>", "<genexpr>"):
            mine = mine[1:]
        if mine:
            places[mine[0]] = places.get(mine[0], 0) + 1
    for at in (at for at, count in places.items() if count > 1):
        statement, function = nearest(at.file, at.line, ast.stmt), function_at(at.file, at.line)
        takes = [f for f in asked_in(at) if f.attr == "get"]
        if len(takes) != 1 or statement is None or not _takes_several(statement, takes[0]):
            continue
        behind = [c.func for c in inside(function, ast.Call) if c.lineno > (statement.end_lineno or 0)]
        given = {ast.unparse(f.value) for f in behind if isinstance(f, ast.Attribute) and f.attr == "put"}
        awaited = {last_name(f.value) for other in places if other != at for f in asked_in(other) if f.attr == "get"}
        back = next((name for name in sorted(given) if name.rpartition(".")[2] in awaited), None)
        if back is not None:
            return TakenApart(at, ast.unparse(statement), ast.unparse(takes[0].value), back)
    return None


def _takes_several(statement: ast.stmt, method: ast.Attribute) -> bool:
    """Whether a statement calls that method once for each round of a comprehension."""
    return any(method in ast.walk(one.elt) for one in inside(statement, ast.ListComp))


class Unwoken(NamedTuple):
    """A thread calls `call` at `told`, `tells` with `given`, of an object of an event loop, for which a task waits."""

    told: Frame
    call: str
    tells: str
    given: str


_OF_LOOPS = {"get": ("put_nowait",), "wait": ("set",)}
_TO_A_THREAD = ("Thread", "Timer", "run_in_executor", "to_thread", "submit", "map")


def wakes_no_loop(frame: Frame) -> Unwoken | None:
    """Of a line that awaits an item or an event of asyncio: the call of a function of a thread that tells it, as if that were safe."""
    awaited = [n.value for n in nodes_around(frame.file, frame.line) if isinstance(n, ast.Await)]
    for verb in {c.func.attr for c in awaited if isinstance(c, ast.Call) and isinstance(c.func, ast.Attribute)}:
        for path, function, call in answers_to(frame, verb, _OF_LOOPS.get(verb, ())):
            folder = str(Path(frame.file).parent)
            if isinstance(function, ast.FunctionDef) and _is_run_by_a_thread(folder, function.name):
                given = ", ".join(map(ast.unparse, (*call.args, *call.keywords)))
                return Unwoken(frame_at(path, call.lineno), ast.unparse(call), ast.unparse(call.func), given)
    return None


def _is_run_by_a_thread(folder: str, name: str) -> bool:
    """Whether the program hands the function to a thread or a pool."""
    return any(
        isinstance(call, ast.Call)
        and last_name(call.func) in _TO_A_THREAD
        and any(last_name(value) == name for value in (*call.args, *(k.value for k in call.keywords)))
        for _, call in program_nodes(folder)
    )


class KeptOverWait(NamedTuple):
    """A thread that has the lock, as `what` since line `since`, stands at `holds`, and waits there for `awaited`.

    `ends`: the line that alone would end that, if it is behind the lock, too.
    """

    holds: Frame
    thread: str
    what: str
    since: int
    awaited: str
    ends: Frame | None


def kept_over_wait(frame: Frame, stacks: Sequence[ThreadStack]) -> KeptOverWait | None:
    """Of a line that waits for a lock: the thread of the process that has it, where that waits for something else of the process."""
    wanted = {lock for lock, _ in waits_at(frame)}
    for thread in stacks:
        mine, awaited = user_frames(thread.frames), awaited_in(thread)
        held = next((h for h in held_in(mine) if h.lock in wanted), None) if awaited in _WITHIN_A_PROCESS else None
        if held is not None and not any(lock in wanted for lock, _ in waits_at(mine[0])):
            return KeptOverWait(mine[0], thread.name, held.text, held.since, awaited, _ends_behind(mine[0], held.lock))
    return None


def _ends_behind(waits: Frame, lock: Lock) -> Frame | None:
    """Of a thread that waits for room in a queue, or for an item: the first line that takes one, or puts one, where each such line has the lock."""
    answers = [a for verb, given in _OF_QUEUES.items() for a in answers_to(waits, verb, given)]
    at = [Frame(a.path, a.call.lineno, a.function.name) for a in answers]
    return at[0] if at and all(any(h.lock == lock for h in held_in((f,))) for f in at) else None


class OneEnd(NamedTuple):
    """`end` is put into `queue` once, at `puts`; who takes it leaves by that at line `leaves` of `path`, and others take from there, too."""

    path: str
    puts: Frame
    queue: str
    end: str
    leaves: int
    way: str


def one_end(frame: Frame) -> OneEnd | None:
    """Of a line that takes from a queue: the last item by which a taker leaves, where the program puts it once, in no loop, and no taker puts it back."""
    function, statement = function_at(frame.file, frame.line), nearest(frame.file, frame.line, ast.Assign)
    item = ast.unparse(statement.targets[0]) if statement is not None else ""
    puts = answers_to(frame, "get", ("put", "put_nowait"))
    for gate in inside(function, ast.If) if item else ():
        match gate.test:
            case ast.Compare(left=left, ops=[ast.Is() | ast.Eq()], comparators=[end]) if ast.unparse(left) == item:
                leaves = next((n for n in gate.body if isinstance(n, ast.Return | ast.Break)), None)
                ends = [a for a in puts if a.call.args and ast.unparse(a.call.args[0]) in (ast.unparse(end), item)]
                if leaves is None or len(ends) != 1 or ast.unparse(ends[0].call.args[0]) == item:
                    return None
                at, queue = ends[0], asked_in(frame)[0].value
                if any(isinstance(n, LOOPS) and covers(n, at.call.lineno) for n in inside(at.function, ast.AST)):
                    return None
                puts_at = Frame(at.path, at.call.lineno, at.function.name)
                return OneEnd(
                    frame.file, puts_at, ast.unparse(queue), ast.unparse(end), leaves.lineno, ast.unparse(leaves)
                )
    return None
