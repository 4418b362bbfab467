"""Loops that some ranks left while others are still in them, and which of several made another number of rounds."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from unhang.analyze.bindings import SCOPES, last_name
from unhang.analyze.callpath import Path
from unhang.analyze.may_differ import OPEN, OWN, SAME, may_differ
from unhang.analyze.sides import variables_of, view_of
from unhang.analyze.source import Condition, Loop, ends_rounds, loop_at, nodes_around, surroundings
from unhang.model import Case, Frame

_COUNTED = ("range", "trange")


@dataclass(frozen=True)
class LeftLoop:
    """Some ranks left a loop that others are still in: another number of iterations. `has_none`: the leavers had no round of it."""

    leavers: tuple[int, ...]
    stayers: tuple[int, ...]
    frame: Frame
    header: int
    has_none: bool = False


def left_loop_between(
    case: Case, stay: Path, left: Path, before: Path, stayers: tuple[int, ...], leavers: tuple[int, ...]
) -> LeftLoop | None:
    """Whether the leavers were in a loop of the stayers' path at their previous call and are no longer in it."""
    gone = [
        (frame, loop)
        for depth, frame in reversed([*enumerate(stay)])
        for loop in reversed(surroundings(frame.file, frame.line).loops)
        if is_in(before, stay, depth, loop) and not is_in(left, stay, depth, loop)
    ]
    frame, loop = loop_that_differs(case, stayers, gone) if gone else (None, None)
    return LeftLoop(leavers, stayers, frame, loop.header) if frame and loop else None


def passed_loop_between(
    stay: Path, left: Path, befores: tuple[Path, Path], stayers: tuple[int, ...], leavers: tuple[int, ...]
) -> LeftLoop | None:
    """A loop that the stayers have begun since the call before, which both sides made outside of it, and behind which the leavers are."""
    depth = next((i for i, (a, b) in enumerate(zip(stay, left, strict=False)) if a != b), None)
    if depth is None or befores[0] != befores[1] or not befores[0]:
        return None
    frame, behind = stay[depth], left[depth]
    mine, theirs = (surroundings(f.file, f.line) for f in (frame, behind))
    loop = next((x for x in mine.loops if x not in theirs.loops), None)
    if loop is None or (frame.file, frame.function) != (behind.file, behind.function) or behind.line <= loop.last:
        return None
    around = surroundings(frame.file, loop.header).conditions
    is_open = any(c.suspicion for c in around if c not in theirs.conditions)
    is_for = isinstance(loop_at(frame.file, loop.header), ast.For)
    if not is_for or is_open or is_in(befores[0], stay, depth, loop):
        return None
    return LeftLoop(leavers, stayers, frame, loop.header, has_none=True)


def is_in(path: Path, stay: Path, depth: int, loop: Loop) -> bool:
    """Whether a path goes through a loop of another one, as far as `depth` on the same way."""
    if len(path) <= depth or path[:depth] != stay[:depth]:
        return False
    frame = path[depth]
    return (frame.file, frame.function) == (stay[depth].file, stay[depth].function) and frame.line in loop


def is_guarded_in(case: Case, left: LeftLoop, path: Path) -> bool:
    """Whether a condition on rank or data within the loop, which those who left may fail, decides over the call of those who stayed."""
    guards = guards_in(left.frame, left.header, path)
    return any(not all(c.on(view_of(case, r)).passes for r in left.leavers) for c in guards)


def guards_in(frame: Frame, header: int, path: Path) -> Iterator[Condition]:
    """The conditions on rank or data, within a loop of the frame's function, that decide over the call at the end of a path."""
    for f in path[path.index(frame) :]:
        for c in surroundings(f.file, f.line).conditions:
            if c.suspicion > 1 and (f != frame or c.line > header) and not ends_rounds(c, f == frame):
                yield c


def loop_that_differs(case: Case, stayers: Sequence[int], gone: Sequence[tuple[Frame, Loop]]) -> tuple[Frame, Loop]:
    """Of loops that some ranks left, innermost first, the one in which the stayers make a round more.

    Not one that the stayers have just begun: that one of them is begun once more tells of the loop around it, unless that has
    the same rounds on all ranks, and the one within need not. Nor one whose rounds are the same on all ranks by what it goes
    over, where another may differ.
    """
    found, *outer = gone
    for around in outer:
        is_inner = _rounds(found) > SAME == _rounds(around) and not _may_be_left(around)
        if (_has_just_begun(case, stayers, *found) and not is_inner) or _rounds(found) == SAME < _rounds(around):
            found = around
    return found


def _may_be_left(found: tuple[Frame, Loop]) -> bool:
    """Whether anything in a loop leaves it, or one within, before its end."""
    node = loop_at(found[0].file, found[1].header)
    return node is None or any(isinstance(n, ast.Break | ast.Return) for n in ast.walk(node))


def rounds_of(frame: Frame, header: int) -> int:
    """Whether the number of rounds of a loop may differ between ranks, by what it goes over or asks: see `may_differ`."""
    head = loop_at(frame.file, header)
    if head is None:
        return OPEN
    scopes = tuple(n for n in nodes_around(frame.file, header) if isinstance(n, SCOPES))
    if isinstance(head, ast.While):
        return may_differ(frame.file, head.test, scopes)
    found = may_differ(frame.file, head.iter, scopes)
    is_own = found == SAME and may_differ(frame.file, head.iter, scopes, is_test=False) == OWN
    return OWN if is_own else found


def _rounds(found: tuple[Frame, Loop]) -> int:
    return rounds_of(found[0], found[1].header)


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
