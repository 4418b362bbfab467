"""What a job was doing, by its own output, when the waits began."""

from __future__ import annotations

import re

from unhang.analyze.event_index import Events
from unhang.model import LogEvent

_LOADING = re.compile(r"Loading|Downloading|Fetching|shards", re.IGNORECASE)
DEFAULT_LIMIT_S = 600


def work_before_the_wait(events: Events) -> LogEvent | None:
    """The work of one rank (preparing data, saving, evaluating) that was the last thing told before somebody waited too long.

    None where training went on after it, or where the work is told to be done.
    """
    waited = next((e.order for e in events if e.says == "hang"), None)
    works = [e for e in events.of("work.preparing", "work.saving", "work.evaluating") if not _is_done(e)]
    works = [e for e in works if waited is None or e.order <= waited]
    if not works:
        return None
    last = works[-1]
    return None if _trains_after(events, last, waited) else last


def is_training_last(events: Events) -> bool:
    """Whether a training step is the last thing told before the wait."""
    waited = next((e.order for e in events if e.says == "hang"), None)
    told = [e for e in events.of("progress.step", "progress.unbounded", "work.") if waited is None or e.order < waited]
    return bool(told) and told[-1].kind.startswith("progress.")


def elapsed_s(event: LogEvent) -> int | None:
    """Seconds that a progress bar has run: `1:02:03` or `10:01`."""
    parts = event["elapsed"].split(":")
    if not all(p.isdecimal() and len(p) < 6 for p in parts):
        return None
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return seconds


def _is_done(event: LogEvent) -> bool:
    return bool(event["total"]) and event["done"] == event["total"]


def _trains_after(events: Events, work: LogEvent, waited: int | None) -> bool:
    """Whether steps were told between the work and the wait. A bar that is only drawn again is no step."""
    bars = [e for e in events.of("progress.bar") if not _LOADING.search(e.text)]
    before = {(e["total"], e["done"]) for e in bars if e.order <= work.order}
    after = [e for e in (*events.of("progress.step"), *bars) if e.order > work.order]
    return any(
        (waited is None or e.order < waited)
        and not (e.kind == "progress.bar" and (_is_done(e) or (e["total"], e["done"]) in before))
        for e in after
    )
