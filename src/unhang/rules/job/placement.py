"""Rules on processes that a scheduler of the program never starts, as its cluster has not what they ask for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from unhang.analyze.lines.first_errors import first_error
from unhang.analyze.situation import Situation
from unhang.model import LogEvent
from unhang.rules.base import Found, rule
from unhang.rules.log_lines import quote

_ASKED = re.compile(r"'(CPU|GPU)': (\d[\d.]*)")
_LEAST_SAID, _LEAST_CLAIMED = 2, 3  # what others may give back again is said more often


@rule("not-placed")
def not_placed(s: Situation) -> Iterator[Found]:
    """What Ray says that it cannot place, more than once or with what waits for it, in a job that nothing moved after that."""
    events = s.events.of("launchers.unplaced")
    moved = max((e.order for e in s.events if e.is_progress), default=-1)
    if not events or events[-1].order <= moved or first_error(s) is not None or s.has_ended_well:
        return
    pending = [e for e in s.events.of("launchers.still_pending") if e.order > events[0].order]
    is_claimed = all(e["claimed"] for e in events)
    if len(events) < (_LEAST_CLAIMED if is_claimed else _LEAST_SAID) and (is_claimed or not pending):
        return
    told = s.events.of("launchers.has_resources")
    has = {e["what"]: float(e["has"]) for e in told}
    asked = _asked(events[-1])
    has |= {
        name: float(events[-1][field])
        for name, field in (("CPU", "has_cpus"), ("GPU", "has_gpus"))
        if events[-1][field]
    }
    lacks = next((n for n in ("GPU", "CPU") if asked.get(n, 0) > has.get(n, 0 if has else float("inf"))), "")
    is_none = bool(lacks) and not has.get(lacks)
    words: dict[str, object] = {
        "what": " and ".join(f"{n:g} {name}" for name, n in asked.items()) or "more",
        "lacks": lacks,
    }
    words["has"] = f"{has.get(lacks, 0):g} {lacks}" if lacks else "not that much"
    lines = (*quote(events, 2), *quote(pending, 2), *quote(told, 2))
    say, cause = ("none", "misconfigured-env") if is_none else ("", "")
    yield Found(0.82 if lacks else 0.7, (), lines, words, say, cause=cause)


def _asked(event: LogEvent) -> dict[str, float]:
    told = {name: float(event[field]) for name, field in (("GPU", "gpus"), ("CPU", "cpus")) if event[field]}
    return told or {name: float(n) for name, n in _ASKED.findall(event["request"] or event["claimed"])}
