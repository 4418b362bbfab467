"""What logs say of the calls: the watchdogs who waited and who is behind; torch's mode DETAIL and NCCL's trace what was about to be called."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from unhang.analyze.by_kind import Events
from unhang.model import LogEvent, grouped
from unhang.model.evidence import MAX_DIGITS
from unhang.model.lazy_pattern import lazy_pattern

# The members of these may bring different amounts, and of the last two another call may be meant.
UNEVEN_OPS = frozenset({"COALESCED", "ALLTOALL", "ALLTOALL_BASE", "GATHER", "SCATTER", "SEND", "RECV", "UNKNOWN"})
_BARRIERS = frozenset({"BARRIER", "ALLREDUCE"})
_OF_WATCHDOGS = ("watchdog.timeout", "watchdog.work", "watchdog.counters", "watchdog.dump_signal")
_OF_LIBRARIES = ("gloo.timed_out", "hccl.timed_out")
MAX_COUNTER = 1 << 40
# As large are gradient buckets and shards; two of them may differ by far more than two batches do.
BUCKET_ELEMENTS = 1 << 16
_FAR, _NEAR = 256, 4
_IN_STEP = frozenset({"ALLREDUCE", "ALLREDUCE_COALESCED", "REDUCE_SCATTER", "_REDUCE_SCATTER_BASE", "_ALLGATHER_BASE"})
_OF_CONTROL = 1 << 13  # counters, flags, the state of a random generator
_WAITED_FOR = lazy_pattern(r"[Tt]imeout after (\d{1,12}) ?ms")


@dataclass(frozen=True)
class TimedOut:
    """One call in which one rank waited until its limit. `seq` counts from 1; None where the line does not tell.

    `enqueued`, `completed`: the counters of its group on that rank; what is larger than any job can count is left out.
    `in_subgroup`: its rank in the group is not its global rank, so the group is not that of all ranks.
    """

    rank: int | None
    group: str
    seq: int | None
    op: str = ""
    numel_in: int | None = None
    numel_out: int | None = None
    limit_ms: int | None = None
    ran_ms: int | None = None
    enqueued: int | None = None
    completed: int | None = None
    in_subgroup: bool = False
    events: tuple[LogEvent, ...] = ()

    @property
    def is_barrier(self) -> bool:
        """Whether it is a barrier, which NCCL makes of an all-reduce of one element."""
        return self.op in _BARRIERS and (self.op == "BARRIER" or self.numel_in == 1)

    @property
    def keeps_cpu(self) -> bool:
        """Whether nothing was issued behind it: the program waits in this very call."""
        return self.enqueued is not None and self.seq is not None and self.enqueued == self.seq

    def __str__(self) -> str:
        size = f" of {self.numel_in} elements" if self.numel_in is not None else ""
        return f"{self.op or 'a call'}{f' #{self.seq}' if self.seq is not None else ''}{size}"


@dataclass(frozen=True)
class GroupCounters:
    """What one rank had issued and completed in one group."""

    rank: int
    group: str
    enqueued: int
    completed: int | None
    event: LogEvent


class Watchdogs:
    """All that the watchdogs said."""

    def __init__(self, events: Events) -> None:
        self._events = events

    @cached_property
    def timed_out(self) -> tuple[TimedOut, ...]:
        """Every wait that hit its limit, one per rank, group and call, in the order printed."""
        found: list[TimedOut] = []
        latest = -1
        for event in self._events.of(*_OF_WATCHDOGS, "store.unique_id", *_OF_LIBRARIES):
            wait = _wait_for_rank_0(event) if event.kind == "store.unique_id" else _wait_of(event)
            if wait is None or (event.kind == "watchdog.dump_signal" and not event["own"]):
                continue
            if event.kind in _OF_LIBRARIES and (event.rank is None or self._events.has("watchdog.")):
                continue  # it may be any rank's, or one of a group beside NCCL's
            if event.kind == "watchdog.work":  # the second half of a line that was broken
                if found and not found[latest].op and event.order - found[latest].events[-1].order <= _NEAR:
                    found[latest] = _merged(found[latest], wait)
                continue
            latest = next((i for i, known in enumerate(found) if _is_same(known, wait)), len(found))
            if latest == len(found):
                found.append(wait)
            else:
                found[latest] = _merged(found[latest], wait)
        return tuple(found)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that waited."""
        return tuple(sorted({w.rank for w in self.timed_out if w.rank is not None}))

    def all_but_0_of(self, world_size: int | None) -> bool:
        """Whether all ranks but 0 that are known of waited: of a large job, most of all."""
        return 2 * len(self.ranks) >= (world_size or 1) - 1 and {0, *self.ranks} == {*range(len(self.ranks) + 1)}

    @cached_property
    def seen(self) -> tuple[int, ...]:
        """Every rank of whose own calls the watchdog says anything: that it heard of the others' says nothing of them."""
        kinds = {e.kind for e in self._events.of("watchdog.")} - {"watchdog.observed"}
        return self._events.ranks(*kinds)

    @cached_property
    def only_observed(self) -> tuple[int, ...]:
        """The ranks whose watchdog heard of the others' waits, and had none of its own that ran out."""
        return tuple(r for r in self._events.ranks("watchdog.observed") if r not in self.seen)

    @cached_property
    def counters(self) -> tuple[GroupCounters, ...]:
        """The last counters of each rank and group."""
        found: dict[tuple[int, str], GroupCounters] = {}
        for event in self._events.of("watchdog.counters", "watchdog.counters_of", "watchdog.dump_signal"):
            enqueued, completed = _sane(event.number("enqueued")), _completed(event)
            if enqueued is None:
                continue
            own = _rank_of(event)
            ranks = _ranks_in([event["ranks"]]) or (() if own is None else (own,))
            for rank in ranks:
                found[rank, _group_of(event)] = GroupCounters(rank, _group_of(event), enqueued, completed, event)
        return tuple(found.values())

    @cached_property
    def positions(self) -> tuple[tuple[TimedOut, ...], ...]:
        """The waits of different ranks in the same call of the same group; of one rank the first wait counts.

        In a job with subgroups only waits whose group is told are compared. Without positions (torch before 2.0) all wait in the same one, if few differ or there are but two.
        """
        found: dict[tuple[str, int], dict[int, TimedOut]] = {}
        named = {w.group for w in self.timed_out if w.group}
        if not named and not self.has_subgroups and all(w.seq is None for w in self.timed_out):
            first = {w.rank: w for w in reversed(self.timed_out) if w.rank is not None}
            ops, seen = {rank: w.op for rank, w in first.items()}, {*first, *(e.rank for e in self._events)}
            is_told = bool(minority(ops)) or (len(set(ops.values())) > 1 and seen <= {None, 0, 1})
            return (tuple(first.values()),) if is_told else ()
        for wait in self.timed_out:
            if wait.seq is not None and wait.rank is not None and (wait.group or not self.has_subgroups):
                group = wait.group or (next(iter(named)) if len(named) == 1 else "")
                found.setdefault((group, wait.seq), {}).setdefault(wait.rank, wait)
        return tuple(tuple(waits.values()) for waits in found.values())

    @cached_property
    def has_subgroups(self) -> bool:
        """Whether somebody waited in a group of which not all ranks are members."""
        return any(w.in_subgroup for w in self.timed_out)

    @cached_property
    def first(self) -> LogEvent | None:
        """The first line that says that somebody waited too long."""
        return next((e for e in self._events if e.says == "hang"), None)

    @cached_property
    def behind(self) -> tuple[int, Sequence[GroupCounters], Sequence[GroupCounters]]:
        """(by how many calls, the ranks that are behind, the others) in the first group in which most agree; by 0 if none is."""
        for known in grouped((counters.group, counters) for counters in self.counters).values():
            (most, count), *_ = Counter(c.enqueued for c in known).most_common()
            late = [c for c in known if c.enqueued < most and c.completed in (None, c.enqueued)]
            if late and count > len(late) and count + len(late) == len(known):
                return most - max(c.enqueued for c in late), late, [c for c in known if c not in late]
        return 0, (), ()

    @cached_property
    def lagging(self) -> tuple[tuple[int, ...], tuple[LogEvent, ...]]:
        """The ranks that torch's own report names as behind, and its lines."""
        events = [e for e in self._events.of("desync.lagging") if e["ranks"]]
        return _ranks_in(e["ranks"] for e in events), tuple(events)


