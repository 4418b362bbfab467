"""Stacks that ranks print into their logs with faulthandler, as evidence of the ranks' own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from unhang.model import LogEvent, LogLine, RankIdentity, Source, Unavailable
from unhang.read.faulthandler_text import FaultDump, is_faulthandler, is_header, parse_faulthandler
from unhang.read.logs.events import events_of
from unhang.read.logs.pasted_stacks import BY_WATCHDOG, went_on
from unhang.read.output_log import OutputLog
from unhang.read.rank_folder import RankRecord
from unhang.read.sniff import rank_of_stacks

Logs = Sequence[tuple[Path, OutputLog]]
Dumps = tuple[FaultDump, ...]


def take_stacks(records: dict[int, RankRecord], logs: Logs, has_calls: bool) -> tuple[Logs, list[Unavailable]]:
    """Completes the records of ranks without stacks by those in logs.

    Of a log with other lines the last dump of a rank counts, unless the job moved on after it; where there are only logs, it
    counts if the rank crashed.

    Args:
        records: by rank, of the ranks of which there is more than logs.
        logs: with their paths.
        has_calls: whether the calls of the ranks tell who waited.

    Returns:
        The logs that are more than one dump of one rank, and notes on stacks of which nobody knows whose they are.
    """
    with_stacks = [pair for pair in logs if any(is_header(line.text) for line in pair[1].lines)]
    if not with_stacks:
        return logs, []
    events = {id(log): events_of(log.lines) for _, log in logs}
    waited = has_calls or any(e.says == "hang" for events in events.values() for e in events)
    is_mixture = bool(records) or has_calls
    taken: set[int] = set()
    nobodys: list[Unavailable] = []
    for path, log in with_stacks:
        is_bare = len({line.rank for line in log.lines}) == 1 and is_faulthandler(line.text for line in log.lines)
        if not is_bare:
            for rank, dumps in _last_dumps(log, events[id(log)]).items():
                _add(records, rank, _judged(dumps, waited), is_mixture)
        elif (owner := _owner(path, log)) is None:
            reason = "neither the file's name nor its lines tell it; name the file like rank_3_stacks.txt"
            nobodys.append(Unavailable(f"whose stacks are in {path.name}", reason))
        else:
            dumps = _dumps(log.lines)
            _add(records, owner, _judged(dumps, waited), is_wanted=True)
            if len(dumps) == 1:  # of several it matters when they were printed, as of what lies between other lines
                taken.add(id(log))
    return [pair for pair in logs if id(pair[1]) not in taken], nobodys


def _owner(path: Path, log: OutputLog) -> int | None:
    return rank_of_stacks(path) if log.lines[0].rank is None else log.lines[0].rank


def _last_dumps(log: OutputLog, events: Sequence[LogEvent]) -> dict[int, Dumps]:
    last = {line.rank: i for i, line in enumerate(log.lines) if line.rank is not None and is_header(line.text)}
    return {
        rank: _dumps([line for line in log.lines if line.rank == rank])
        for rank, order in last.items()
        if rank is not None and not went_on(events, order, log.lines[order].source.path)
    }


def _dumps(lines: Sequence[LogLine]) -> Dumps:
    text = "\n".join(line.text for line in lines)
    return parse_faulthandler(text, source=Source("faulthandler", lines[0].source.path))


def _judged(dumps: Dumps, waited: bool) -> Dumps:
    """Where ranks waited, one that was aborted is no failure of its own: so a watchdog ends a wait."""
    return tuple(replace(d, reason=None) if waited and d.reason == BY_WATCHDOG else d for d in dumps)


def _add(records: dict[int, RankRecord], rank: int, dumps: Dumps, is_wanted: bool) -> None:
    if is_wanted or dumps[-1].reason is not None:
        record = records.setdefault(rank, RankRecord(RankIdentity(rank)))
        if not record.stacks and not record.fault_dumps:
            record.fault_dumps = dumps
