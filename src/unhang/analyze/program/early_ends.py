"""What ends a loop on one rank before its data does: a StopIteration that leaks, a place that another rank has saved, days of the local clock."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from unhang.analyze.program.may_differ import OWN
from unhang.analyze.program.source import condition_of, frame_at, function_at, loop_at, nodes_around, surroundings
from unhang.analyze.program.trees import (
    argument_of,
    blocks_of,
    functions_named,
    inside,
    last_name,
    parameters_of,
    program_nodes,
    remembered,
    script_nodes,
)
from unhang.analyze.program.ways_out import WayOut, only_way_past
from unhang.model import Frame

_MOST_HOPS = 3
_TAKES_ALL = ("StopIteration", "Exception", "BaseException")


class LeakedStop(NamedTuple):
    """`asks` (`next(lines)`) raises StopIteration at `at` in what `text` calls: `reads` for each of `items`. `made`: where `text` stands."""

    at: Frame
    asks: str
    made: Frame
    text: str
    reads: str
    items: str


@remembered
def leaked_stop(path: str, header: int) -> LeakedStop | None:
    """Of a loop over `map(read, items)`: a `next()` without a default in what is called for each item, of which the loop ends."""
    folder = str(Path(path).parent)
    for made, value in _gone_over(path, header):
        match value:
            case ast.Call(func=ast.Name("map"), args=[reads, items], keywords=[]):
                pass
            case _:
                continue
        for file, function in _called_as(folder, reads):
            asks = [c for c in inside(function, ast.Call) if _asks_next(c) and not _is_caught(file, c)]
            is_generator = any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(function))
            if asks and not is_generator:
                at, texts = frame_at(file, asks[-1].lineno), (ast.unparse(n) for n in (value, reads, items))
                return LeakedStop(at, ast.unparse(asks[-1]), frame_at(made, value.lineno), *texts)
    return None


def _gone_over(path: str, header: int) -> Iterator[tuple[str, ast.expr]]:
    """(file, expression) of what a loop may go over: what it names, what that is set to, what a caller gives for it."""
    loop = loop_at(path, header)
    todo = [(path, header, loop.iter)] if isinstance(loop, ast.For | ast.AsyncFor) else []
    for _ in range(_MOST_HOPS):
        before, todo = todo, []
        for file, line, value in before:
            yield file, value
            function = function_at(file, line)
            if isinstance(value, ast.Name) and function is not None:
                todo += [(file, n.lineno, n.value) for n in inside(function, ast.Assign) if _sets(n, value.id)]
                if value.id in parameters_of(function):
                    todo += _given(str(Path(path).parent), function, value.id)


def _sets(node: ast.Assign, name: str) -> bool:
    return any(isinstance(t, ast.Name) and t.id == name for t in node.targets)


def _given(folder: str, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> list[tuple[str, int, ast.expr]]:
    """What the calls of a function give for one of its parameters."""
    calls = [
        (file, c) for file, c in program_nodes(folder) if isinstance(c, ast.Call) and last_name(c.func) == function.name
    ]
    given = [(file, c.lineno, argument_of(c, function, name)) for file, c in calls]
    return [(file, line, value) for file, line, value in given if value is not None]


def _called_as(folder: str, reads: ast.expr) -> list[tuple[str, ast.FunctionDef]]:
    """The functions of the program that may run where an object is called: of its name, or `__call__` of the class that it is made from."""
    if not isinstance(reads, ast.Name | ast.Attribute):
        return []
    if found := functions_named(folder, last_name(reads)):
        return found
    return [
        (file, n)
        for file, owner in _classes_of(folder, last_name(reads))
        for n in owner.body
        if isinstance(n, ast.FunctionDef) and n.name == "__call__"
    ]


def _classes_of(folder: str, name: str) -> list[tuple[str, ast.ClassDef]]:
    """The classes of the program whose objects are set to a name."""
    nodes = [*program_nodes(folder)]
    made = {
        last_name(n.value.func)
        for _, n in nodes
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call) and name in map(last_name, n.targets)
    }
    return [(file, n) for file, n in nodes if isinstance(n, ast.ClassDef) and n.name in made]


def _asks_next(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "next" and len(call.args) == 1 and not call.keywords


def _is_caught(path: str, call: ast.Call) -> bool:
    around = (n for n in nodes_around(path, call.lineno) if isinstance(n, ast.Try))
    kinds = (h.type for one in around if any(call in ast.walk(s) for s in one.body) for h in one.handlers)
    return any(
        kind is None
        or any(last_name(n) in _TAKES_ALL for n in ast.walk(kind) if isinstance(n, ast.Name | ast.Attribute))
        for kind in kinds
    )


class SharedPlace(NamedTuple):
    """Accelerate saves the state of `what`, registered at `at`, on the main process alone.

    `state`: what its state_dict() at `saves` returns; `loads`: the body of load_state_dict(), of which `given` is the parameter.
    """

    at: Frame
    what: str
    saves: Frame
    state: str
    given: str
    loads: str


@remembered
def shared_place(path: str, header: int) -> SharedPlace | None:
    """Of a loop over an object of the program that keeps its place, where each rank goes on from what the main process has saved of it."""
    loop, folder = loop_at(path, header), str(Path(path).parent)
    if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Name | ast.Attribute):
        return None
    name = last_name(loop.iter)
    calls = [(file, c) for file, c in program_nodes(folder) if isinstance(c, ast.Call)]
    registered = [
        (file, c, a)
        for file, c in calls
        if last_name(c.func) == "register_for_checkpointing"
        for a in c.args
        if last_name(a) == name
    ]
    loads = [(file, c) for file, c in calls if last_name(c.func) == "load_state" and isinstance(c.func, ast.Attribute)]
    if len(registered) != 1 or not any(not surroundings(file, c.lineno).conditions for file, c in loads):
        return None
    file, call, what = registered[0]
    owners = _classes_of(folder, name)
    if len(owners) != 1:
        return None
    owner, node = owners[0]
    methods = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
    saves, restores = methods.get("state_dict"), methods.get("load_state_dict")
    if saves is None or restores is None or len(saves.body) != 1 or len(parameters_of(restores)) != 2:
        return None
    state = saves.body[0]
    if not isinstance(state, ast.Return) or not isinstance(state.value, ast.Dict):
        return None
    body = "\n".join(ast.unparse(s) for s in restores.body)
    at, line = frame_at(file, call.lineno), frame_at(owner, saves.lineno)
    return SharedPlace(at, ast.unparse(what), line, ast.unparse(state.value), parameters_of(restores)[1], body)


class LocalDays(NamedTuple):
    """`text` at `at` reads a time by the clock of the machine's own zone; `safe` is the same on all."""

    at: Frame
    text: str
    safe: str


