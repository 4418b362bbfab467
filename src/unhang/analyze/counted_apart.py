"""Two loops, one of each side of a transfer, that do not go over the same: by what the one should go, so that it makes as many rounds as the other."""

from __future__ import annotations

import ast
from typing import NamedTuple

from unhang.analyze.bindings import parameters_of
from unhang.analyze.callpath import Path
from unhang.analyze.source import function_at, loop_at, nodes_around, surroundings
from unhang.model import Frame


class CountedApart(NamedTuple):
    """The heads of the two loops, and what each goes over. `mine`: of the side whose count changed; `can_name`: the other could go over the same."""

    mine: Frame
    mine_over: str
    theirs: Frame
    theirs_over: str
    theirs_target: str
    can_name: bool


def counted_apart(mine: Frame, header: int, stay: Path) -> CountedApart | None:
    """The loop of a side at `header` beside the innermost one of the other, which waits on the way `stay`; None where both go over the same."""
    around = ((f, x) for f in reversed(stay) for x in reversed(surroundings(f.file, f.line).loops))
    found = next(around, None)
    loops = loop_at(mine.file, header), loop_at(found[0].file, found[1].header) if found else None
    if found is None or not isinstance(loops[0], ast.For) or not isinstance(loops[1], ast.For):
        return None
    here, there = Frame(mine.file, header, mine.function), Frame(found[0].file, found[1].header, found[0].function)
    over = [ast.unparse(loop.iter) for loop in loops if isinstance(loop, ast.For)]
    if here == there or over[0] == over[1]:
        return None
    target = ast.unparse(loops[1].target)
    return CountedApart(here, over[0], there, over[1], target, _can_name(loops[0].iter, here, there))


def _can_name(over: ast.expr, here: Frame, there: Frame) -> bool:
    """Whether the other function has all that an expression asks for, under the same names: parameters, and attributes of a class that both share."""
    functions = [function_at(f.file, f.line) for f in (here, there)]
    if functions[0] is None or functions[1] is None:
        return False
    shared = {*parameters_of(functions[0])} & {*parameters_of(functions[1])}
    names = {n.id for n in ast.walk(over) if isinstance(n, ast.Name)}
    bases = [_class_and_bases(f) for f in (here, there)]
    return names <= shared and ("self" not in names or bool(bases[0] & bases[1]))


def _class_and_bases(frame: Frame) -> set[str]:
    found = next((n for n in reversed(nodes_around(frame.file, frame.line)) if isinstance(n, ast.ClassDef)), None)
    return {found.name, *map(ast.unparse, found.bases)} - {"object"} if found is not None else set()
