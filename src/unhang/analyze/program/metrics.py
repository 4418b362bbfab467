"""Metrics that a program computes over all ranks: what one rank leaves out of them, and what each has for itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import NamedTuple

from unhang.analyze.program.callpath import library_above
from unhang.analyze.program.source import Condition, around, frame_at, function_at, surroundings
from unhang.analyze.program.trees import inside, is_local_namesake, last_name, program_files, remembered, tree_of
from unhang.analyze.program.ways_out import WayOut, ways_past
from unhang.model import CollectiveCall, Frame

_AGREES = re.compile(r"reduce|gather|broadcast|_loop$|^evaluate$")


class LeftOutUpdate(NamedTuple):
    """A metric that a rank updates less often: `way` leads past `update` in the loop before `metric` is computed."""

    metric: str
    update: Frame
    way: WayOut


def left_out_update(compute: Frame) -> LeftOutUpdate | None:
    """Of a line that computes a metric over all ranks: the one update of it before, past which a test leads within its loop."""
    found = []
    for metric, line in _updates(inside(function_at(compute.file, compute.line), ast.Call), compute.line):
        around = surroundings(compute.file, line)
        ways = ways_past(compute.file, around.loops[-1], line) if around.loops else ()
        at = Frame(compute.file, line, around.function)
        found += [LeftOutUpdate(metric, at, way) for way in ways if way.goes_on or not way.leaves_at]
    return found[0] if len(found) == 1 else None


def _updates(calls: Iterable[ast.Call], computed_at: int) -> list[tuple[str, int]]:
    """Of the metrics that a line computes, each update among some calls, with its line."""
    named = [(n.func.attr, ast.unparse(n.func.value), n.lineno) for n in calls if isinstance(n.func, ast.Attribute)]
    computed = {metric for attribute, metric, line in named if attribute == "compute" and line == computed_at}
    return [(metric, line) for attribute, metric, line in named if attribute == "update" and metric in computed]


def is_metric(call: CollectiveCall) -> bool:
    """Whether a call was made by torchmetrics, as it brings the states of a metric together."""
    return any("/torchmetrics/" in f.file for f in library_above(call.frames or ()))


class OwnMetrics(NamedTuple):
    """An `evaluate` of the program's own Trainer that gives each rank the metrics of its own part. `at`: where they are first handed on, or returned, as `name`."""

    at: Frame
    name: str


@remembered
def own_metrics(folder: str) -> OwnMetrics | None:
    """The one such method in the files of a folder: nothing in it brings the ranks' values together."""
    found = []
    for path in program_files(folder):
        for node in inside(tree_of(path), ast.ClassDef):
            if any(last_name(b).endswith("Trainer") for b in node.bases):
                methods = [f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "evaluate"]
                found += [m for f in methods if (m := _handed_on(path, f)) is not None]
    return found[0] if len(found) == 1 else None


def _handed_on(path: str, function: ast.FunctionDef) -> OwnMetrics | None:
    """What the library's own `evaluate` gives is the same on every rank; not what the program adds to it."""
    returns = {last_name(n.value): n.lineno for n in inside(function, ast.Return) if isinstance(n.value, ast.Name)}
    if len(returns) != 1:
        return None
    name, last = returns.popitem()
    adds = any(
        isinstance(t, ast.Subscript) and last_name(t.value) == name and any(inside(n.value, ast.Call))
        for n in inside(function, ast.Assign)
        for t in n.targets
    )
    calls = [c for c in inside(function, ast.Call) if not (adds and last_name(c.func) == "evaluate")]
    if any(_AGREES.search(last_name(c.func)) for c in calls if not is_local_namesake(c)):
        return None
    hands = [c.lineno for c in calls if last_name(c.func) in ("log", "on_evaluate") and name in map(last_name, c.args)]
    return OwnMetrics(Frame(path, min([*hands, last]), function.name), name)


def guarded_update(compute: Frame) -> tuple[str, Frame, Condition] | None:
    """Of a line that computes metrics over all ranks: the one of them whose update in that file runs only under a test, with this line and the test."""
    updates = _updates(inside(tree_of(compute.file), ast.Call), compute.line)
    tests = [(m, at, around(at).conditions) for m, line in updates for at in (frame_at(compute.file, line),)]
    found = [(m, at, conditions[-1]) for m, at, conditions in tests if conditions and conditions[-1].suspicion]
    return found[0] if len(found) == 1 else None
