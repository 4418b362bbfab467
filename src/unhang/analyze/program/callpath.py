"""Where two call paths part.

A call path is the user's own frames, outermost first. Two ranks that agree share a prefix; the first frame in which they
differ is where the program branched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from unhang.analyze.program.source import Loop, handles_signal, surroundings
from unhang.model import Case, Frame, user_frames

Path = tuple[Frame, ...]


def user_path(frames: Sequence[Frame] | None) -> Path:
    """The user's frames outermost first, from frames that are innermost first."""
    return tuple(reversed(user_frames(frames or ())))


def is_same_function(one: Frame, other: Frame) -> bool:
    """Whether two frames are in the same function of the same file."""
    return (one.file, one.function) == (other.file, other.function)


def library_above(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames of libraries that a line of the user has called, from frames that are innermost first; none where no line is the user's."""
    return tuple(frames[: next((i for i, f in enumerate(frames) if f.is_user), 0)])


class Fork(NamedTuple):
    """The deepest function that two paths share, and the line of each in it.

    `same_line`: both are at the same line, which called different functions (a dispatch from a queue, a method by name).
    """

    left: Frame
    right: Frame
    depth: int
    same_line: bool

    def __str__(self) -> str:
        if self.same_line:
            return f"the same line {self.left} called different functions"
        return f"{self.left} against line {self.right.line}"


def fork_of(left: Path, right: Path) -> Fork | None:
    """Where the paths part, or None if they are equal or share no function."""
    if left == right:
        return None
    parent: tuple[Frame, Frame] | None = None
    for depth, (a, b) in enumerate(zip(left, right, strict=False)):
        if not is_same_function(a, b):
            return None if parent is None else Fork(*parent, depth - 1, same_line=True)
        if a.line != b.line:
            return Fork(a, b, depth, same_line=False)
        parent = (a, b)
    return None if parent is None else Fork(*parent, min(len(left), len(right)) - 1, same_line=True)


def extension(left: Path, right: Path) -> Path:
    """What the longer of two paths has below the shorter one, which ends on its way; empty where neither does.

    So it is where one call was made by a function that the other passed without it: a callback of a framework, a handler.
    """
    short, long = sorted((left, right), key=len)
    return long[len(short) :] if short and long[: len(short)] == short else ()


def loops_on(path: Path) -> list[tuple[int, Frame, Loop]]:
    """The loops on a way, outermost first: the place of the frame on it, the frame, the loop."""
    return [(i, f, loop) for i, f in enumerate(path) for loop in surroundings(f.file, f.line).loops]


def line_to_look_at(reference: Path, odd: Path, fork: Fork | None, skipped: bool) -> Frame | None:
    """The skipped call's line where the odd ranks skipped one, else where they went: the condition may lie calls deeper."""
    if fork is None:
        return odd[-1] if odd else None
    below = extension(reference, odd)
    if below and skipped == (len(reference) > len(odd)):
        return _guarded(below) or below[0]
    handler = next((f for f in odd[fork.depth + 1 :] if handles_signal(f)), None)
    if handler is not None:
        return handler
    path, frame = (reference, fork.left) if skipped else (odd, fork.right)
    return _guarded(path[fork.depth + fork.same_line :]) or frame


def _guarded(path: Path) -> Frame | None:
    """The first frame below the fork that a condition on the rank guards, else one on data: the branch may lie calls deeper."""
    guarded = [f for f in path if surroundings(f.file, f.line).suspicion > 1]
    by_rank = (f for f in guarded if surroundings(f.file, f.line).depends_on_rank)
    return next(by_rank, guarded[0] if guarded else None)


def innermost(path: Path) -> Frame | None:
    """The frame that made the call."""
    return path[-1] if path else None


def show(path: Path, most: int = 4) -> str:
    """A path in one line: outermost > ... > innermost."""
    shown = path[-most:]
    head = "... > " if len(path) > len(shown) else ""
    return head + " > ".join(f"{f.function}:{f.line}" for f in shown)


_MOST_RANKS = 64


def scripts_of(case: Case) -> set[str]:
    """The files in which the stacks of a case begin: what its processes run."""
    ranks = list(case.ranks.values())[:_MOST_RANKS]
    stacks = [
        *case.calls.stacks,
        *(t.frames for t in case.launcher_stacks),
        *(t.frames for e in ranks for t in e.stacks),
    ]
    stacks += [e.error.frames for e in ranks if e.error is not None]
    return {way[0].file for stack in stacks if (way := user_path(stack))}
