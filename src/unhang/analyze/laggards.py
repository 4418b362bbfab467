"""Which rank printed no line for the step that all others printed: told by labels in lines of progress."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from unhang.model import LogEvent
from unhang.model.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from unhang.analyze.situation import Situation

_STEP = lazy_pattern(r"\b(?:global[_ ])?(?:step|iter(?:ation)?|batch|update)s?[ :=#\[(]*(\d{1,9})\b", re.IGNORECASE)
_WHO = lazy_pattern(r"\bcuda:(\d{1,3})\b|\b(?:global[_ ])?rank[ _:=#\]\[]*(\d{1,6})\b", re.IGNORECASE)


class Behind(NamedTuple):
    """A rank whose last step is older than everybody else's. `words` reads before "before the exception"."""

    rank: int
    words: str
    events: tuple[LogEvent, ...]


def behind_in_steps(s: Situation, before: int | None = None) -> Behind | None:
    """The one rank that printed no line for the last step of all others.

    None where the lines name fewer than two ranks, or where more than one lags: lines of one step come in any order, so the
    last step is judged only if every rank but one has printed it.
    """
    last: dict[int, tuple[int, LogEvent]] = {}
    for event in s.events.of("progress.step"):
        if before is not None and event.order > before:
            break
        step, who = _STEP.search(event.text), _WHO.search(event.text)
        rank = int(who[1] or who[2]) if who else event.rank
        if step and rank is not None:
            last[rank] = int(step[1]), event
    newest = max((step for step, _ in last.values()), default=0)
    late = [rank for rank, (step, _) in last.items() if step < newest]
    if len(last) < 3 or len(late) != 1:
        return None
    last_step, event = last[late[0]]
    others = [e for rank, (_, e) in sorted(last.items()) if rank != late[0]]
    words = f"Rank {late[0]} came to step {last_step}, all others to step {newest},"
    return Behind(late[0], words, (event, *others[:3]))
