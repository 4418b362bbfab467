"""The fields of an entry, in torch's order, as each version of the schema has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dumpgen.encode import FrameDict, Slot, Token, tokens_of
from dumpgen.rows import Row
from dumpgen.schedule import CodeFrame, Part

VERSION = "2.10"
_SINCE = {  # fields that older versions lack
    "2.1": ("timeout_ms", "is_p2p"),
    "2.2": ("input_dtypes", "output_dtypes"),
    "2.4": ("pg_config", "pg_status"),
    "2.9": ("thread_name", "thread_id"),
}


@dataclass(frozen=True)
class Recording:
    """How the ranks record: schema, what is timed, how much the ring buffer holds, and what is dumped of it.

    `lists_world`: torch writes all ranks of the world into each dump, which makes dumps grow with the square of the ranks.
    """

    version: str = VERSION
    backend: str = "nccl"
    timing: bool = False
    ring: int = 2000
    only_active: bool = False
    has_frames: bool = True
    timeout_ms: int = 600_000
    lists_world: bool = True


def fields_of(row: Row, pg_id: int, recording: Recording) -> Mapping[str, Any]:
    """An entry of a row, with slots for what differs between the entries of that row."""
    step = row.step
    return _fields(row.part, step.frames, step.thread, step.is_p2p, pg_id, recording)


def entry_tokens(row: Row, pg_id: int, recording: Recording) -> tuple[Token, ...]:
    """The same, flattened."""
    step = row.step
    return _tokens(row.part, step.frames, step.thread, step.is_p2p, pg_id, recording)


@lru_cache(maxsize=1 << 14)
def _tokens(*key: Any) -> tuple[Token, ...]:
    return tuple(tokens_of(_fields(*key)))


@lru_cache(maxsize=1 << 14)
def _fields(
    part: Part, frames: tuple[CodeFrame, ...], thread: str, is_p2p: bool, pg_id: int, recording: Recording
) -> Mapping[str, Any]:
    tensors = [[] if part.op == "barrier" else [list(s) for s in sizes] for sizes in (part.in_sizes, part.out_sizes)]
    fields: dict[str, Any] = {"frames": _frames(frames)} if recording.has_frames else {}
    fields |= {
        "record_id": Slot.RECORD_ID,
        "pg_id": pg_id,
        "process_group": (Slot.GROUP, Slot.DESC),
        "thread_name": thread,
        "thread_id": "139664455928704",
        "collective_seq_id": Slot.COLLECTIVE_SEQ,
        "p2p_seq_id": Slot.P2P_SEQ,
        "op_id": Slot.OP_ID,
        "profiling_name": Slot.PROFILE,
        "time_created_ns": Slot.CREATED,
        "input_sizes": tensors[0],
        "input_dtypes": [part.dtype] * len(tensors[0]),
        "output_sizes": tensors[1],
        "output_dtypes": [part.dtype] * len(tensors[1]),
        "state": Slot.STATE,
        "time_discovered_started_ns": Slot.STARTED,
        "time_discovered_completed_ns": Slot.COMPLETED,
        "retired": Slot.RETIRED,
        "timeout_ms": recording.timeout_ms,
        "is_p2p": is_p2p,
    }
    return as_of_version(fields, recording.version)


def as_of_version(fields: dict[str, Any], version: str) -> dict[str, Any]:
    """What a version of the schema has of these fields."""
    lacking = _lacking(version)
    return {k: v for k, v in fields.items() if k not in lacking} if lacking else fields


@lru_cache
def _lacking(version: str) -> frozenset[str]:
    return frozenset(name for since, names in _SINCE.items() if is_older(version, since) for name in names)


def is_older(version: str, than: str) -> bool:
    """Whether a version of the schema is older than another."""
    return [*map(int, version.split("."))] < [*map(int, than.split("."))]


def filled(fields: Mapping[str, Any], values: Sequence[object]) -> dict[str, Any]:
    """An entry with its slots filled in."""
    names = (values[Slot.GROUP], values[Slot.DESC])
    return {k: values[v] if type(v) is Slot else names if k == "process_group" else v for k, v in fields.items()}


@lru_cache(maxsize=4096)
def _frames(frames: tuple[CodeFrame, ...]) -> list[FrameDict]:
    return [FrameDict(f) for f in frames]
