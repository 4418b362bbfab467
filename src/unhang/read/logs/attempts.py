"""Several jobs in one log: where a launcher starts anew, which of them is judged, and how it ended."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from unhang.model import LogEvent, LogLine, RaisedError, Unavailable
from unhang.read.logs.events import events_of, is_echo
from unhang.read.logs.last_words import code_asked, last_word
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


STILL_PRINTED = 2
SUMMED_UP = 1  # a launcher may tell the result of the last step once more
MAX_BEHIND = 60  # lines of a summary, and what interpreters print when they go
_BEGINS = ("launchers.started", "elastic.launch_config", "elastic.rendezvous_done", "elastic.restart")
_OF_TRAINING = ("ending.finished", "work.ended")
_OF_WORKERS = "ending.succeeded"
_OF_A_PROCESS = "ending.not_destroyed"  # printed by the exit of a process, after an exception too
_CODE = "ending.code"
_OF_LAUNCHERS = ("ending.", "launchers.", "elastic.")


class End(NamedTuple):
    """The exit code that the log tells or stands for, and the line that does."""

    code: int
    line: str


def end_of(events: Sequence[LogEvent], troubles: Iterable[int], log: Sequence[LogLine]) -> End | None:
    """How the job ended; None where its log does not tell. `troubles`: the places of exceptions in it.

    It ended well where the end is told after everything that failed, and the training had moved on after that; where nothing failed, also
    where processes left with a process group that they had not destroyed, and nothing comes after it. An exit code that somebody
    printed is believed alone, but a 0 behind a failure after which nothing moved: that may be of a pipe or a container. What is told before
    a failure, or before more training, is not the job's end: a rank may be done before others fail, and a helper before the job begins.
    """
    last, lines = max([*troubles, *(e.order for e in events if e.says)], default=-1), len(log)
    asked = code_asked(log)
    if asked is not None and not (asked[0] == 0 and _is_a_failure_the_end(events)):
        return End(*asked)
    final = max(last, lines - 1 - MAX_BEHIND, *(e.order for e in events if e.kind.startswith(_BEGINS)), -1)
    codes = [e for e in events if e.kind == _CODE and e.order > max(last, lines - 1 - MAX_BEHIND)]
    if codes and not (_code(codes[-1]) == 0 and _is_a_failure_the_end(events)):
        return End(_code(codes[-1]), codes[-1].text.strip()[:200])
    marks_found = [
        e for e in events if e.order >= final and e.order > last and (e.kind == _OF_WORKERS or e.kind in _OF_TRAINING)
    ]
    if last < 0:
        marks_found += [e for e in events if e.order >= final and e.kind == _OF_A_PROCESS]
    steps = {e.order for e in events if e.is_progress}
    marks = [e for e in marks_found if sum(order > e.order for order in steps) <= SUMMED_UP]
    if last >= 0 and moved_after(events, last) <= STILL_PRINTED:
        return None
    word = None if marks else last_word(events, log)
    if word is not None and word[0] > last and not any(order > word[0] for order in steps):
        return End(0, word[1])
    return End(0, marks[-1].text.strip()[:200]) if marks else None


_ENDED_WAIT = "watchdog.timeout"


def _is_a_failure_the_end(events: Sequence[LogEvent]) -> bool:
    """Whether nothing moved on after a failure that is no echo of a peer's end, or after a wait whose end the watchdog made the process's."""
    own = (e for e in reversed(events) if e.says == "crash" and not e.kind.startswith(_OF_LAUNCHERS))
    failed = next((e.order for e in own if not is_echo(e.text)), -1)
    failed = max(failed, next((e.order for e in reversed(events) if e.kind == _ENDED_WAIT and e.says), -1))
    return failed >= 0 and not moved_after(events, failed)


def moved_after(events: Iterable[LogEvent], order: int, rank: int | None = None) -> int:
    """How many steps were told after a line, by this rank if one is given; by a bar, drawn over and over on one line, how many it counted."""
    moves = [e for e in events if e.is_progress and (rank is None or e.rank == rank)]
    after = [e for e in moves if e.order > order]
    counted = 0
    for bar in (e for e in after if e.kind == "progress.bar"):
        done = bar.number("done") or 0
        before = [e.number("done") or 0 for e in moves if e.order <= order and e["total"] == bar["total"] and e["done"]]
        counted = max(counted, done - max(before, default=done) - 1)
    return len(after) + counted


def _code(event: LogEvent) -> int:
    return next((code for name in ("code", "state", "worker", "alone") if (code := event.number(name)) is not None), 0)
