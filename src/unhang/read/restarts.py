"""The attempts of a job that was started anew: which processes, and which lines of the output, belong to each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from unhang.model import Unavailable
from unhang.read.fields import whole
from unhang.read.rank_folder import RankRecord

if TYPE_CHECKING:
    from unhang.read.output_log import OutputLog

Processes = dict[int, RankRecord]
"""The processes of one attempt, by rank."""

ANOTHER_WITH_ITS_RANK = "another process of this rank started while it ran"
_LEFT_OUT = b"... unhang: output left out here ..."
_NOTICED_LATE_NS = 1_000_000_000  # an end is noted a little after it
_OF_AN_END = ("elastic.worker_failed", "elastic.closing_signal")


def attempts_of(records: Mapping[int, Sequence[RankRecord]]) -> tuple[list[Processes], list[Unavailable]]:
    """The processes of each attempt, the last attempt last; and the processes that belong to none.

    The restart count of the launcher tells attempts apart, and the times of ends and starts where a program starts its ranks
    again by itself. A rank that goes on while another one is started anew belongs to the last attempt.
    """
    absent: list[Unavailable] = []
    left = {rank: _one_after_another(rank, found, absent) for rank, found in records.items()}
    attempts: list[Processes] = []
    while left:
        last = {rank: found[-1] for rank, found in left.items()}
        renewed = [(found[-1], found[-2]) for found in left.values() if len(found) > 1]
        if renewed:
            newest, before = max(renewed, key=lambda pair: _order(pair[0]))
            last = {rank: record for rank, record in last.items() if not _is_earlier(record, newest, before)}
        attempts.append(dict(sorted(last.items())))
        rest = {rank: [r for r in found if r is not last.get(rank)] for rank, found in left.items()}
        left = {rank: found for rank, found in rest.items() if found}
    return attempts[::-1], absent


def began_ns(attempt: Processes) -> int:
    """When the first process of an attempt that is known started; 0 where none tells."""
    return min((t for r in attempt.values() if (t := r.identity.started_ns)), default=0)


def _order(record: RankRecord) -> tuple[int, int, str]:
    return record.identity.restart, record.identity.started_ns, record.path


def _one_after_another(rank: int, records: Sequence[RankRecord], absent: list[Unavailable]) -> list[RankRecord]:
    """The processes of a rank of which each had ended before the next one started; of two at once the later one."""
    found: list[RankRecord] = []
    for record in sorted(records, key=_order):
        if found and not _is_followed_by(found[-1], record):
            old = found.pop()
            is_same = old.identity == record.identity
            if not is_same and _lived_together(old, record):
                record.twins = (*old.twins, old.identity.pid or 0)
            reason = "it was given twice" if is_same else ANOTHER_WITH_ITS_RANK
            absent.append(Unavailable(f"process {old.identity.pid} of rank {rank}", reason))
        found.append(record)
    return found


def _is_followed_by(old: RankRecord, new: RankRecord) -> bool:
    if old.identity == new.identity:
        return False
    if old.identity.restart != new.identity.restart:
        return True
    return 0 < _ended_ns(old) <= new.identity.started_ns + _NOTICED_LATE_NS


def _lived_together(old: RankRecord, new: RankRecord) -> bool:
    """Whether two processes with one rank came to the start at the same time, in the same attempt of the same launcher."""
    pages = [r.page.pending if r.page else () for r in (old, new)]
    if not all(any(c.kind == "init_process_group" for c in calls) for calls in pages):
        return False  # what a rank starts may have its RANK too
    of = [(r.identity.host, r.identity.restart) for r in (old, new)]
    died_ns = whole(old.proc_fields, "died_ns")
    return of[0] == of[1] and bool(old.proc_fields) and (died_ns is None or died_ns > new.identity.started_ns > 0)


def _is_earlier(record: RankRecord, newest: RankRecord, before: RankRecord) -> bool:
    """Whether the last process of a rank had its end before `newest` followed `before`, on another rank."""
    if record is newest:
        return False
    mine, its = record.identity, newest.identity
    if mine.restart < its.restart and mine.host == its.host:
        return True
    has_ended = 0 < _ended_ns(record) <= its.started_ns + _NOTICED_LATE_NS
    return has_ended and mine.started_ns < (_ended_ns(before) or its.started_ns)


def _ended_ns(record: RankRecord) -> int:
    """When a process ended, by its own word or as it was seen; 0 where nothing tells that it has."""
    times = (whole(record.exit_fields, "time_ns"), whole(record.proc_fields, "died_ns"))
    return min((t for t in times if t), default=0)


def outputs_of(logs: Iterable[tuple[Path, OutputLog]], attempts: Sequence[Processes]) -> list[tuple[OutputLog, ...]]:
    """The part of each output that belongs to each attempt."""
    found: list[list[OutputLog]] = [[] for _ in attempts]
    for path, log in logs:
        borders = [0, *(_first_line(path, log, attempts, i) for i in range(1, len(attempts))), 0]
        for i in range(1, len(attempts)):
            borders[i] = max(borders[i], borders[i - 1])
        for i, mine in enumerate(found):
            mine.append(log.between(borders[i], borders[i + 1] if i + 1 < len(attempts) else None))
    return [tuple(mine) for mine in found]


def _first_line(path: Path, log: OutputLog, attempts: Sequence[Processes], number: int) -> int:
    """The line with which an attempt begins.

    It comes after what a launcher said of the processes before, and after what had been written when its first process started.
    """
    from unhang.read.logs.events import events_of

    pids = {r.identity.pid for attempt in attempts[:number] for r in attempt.values()}
    ends = (e for e in events_of(log.lines) if e.kind in _OF_AN_END and e.number("pid") in pids)
    said = max((e.source.line or 0 for e in ends), default=-1) + 1
    here = [r for r in attempts[number].values() if r.path and Path(r.path).parent.parent == path.parent]
    sizes = [r.output_bytes for r in here if r.output_bytes is not None]
    return max(said, _line_at(path, min(sizes)) if sizes else 0)


def _line_at(path: Path, size: int) -> int:
    """The number of the line that begins after so many bytes; 0 where the middle of the output was left out."""
    with suppress(OSError), path.open("rb") as f:
        data = f.read(size)
        return 0 if _LEFT_OUT in data or len(data) < size else data.count(b"\n") + 1
    return 0
