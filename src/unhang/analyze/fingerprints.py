"""What the ranks were about to call, as torch's debug mode DETAIL and NCCL's trace print it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from unhang.analyze.event_index import Events
from unhang.model import LogEvent

_NEAR = 2
_HEX = 16
_MOST_DIGITS = 15


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
    own: dict[int, Fingerprint] = {}
    quoted: dict[int, Fingerprint] = {}
    wrapped: LogEvent | None = None
    for event in events.of("fingerprint."):
        if event.kind in ("fingerprint.nccl", "fingerprint.nccl_suspects"):
            continue
        if event.kind == "fingerprint.wrapped":
            wrapped = event
        elif event.kind == "fingerprint.wrapped_shape":
            if wrapped is not None and wrapped.rank is not None and event.order - wrapped.order <= _NEAR:
                own[wrapped.rank] = _of(wrapped, wrapped.rank, wrapped["op"], event["shape"], event["dtype"])
            wrapped = None
        else:
            if event.rank is not None:
                own.setdefault(event.rank, _of(event, event.rank, event["op"], event["shape"], event["dtype"]))
            other = event.number("other_rank")
            if other is not None:
                quoted.setdefault(
                    other, _of(event, other, event["other_op"], event["other_shape"], event["other_dtype"])
                )
    return {**quoted, **own}


def _of(event: LogEvent, rank: int, op: str, shape: str, dtype: str) -> Fingerprint:
    sizes = tuple(int(n) for n in shape.split(",") if n.strip().isdecimal())
    return Fingerprint(rank, op, event.number("seq"), sizes, dtype, event)


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
