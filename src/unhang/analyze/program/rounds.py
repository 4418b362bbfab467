"""Loops that some ranks left while others are still in them: which made another number of rounds, whether the data ran out, and what it should go over."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import NamedTuple

from unhang.analyze.program.callpath import Path, is_same_function, loops_on
from unhang.analyze.program.may_differ import OPEN, OWN, SAME, may_differ
from unhang.analyze.program.sides import view_of
from unhang.analyze.program.source import (
    Condition,
    Loop,
    ends_rounds,
    frame_at,
    function_at,
    loop_at,
    nearest,
    nodes_around,
    scopes_at,
    surroundings,
)
from unhang.analyze.program.trees import functions_named, inside, last_name, names_in, parameters_of
from unhang.analyze.program.values import variables_of
from unhang.model import Case, Frame, PendingCall

_COUNTED = ("range", "trange")
_LISTS = ("iterdir", "glob", "rglob", "listdir", "scandir", "walk")
_MOST_HOPS = 5
_MOST_CALLS = 3


@dataclass(frozen=True)
class LeftLoop:
    """Some ranks left a loop that others are still in: another number of iterations. `has_none`: the leavers had no round of it."""

    leavers: tuple[int, ...]
    stayers: tuple[int, ...]
    frame: Frame
    header: int
    has_none: bool = False

    @property
    def head(self) -> Frame:
        """The first line of the loop."""
        return replace(self.frame, line=self.header)


def left_loop_between(
    case: Case,
    stay: Path,
    left: Path,
    before: Path,
    stayers: tuple[int, ...],
    leavers: tuple[int, ...],
    since_ns: int = 0,
) -> LeftLoop | None:
    """Whether the leavers were in a loop of the stayers' path at their previous call and are no longer in it.

    `since_ns`: when the stayers made their previous call; a loop that they have ended since then is none.
    """
    inner_first = reversed(loops_on(stay))
    gone = [(f, x) for i, f, x in inner_first if is_in(before, stay, i, x) and not is_in(left, stay, i, x)]
    gone = [x for x in gone if not _is_begun_anew(case, stayers, leavers, *x, since_ns)]
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
    if loop is None or not is_same_function(frame, behind) or behind.line <= loop.last:
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
    return is_same_function(frame, stay[depth]) and frame.line in loop


def goes_through(path: Path, frame: Frame, loop: Loop) -> bool:
    """Whether a path, of which the outer frames may be missing, goes through a loop in the frame's function."""
    return any(is_same_function(f, frame) and f.line in loop for f in path)


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
    scopes = scopes_at(frame.file, header)
    if isinstance(head, ast.While):
        return may_differ(frame.file, head.test, scopes)
    found = may_differ(frame.file, head.iter, scopes)
    is_own = found == SAME and may_differ(frame.file, head.iter, scopes, is_test=False) == OWN
    return OWN if is_own else found


class CountOfFiles(NamedTuple):
    """A line at which each rank looks for files, by which it makes its rounds: `name` is set to `text` there."""

    at: Frame
    name: str
    text: str


def counted_by_files(path: str, header: int) -> CountOfFiles | None:
    """Where a rank counts or lists files, if that decides how many rounds the loop at line `header` has."""
    loop, function = loop_at(path, header), function_at(path, header)
    names = names_in(loop.iter) if isinstance(loop, ast.For) else set()
    sets = [n for n in inside(function, ast.Assign) if n.lineno < header]
    for _ in range(_MOST_HOPS):
        given = [n for n in sets if not names.isdisjoint(x for t in n.targets for x in names_in(t))]
        for node in given:
            if any(last_name(c.func) in _LISTS for c in inside(node.value, ast.Call)):
                return CountOfFiles(frame_at(path, node.lineno), ast.unparse(node.targets[0]), ast.unparse(node.value))
        names = {x for n in given for x in names_in(n.value)}
    return None


def ended_by_files(path: str, header: int) -> CountOfFiles | None:
    """The same where a number ends the loop, by its own test or by a `break`, and begins as what a function of the program has found in files."""
    outer = [n for n in _loops_around(path, header) if isinstance(n, ast.For | ast.While)]
    tests = [n.test for n in outer if isinstance(n, ast.While)]
    tests += [n.test for loop in outer[-1:] for n in inside(loop, ast.If) if isinstance(n.body[-1], ast.Break)]
    names = {x for test in tests for n in inside(test, ast.Compare) for x in names_in(n)}
    before = [n for n in inside(function_at(path, header), ast.Assign) if outer and n.lineno < outer[0].lineno]
    for node in before:
        if isinstance(node.value, ast.Call) and not names.isdisjoint(x for t in node.targets for x in names_in(t)):
            return _found_by(str(PurePath(path).parent), last_name(node.value.func), _MOST_CALLS)
    return None


def _loops_around(path: str, header: int) -> list[ast.AST]:
    """The loops of a function that the line is in, the outermost first."""
    return [n for n in nodes_around(path, header) if isinstance(n, ast.For | ast.AsyncFor | ast.While)]