@remembered
def local_days(path: str, header: int) -> LocalDays | None:
    """Of a loop over what a function of the program gives: where that divides its items by the local time."""
    folder = str(Path(path).parent)
    for _, value in _gone_over(path, header):
        named = functions_named(folder, last_name(value.func)) if isinstance(value, ast.Call) else []
        found = [(file, c, safe) for file, f in named for c in inside(f, ast.Call) if (safe := _in_one_zone(c))]
        if len(named) == 1 and len(found) == 1:
            file, call, safe = found[0]
            return LocalDays(frame_at(file, call.lineno), ast.unparse(call), safe)
    return None


class Salted(NamedTuple):
    """`text` at `at` is Python's own `hash()` of something, by which things are shared out: of texts it is another number in each process."""

    at: Frame
    text: str
    of: str


@remembered
def salted_hash(script: str) -> Salted | None:
    """The one place of a program that shares things out by `hash(x) % n`."""
    nodes = [*script_nodes(script)]
    if any(isinstance(n, ast.FunctionDef) and n.name == "hash" for _, n in nodes):
        return None
    found = [
        Salted(frame_at(path, call.lineno), ast.unparse(call), ast.unparse(call.args[0]))
        for path, n in nodes
        if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod)
        for call in inside(n.left, ast.Call)
        if isinstance(call.func, ast.Name) and call.func.id == "hash" and len(call.args) == 1
        if _may_be_text(call.args[0])
    ]
    return found[0] if len(found) == 1 and found[0].at.function != "__hash__" else None


_OF_NUMBERS = re.compile(r"(?i)(?:^|_)(?:i|j|k|n|id|ids|idx|index|step|epoch|rank|seed|number|num|count|key)$|id$")


def _may_be_text(node: ast.expr) -> bool:
    """Whether what is hashed is a text, as far as it is said: numbers, and what is made of numbers, have one hash in all processes."""
    match node:
        case ast.JoinedStr() | ast.Call(func=ast.Name(id="str" | "repr")):
            return True
        case ast.Name() | ast.Attribute():
            return _OF_NUMBERS.search(last_name(node)) is None
    return False


class OfSome(NamedTuple):
    """What a loop counts to or from, `name`, is set at line `sets` on some ranks alone: under `test` at `at`, of which `rest` does not ask for the rank."""

    at: Frame
    sets: int
    name: str
    test: str
    rest: str


