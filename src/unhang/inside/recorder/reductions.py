"""What torch's flight recorder does not keep of a collective: by which operation it reduces, and its root. Kept in memory, written beside each dump."""

from __future__ import annotations

import json
import time
from collections import deque
from typing import Any

from .recording import Recording, write_whole

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