def _ranks_in(texts: Iterable[str]) -> tuple[int, ...]:
    return tuple(sorted({int(r) for text in texts for r in text.replace("/", ",").split(",") if r.strip().isdecimal()}))


def _sane(number: int | None) -> int | None:
    return number if number is not None and 0 <= number < MAX_COUNTER else None


def _completed(event: LogEvent) -> int | None:
    """The counter of completed calls, which some versions print before it was ever set."""
    completed, enqueued = _sane(event.number("completed")), event.number("enqueued")
    return completed if completed is not None and (enqueued is None or completed <= enqueued) else None


def _group_of(event: LogEvent) -> str:
    """The name that all ranks know the group by; the default group where none is told."""
    if event["desc"] == "default_pg" or event["pg_id"] == "0":
        return "0"
    return event["guid"] or (f"#{event['pg_id']}" if event["pg_id"] else "")


def _rank_of(event: LogEvent) -> int | None:
    """The global rank: the prefix tells it; without one the rank in the group, which is global in the default group."""
    if event.rank is not None:
        return event.rank
    is_default = event["pg_id"] in ("", "0") or event["desc"] == "default_pg"
    return event.number("group_rank") if is_default else None


def _numel_of(event: LogEvent) -> int | None:
    """How many elements a rank brought; older versions tell the shape instead, `[]` of a single number."""
    if event["shape"]:
        sizes = event["shape"].strip("[]").split(",")
        return math.prod(int(n) for n in sizes if n.strip().isdecimal() and len(n) <= MAX_DIGITS)
    return event.number("numel_in")


