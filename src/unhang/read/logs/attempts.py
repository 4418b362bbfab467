"""Several jobs in one log: where a launcher starts anew, and which of them is judged."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from unhang.model import LogLine, RaisedError, Unavailable
from unhang.read.logs.events import events_of
from unhang.read.logs.patterns import all_patterns, table

MAX_STARTS = 64
MAX_NAMED = 4
_STARTED = "launchers.started"
ANOTHER_START = "start of a launcher"
_MARKS = ("+ ", "$ ", "# ", "> ")
_SPEAKING = ("root", "witness")
_OVER = ("ending.finished", "work.ended", "ending.succeeded")


@dataclass(frozen=True)
class Part:
    """The lines between two starts, by their indexes. `is_launched`: it begins with a launcher of several processes."""

    first: int
    stop: int
    is_launched: bool = False


class Weight(NamedTuple):
    """What a part says: that something failed or hung, that it ended well or moved, or anything at all."""

    failed: str
    is_over: bool
    moved: bool
    speaks: bool


def parts_of(bodies: Sequence[str], writers: Callable[[int], Hashable]) -> list[Part]:
    """The parts of a log, one for each start. What stands before the first start belongs to a job of its own.

    Only a shell that echoes its commands, or a prompt, is believed: other programs' banners come once for each node. A start
    counts if the writer of the line is one that wrote something before: the shells of several nodes each begin one part of a job.
    """
    starts = [i for i, body in enumerate(bodies) if _is_start(body)][:MAX_STARTS]
    if not starts:
        return [Part(0, len(bodies))]
    known = {writers(starts[0])}
    cuts = [starts[0]]
    for i in starts[1:]:
        if (writer := writers(i)) in known:
            cuts.append(i)
        known.add(writer)
    borders = [0, *(i for i in cuts if i), len(bodies)]
    return [Part(first, stop, _is_launched(bodies[first])) for first, stop in itertools.pairwise(borders)]


def _is_start(body: str) -> bool:
    """A command that starts processes, as a shell echoes it."""
    return (
        body[:120].lstrip("+").find(" ") >= 0 and any(m in body[:160] for m in _MARKS) and bool(_start().search(body))
    )


def _is_launched(body: str) -> bool:
    match = _start().search(body)
    return match is not None and not match["launcher"].startswith("python")


@cache
def _start() -> re.Pattern[str]:
    return next(row.compiled for row in table("launchers") if row.kind == _STARTED)


@cache
def _roles() -> dict[str, str]:
    return {row.kind: row.role for row in all_patterns()}


def weight_of(lines: Sequence[LogLine], errors: Sequence[RaisedError], exits: int) -> Weight:
    """What a part says."""
    events = events_of(lines)
    said = next((e.text.strip() for e in events if e.says), "")
    raised = f"{errors[-1].type}: {errors[-1].message}".splitlines()[0] if errors else ""
    failed = raised or said or ("a process failed" if exits else "")
    is_over = any(e.kind in _OVER for e in events)
    moved = sum(e.is_progress for e in events) > 1
    speaks = any(_roles().get(e.kind) in _SPEAKING for e in events)
    return Weight(failed, is_over, moved, speaks)


def judged_part(weights: Sequence[Weight], parts: Sequence[Part]) -> int:
    """The last one that says anything; one that ended well leaves the judgement to a job that was launched after it."""
    last = len(parts) - 1
    chosen = next((i for i in range(last, -1, -1) if any(weights[i])), last)
    if weights[chosen].is_over and not weights[chosen].failed:
        return next((i for i in range(last, chosen, -1) if parts[i].is_launched), chosen)
    return chosen


def others_named(
    spans: Sequence[tuple[int, int]], weights: Sequence[Weight], chosen: int, name: str
) -> tuple[Unavailable, ...]:
    """The parts that are not judged, each with how it ended. `spans`: the first and the last line of each."""
    found = []
    for i, (first, last) in enumerate(spans):
        if i == chosen or not any(weights[i]):
            continue
        failed, is_over = weights[i].failed, weights[i].is_over
        how = f"it failed: {failed[:120]}" if failed else "it ended well" if is_over else "nothing in it failed"
        when = "an earlier" if i < chosen else "a later"
        judged = f"lines {spans[chosen][0]} to {spans[chosen][1]} are judged"
        found.append(Unavailable(f"lines {first} to {last} of {name}", f"{when} {ANOTHER_START}; {how}; {judged}"))
    return tuple(found[-MAX_NAMED:])