def _found_by(folder: str, name: str, depth: int) -> CountOfFiles | None:
    """Where the one function of that name sets a variable to the files that there are, or one that it calls does."""
    named = functions_named(folder, name)
    if len(named) != 1 or not depth:
        return None
    path, function = named[0]
    for node in inside(function, ast.Assign):
        if any(last_name(c.func) in _LISTS for c in inside(node.value, ast.Call)) and len(node.targets) == 1:
            return CountOfFiles(frame_at(path, node.lineno), ast.unparse(node.targets[0]), ast.unparse(node.value))
    called = dict.fromkeys(last_name(c.func) for c in inside(function, ast.Call))
    found = (_found_by(folder, other, depth - 1) for other in called if other != name)
    return next((one for one in found if one is not None), None)


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


def ran_out(
    case: Case, leavers: Sequence[int], stayers: Sequence[int], until_ns: int, at: Frame, is_framework: bool = False
) -> bool | None:
    """Whether a loader ended on a rank that left, and not, or after another number of batches, on one that stayed; None if not known.

    `until_ns`: when the leavers made the first call outside of the loop. `at`: the head of the loop, or the line that runs it in a
    framework. Other data than a loader's may have ended where no loader is known to be asked there.
    """
    known = [
        f for r in leavers if r in case.ranks for f in case.ranks[r].facts if f.kind == "program.loader" and f["ends"]
    ]
    if not known or not all(r in case.ranks for r in (*leavers, *stayers)):
        return None
    is_over_loader = any(_is_at(f.at, at) for f in known)
    stay = [_ends(case, r) for r in stayers]
    for rank in leavers:
        for place, end in _ends(case, rank).items():
            if end.started_ns > until_ns or (is_over_loader and place and not _is_at(place[0], at)):
                continue
            if place and not any(_is_in_loop(f, at) for f in place):
                continue  # what was read behind the loop did not end it
            if any(_is_behind(ends.get(place), end) for ends in stay):
                return True
    return False if is_over_loader or is_framework else None


def _is_begun_anew(
    case: Case, stayers: Sequence[int], leavers: Sequence[int], frame: Frame, loop: Loop, since_ns: int
) -> bool:
    """Whether all who are in a loop have come to its end since then, by its loader, as have the others after as many batches: they are in it once more.

    A library that asks for a batch ahead comes to that end amid the last round; then the numbers tell.
    """
    head = Frame(frame.file, loop.header, frame.function)
    ends = {r: _end_at(case, r, head) for r in (*stayers, *leavers)} if since_ns else {}
    if not ends or not all(e is not None for e in ends.values()):
        return False
    is_since = all(e is not None and e.started_ns > since_ns for r, e in ends.items() if r in stayers)
    return is_since and len({(e.index, e.detail) for e in ends.values() if e is not None}) == 1


def _end_at(case: Case, rank: int, head: Frame) -> PendingCall | None:
    """The last end of the loader that a loop goes over."""
    ends = _ends(case, rank) if rank in case.ranks else {}
    return next((c for at, c in ends.items() if at and _is_at(at[0], head)), None)


def _is_at(place: Frame | None, line: Frame) -> bool:
    """Whether a place is that line; of a long path the page has only the end."""
    return place is not None and place.line == line.line and line.file.endswith(place.file)


def _is_in_loop(place: Frame, head: Frame) -> bool:
    """Whether a place is the head of that loop, or a line in it."""
    loop = loop_at(head.file, head.line)
    last = head.line if loop is None else loop.end_lineno or head.line
    return head.line <= place.line <= last and head.file.endswith(place.file)


def _is_behind(theirs: PendingCall | None, mine: PendingCall) -> bool:
    """Whether a loader of another rank has not ended as often, or has ended after another number of batches."""
    if theirs is None or theirs.index < mine.index:
        return True
    return theirs.index == mine.index and theirs.detail != mine.detail


def _ends(case: Case, rank: int) -> dict[tuple[Frame, ...], PendingCall]:
    """The last end of a loader at each place of the program; one without a place where a thread of a library asks."""
    ends = (c for c in case.ranks[rank].pending if c.kind == "loader_end")
    return {c.frames: c for c in sorted(ends, key=lambda c: c.started_ns)}


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
    around = loops_on(stay)
    if not around:
        return None
    _, at, loop = around[-1]
    here, there = replace(mine, line=header), replace(at, line=loop.header)
    one, other = (loop_at(f.file, f.line) for f in (here, there))
    if not isinstance(one, ast.For) or not isinstance(other, ast.For) or here == there:
        return None
    over, theirs = ast.unparse(one.iter), ast.unparse(other.iter)
    can_name = _can_name(one.iter, here, there)
    return CountedApart(here, over, there, theirs, ast.unparse(other.target), can_name) if over != theirs else None


def _can_name(over: ast.expr, here: Frame, there: Frame) -> bool:
    """Whether the other function has all that an expression asks for, under the same names: parameters, and attributes of a class that both share."""
    one, other = (function_at(f.file, f.line) for f in (here, there))
    if one is None or other is None:
        return False
    shared = {*parameters_of(one)} & {*parameters_of(other)}
    names = names_in(over)
    bases = [_class_and_bases(f) for f in (here, there)]
    return names <= shared and ("self" not in names or bool(bases[0] & bases[1]))


def _class_and_bases(frame: Frame) -> set[str]:
    found = nearest(frame.file, frame.line, ast.ClassDef)
    return {found.name, *map(ast.unparse, found.bases)} - {"object"} if found is not None else set()
