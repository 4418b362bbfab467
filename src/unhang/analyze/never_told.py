"""Waits for what nobody says or puts any more: who would have done so has raised, has left by a way without it, or has ended."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import NamedTuple

from unhang.analyze.bindings import last_name
from unhang.analyze.given_back import LOOPS, asked_in, calls_in, calls_on, final_statements, own_nodes, way_past
from unhang.analyze.source import function_at, nodes_around
from unhang.analyze.trees import covers
from unhang.model import Frame, RaisedError, user_frames

_ENDED_BY = {"wait": ("set", "notify", "notify_all"), "get": ("put", "put_nowait"), "acquire": ("release",)}


class NotTold(NamedTuple):
    """`error` was raised at `at`, in a function that would have ended the wait further down, at line `until`, by `give`."""

    at: Frame
    error: str
    until: int
    give: str


def not_told(frame: Frame, errors: Iterable[RaisedError]) -> NotTold | None:
    """Of a line that waits: an exception that was caught, before the function in which it was raised had done what the wait is for."""
    waits = {(last_name(f.value), f.attr) for f in asked_in(frame) if f.attr in _ENDED_BY}
    for error in errors:
        for at in user_frames(error.frames):
            function = function_at(at.file, at.line)
            later = [c for c in calls_in(own_nodes(function)) if c.lineno > at.line] if function is not None else []
            for call in later:
                ends = isinstance(call.func, ast.Attribute) and any(
                    call.func.attr in _ENDED_BY[verb] and last_name(call.func.value) == name for name, verb in waits
                )
                catches = any(isinstance(n, ast.Try) and n.handlers for n in nodes_around(at.file, at.line))
                if (
                    ends
                    and function is not None
                    and not catches
                    and not any(covers(s, call.lineno) for s in final_statements(function))
                ):
                    return NotTold(at, error.type, call.lineno, ast.unparse(call))
    return None


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
    tells = calls_on(frame, "wait", _ENDED_BY["wait"])
    if len(tells) != 1:
        return None
    path, function, call = tells[0]
    head = ast.Pass(lineno=function.lineno, end_lineno=function.body[0].lineno - 1)
    way = way_past(path, function, head, lambda n: n is call)
    assert isinstance(call.func, ast.Attribute)
    name = last_name(call.func.value)
    is_of_it = way is not None and bool(re.search(rf"\b{name}\b", way[2]))  # whether there is one at all
    return Untold(path, function.name, ast.unparse(call), *way) if way is not None and not is_of_it else None


class Ended(NamedTuple):
    """The one function that puts into `queue` ends at line `leaves` of `path`, where `test` leads, without a last item."""

    path: str
    function: str
    queue: str
    leaves: int
    test: str


def ended_producer(frame: Frame) -> Ended | None:
    """Of a line that waits for an item of a queue which no thread is left to fill: the way out on which the one that filled it ends."""
    answers = calls_on(frame, "get", _ENDED_BY["get"])
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
