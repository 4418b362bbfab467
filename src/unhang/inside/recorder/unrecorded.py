"""What torch's flight recorder does not keep: of a collective, by which operation it reduces and its root; of a torch up to 2.7, the calls of gloo.

The former is kept in memory, and written beside each dump. Of the latter those are told in which threads stand, each whole or not at all: the
operation and its tensor by the frame of torch that waits, the number by the group's own count.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from types import FrameType
from typing import Any

from . import page
from .frames import _OWN
from .recording import Recording, attempt, write_whole

# As many calls as the flight recorder keeps where nobody says otherwise.
_MOST = 2048
_BY_OP = frozenset(("AllreduceOptions", "AllreduceCoalescedOptions", "ReduceScatterOptions"))
_BY_ROOT = frozenset(("BroadcastOptions", "GatherOptions", "ScatterOptions"))
# [begin, end (0 while it is made), group, operation, root]: the calls that torch records in between are this one's.
Row = list[Any]
_rows: deque[Row] = deque(maxlen=_MOST)


def begin(group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Row | None:
    """Note a call of a method of a group, which takes its options last; None where there are none. Two microseconds."""
    options = kwargs.get("opts") or args[-1]
    kind = type(options).__name__
    op = root = -1
    if kind in _BY_OP:
        op = int(options.reduceOp.op)
    elif kind in _BY_ROOT:
        root = options.rootRank
    elif kind == "ReduceOptions":
        op, root = int(options.reduceOp.op), options.rootRank
    else:
        return None
    row = [time.time_ns(), 0, group.group_name, op, root]
    _rows.append(row)
    return row


def end(row: Row | None) -> None:
    """The method has returned: what torch recorded of it, it has recorded."""
    if row is not None:
        row[1] = time.time_ns()


def write(rec: Recording) -> None:
    """Write reductions.json, if there are any."""
    rows = list(_rows)
    if rows:
        write_whole(rec.path("reductions.json"), json.dumps(rows).encode())


def forget_in_child() -> None:
    """After a fork: the calls were the parent's."""
    _rows.clear()


_OPS = frozenset((
    "all_reduce", "broadcast", "barrier", "all_gather", "gather", "scatter", "reduce", "all_to_all", "all_to_all_single", "reduce_scatter",
    "all_gather_into_tensor", "reduce_scatter_tensor",
))  # fmt: skip
_WITH_ONE_TENSOR = ("all_reduce", "broadcast", "reduce")
# These move a gloo group's count, too, and not alike on all ranks.
_COUNTED_APART = (page.SEND, page.RECV, page.ISEND, page.IRECV, page.MONITORED_BARRIER)
_DTYPES = {
    "float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long", "int32": "Int", "int16": "Short",
    "int8": "Char", "uint8": "Byte", "bool": "Bool",
}  # fmt: skip
_DEEPEST = 60
# Of each group the number last seen, and when first: a second look at the same wait gives the same bytes.
_since: dict[str, tuple[int, int]] = {}


def standing_calls(rec: Recording) -> dict[str, Any]:
    """What a dump of the flight recorder would hold of them; empty where a group's count says nothing, or two threads are in one group."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    frames = [f for ident, f in sys._current_frames().items() if ident != threading.get_ident()]
    found: dict[str, Any] = {}
    for frame in frames if c10d is not None else ():
        at = _waiting_frame(frame)
        entry = attempt("calls of gloo", _entry, rec, c10d, at) if at is not None else None
        if entry is not None:
            if entry["process_group"][0] in found:
                return {}
            found[entry["process_group"][0]] = entry
    config = {
        str(e["pg_id"]): {"name": name, "desc": e["process_group"][1], "ranks": e.pop("ranks")}
        for name, e in found.items()
    }
    return {"version": "2.4", "pg_config": config, "pg_status": {}, "entries": list(found.values())} if found else {}


def _waiting_frame(frame: FrameType | None) -> FrameType | None:
    """The frame of a collective that has given its work to the group and waits for it; below it only the wait itself."""
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.endswith("torch/distributed/distributed_c10d.py"):
        return None
    is_given = frame.f_code.co_name in _OPS and frame.f_locals.get("work") is not None
    return frame if is_given else None


def _entry(rec: Recording, c10d: Any, at: FrameType) -> dict[str, Any] | None:
    """One entry; None where the group is not gloo's alone, or its count is moved by other calls."""
    given = at.f_locals
    group = given.get("group") or c10d.GroupMember.WORLD
    name = str(c10d._world.pg_names.get(group, ""))
    if not name or str(c10d._world.pg_map[group][0]) != "gloo" or any((k, name) in rec.counts for k in _COUNTED_APART):
        return None
    op, seq = at.f_code.co_name, int(group._get_sequence_number_for_group())
    if _since.get(name, (0, 0))[0] != seq:
        _since[name] = (seq, time.time_ns())
    tensor = given.get("tensor") if op in _WITH_ONE_TENSOR else None
    sizes = [list(tensor.shape)] if tensor is not None else []
    dtypes = [_DTYPES.get(str(tensor.dtype).rpartition(".")[2], str(tensor.dtype))] if tensor is not None else []
    return {
        "record_id": seq - 1,
        "pg_id": list(c10d._world.pg_names).index(group),
        "process_group": (name, str(getattr(group, "group_desc", "") or "")),
        "ranks": str(c10d.get_process_group_ranks(group)),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"gloo:{op}",
        "time_created_ns": _since[name][1],
        "input_sizes": sizes, "input_dtypes": dtypes, "output_sizes": sizes, "output_dtypes": dtypes,
        "state": "scheduled",
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 0,
        "is_p2p": False,
        "frames": list(_frames(at)),
    }  # fmt: skip


def _frames(at: FrameType | None) -> Iterator[dict[str, Any]]:
    depth = _DEEPEST
    while at is not None and depth:
        yield {"name": at.f_code.co_name, "filename": at.f_code.co_filename, "line": at.f_lineno}
        at, depth = at.f_back, depth - 1
