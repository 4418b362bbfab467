"""Loops that sleep and look again: what they wait for, as the source has it; and the loop of an actor that a wait keeps."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from unhang.analyze.program.source import frame_at, function_at, loop_around, negated, nodes_around, surroundings
from unhang.analyze.program.trees import blocks_of, calls_on, covers, imported_by, inside, last_name, names_in, tree_of
from unhang.analyze.program.ways_out import is_counted
from unhang.model import Frame

_MOST_TEXT, _LONGEST_SLEEP_S = 60, 120
_OF_A_DATABASE = ("execute", "executemany", "executescript", "commit")
_LOOKS_FOR_FILES = ("exists", "isfile", "is_file", "listdir", "scandir", "iterdir", "glob", "iglob", "rglob")
_MAKES_FILES = ("touch", "write_text", "write_bytes", "mkdir", "symlink", "symlink_to")
_SAYS = ("sleep", "print", "debug", "info", "warning", "log", "write", "flush")


@lru_cache(maxsize=256)
def polled_for(path: str, line: int) -> str:
    """What the loop around a sleep waits for, to be read after "waits for"; empty where the line does not sleep in such a loop.

    A loop that does anything else is one that works; one that only counts will end.
    """
    loop = loop_around(path, line)
    if not isinstance(loop, ast.While) or not all(map(_only_looks, _beside(loop.body, line, _asked(loop)))):
        return ""
    calls = (c for c in inside(loop, ast.Call) if covers(c, line))
    if not any(last_name(c.func) == "sleep" and not _is_long(c) for c in calls):
        return ""
    if not isinstance(loop.test, ast.Constant):
        return "" if is_counted(loop.test) else f"`{_short(negated(loop.test))}` to come true"
    return next(_ways_out(loop.body), "")


@lru_cache(maxsize=256)
def polled_by_test(path: str, line: int) -> str:
    """The same of a line that is the test of such a loop: what it calls looks once more."""
    loop = loop_around(path, line)
    if not isinstance(loop, ast.While) or not covers(loop.test, line):
        return ""
    sleeps = [c.lineno for c in inside(loop, ast.Call) if last_name(c.func) == "sleep"]
    return polled_for(path, sleeps[0]) if sleeps else ""


@lru_cache(maxsize=256)
def asks_store(path: str, line: int) -> bool:
    """Whether the loop around a line asks a store, itself or in a function of the same file: only a rank can make that true."""
    loop = loop_around(path, line)
    called = {last_name(c.func) for c in inside(loop, ast.Call)}
    functions = [f for f in inside(tree_of(path), ast.FunctionDef) if f.name in called]
    calls = (c for part in (loop, *functions) for c in inside(part, ast.Call))
    return any(isinstance(c.func, ast.Attribute) and "store" in last_name(c.func.value).lower() for c in calls)


@lru_cache(maxsize=256)
def meets_by_files(path: str, line: int) -> bool:
    """Whether the loop around a line looks for files, and its function has left one before it, as every rank does: no other process will make them."""
    loop, function = loop_around(path, line), function_at(path, line)
    if loop is None:
        return False
    calls = inside(function, ast.Call)
    looks = any(covers(loop, c.lineno) and last_name(c.func) in _LOOKS_FOR_FILES for c in calls)
    return looks and any(c.lineno < loop.lineno and _makes_file(c) for c in calls)


def made_on_one(frame: Frame) -> tuple[Frame, str] | None:
    """Of a loop that looks for a file: (line, condition) of what the same function does before it on rank 0 of the whole job alone."""
    loop, function = loop_around(frame.file, frame.line), function_at(frame.file, frame.line)
    if not isinstance(loop, ast.While) or not any(
        last_name(c.func) in _LOOKS_FOR_FILES for c in inside(loop.test, ast.Call)
    ):
        return None
    for gate in (n for n in inside(function, ast.If) if n.lineno < loop.lineno):
        first = [c for c in surroundings(frame.file, gate.body[0].lineno).conditions if c.line == gate.lineno]
        if any(c.only_on_rank_zero and "local" not in c.text.lower() for c in first):
            return frame_at(frame.file, gate.lineno), ast.unparse(gate.test)
    return None


def _makes_file(call: ast.Call) -> bool:
    name = last_name(call.func)
    return name in _MAKES_FILES or (name == "open" and mode_of(call)[:1] in ("w", "a", "x"))


def mode_of(call: ast.Call) -> str:
    """How a call of `open` opens a file, where it says so by a constant; else empty."""
    modes = (*call.args[1:2], *(k.value for k in call.keywords if k.arg == "mode"))
    return next((str(m.value) for m in modes if isinstance(m, ast.Constant)), "")


@lru_cache(maxsize=256)
def asks_database(path: str, line: int) -> str:
    """What a line runs a statement of SQLite on, or tells to commit: there SQLite itself sleeps and looks again for the lock of the file."""
    if "sqlite3" not in imported_by(path):
        return ""
    calls = (c.func for c in calls_on(path, line))
    asked = (f for f in calls if isinstance(f, ast.Attribute) and f.attr in _OF_A_DATABASE)
    return next((ast.unparse(f.value) for f in asked), "")


def _asked(loop: ast.While) -> set[str]:
    """The variables on which it hangs whether the loop ends."""
    return names_in(loop.test).union(*(names_in(n.test) for n in inside(loop, ast.If)))


def _beside(body: list[ast.stmt], line: int, asked: set[str]) -> Iterator[ast.stmt]:
    """The statements that run in the same round as the sleep at the line, but for those that ask anew what the loop waits for."""
    for statement in body:
        around = next((b for b in _blocks(statement) if any(covers(s, line) for s in b)), None)
        if around is not None:
            yield from _beside(around, line, asked)
        elif not (isinstance(statement, ast.Assign) and asked & {last_name(t) for t in statement.targets}):
            yield statement


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for holder in (statement, *getattr(statement, "handlers", ())):
        yield from blocks_of(holder)


def _only_looks(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=called)):
            return last_name(called) in _SAYS
        case ast.If(body=[*_, last]):
            return isinstance(last, ast.Break | ast.Return | ast.Raise | ast.Continue) or all(
                map(_only_looks, statement.body)
            )
        case ast.Try(body=[*_, last]):
            return isinstance(last, ast.Break | ast.Return)
        case ast.Assign(value=value):
            return not inside(value, ast.Call)
    return isinstance(
        statement, ast.AugAssign | ast.Expr | ast.Pass | ast.Continue | ast.Break | ast.Return | ast.Raise
    )


def _ways_out(body: list[ast.stmt]) -> Iterator[str]:
    """What lets the loop end, first ones first."""
    for statement in body:
        match statement:
            case ast.If(test=test, body=[*_, ast.Break() | ast.Return()]):
                yield f"`{_short(test)}` to come true"
            case ast.If(test=test, orelse=[*_, ast.Break() | ast.Return()]):
                yield f"`{_short(negated(test))}` to come true"
            case ast.Try(body=[first, *rest]) if isinstance((first, *rest)[-1], ast.Break | ast.Return):
                yield f"`{_short(first)}` to succeed"
            case ast.Try(body=inner) | ast.With(body=inner):
                yield from _ways_out(inner)


def _is_long(call: ast.Call) -> bool:
    value = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else 0
    return isinstance(value, int | float) and value > _LONGEST_SLEEP_S


def _short(node: ast.AST) -> str:
    text = ast.unparse(node).partition("\n")[0].removeprefix("return ")
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} ..."


def name_by_hash(frame: Frame) -> Frame | None:
    """Where what a loop waits for gets its name by Python's `hash`: of texts it gives other numbers in each process. Within the file of the loop."""
    head, tree = loop_around(frame.file, frame.line), tree_of(frame.file)
    if tree is None or not isinstance(head, ast.While) or "exists" not in ast.unparse(head.test):
        return None
    todo: list[ast.AST] = [head.test]
    seen: set[str] = set()
    while todo:
        for node in ast.walk(todo.pop()):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hash":
                return frame_at(frame.file, node.lineno)
            name = last_name(node.func) if isinstance(node, ast.Call) else node.id if isinstance(node, ast.Name) else ""
            if name and name not in seen:
                seen.add(name)
                todo += [n for n in ast.walk(tree) if _gives(n, name)]
    return None


