"""Calls and steps that a rank left out, told by what the ranks did before and by the conditions around the line."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from unhang.analyze.calls.streams import Streams, stack_path
from unhang.analyze.program.callpath import Fork, Path, extension, fork_of
from unhang.analyze.program.source import Condition, frame_at, function_at, surroundings
from unhang.analyze.program.trees import inside, last_name
from unhang.analyze.program.ways_out import is_of_data, way_past
from unhang.model import Case, Frame

_LEAST_TIMES, MOSTLY = 8, 0.75


def left_out(
    streams: Streams, ranks: tuple[int, int], seq: int, paths: tuple[Path, Path], is_open: bool
) -> tuple[bool, Path]:
    """Whether the odd rank left the reference's call out, and the way to that call, on which the odd rank has made it so far.

    `ranks`, `paths`: of the reference and of an odd rank. `is_open`: no loop tells them apart.
    """
    (path, odd_path), met_at = paths, streams.met_at(*ranks, seq) if is_open else ()
    is_left_out = _was_skipped(streams, ranks, seq, paths) or streams.went_on(ranks[1], met_at, odd_path)
    has_own = is_left_out and met_at and fork_of(met_at, odd_path) is not None
    return is_left_out, met_at if has_own else path


def _was_skipped(streams: Streams, ranks: tuple[int, int], seq: int, paths: tuple[Path, Path]) -> bool:
    """Whether, in the reference's history, the odd rank's call normally follows the one that it did not make.

    One that passed a function without the call which the reference made below it has left that out.
    """
    (reference, odd), (path, odd_path), fork = ranks, paths, fork_of(*paths)
    if fork is None or extension(path, odd_path):
        return (fork is not None and len(odd_path) < len(path)) or streams.have_followed(reference, seq, odd)
    if fork.same_line:
        return False
    lines = _runs(streams, reference, seq, fork, path[: fork.depth])
    follows = (fork.left.line, fork.right.line) in pairwise(lines)
    if not follows:
        return False
    below = (p[fork.depth :] for p in (path, odd_path))
    skipped, taken = ({c for f in frames for c in surroundings(f.file, f.line).conditions} for frames in below)
    likely = [max((c.suspicion for c in conditions), default=0) for conditions in (skipped, taken)]
    # What always runs is not left out.
    return (likely[0], bool(skipped - taken)) >= (likely[1], bool(taken - skipped))


def _runs(streams: Streams, rank: int, upto: int, fork: Fork, prefix: Path) -> list[int]:
    """The lines of the fork's function through which a rank's calls went, runs of equal lines merged."""
    lines: list[int] = []
    for seq in sorted(s for s in streams.rows.get(rank, {}) if s < upto):
        path = streams.path(rank, seq) or ()
        if len(path) > fork.depth and path[: fork.depth] == prefix and path[fork.depth].function == fork.left.function:
            line = path[fork.depth].line
            if not lines or lines[-1] != line:
                lines.append(line)
    return lines


def is_by_data(fork: Fork | None, path: Path, other: Path) -> bool:
    """Whether a condition on data, around the line of this side alone, decides over its call."""
    if fork is None:
        return False
    mine, theirs = (
        {c for f in p[fork.depth :] for c in surroundings(f.file, f.line).conditions if is_of_data(c)}
        for p in (path, other)
    )
    return bool(mine - theirs) and not theirs - mine


def share_of_makers(streams: Streams, maker: int, other: int, seq: int) -> float | None:
    """How often both ranks, after a call like the one before, made the call of the one rank, of the times they made that of either; None if seldom."""
    before, this, that = streams.path(maker, seq - 1), streams.path(maker, seq), streams.path(other, seq)
    nexts = [
        streams.path(r, s)
        for r in (maker, other)
        for s in streams.rows.get(r, {})
        if s < seq and streams.path(r, s - 1) == before
    ]
    made, not_made = nexts.count(this), nexts.count(that)
    return made / (made + not_made) if made + not_made >= _LEAST_TIMES else None


class LeftOutStep(NamedTuple):
    """`ranks` made fewer steps of their optimizer than `others`, and are at `mine` since, where these are at `theirs`.

    `steps`: how many each side made. `at`: the line of the step, `way` that of the `test` that leads past it.
    """

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    steps: tuple[int, int]
    at: Frame
    way: Frame
    test: Condition
    mine: Frame
    theirs: Frame


def left_out_step(case: Case, cycle: Sequence[int]) -> LeftOutStep | None:
    """Of a circle whose ranks stand in two lines of one function: the step that those behind left out, by a test on their own data."""
    counts = {r: e.steps for r, e in case.ranks.items() if e.steps is not None}
    if len(counts) != len(case.world) or len({*counts.values()}) != 2:
        return None
    few, many = sorted({*counts.values()})
    behind, others = (tuple(r for r in counts if counts[r] == n) for n in (few, many))
    mine, theirs = (stack_path(case, next((r for r in cycle if r in side), -1)) or () for side in (behind, others))
    fork = fork_of(mine, theirs) if mine and theirs and len(behind) <= len(others) else None
    if fork is None or fork.same_line:
        return None
    for at in _steps_on(mine[fork.depth :]):
        test = next((c for c in surroundings(at.file, at.line).conditions if is_of_data(c)), None)
        if test is not None:
            return LeftOutStep(behind, others, (few, many), at, way_past(at, test) or at, test, fork.left, fork.right)
    return None


def _steps_on(way: Path) -> list[Frame]:
    """The lines of the functions on a way in which an optimizer makes its step."""
    functions = [(f.file, function_at(f.file, f.line)) for f in way]
    calls = [(file, c) for file, function in functions for c in inside(function, ast.Call)]
    return [
        frame_at(file, c.lineno)
        for file, c in calls
        if isinstance(c.func, ast.Attribute) and c.func.attr == "step" and "opt" in last_name(c.func.value).lower()
    ]
