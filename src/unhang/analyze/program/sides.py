"""What tells two sides that differ apart: a condition by rank around the line of one of them, and variables that have other values."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from unhang.analyze.program.callpath import Path, fork_of
from unhang.analyze.program.rank_conditions import RankView, Value
from unhang.analyze.program.source import (
    Condition,
    around,
    frame_at,
    function_at,
    lines_that_call_the_same,
)
from unhang.analyze.program.trees import argument_of, calls_on, inside, last_name, names_in, parameters_of
from unhang.model import Case, CollectiveCall, Frame


class Side(NamedTuple):
    """Ranks that do the same, and the frames of the user's code that led them there, from where the sides part."""

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]


class ByCondition(NamedTuple):
    """What a rank condition tells. `is_left_out`: all but the `odd` ranks pass it, whatever else it asks; else they alone may."""

    odd: tuple[int, ...]
    frame: Frame
    condition: Condition
    is_left_out: bool


def decided_by_condition(case: Case, one: Side, other: Side) -> ByCondition | None:
    """The odd one of two sides, or None where rank conditions say nothing, or stand around the lines of both.

    A condition that every rank passes, or that stands around the other side's lines too, proves nothing. Nor does one with a
    counterpart: a line under the opposite condition that makes the same call for the other side.
    """
    found = {side: tuple(_conditions(case, side, against)) for side, against in ((one, other), (other, one))}
    if bool(found[one]) is bool(found[other]):
        return None
    side, against = (one, other) if found[one] else (other, one)
    frame, condition = found[side][0]
    if any(_has_counterpart(case, f, side, against) for f, _ in found[side]):
        return None
    always = all(v.passes for v in _values(case, condition, side.ranks))
    is_seen = all(view_of(case, r).local_rank is not None for r in against.ranks)
    is_left_out = always and is_seen and all(v.is_open for v in _values(case, condition, against.ranks))
    return ByCondition(against.ranks if is_left_out else side.ranks, frame, condition, is_left_out)


def started_ns(case: Case) -> int:
    """When the job had read its source, as far as it is known: at its start, else at the first call that is recorded."""
    created = case.calls["created_ns"]
    return case.job.started_ns or (int(created.min()) if len(created) else 0)


def _conditions(case: Case, side: Side, against: Side) -> Iterator[tuple[Frame, Condition]]:
    """The conditions that the ranks of a side pass and those of the other do not, with the line that they guard."""
    since_ns = started_ns(case)
    theirs = {c for frame in against.frames for c in around(frame, since_ns).conditions}
    for frame in side.frames:
        for condition in around(frame, since_ns).conditions:
            if condition not in theirs and _parts(case, condition, side.ranks, against.ranks):
                yield frame, condition


def _parts(case: Case, condition: Condition, passing: Iterable[int], failing: Iterable[int]) -> bool:
    """Whether it asks for the rank, and may be passed by all of the former and by none of the latter."""
    mine, theirs = _values(case, condition, passing), _values(case, condition, failing)
    is_asked = all(v.by_rank for v in (*mine, *theirs))
    return is_asked and not any(v.passes is False for v in mine) and not any(v.passes for v in theirs)


def is_split_by(case: Case, condition: Condition, passing: Iterable[int], others: Iterable[int]) -> bool:
    """Whether by its rank each of the former passes a condition for certain, and none of the others does."""
    passes, theirs = ([v.passes for v in _values(case, condition, ranks)] for ranks in (passing, others))
    return all(passes) and not any(theirs)


def _parted(sides: Sequence[Sequence[int]], paths: Sequence[Path]) -> tuple[Side, Side] | None:
    """The sides from the function on in which their ways part."""
    fork = fork_of(*paths)
    if fork is None:
        return None
    one, other = (Side(tuple(ranks), path[fork.depth :]) for ranks, path in zip(sides, paths, strict=True))
    return one, other


def told_by_condition(
    case: Case, sides: Sequence[Sequence[int]], ways: Sequence[Collection[Path]]
) -> ByCondition | None:
    """As `decided_by_condition`, of two sides each of which came there on one way, outermost line first."""
    parted = _parted(sides, [next(iter(way)) for way in ways]) if all(len(way) == 1 for way in ways) else None
    return decided_by_condition(case, *parted) if parted else None


