"""Synthetic flight-recorder dumps as nccl writes them, one builder for all versions."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Mapping
from typing import Any

from unhang.model import ProcessGroup, TableBuilder, Unavailable
from unhang.read.dumps.objects import RecordedCalls, add_calls, lost_entries

# The version that added a field; older dumps lack it.
ADDED = {
    "collective_seq_id": 1,
    "p2p_seq_id": 1,
    "pg_status": 2,
    "is_p2p": 3,
    "timeout_ms": 3,
    "input_dtypes": 3,
    "output_dtypes": 3,
    "process_group": 2,
    "thread_id": 5,
    "thread_name": 5,
}
FRAMES = [
    {"name": "all_reduce", "filename": "/x/site-packages/torch/distributed/distributed_c10d.py", "line": 3245},
    {"name": "step", "filename": "/home/me/train.py", "line": 12},
    {"name": "<module>", "filename": "/home/me/train.py", "line": 40},
]


def entry(number: int, name: str = "nccl:all_reduce", minor: int = 10, **changes: Any) -> dict[str, Any]:
    """One entry; `changes` replaces fields, None of a change to `...` removes the field."""
    made: dict[str, Any] = {
        "frames": FRAMES,
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "pt_main_thread",
        "thread_id": "139664455928704",
        "collective_seq_id": number + 1,
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": name,
        "time_created_ns": 1_795_000_000_000_000_000 + number,
        "input_sizes": [[4, 3]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4, 3]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": 1_795_000_000_000_000_100 + number,
        "time_discovered_completed_ns": 1_795_000_000_000_000_200 + number,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }
    for key, since in ADDED.items():
        if minor < since:
            made.pop(key, None)
    if minor < 1:
        made["seq_id"] = number + 1
    made.update(changes)
    return {key: value for key, value in made.items() if value is not ...}


def dump(entries: list[Any], minor: int = 10, ranks: object = "[0, 1]", **more: Any) -> dict[str, Any]:
    """A dump around entries."""
    made = {
        "version": f"2.{minor}",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": {
            "0": {"last_enqueued_collective": 3, "last_started_collective": 3, "last_completed_collective": 2}
        },
        "entries": entries,
    }
    return {**made, **more}


def pickled(made: object) -> bytes:
    return pickle.dumps(made, protocol=2)


def as_json(made: dict[str, Any]) -> bytes:
    """As the JSON writer does: no frames, 0 for an unknown time, numbers of pg_status as strings."""
    entries = [
        {k: (0 if v is None and k.startswith("time_") else v) for k, v in e.items() if k != "frames"}
        for e in made["entries"]
    ]
    status = {g: {k: str(v) for k, v in s.items()} for g, s in made.get("pg_status", {}).items()}
    return json.dumps({**made, "entries": entries, "pg_status": status, "nccl_comm_state": {}}).encode()


def doubling_key() -> bytes:
    """A dictionary whose key is a tuple of sixty doublings: its hash takes 2**60 steps."""
    build = b"".join(b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) + b"0" for i in range(60))
    return b"\x80\x02)q\x000" + build + b"}h" + bytes([60]) + b"K\x01s."


BOMBS = {
    "text of 2 GiB": b"\x80\x02X\xff\xff\xff\x7f",
    "bytes of 1.5 GiB": b"\x80\x03B\x00\x00\x00\x60",
    "bytes of 8 EiB": b"\x80\x04\x8e" + struct.pack("<Q", (1 << 63) - 1),
    "bytearray of 1.5 GiB": b"\x80\x05\x96" + struct.pack("<Q", 3 << 29) + b".",
    "memo of 32 GiB": b"\x80\x02]r\xff\xff\xff\xff.",
    "memo of 1.5 GiB": b"\x80\x02]r\xff\xff\xff\x05.",
    "frame of 1.5 GiB": b"\x80\x04\x95" + struct.pack("<Q", 3 << 29),
    "number of 1.5 GiB": b"\x80\x02\x8b\x00\x00\x00\x60",
    "a million open lists": b"\x80\x02" + b"(" * 1_000_000,
    "a million lists": b"\x80\x02" + b"]" * 1_000_000,
    "deep nesting": b"\x80\x02" + b"](" * 200_000 + b"e" * 200_000 + b".",
    "global": b"\x80\x02cos\nsystem\n(X\x0b\x00\x00\x00touch hackedtR.",
    "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0btouch hacked\x85R.",
    "instance": b"(S'touch hacked'\nios\nsystem\n.",
    "persistent id": b"\x80\x02X\x01\x00\x00\x00xQ.",
    "extension": b"\x80\x02\x82\x01.",
    "build": b"\x80\x02]}X\x01\x00\x00\x00aK\x01sb.",
    "empty": b"",
    "zeros": b"\0" * 100_000,
    "random": bytes((i * 7919 + 13) % 251 for i in range(5000)),
}


def add_to_table(
    made: Mapping[str, Any], rank: int, builder: TableBuilder, membership: Mapping[str, ProcessGroup] | None = None
) -> tuple[Unavailable, ...]:
    """Adds the calls of a loaded dump; returns what of it was lost. `membership` wins over what the dump says."""
    recorded = RecordedCalls(made, f"dump of rank {rank}")
    add_calls(recorded.calls, rank, builder, {**recorded.groups, **(membership or {})})
    if recorded.wrapped:
        builder.mark_wrapped(rank)
    return lost_entries(recorded, rank)
