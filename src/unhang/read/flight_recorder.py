"""Flight-recorder dumps of nccl and gloo, pickled or JSON, versions 2.x -> rows of the CollectiveTable.

What differs between the writers: gloo never moves `state` off "scheduled", so `retired` tells completion, and it loses
the membership of groups. JSON has no frames and writes 0 for an unknown time, where a pickle has None. Older minor
versions lack fields. In a coalesced batch of nccl only the last entry has a true state.

Source: torch/csrc/distributed/c10d/FlightRecorder.hpp, torch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unhang.errors import UnreadableInput
from unhang.model import CallState, ProcessGroup, TableBuilder, Unavailable
from unhang.read import restricted_pickle
from unhang.read.fields import encodable
from unhang.read.files import decode_json, read_bytes, unreadable
from unhang.read.flight_entry import BadEntry, EntryParser, RecordedCall
from unhang.read.membership import DEFAULT_GROUP

if TYPE_CHECKING:
    from unhang.read.pickle_guard import PickleGuard


def decode(
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
    if data.lstrip()[:1] == b"{":
        dump = decode_json(data, name)
    elif trusted:
        dump = _unpickle(data, name)
    elif guard is not None:
        dump = _unpickle_guarded(data, name, guard)
    else:
        from unhang.read.pickle_guard import PickleGuard  # it starts processes, which few need

        with PickleGuard() as own:
            dump = _unpickle_guarded(data, name, own)
    return _checked(dump, name)


def _unpickle_guarded(data: bytes, name: str, guard: PickleGuard) -> object:
    if reason := guard.refusal(data):
        raise unreadable(name, f"not a readable flight-recorder dump: {reason}")
    return _unpickle(data, name)


def _unpickle(data: bytes, name: str) -> object:
    try:
        return restricted_pickle.load(data)
    except restricted_pickle.PICKLE_ERRORS as error:
        reason = restricted_pickle.describe(error)
        raise unreadable(name, f"not a readable flight-recorder dump: {reason}") from error


def _checked(dump: object, name: str) -> dict[str, Any]:
    if not isinstance(dump, dict) or not any(k in dump for k in ("entries", "pg_status", "pg_config")):
        raise unreadable(name, f"a {type(dump).__name__} that is no flight-recorder dump", "leave it out")
    version = dump.get("version")
    if not isinstance(version, str) or not version.startswith("2."):
        shown = version[:20] if isinstance(version, str) else "without a number"
        raise unreadable(name, f"flight-recorder version {shown}", "only versions 2.x can be read")
    if not isinstance(dump.setdefault("entries", []), list):
        raise unreadable(name, "its entries are no list")
    return dump


class RecordedCalls:
    """The calls of one dump, in the order of issue, and what it says of groups."""

    def __init__(self, dump: Mapping[str, Any], name: str = "dump") -> None:
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
        settle(self.calls)
        self.groups = groups_of_config(dump.get("pg_config"))
        self.has_frames = any(call.frames for call in self.calls)
        self.backend = next((call.backend for call in self.calls if call.backend), "")

    @property
    def wrapped(self) -> bool:
        """Whether the ring buffer has overwritten the oldest calls."""
        return bool(self.calls) and self.calls[0].record_id > 0


def settle(calls: Sequence[RecordedCall]) -> None:
    """Gives nccl calls the state that the dump only implies. Calls must be in the order of issue.

    The members of a coalesced batch share the sequence numbers of its last entry, which alone is tracked. A
    communicator runs its collectives in order, so what came before a completed one is completed too, though calls
    captured in a CUDA graph are never tracked.
    """
    batches: dict[tuple[str, int, int], CallState] = {}
    done: set[str] = set()
    for call in reversed(calls):
        if call.backend != "nccl":
            continue
        key = (call.group, call.collective_seq, call.p2p_seq)
        if "coalesced" in call.op:
            batches[key] = call.state
        elif call.state == CallState.SCHEDULED and not call.retired:
            call.state = batches.get(key, call.state)
        if call.is_p2p:
            continue
        if call.state == CallState.COMPLETED:
            done.add(call.group)
        elif call.state == CallState.SCHEDULED and call.group in done and not call.retired:
            call.state = CallState.COMPLETED


def groups_of_config(config: object) -> dict[str, ProcessGroup]:
    """Groups by name. gloo writes one nameless group, which says nothing."""
    if isinstance(config, str):
        try:
            config = decode_json(config.encode("utf-8", "replace"), "pg_config")
        except UnreadableInput:
            return {}
    groups = {}
    for key, value in config.items() if isinstance(config, dict) else ():
        fields = value if isinstance(value, dict) else {"ranks": value}
        name, desc, ranks = fields.get("name"), fields.get("desc"), fields.get("ranks")
        group = _group_of(
            key if isinstance(key, str) else "",
            name if isinstance(name, str) else "",
            desc if isinstance(desc, str) else "",
            ranks if isinstance(ranks, str) else ranks_of(ranks),
        )
        if group.name:
            groups[group.name] = group
    return groups


@lru_cache(maxsize=1 << 16)
def _group_of(key: str, name: str, desc: str, ranks: str | tuple[int, ...]) -> ProcessGroup:
    """One object for the same group in the dumps of all its members, which are not compared one by one."""
    return ProcessGroup(encodable(name) or encodable(key), encodable(desc), ranks_of(ranks))


@lru_cache(maxsize=1 << 14)
def _parsed_ranks(text_of_ranks: str) -> tuple[int, ...]:
    """The dump of every rank holds the same text, which names all ranks of the world."""
    try:
        return ranks_of(decode_json(text_of_ranks.encode("utf-8", "replace"), "ranks"))
    except UnreadableInput:
        return ()


def ranks_of(value: object) -> tuple[int, ...]:
    """The members of a group as a dump names them, in a list or as its text; empty where it is neither."""
    if isinstance(value, str):
        return _parsed_ranks(value)
    if not isinstance(value, (list, tuple)):
        return ()
    return tuple(value) if all(type(r) is int and 0 <= r < 1 << 31 for r in value) else ()


def add_calls(
    calls: Iterable[RecordedCall], rank: int, builder: TableBuilder, membership: Mapping[str, ProcessGroup]
) -> None:
    """Adds rows of one rank. `membership`: groups by name as this rank knows them."""
    resolved: dict[str, tuple[int, ProcessGroup]] = {}
    for call in calls:
        if call.group not in resolved:
            group = _resolve(call, membership)
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
        )


def add_to_table(
    dump: Mapping[str, Any], rank: int, builder: TableBuilder, membership: Mapping[str, ProcessGroup] | None = None
) -> tuple[Unavailable, ...]:
    """Adds the calls of a decoded dump; returns what of it was lost. `membership` wins over what the dump says.

    Raises:
        UnreadableInput: there are entries, and none can be read.
    """
    recorded = RecordedCalls(dump, f"dump of rank {rank}")
    add_calls(recorded.calls, rank, builder, {**recorded.groups, **(membership or {})})
    if recorded.wrapped:
        builder.mark_wrapped(rank)
    return lost_entries(recorded, rank)


def lost_entries(recorded: RecordedCalls, rank: int) -> tuple[Unavailable, ...]:
    """Notes the entries that could not be read."""
    if not recorded.bad:
        return ()
    total = len(recorded.bad) + len(recorded.calls)
    return (Unavailable(f"{len(recorded.bad)} of {total} calls of rank {rank}", f"unreadable ({recorded.bad[0]})"),)


def _resolve(call: RecordedCall, membership: Mapping[str, ProcessGroup]) -> ProcessGroup:
    known = membership.get(call.group)
    if known is None:
        return ProcessGroup(call.group, call.group_desc, (), backend=call.backend)
    if known.desc and known.backend:
        return known
    desc, backend = known.desc or call.group_desc, known.backend or call.backend
    return ProcessGroup(known.name, desc, known.ranks, known.timeout_s, backend)


def global_rank(group: ProcessGroup, number: int) -> int:
    """The global rank of a member that a dump names by its number within the group; -1 where it is not known."""
    if 0 <= number < len(group.ranks):
        return group.ranks[number]
    return number if group.name == DEFAULT_GROUP and not group.ranks else -1