def are_roles(case: Case, sides: Sequence[Sequence[int]], paths: Sequence[Path]) -> bool:
    """Whether two sides are in the two branches of one condition on the rank: each has a program of its own, and equal calls of theirs are meant to meet."""
    parted = _parted(sides, paths)
    if parted is None:
        return False
    places = [{(c.path, c.line) for _, c in _conditions(case, *pair)} for pair in (parted, parted[::-1])]
    return not places[0].isdisjoint(places[1])


def _has_counterpart(case: Case, frame: Frame, side: Side, against: Side) -> bool:
    return any(
        _parts(case, condition, against.ranks, side.ranks)
        for line in lines_that_call_the_same(frame)
        for condition in around(line).conditions
    )


def kept_by_condition(case: Case, frame: Frame, kept: Sequence[int], passes_by: int) -> str:
    """The condition on the rank that leads some ranks to a line and one past it; empty where none does."""
    conditions = around(frame, started_ns(case)).conditions
    return next((c.text for c in conditions if _parts(case, c, kept, (passes_by,))), "")


def _values(case: Case, condition: Condition, ranks: Iterable[int]) -> list[Value]:
    return [condition.on(view_of(case, r)) for r in ranks]


def view_of(case: Case, rank: int) -> RankView:
    """A rank as its program sees it."""
    identities = [e.identity for e in case.ranks.values()]
    local_rank = next((i.local_rank for i in identities if i.rank == rank), None)
    is_on_first_node = rank == 0 or len({i.host or i.rank for i in identities}) == 1
    return RankView(rank, rank if local_rank is None and is_on_first_node else local_rank, case.job.world_size)


_SHARES_SIZES = ("_pad_across_processes", "gather_all_tensors")


class LostDimension(NamedTuple):
    """`statement` takes out every dimension of size 1 of `whole`, by `call`, before its result is gathered."""

    at: Frame
    statement: str
    call: str
    whole: str


def lost_dimension(mine: CollectiveCall, theirs: CollectiveCall, path: Sequence[Frame]) -> LostDimension | None:
    """Of ranks that tell each other the sizes of a tensor before they gather it, where one has fewer dimensions: the `squeeze()` that made it so.

    `mine`: its call, `path`: the way to that, outermost first.
    """
    sizes = [c.in_sizes[0][-1] if c.in_sizes and c.in_sizes[0] else 0 for c in (mine, theirs)]
    functions = [{f.function for f in c.frames or ()} for c in (mine, theirs)]
    if not 0 < sizes[0] < sizes[1] or not all(f & set(_SHARES_SIZES) for f in functions) or mine.dtype != "Long":
        return None
    name = ""
    for i, frame in enumerate(way := path[::-1]):
        function, inner = (
            function_at(frame.file, frame.line),
            function_at(way[i - 1].file, way[i - 1].line) if i else None,
        )
        calls = [c for c in calls_on(frame.file, frame.line) if inner is None or last_name(c.func) == inner.name]
        if function is None or not calls:
            return None
        given = argument_of(calls[0], inner, name) if inner is not None else next(iter(calls[0].args), None)
        names = names_in(given) if given is not None else set()
        sets = [n for n in inside(function, ast.Assign) if n.lineno < frame.line and ast.unparse(n.targets[0]) in names]
        squeezes = [c for n in sets for c in inside(n.value, ast.Call) if _is_bare_squeeze(c)]
        if len(sets) == 1 and len(squeezes) == 1 and isinstance(squeezes[0].func, ast.Attribute):
            whole = ast.unparse(squeezes[0].func.value)
            return LostDimension(
                frame_at(frame.file, sets[0].lineno), ast.unparse(sets[0]), ast.unparse(squeezes[0]), whole
            )
        name = next((x for x in parameters_of(function) if x in names and x not in ("self", "cls")), "")
        if not name:
            return None
    return None


def _is_bare_squeeze(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "squeeze" and not call.args and not call.keywords
