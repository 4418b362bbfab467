"""The calls of dumps through Python objects.

So the dumps of a run that was watched are read (`FlightTable`), and each dump of a folder that is not written the way
torch's pickler does (`decode_objects`): JSON, other protocols, damaged parts. No code of a file is ever executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unhang.errors import UnreadableInput
from unhang.model import CallState, CollectiveTable, Frame, ProcessGroup, RaisedError, TableBuilder, Unavailable
from unhang.model.calls import PROGRESS_COLUMNS
from unhang.numeric import np, npt
from unhang.read import restricted_pickle
from unhang.read.dumps import DumpFile, Membership, RankDump
from unhang.read.dumps.entries import (
    BadEntry,
    EntryParser,
    RecordedCall,
    infer_states,
    is_of_torchcomms,
    with_meaning,
)
from unhang.read.dumps.head import (
    Status,
    completed_group,
    global_rank,
    groups_of_config,
    is_active_only,
    match_status,
    of_last_groups,
    status_of,
)  # fmt: skip
from unhang.read.files import decode_json, read_bytes, text, unreadable
from unhang.read.logs import is_echo
from unhang.read.rank_folder import RankCalls, RankRecord, name_reductions
from unhang.read.restricted_pickle import PickleGuard

_LONGER = 8  # times as many, where the last calls do not suffice
_GLOO = "gloo/"  # its transport names the file and line that failed
_COLLECTIVES = re.compile(
    r"(all_?reduce|_?all_?gather|_?reduce_scatter|all_?to_?all|broadcast|barrier|monitored_barrier|gather|scatter|reduce)"
    r"(_|$)"
)
_NOT_COLLECTIVES = frozenset(
    ("send", "recv", "isend", "irecv", "batch_isend_irecv", "new_group", "_store_based_barrier")
)


def load(
    source: Path | bytes, *, guard: PickleGuard | None = None, trusted: bool = False, name: str = "dump"
) -> dict[str, Any]:
    """A dump as plain data, with `entries` a list. No code of the file is ever executed.

    Args:
        source: the file, or its bytes.
        guard: the child that tries pickles first; without one a child is started for this dump.
        trusted: the file was written by our own job a moment ago, so no child tries it first.
        name: how to call the dump in messages where `source` is bytes.

    Raises:
        UnreadableInput: it is no dump, damaged, an attack, or of an unknown version.
    """
    data, name = (source, name) if isinstance(source, bytes) else (read_bytes(source), str(source))
    is_json = data.lstrip()[:1] == b"{"
    return _checked(decode_json(data, name) if is_json else _unpickle(data, name, guard, trusted), name)


def _unpickle(data: bytes, name: str, guard: PickleGuard | None, trusted: bool) -> object:
    if not trusted:
        with nullcontext(guard) if guard is not None else PickleGuard() as child:
            refusal = child.refusal(data)
        if refusal:
            raise unreadable(name, f"not a readable flight-recorder dump: {refusal}")
    try:
        return restricted_pickle.load(data)
    except restricted_pickle.PICKLE_ERRORS as error:
        reason = restricted_pickle.describe(error)
        raise unreadable(name, f"not a readable flight-recorder dump: {reason}") from error


def _checked(dump: object, name: str) -> dict[str, Any]:
    if not isinstance(dump, dict) or not any(k in dump for k in ("entries", "pg_status", "pg_config")):
        raise unreadable(name, f"a {type(dump).__name__} that is not a flight-recorder dump", "leave it out")
    version = dump.get("version")
    if not isinstance(version, str) or not version.startswith("2."):
        shown = version[:20] if isinstance(version, str) else "without a number"
        raise unreadable(name, f"flight-recorder version {shown}", "only versions 2.x can be read")
    if not isinstance(dump.setdefault("entries", []), list):
        raise unreadable(name, "its entries are not a list")
    return dump


class RecordedCalls:
    """The calls of one dump, in the order of issue, and what it says of groups."""

    def __init__(self, dump: Mapping[str, Any], name: str = "dump", rank: int = -1) -> None:
        """Reads every entry that can be read.

        Raises:
            UnreadableInput: there are entries, and none can be read.
        """
        parser = EntryParser()
        self.calls: list[RecordedCall] = []
        self.bad: list[str] = []
        for entry in dump["entries"]:
            try:
                self.calls.append(parser.parse(entry, len(self.calls)))
            except BadEntry as error:
                self.bad.append(str(error))
        if self.bad and not self.calls:
            raise unreadable(name, f"none of its {len(self.bad)} entries can be read ({self.bad[0]})")
        self.calls.sort(key=lambda call: call.record_id)
        if is_of_torchcomms(dump):
            self.groups = with_meaning(self.calls, dump, rank)
        else:
            infer_states(self.calls)
            self.groups = groups_of_config(dump.get("pg_config"))
        self.has_frames = any(call.frames for call in self.calls)
        self.backend = next((call.backend for call in self.calls if call.backend), "")

    @property
    def wrapped(self) -> bool:
        """Whether the ring buffer has overwritten the oldest calls."""
        return bool(self.calls) and self.calls[0].record_id > 0


def add_calls(
    calls: Iterable[RecordedCall], rank: int, builder: TableBuilder, membership: Mapping[str, ProcessGroup]
) -> None:
    """Adds rows of one rank. `membership`: groups by name as this rank knows them."""
    resolved: dict[str, tuple[int, ProcessGroup]] = {}
    for call in calls:
        if call.group not in resolved:
            group = completed_group(membership.get(call.group), call.group, call.group_desc, call.backend)
            resolved[call.group] = (builder.group(group), group)
        index, group = resolved[call.group]
        builder.add(
            rank=rank,
            group=index,
            seq=call.p2p_seq if call.is_p2p else call.collective_seq,
            op=call.op,
            in_sizes=call.in_sizes,
            out_sizes=call.out_sizes,
            dtype=call.dtype,
            state=call.state,
            is_p2p=call.is_p2p,
            peer=global_rank(group, call.peer_in_group),
            created_ns=call.created_ns,
            started_ns=call.started_ns,
            completed_ns=call.completed_ns,
            timeout_ms=call.timeout_ms,
            frames=call.frames,
            thread=call.thread,
            record_id=call.record_id,
            reduce_op=call.reduce_op,
            root=global_rank(group, call.root_in_group),
            awaited_ns=call.awaited_ns,
        )


def lost_entries(recorded: RecordedCalls, rank: int) -> tuple[Unavailable, ...]:
    """Notes the entries that could not be read."""
    if not recorded.bad:
        return ()
    total = len(recorded.bad) + len(recorded.calls)
    return (Unavailable(f"{len(recorded.bad)} of {total} calls of rank {rank}", f"unreadable ({recorded.bad[0]})"),)


@dataclass(frozen=True, slots=True)
class Decoded:
    """What one dump gave."""

    table: CollectiveTable
    dump: RankDump
    absent: tuple[Unavailable, ...] = ()


def decode_objects(file: DumpFile, data: bytes, last: int | None, frames: bool) -> Decoded:
    """The calls of one dump, of which `last` keeps only the tail.

    Raises:
        UnreadableInput: it is no dump, damaged, an attack, or of an unknown version.
    """
    dump = load(data, trusted=True, name=str(file))
    recorded = RecordedCalls(dump, str(file), file.rank)
    calls, _ = of_last_groups(recorded.calls)
    status = status_of(dump.get("pg_status"))
    kept = tail_of(calls, last)
    builder = TableBuilder()
    add_calls(kept if frames else (replace(call, frames=None) for call in kept), file.rank, builder, recorded.groups)
    groups = _groups_of_status([*kept, *calls], recorded.groups, status)
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


def tail_of(calls: Sequence[RecordedCall], last: int | None) -> Sequence[RecordedCall]:
    """The last calls, but so many that each group with an open call also has a completed one in them."""
    for count in lengths(last):
        kept = calls[-count:] if count is not None else calls
        done = {call.group for call in kept if call.state == CallState.COMPLETED}
        if len(kept) == len(calls) or {call.group for call in kept} <= done | _all_completed(kept):
            return kept
    return calls


def _all_completed(calls: Sequence[RecordedCall]) -> set[str]:
    return {call.group for call in calls} - {call.group for call in calls if call.state != CallState.COMPLETED}


def lengths(last: int | None) -> Sequence[int | None]:
    """How many calls to try, one after the other. None stands for all."""
    return (None,) if last is None else (max(last, 1), _LONGER * max(last, 1), None)


def _groups_of_status(
    calls: Sequence[RecordedCall], configured: Mapping[str, ProcessGroup], status: Status
) -> dict[str, ProcessGroup]:
    """Which group each numeric id of the status means: only entries say it, unless there is just one group."""
    firsts: dict[str, RecordedCall] = {}
    for call in calls:
        firsts.setdefault(call.group, call)
    names = {str(call.pg_id): call.group for call in reversed(calls) if call.pg_id >= 0}

    def group(name: str) -> ProcessGroup:
        first = firsts[name]
        return completed_group(configured.get(name), name, first.group_desc, first.backend)

    return match_status(status, names, configured, group)


def progress_of(rank: int, rows: Sequence[tuple[int, int, int, int]]) -> dict[str, npt.NDArray[Any]]:
    """The progress columns of one rank. `rows`: the group, and what was enqueued, started and completed there."""
    values = [(rank, *row) for row in rows]
    return {
        name: np.array([row[i] for row in values], dtype=kind)
        for i, (name, kind) in enumerate(PROGRESS_COLUMNS.items())
    }


def span_of(table: CollectiveTable) -> tuple[int, int]:
    """The first creation and the last time that calls mention, 0 if none."""
    created = table["created_ns"]
    times = (created, table["started_ns"], table["completed_ns"])
    first = int(created[created > 0].min(initial=np.iinfo(np.int64).max)) if (created > 0).any() else 0
    return first, max(int(column.max(initial=0)) for column in times)


def is_transfer_error(error: RaisedError) -> bool:
    """Whether the exception reports a failed or timed-out transfer, not a fault of the program."""
    return _GLOO in error.message or is_echo(error.text)


def shows_collective(frames: Iterable[Frame]) -> bool:
    """Whether a stack, innermost first, lies in a collective that the flight recorder records.

    The backward pass counts: DDP and FSDP communicate in it.
    """
    for frame in frames:
        if frame.function == "_engine_run_backward":
            return True
        if "torch/distributed/" in frame.file:
            if frame.function in _NOT_COLLECTIVES:
                return False
            if _COLLECTIVES.match(frame.function):
                return True
    return False


def unite(dumps: Sequence[RecordedCalls], distrust_completion: bool = False) -> tuple[list[RecordedCall], int]:
    """The calls of all dumps by record id, and how many calls contradict another dump (then the first dump wins).

    Args:
        dumps: of one rank, earliest first. Frames are taken from whichever dump has them.
        distrust_completion: the rank failed in its communication, which marks its calls completed (gloo) or frees them
            (nccl): what an earlier dump saw under way stays so, unless the rank issued more calls in that group since.
    """
    if len(dumps) == 1:
        return list(dumps[0].calls), 0
    merged: dict[int, RecordedCall] = {}
    contradictions = 0
    for dump in dumps:
        went_on = {call.group for call in dump.calls if call.record_id not in merged} if merged else set()
        for call in dump.calls:
            known = merged.get(call.record_id)
            if known is None:
                merged[call.record_id] = call
            elif (known.group, known.collective_seq, known.op) != (call.group, call.collective_seq, call.op):
                contradictions += 1
            else:
                pick = min if distrust_completion and call.group not in went_on else max
                call.state = pick(known.state, call.state)
                call.frames = call.frames or known.frames
                merged[call.record_id] = call
    return [merged[number] for number in sorted(merged)], contradictions


def mark_failed(
    calls: Sequence[RecordedCall],
    error: RaisedError | None,
    fatal_stacks: Iterable[Sequence[Frame]] = (),
    state: CallState = CallState.FAILED,
) -> None:
    """Gives the last call `state` where the rank raised or was aborted in a collective. Calls in the order of issue."""
    raised = (
        error is not None
        and is_transfer_error(error)
        and (shows_collective(error.frames) or (_GLOO in error.message and not _is_elsewhere(error.frames)))
    )
    if calls and (raised or any(map(shows_collective, fatal_stacks))):
        calls[-1].state = state


def _is_elsewhere(frames: Sequence[Frame]) -> bool:
    """Whether the stack lies in a call that the flight recorder does not record."""
    return any(f.function in _NOT_COLLECTIVES and "torch/distributed/" in f.file for f in frames)


class FlightTable:
    """Collects the calls of the ranks."""

    def __init__(self, membership: Membership, guard: PickleGuard, trusted: bool = False) -> None:
        self._membership, self._guard, self._trusted = membership, guard, trusted
        self._builder = TableBuilder()
        # Groups by name: how often they were made anew at most, and when then.
        self._anew: dict[str, tuple[int, int]] = {}
        self.ranks: dict[int, RankCalls] = {}

    def add(self, record: RankRecord, error: RaisedError | None) -> None:
        """Adds the calls of one rank, in which it may have failed with `error`; what is lost is noted in the record."""
        dumps = [d for path in record.dump_paths if (d := self._decoded(record, path)) is not None]
        if not dumps:
            return
        fatal = record.fatal
        raised = error or record.forgotten
        failed = fatal is not None or (raised is not None and is_transfer_error(raised))
        calls, contradicting = unite(dumps, distrust_completion=failed)
        is_wrapped = bool(calls) and calls[0].record_id > 0
        calls, anew = of_last_groups(calls)
        mark_failed(calls, error, [t.frames for t in fatal.threads] if fatal else ())
        mark_failed(calls, record.forgotten, state=CallState.SCHEDULED)  # it was under way when the job was ended
        configured = {name: group for dump in dumps for name, group in dump.groups.items()}
        groups = self._membership.of_rank(record.rank, configured)
        add_calls(calls, record.rank, self._builder, groups)
        for given, (count, begin_ns) in anew.items():
            name = groups[given].name if given in groups else given
            known, since_ns = self._anew.get(name, (0, 0))
            if count >= known:
                self._anew[name] = (count, min(begin_ns, since_ns) if count == known else begin_ns)
        if is_wrapped:
            self._builder.mark_wrapped(record.rank)
        if contradicting:
            reason = "another dump of the rank says otherwise: are there dumps of two jobs?"
            record.absent.append(Unavailable(f"{contradicting} calls of rank {record.rank}", reason))
        backend = next((d.backend for d in dumps if d.backend), "")
        self.ranks[record.rank] = RankCalls(len(calls), any(call.frames for call in calls), backend)

    def build(self) -> CollectiveTable:
        """The table of all ranks added. What a rank called before others made the group anew was called in the former one."""
        table = self._builder.build()
        is_former = np.zeros(len(table), bool)
        for index, group in enumerate(table.groups):
            if group.name in self._anew:
                is_former |= (table["group"] == index) & (table["created_ns"] < self._anew[group.name][1])
        if not is_former.any():
            return table
        return replace(table, columns={name: column[~is_former] for name, column in table.columns.items()})

    def _decoded(self, record: RankRecord, path: Path) -> RecordedCalls | None:
        try:
            recorded = RecordedCalls(load(path, guard=self._guard, trusted=self._trusted), str(path))
        except UnreadableInput as error:
            record.absent.append(Unavailable(f"{path.name} of rank {record.rank}", str(error)))
            return None
        record.absent.extend(lost_entries(recorded, record.rank))
        name_reductions(recorded.calls, record.reductions)
        for call in recorded.calls if record.clock_offset_ns else ():
            call.shift(record.clock_offset_ns)
        return recorded
