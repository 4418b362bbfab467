"""reductions.json: by which operation a rank reduced in its collectives, and with which root. The flight recorder keeps neither."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from unhang.model import REDUCE_OPS
from unhang.read.files import read_list

if TYPE_CHECKING:
    from unhang.read.dumps.entries import RecordedCall

_MOST, _MOST_AT_ONCE, _FOREVER = 1 << 16, 64, 1 << 63
_WITH_ROOT = ("broadcast", "reduce", "gather", "scatter")


class Reduction(NamedTuple):
    """One call of the program, from its begin to its end, with the operation and the root in the group; -1 where it has none."""

    begin_ns: int
    end_ns: int
    group: str
    reduce_op: int
    root: int


def read_reductions(path: Path) -> tuple[Reduction, ...]:
    """The calls by their begin. One that had not returned has no end.

    Raises:
        UnreadableInput: it is no such list.
    """
    found = []
    for row in read_list(path, "a list of calls")[-_MOST:]:
        if isinstance(row, list) and len(row) == 5 and isinstance(row[2], str):
            begin, end, op, root = row[0], row[1], row[3], row[4]
            if all(type(n) is int and -1 <= n < _FOREVER for n in (begin, end, op, root)):
                found.append(Reduction(begin, end or _FOREVER, row[2], op if op < len(REDUCE_OPS) else -1, root))
    return tuple(sorted(found))


def name_reductions(calls: Sequence[RecordedCall], given: Sequence[Reduction]) -> None:
    """Gives calls that were recorded while just one call of the program was being made in their group what that one was given."""
    begins = [r.begin_ns for r in given]
    for call in calls if given else ():
        at = bisect_right(begins, call.created_ns)
        around = [
            r for r in given[max(0, at - _MOST_AT_ONCE) : at] if call.created_ns <= r.end_ns and r.group == call.group
        ]
        if len(around) != 1 or call.is_p2p:
            continue
        if "reduce" in call.op:
            call.reduce_op = around[0].reduce_op
        if call.op in _WITH_ROOT:
            call.root_in_group = around[0].root
