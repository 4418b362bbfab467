"""What a job was doing, by its own output, when the waits began."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unhang.analyze.event_index import Events
from unhang.analyze.failures import Failure
from unhang.model import LogEvent, LogLine
from unhang.model.evidence import SEEN_BY_LAUNCHER
from unhang.model.lazy_pattern import lazy_pattern

_LOADING = lazy_pattern(r"Loading|Downloading|Fetching|shards", re.IGNORECASE)
DEFAULT_LIMIT_S = 600
_CLEARLY, _ALMOST = 4, 0.9
_TERMINATED = -15
_LAST_LINES = 5
_BYTES = lazy_pattern(r", *[\d.]+ ?[kMGT]?i?B/s\]")


def work_before_the_wait(events: Events) -> LogEvent | None:
    """The work of one rank (preparing data, saving, evaluating) that was the last thing told before somebody waited too long.

    None where training went on after it, or where the work is told to be done.
    """
    waited = _waited(events)
    works = [e for e in events.of("work.preparing", "work.saving", "work.evaluating") if not _is_done(e)]
    works = [e for e in works if waited is None or e.order <= waited]
    if not works:
        return None
    last = works[-1]
    if last.kind == "work.saving" and any(
        last.order < e.order < (waited or e.order + 1) for e in events.of("work.saved")
    ):
        return None
    return None if _trains_after(events, last, waited) else last


def bar_beside_the_wait(events: Events, limit_s: int, position: int | None) -> LogEvent | None:
    """An unfinished bar that had run for as long as the limit of the wait, and counts no steps of training.

    Training makes at least one collective per step: a bar that counted to more than `position`, the number of the collective in
    which the others wait, counts something that one rank does without them. So does one that counts bytes, and one that goes
    on when the others have waited for so long.
    """
    waited = _waited(events)
    bars = [e for e in events.of("progress.bar") if waited is not None and e.order <= waited]
    if not bars or _is_done(bars[-1]):
        return None
    last = bars[-1]
    done, ran_s = last.number("done"), elapsed_s(last) if last["elapsed"] else None
    if ran_s is None or ran_s < _ALMOST * limit_s:
        return None
    counts_more = done is not None and position is not None and done > _CLEARLY * position
    later = [e for e in events.of("progress.bar") if e.order > last.order and e["total"] == last["total"] != ""]
    goes_on = done is not None and any((e.number("done") or 0) > done for e in later)
    is_foreign = goes_on or (not _LOADING.search(last.text) and (counts_more or bool(_BYTES.search(last.text))))
    return last if is_foreign else None


def is_training_last(events: Events) -> bool:
    """Whether a training step is the last thing told before the wait."""
    waited = _waited(events)
    shown = [e for e in events.of("progress.step", "progress.unbounded", "work.") if waited is None or e.order < waited]
    return bool(shown) and shown[-1].kind.startswith("progress.")


def printed_last(lines: Sequence[LogLine], before: int) -> int | None:
    """The rank that printed the last lines before a place, if other ranks had printed lines as well, but none of these."""
    told = [line.rank for line in lines[:before] if line.text.strip()]
    last = set(told[-_LAST_LINES:])
    others = set(told) - last - {None}
    return next(iter(last)) if len(last) == 1 and len(told) > _LAST_LINES and len(others) > 1 else None


def trained_on_after(events: Events, event: LogEvent) -> bool:
    """Whether steps of training were told after a line and before anybody had waited too long."""
    waited = _waited(events)
    after = [e for e in events.of("progress.step", "progress.bar") if e.order > event.order]
    return any(waited is None or e.order < waited for e in after)


def elapsed_s(event: LogEvent) -> int | None:
    """Seconds that a progress bar has run: `1:02:03` or `10:01`."""
    parts = event["elapsed"].split(":")
    if not all(p.isdecimal() and len(p) < 6 for p in parts):
        return None
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return seconds


def failed_by_itself(failures: Sequence[Failure]) -> Failure | None:
    """The first failure that is no echo, and that is not a rank which the launcher told to end because others had failed."""
    own = [f for f in failures if not f.secondary]
    if len(failures) < 2:
        return next(iter(own), None)
    return next((f for f in own if not _was_asked_to_end(f)), None)


def _was_asked_to_end(failure: Failure) -> bool:
    end = failure.exit
    return failure.kind == "signal" and end is not None and end.code == _TERMINATED and end.text == SEEN_BY_LAUNCHER


def _waited(events: Events) -> int | None:
    return next((e.order for e in events if e.says == "hang"), None)


def _is_done(event: LogEvent) -> bool:
    return bool(event["total"]) and event["done"] == event["total"]


def _drawn(bar: LogEvent) -> tuple[str, str, str]:
    """What is the same of a bar that is only drawn again: its name, which may hold the epoch, and its numbers."""
    return bar.text.partition("|")[0].rstrip("0123456789% "), bar["total"], bar["done"]


def _trains_after(events: Events, work: LogEvent, waited: int | None) -> bool:
    """Whether steps were told between the work and the wait. A bar that is only drawn again is no step."""
    bars = [e for e in events.of("progress.bar") if not _LOADING.search(e.text)]
    before = {_drawn(e) for e in bars if e.order <= work.order}
    after = [e for e in (*events.of("progress.step"), *bars) if e.order > work.order]
    return any(
        (waited is None or e.order < waited) and not (e.kind == "progress.bar" and (_is_done(e) or _drawn(e) in before))
        for e in after
    )
