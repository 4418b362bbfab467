"""What the ranks were about to call, as torch's debug mode DETAIL prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unhang.analyze.event_index import Events
from unhang.model import LogEvent

_NEAR = 2


@dataclass(frozen=True)
class Fingerprint:
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
    told: dict[int, Fingerprint] = {}
    quoted: dict[int, Fingerprint] = {}
    wrapped: LogEvent | None = None
    for event in events.of("fingerprint."):
        if event.kind == "fingerprint.nccl":
            continue
        if event.kind == "fingerprint.wrapped":
            wrapped = event
        elif event.kind == "fingerprint.wrapped_shape":
            if wrapped is not None and wrapped.rank is not None and event.order - wrapped.order <= _NEAR:
                told[wrapped.rank] = _of(wrapped, wrapped.rank, wrapped["op"], event["shape"], event["dtype"])
            wrapped = None
        else:
            if event.rank is not None:
                told.setdefault(event.rank, _of(event, event.rank, event["op"], event["shape"], event["dtype"]))
            other = event.number("other_rank")
            if other is not None:
                quoted.setdefault(
                    other, _of(event, other, event["other_op"], event["other_shape"], event["other_dtype"])
                )
    return {**quoted, **told}


def _of(event: LogEvent, rank: int, op: str, shape: str, dtype: str) -> Fingerprint:
    sizes = tuple(int(n) for n in shape.split(",") if n.strip().isdecimal())
    return Fingerprint(rank, op, event.number("seq"), sizes, dtype, event)