def _wait_of(event: LogEvent) -> TimedOut:
    seq = event.number("seq")
    return TimedOut(
        rank=_rank_of(event),
        group=_group_of(event),
        seq=_sane(seq if seq is not None else event.number("seq_")),
        op=event["op"],
        numel_in=_numel_of(event),
        numel_out=event.number("numel_out"),
        limit_ms=event.number("limit_ms"),
        ran_ms=event.number("ran_ms"),
        enqueued=_sane(event.number("enqueued")),
        completed=_completed(event),
        in_subgroup=event.rank is not None and event.number("group_rank") not in (None, event.rank),
        events=(event,),
    )


def _wait_for_rank_0(event: LogEvent) -> TimedOut | None:
    """The first call of a group does not get further than to the store, where rank 0 has left nothing within the limit."""
    limit = _WAITED_FOR.search(event["reason"])
    rank = event.rank if event.rank is not None else event.number("rank")
    return (
        TimedOut(rank, "", None, limit_ms=int(limit[1]), events=(event,))
        if limit and event["from_rank"] == "0"
        else None
    )


def _is_same(known: TimedOut, other: TimedOut) -> bool:
    """Whether two lines speak of one wait: the line on the timeout does not tell the group, those on the counters do."""
    is_one = known.seq == other.seq or None in (known.seq, other.seq)
    parts = ((known.group, other.group), (known.op, other.op))
    return known.rank == other.rank and is_one and all(a == b or not a or not b for a, b in parts)


def _merged(known: TimedOut, other: TimedOut) -> TimedOut:
    names = ("group", "seq", "op", "numel_in", "numel_out", "limit_ms", "ran_ms", "enqueued", "completed")
    more: dict[str, Any] = {n: getattr(other, n) for n in names if getattr(known, n) in (None, "")}
    subgroup = known.in_subgroup or other.in_subgroup
    return replace(known, events=(*known.events, *other.events), in_subgroup=subgroup, **more)


def are_far_apart(sizes: Iterable[int]) -> bool:
    """Whether tensors of these sizes are different ones (buckets, shards, buffers) rather than one whose size varies."""
    known = sorted(set(sizes))
    return len(known) > 1 and known[-1] >= BUCKET_ELEMENTS and known[-1] >= _FAR * max(1, known[0])


def minority(values: Mapping[int, object]) -> tuple[int, ...]:
    """The ranks whose value is not the one of a strict majority; none where there is no majority."""
    counts = Counter(values.values())
    if len(counts) < 2:
        return ()
    (common, most), *_ = counts.most_common()
    if most < 2 or most * 2 <= len(values):
        return ()
    return tuple(sorted(rank for rank, value in values.items() if value != common))


def beside_the_step(calls: Mapping[int, tuple[str, int | None]]) -> tuple[int, ...]:
    """The ranks in a small call, where all others reduce a bucket of gradients or gather parameters: they have left the step, or skipped its backward.

    `calls`: operation and number of elements of each rank. A root of a broadcast may lead; nobody may in a reduction of all.
    """
    in_step = {r for r, (op, n) in calls.items() if op in _IN_STEP and n is not None and n >= BUCKET_ELEMENTS}
    beside = {r for r, (_, n) in calls.items() if n is not None and n <= _OF_CONTROL}
    return tuple(sorted(beside)) if in_step and beside and len(in_step) + len(beside) == len(calls) else ()


def lines_of(waits: Sequence[TimedOut]) -> tuple[LogEvent, ...]:
    """The first line of each wait."""
    return tuple(w.events[0] for w in waits)


