"""A wait for an item of a queue whose fillers are alive and wait themselves: who they are, and whether they starve each other of items that go round.

Queues and events of asyncio are of one event loop: what another thread does to them wakes no loop.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from unhang.analyze.program.callpath import library_above
from unhang.analyze.program.source import frame_at, function_at, nearest, nodes_around
from unhang.analyze.program.trees import covers, inside, last_name, program_nodes
from unhang.analyze.waits.given_back import answers_to, asked_in
from unhang.model import Frame, ThreadStack, user_frames


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