@remembered
def set_on_some(script: str, path: str, header: int) -> OfSome | None:
    """Of a `while` loop: the one place of the program, but for where it is made, that sets an attribute of its test, if only some ranks come there."""
    loop = loop_at(path, header)
    names = {n.attr for n in inside(loop.test, ast.Attribute)} if isinstance(loop, ast.While) else set()
    sets = [
        (file, n)
        for file, n in script_nodes(script)
        if isinstance(n, ast.Assign)
        and not names.isdisjoint(_attributes_in(n))
        and frame_at(file, n.lineno).function != "__init__"
    ]
    if len(sets) != 1:
        return None
    file, node = sets[0]
    gates = [c for c in surroundings(file, node.lineno).conditions if c.depends_on_rank]
    if len(gates) != 1:
        return None
    test = gates[0].test
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else []
    rest = [p for p in parts if not condition_of(file, p).depends_on_rank]
    name = min(names & _attributes_in(node))
    return OfSome(frame_at(file, gates[0].line), node.lineno, name, gates[0].text, " and ".join(map(ast.unparse, rest)))


def _attributes_in(node: ast.Assign) -> set[str]:
    return {n.attr for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Attribute)}


def _in_one_zone(call: ast.Call) -> str:
    """The call with the zone of all machines, of one that asks for a moment in that of this machine; else empty."""
    name, of = last_name(call.func), ast.unparse(call.func).rpartition(".")[0]
    if len(call.args) != 1 or call.keywords:
        return ""
    if name == "localtime":
        return f"{of + '.' if of else ''}gmtime({ast.unparse(call.args[0])})"
    if name == "fromtimestamp" and of.rpartition(".")[2] == "datetime":
        return f"{of}.fromtimestamp({ast.unparse(call.args[0])}, timezone.utc)   # from datetime import timezone"
    return ""


def operand_behind(test: ast.BoolOp, function: str = "") -> ast.expr | None:
    """The last operand of a test, or the one that calls a function: what stands before it may leave it out, unless that is what makes the call possible."""
    calls = [
        [c for c in inside(v, ast.Call) if last_name(c.func) == (function or last_name(c.func))] for v in test.values
    ]
    at = next((i for i in range(len(calls) - 1, 0, -1) if calls[i]), 0) if function else len(calls) - 1
    if not at or not calls[at] or (function and calls[0]):
        return None
    tests = [c for v in test.values[:at] for c in inside(v, ast.Compare)]
    guarded = {
        ast.unparse(c.left)
        for c in tests
        if any(isinstance(x, ast.Constant) and x.value is None for x in c.comparators)
    }
    used = {ast.unparse(n) for n in ast.walk(test.values[at]) if isinstance(n, ast.Name | ast.Attribute)}
    return None if guarded & used else test.values[at]


def skipped_round(frame: Frame) -> tuple[Frame, WayOut] | None:
    """The one test of a rank's own data that leads past a line to the next round of the loop around it."""
    way = only_way_past(frame) if surroundings(frame.file, frame.line).loops else None
    if way is None or not way.goes_on:
        return None
    around = surroundings(frame.file, way.leaves_at).conditions
    is_own = bool(around) and around[-1].suspicion >= OWN and not around[-1].depends_on_rank
    return (replace(frame, line=way.line), way) if is_own else None


class LeftByFirst(NamedTuple):
    """`if test: body` at `at` leaves the round or the function, within `if gate:` at `gate_line`, which holds on the first rank alone."""

    at: Frame
    test: str
    body: str
    gate: str
    gate_line: int


def left_by_first(frame: Frame) -> LeftByFirst | None:
    """The one test by which the first rank, and no other, leaves before a line of the same block."""
    found = []
    for block in (b for n in nodes_around(frame.file, frame.line) for b in blocks_of(n)):
        at = next((i for i, s in enumerate(block) if s.lineno <= frame.line <= (s.end_lineno or s.lineno)), 0)
        for gate in (s for s in block[:at] if isinstance(s, ast.If) and not s.orelse):
            tests = [
                n for n in inside(gate, ast.If) if n is not gate and not n.orelse and isinstance(n.body[-1], _LEAVES)
            ]
            around = surroundings(frame.file, tests[0].body[-1].lineno).conditions if len(tests) == 1 else ()
            if len(around) > 1 and around[-2].only_on_rank_zero and around[-2].line == gate.lineno:
                body = "\n".join(map(ast.unparse, tests[0].body))
                place = frame_at(frame.file, tests[0].lineno)
                found.append(LeftByFirst(place, ast.unparse(tests[0].test), body, ast.unparse(gate.test), gate.lineno))
    return found[0] if len(found) == 1 else None


_LEAVES = (ast.Continue, ast.Break, ast.Return)
