"""Events between processes whose sleepers have been ended: `set()` of multiprocessing waits until each of them has answered."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import NamedTuple

from unhang.analyze.given_back import program_of
from unhang.analyze.source import frame_at
from unhang.analyze.trees import calls_on, inside, last_name, tree_of
from unhang.model import Frame

_SYNCHRONIZE = "/multiprocessing/synchronize.py"
_INSTEAD = {
    "set": "{0}.value = 1",
    "clear": "{0}.value = 0",
    "is_set": "bool({0}.value)",
    "wait": "while not {0}.value: time.sleep(0.01)",
}


class KilledSleepers(NamedTuple):
    """An event of processes whose `set` waits for the answer of each sleeper; `ends`: the line that ends such processes.

    `changes`: (place, what stands there, what should).
    """

    event: str
    ends: Frame
    changes: tuple[tuple[Frame, str, str], ...]


def killed_sleepers(frames: Sequence[Frame]) -> KilledSleepers | None:
    """Of a stack that stands in `set()` of such an event: a sleeper is gone, and the program ends processes by force."""
    stands = [f.function for f in frames if f.file.endswith(_SYNCHRONIZE)]
    frame = next((f for f in frames if f.is_user), None)
    if frame is None or stands[:1] != ["notify"] or stands[-1:] != ["set"]:
        return None
    calls = [(path, c) for path in program_of(frame.file) for c in inside(tree_of(path), ast.Call)]
    asked = {
        last_name(c.func.value)
        for c in calls_on(frame.file, frame.line)
        if isinstance(c.func, ast.Attribute) and c.func.attr == "set"
    }
    ends = [
        (p, c)
        for p, c in calls
        if isinstance(c.func, ast.Attribute) and c.func.attr in ("terminate", "kill") and not c.args
    ]
    sets = [n for n in inside(tree_of(frame.file), ast.Assign) if last_name(n.targets[0]) in asked]
    if len(asked) != 1 or not ends or len(sets) != 1 or not isinstance(sets[0].value, ast.Call):
        return None
    made = sets[0].value
    if last_name(made.func) != "Event" or not isinstance(made.func, ast.Attribute):
        return None
    changes = [
        (
            frame_at(frame.file, made.lineno),
            ast.unparse(made),
            f'{ast.unparse(made.func.value)}.Value("b", 0, lock=False)',
        )
    ]
    for path, call in calls:
        if not isinstance(call.func, ast.Attribute) or last_name(call.func.value) not in asked:
            continue
        if call.func.attr not in _INSTEAD or call.args or call.keywords:
            return None
        new = _INSTEAD[call.func.attr].format(ast.unparse(call.func.value))
        changes.append((frame_at(path, call.lineno), ast.unparse(call), new))
    by_force = min(ends, key=lambda e: (e[1].func.attr != "terminate", e[0] != frame.file, e[1].lineno))  # type: ignore[attr-defined]
    return KilledSleepers(asked.pop(), frame_at(by_force[0], by_force[1].lineno), tuple(changes))
