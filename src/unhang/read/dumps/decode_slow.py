"""One dump through Python objects: what every dump can be read with, and what defines the meaning of the fast way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from unhang.model import CallState, CollectiveTable, ProcessGroup, TableBuilder, Unavailable
from unhang.model.calls import PROGRESS_COLUMNS
from unhang.read.dumps.shard import DumpFile, RankDump
from unhang.read.fields import INT64_MAX, text, whole
from unhang.read.flight_entry import BadEntry, RecordedCall, _group
from unhang.read.flight_recorder import RecordedCalls, _resolve, add_calls, decode, lost_entries

Status = Mapping[str, tuple[int, int, int]]
_NUMBERS = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
_LONGER = 8  # times as many, where the last calls do not suffice


@dataclass(frozen=True, slots=True)
class Decoded:
    """What one dump gave."""

    table: CollectiveTable
    dump: RankDump
    absent: tuple[Unavailable, ...] = ()


def decode_slowly(file: DumpFile, data: bytes, last: int | None, frames: bool) -> Decoded:
    """The calls of one dump, of which `last` keeps only the tail.

    Raises:
        UnreadableInput: it is no dump, damaged, an attack, or of an unknown version.
    """
    dump = decode(data, trusted=True, name=str(file))
    recorded = RecordedCalls(dump, str(file))
    calls = recorded.calls
    status = status_of(dump.get("pg_status"))
    kept = tail_of(calls, last)
    builder = TableBuilder()
    add_calls(kept if frames else map(_without_frames, kept), file.rank, builder, recorded.groups)
    groups = _groups_of_status(dump["entries"], [*kept, *calls], recorded.groups, status)
    numbers = {number: builder.group(group) for number, group in groups.items()}
    total = len(dump["entries"])
    table = replace(
        builder.build(),
        progress=progress_of(file.rank, [(at, *status[number]) for number, at in numbers.items()]),
        wrapped_ranks=frozenset([file.rank]) if len(kept) < len(calls) or recorded.wrapped else frozenset(),
    )
    records = (calls[0].record_id, calls[-1].record_id) if calls else (0, -1)
    if is_active_only(records, total, any(c.state == CallState.COMPLETED for c in calls), status):
        table = replace(table, active_ranks=frozenset([file.rank]))
    first_ns, last_ns = span_of(table)
    has_frames = any(call.frames for call in kept)
    shown = RankDump(file, text(dump, "version"), recorded.backend, total, has_frames, first_ns, last_ns)
    return Decoded(table, shown, lost_entries(recorded, file.rank))


def _without_frames(call: RecordedCall) -> RecordedCall:
    return replace(call, frames=None)


def tail_of(calls: Sequence[RecordedCall], last: int | None) -> Sequence[RecordedCall]:
    """The last calls, but so many that each group with an open call also has a completed one in them."""
    for count in lengths(last):
        kept = calls[-count:] if count is not None else calls
        done = {call.group for call in kept if call.state == CallState.COMPLETED}
        if len(kept) == len(calls) or {call.group for call in kept} <= done | _settled(kept):
            return kept
    return calls


def _settled(calls: Sequence[RecordedCall]) -> set[str]:
    return {call.group for call in calls} - {call.group for call in calls if call.state != CallState.COMPLETED}


def lengths(last: int | None) -> Sequence[int | None]:
    """How many calls to try, one after the other. None stands for all."""
    return (None,) if last is None else (max(last, 1), _LONGER * max(last, 1), None)


def status_of(value: object) -> Status:
    """What the rank says of its groups, by their numeric ids: enqueued, started and completed sequence numbers."""
    if not isinstance(value, dict):
        return {}
    return {key: _numbers(fields) for key, fields in value.items() if isinstance(key, str) and isinstance(fields, dict)}


def _numbers(fields: Mapping[Any, Any]) -> tuple[int, int, int]:
    enqueued, started, completed = map(fields.get, _NUMBERS)
    if type(enqueued) is type(started) is type(completed) is int and not (
        min(enqueued, started, completed) < 0 or max(enqueued, started, completed) > INT64_MAX
    ):
        return enqueued, started, completed
    return _number(fields, _NUMBERS[0]), _number(fields, _NUMBERS[1]), _number(fields, _NUMBERS[2])


def _number(fields: Mapping[Any, Any], key: str) -> int:
    value = fields.get(key)
    if type(value) is not int or value > INT64_MAX:
        value = whole(fields, key)
    return -1 if value is None or value < 0 else value


def _groups_of_status(
    entries: Sequence[Any], calls: Sequence[RecordedCall], configured: Mapping[str, ProcessGroup], status: Status
) -> dict[str, ProcessGroup]:
    """Which group each numeric id of the status means: only entries tell, unless there is just one group."""
    firsts: dict[str, RecordedCall] = {}
    for call in calls:
        firsts.setdefault(call.group, call)
    names: dict[str, str] = {}
    for entry in entries:
        number = entry.get("pg_id") if isinstance(entry, dict) else None
        if type(number) is not int or not 0 <= number <= INT64_MAX:
            continue
        try:
            name, _ = _group(entry)
        except BadEntry:
            continue
        if name in firsts:
            names.setdefault(str(number), name)
    return match_status(status, names, configured, lambda name: _resolve(firsts[name], configured))


def match_status(
    status: Status,
    names: Mapping[str, str],
    configured: Mapping[str, ProcessGroup],
    group: Callable[[str], ProcessGroup],
) -> dict[str, ProcessGroup]:
    """The group of each numeric id, where it is known: its entries tell, or that one is left over.

    Ids count in the order of creation, from the default group; so do the names of groups that are numbers.
    """
    found = {number: group(names[number]) for number in status if number in names}
    unnamed = [number for number in status if number not in found]
    others = {name: of for name, of in configured.items() if name not in names.values()}
    if len(status) == len(configured):
        if "0" in unnamed and "0" in others:
            unnamed.remove("0")
            found["0"] = others.pop("0")
        is_ordered = all(text.isdecimal() for text in (*unnamed, *others))
        if len(unnamed) == len(others) and (len(others) == 1 or is_ordered):
            created = (sorted(texts, key=lambda text: (len(text), text)) for texts in (unnamed, others))
            found |= {number: others[name] for number, name in zip(*created, strict=True)}
    return found


def progress_of(rank: int, rows: Sequence[tuple[int, int, int, int]]) -> dict[str, npt.NDArray[Any]]:
    """The progress columns of one rank. `rows`: the group, and what was enqueued, started and completed there."""
    values = [(rank, *row) for row in rows]
    return {
        name: np.array([row[i] for row in values], dtype=kind)
        for i, (name, kind) in enumerate(PROGRESS_COLUMNS.items())
    }


def is_active_only(records: tuple[int, int], entries: int, any_completed: bool, status: Status) -> bool:
    """Whether the dump leaves out the completed calls. `records`: the numbers of its first and its last one."""
    if any_completed:
        return False
    first, last = records
    enqueued = sum(max(numbers[0], 0) for numbers in status.values())
    completed = any(numbers[2] > 0 for numbers in status.values())
    return first > 0 or last - first >= entries or enqueued > entries or completed


def span_of(table: CollectiveTable) -> tuple[int, int]:
    """The first creation and the last time that calls mention, 0 if none."""
    created = table["created_ns"]
    times = (created, table["started_ns"], table["completed_ns"])
    first = int(created[created > 0].min(initial=np.iinfo(np.int64).max)) if (created > 0).any() else 0
    return first, max(int(column.max(initial=0)) for column in times)
