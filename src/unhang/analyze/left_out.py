"""Calls that a rank left out, told by what the ranks did before and by the conditions around the line."""

from __future__ import annotations

from itertools import pairwise

from unhang.analyze.callpath import Fork, Path, extension, fork_of
from unhang.analyze.source import surroundings
from unhang.analyze.streams import Streams
from unhang.analyze.ways_out import is_of_data

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