_PRINTS = ("fingerprint.mismatch", "fingerprint.short", "fingerprint.wrapped", "fingerprint.wrapped_shape")
_NEXT_LINES = 2  # a fingerprint that is printed in two lines
_HEX, _MOST_DIGITS = 16, 15


class Fingerprint(NamedTuple):
    """The call of one rank. `shape` is empty where the call has no tensor or the line does not tell it."""

    rank: int
    op: str
    seq: int | None
    shape: tuple[int, ...]
    dtype: str
    event: LogEvent

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape))
        return f"{self.op}{f'[{size}]' if self.shape else ''}{f' {self.dtype}' if self.dtype else ''}"


def fingerprints(events: Events) -> Mapping[int, Fingerprint]:
    """The first fingerprint of each rank; of a rank that only another one quotes, the quoted one."""
    own, quoted = dict[int, Fingerprint](), dict[int, Fingerprint]()
    wrapped: LogEvent | None = None
    for event in events.of(*_PRINTS):
        if event.kind == "fingerprint.wrapped":
            wrapped = event
        elif event.kind == "fingerprint.wrapped_shape":
            if wrapped is not None and wrapped.rank is not None and event.order - wrapped.order <= _NEXT_LINES:
                own[wrapped.rank] = _of(wrapped, wrapped.rank, event)
        else:
            if event.rank is not None:
                own.setdefault(event.rank, _of(event, event.rank, event))
            if (other := event.number("other_rank")) is not None:
                quoted.setdefault(other, _of(event, other, event, "other_"))
    return {**quoted, **own}


def _of(event: LogEvent, rank: int, tensor: LogEvent, side: str = "") -> Fingerprint:
    sizes = tuple(int(n) for n in tensor[f"{side}shape"].split(",") if n.strip().isdecimal())
    return Fingerprint(rank, event[f"{side}op"], event.number(f"{side}seq"), sizes, tensor[f"{side}dtype"], event)


def what_differs(found: Mapping[int, Fingerprint]) -> str:
    """Whether prints differ in their `calls`, else in how many `counts` came before, else in their `tensors`; `alone` where there is one."""
    ops, counts = {f.op for f in found.values()}, {f.seq for f in found.values()}
    if len(found) == 1:
        return "alone"
    return "calls" if len(ops) > 1 else "counts" if len(counts) > 1 and None not in counts else "tensors"


class TracedCall(NamedTuple):
    """One call of one rank in NCCL's trace (NCCL_DEBUG_SUBSYS=COLL). `who` is the rank, or the host and the number of the device where the rank is not told."""

    who: int | tuple[str, str]
    op: str
    numel: int
    dtype: str
    position: int
    event: LogEvent

    @property
    def name(self) -> str:
        """The rank or the device, for a sentence."""
        return f"rank {self.who}" if isinstance(self.who, int) else f"device {self.who[1]}"

    def __str__(self) -> str:
        return f"{self.op} of {self.numel} elements"


def first_disagreement(events: Events) -> tuple[TracedCall, ...]:
    """The calls of all ranks at the first position at which they are not the same call; empty where they agree.

    Only the largest communicator is judged, and only ranks with one communicator of its size: of several of one size the trace
    does not tell which belong together.
    """
    traced = [e for e in events.of("ncclcall.traced") if len(e["position"]) <= _MOST_DIGITS]
    size = max((e.number("size") or 0 for e in traced), default=0)
    comms: dict[Hashable, set[str]] = {}
    calls: dict[int, dict[Hashable, TracedCall]] = {}
    for event in traced:
        if event.number("size") == size:
            call = _traced(event)
            comms.setdefault(call.who, set()).add(event["comm"])
            calls.setdefault(call.position, {}).setdefault(call.who, call)
    sure = {who for who, found in comms.items() if len(found) == 1}
    for _, at in sorted(calls.items()):
        known = tuple(call for who, call in at.items() if who in sure)
        if len({(c.op, c.numel, c.dtype) for c in known}) > 1:
            return known
    return ()


def values_of(calls: tuple[TracedCall, ...]) -> Mapping[int, object]:
    """What each rank called; empty unless all of them are known by rank."""
    known = {c.who: (c.op, c.numel, c.dtype) for c in calls if isinstance(c.who, int)}
    return known if len(known) == len(calls) else {}


def _traced(event: LogEvent) -> TracedCall:
    who = event.rank if event.rank is not None else (event.host, event["device"])
    return TracedCall(who, event["op"], event.number("numel") or 0, event["dtype"], int(event["position"], _HEX), event)