def _gives(node: ast.AST, name: str) -> bool:
    """Whether a node binds a name, or is the function of that name."""
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
    return isinstance(node, ast.FunctionDef) and node.name == name


class BlockedLoop(NamedTuple):
    """An actor of Ray with methods that are coroutines: its others run one after the other, also where `max_concurrency` allows more.

    `coroutines`: their heads, by line; `decorator`: of the class at `at`, `threads` the same with as many threads as are needed.
    """

    at: Frame
    function: str
    coroutines: tuple[tuple[int, str], ...]
    decorator: str
    threads: str


def blocked_loop(frame: Frame, world: int) -> BlockedLoop | None:
    """Of a line at which a plain method of such an actor waits for a condition, where none of the coroutines awaits anything."""
    around = nodes_around(frame.file, frame.line)
    owner = next((n for n in around if isinstance(n, ast.ClassDef)), None)
    method = function_at(frame.file, frame.line)
    remote = next((d for d in owner.decorator_list if "remote" in ast.unparse(d)), None) if owner is not None else None
    waits = any(last_name(c.func) in ("wait", "wait_for", "acquire", "join") for c in calls_on(frame.file, frame.line))
    if (
        owner is None
        or remote is None
        or not isinstance(method, ast.FunctionDef)
        or method not in owner.body
        or not waits
    ):
        return None
    coroutines = [n for n in owner.body if isinstance(n, ast.AsyncFunctionDef)]
    if not coroutines or any(inside(n, kind) for n in coroutines for kind in (ast.Await, ast.AsyncWith, ast.AsyncFor)):
        return None
    text, given = ast.unparse(remote), {k.arg: k.value for k in getattr(remote, "keywords", ())}
    most = given.get("max_concurrency")
    is_enough = isinstance(most, ast.Constant) and isinstance(most.value, int) and most.value > world
    more = f"max_concurrency={world + 1}"
    if most is not None and not is_enough:
        threads = text.replace(f"max_concurrency={ast.unparse(most)}", more)
    else:
        threads = text if is_enough else f"{text[:-1]}, {more})" if text.endswith(")") else f"{text}({more})"
    heads = tuple((n.lineno, f"def {n.name}({ast.unparse(n.args)}):") for n in coroutines)
    return BlockedLoop(Frame(frame.file, remote.lineno, owner.name), method.name, heads, text, threads)
