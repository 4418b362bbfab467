"""How a job ended, as its log tells: well, with an error code, or not told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from unhang.model import LogEvent
from unhang.read.logs.exceptions import is_echo

STILL_PRINTED = 2
SUMMED_UP = 1  # a launcher may tell the result of the last step once more
MAX_BEHIND = 60  # lines of a summary, and what interpreters print when they go
_BEGINS = ("launchers.started", "elastic.launch_config", "elastic.rendezvous_done", "elastic.restart")
_OF_TRAINING = ("ending.finished", "work.ended")
_OF_WORKERS = "ending.succeeded"
_CODE = "ending.code"
_OF_LAUNCHERS = ("ending.", "launchers.", "elastic.")


class End(NamedTuple):
    """The exit code that the log tells or stands for, and the line that does."""

    code: int
    line: str


def end_of(events: Sequence[LogEvent], troubles: Iterable[int], lines: int) -> End | None:
    """How the job ended; None where its log does not tell. `troubles`: the places of exceptions among the `lines`.

    It ended well where the end is told after everything that failed, and the training had moved on after that. An exit code that somebody
    printed is believed alone, but a 0 behind a failure after which nothing moved: that may be of a pipe or a container. What is told before
    a failure, or before more training, is not the job's end: a rank may be done before others fail, and a helper before the job begins.
    """
    last = max([*troubles, *(e.order for e in events if e.says)], default=-1)
    final = max(last, lines - 1 - MAX_BEHIND, *(e.order for e in events if e.kind.startswith(_BEGINS)), -1)
    codes = [e for e in events if e.kind == _CODE and e.order > max(last, lines - 1 - MAX_BEHIND)]
    if codes and not (_code(codes[-1]) == 0 and _is_a_failure_the_end(events)):
        return End(_code(codes[-1]), codes[-1].text.strip()[:200])
    marks_found = [
        e for e in events if e.order >= final and e.order > last and (e.kind == _OF_WORKERS or e.kind in _OF_TRAINING)
    ]
    steps = {e.order for e in events if e.is_progress}
    marks = [e for e in marks_found if sum(order > e.order for order in steps) <= SUMMED_UP]
    if not marks or (last >= 0 and moved_after(events, last) <= STILL_PRINTED):
        return None
    return End(0, marks[-1].text.strip()[:200])


def _is_a_failure_the_end(events: Sequence[LogEvent]) -> bool:
    """Whether nothing moved on after a failure that is no echo of a peer's end."""
    own = (e for e in reversed(events) if e.says == "crash" and not e.kind.startswith(_OF_LAUNCHERS))
    failed = next((e.order for e in own if not is_echo(e.text)), -1)
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
