"""Which of several loops that ranks left made another number of rounds."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from unhang.analyze.bindings import SCOPES, last_name
from unhang.analyze.may_differ import OPEN, SAME, may_differ
from unhang.analyze.sides import variables_of
from unhang.analyze.source import Loop, loop_at, nodes_around
from unhang.model import Case, Frame

_COUNTED = ("range", "trange")


def loop_that_differs(
    case: Case, stayers: Sequence[int], gone: Sequence[tuple[Frame, Loop]]
) -> tuple[Frame, Loop]:
    """Of loops that some ranks left, innermost first, the one in which the stayers make a round more.

    Not one that the stayers have just begun: that one of them is begun once more tells of the loop around it. Nor one whose
    rounds are the same on all ranks by what it goes over, where another may differ.
    """
    found, *outer = gone
    for around in outer:
        if _has_just_begun(case, stayers, *found) or rounds_of(*found) == SAME < rounds_of(*around):
            found = around
    return found


def rounds_of(frame: Frame, loop: Loop) -> int:
    """Whether the number of rounds of a loop may differ between ranks, by what it goes over or asks: see `may_differ`."""
    head = loop_at(frame.file, loop.header)
    if head is None:
        return OPEN
    scopes = tuple(n for n in nodes_around(frame.file, loop.header) if isinstance(n, SCOPES))
    return may_differ(frame.file, head.test if isinstance(head, ast.While) else head.iter, scopes)


def _has_just_begun(case: Case, stayers: Sequence[int], frame: Frame, loop: Loop) -> bool:
    """Whether by its own counter all stayers are in the first round of the loop."""
    head = loop_at(frame.file, loop.header)
    counter = _counter(head) if isinstance(head, ast.For | ast.AsyncFor) else None
    if counter is None:
        return False
    name, first = counter
    return all(variables_of(case, r, frame).get(name) == first for r in stayers)


def _counter(head: ast.For | ast.AsyncFor) -> tuple[str, str] | None:
    """(name, first value) of the number that counts the rounds of a loop, where it has one."""
    match head.target, head.iter:
        case ast.Name(id=name), ast.Call(func=of, args=[_]) if last_name(of) in _COUNTED:
            return name, "0"
        case ast.Name(id=name), ast.Call(func=of, args=[ast.Constant(value=first), _, *_]) if last_name(of) in _COUNTED:
            return name, str(first)
        case ast.Tuple(elts=[ast.Name(id=name), *_]), ast.Call(func=ast.Name(id="enumerate"), args=[_], keywords=[]):
            return name, "0"
        case ast.Tuple(elts=[ast.Name(id=name), *_]), ast.Call(
            func=ast.Name(id="enumerate"), args=[_, ast.Constant(value=first)]
        ):
            return name, str(first)
    return None
