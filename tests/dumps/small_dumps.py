"""Hand-made flight-recorder dumps, written as nccl writes them (schema 2.10), from a short notation.

    job({0: [call("all_reduce"), call("all_reduce", state=STARTED)], 1: [call("all_reduce")]}).write(folder)

is a job of two ranks in which rank 1 never made its second call. A call without a state has completed.
"""

from __future__ import annotations

import os
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

SCHEDULED, STARTED, COMPLETED = "scheduled", "started", "completed"
WORLD = "default_pg"
BEGAN_NS = 1_795_000_000_000_000_000
STEP_NS, LASTS_NS = 10_000_000, 1_000_000
HANGS_S, LIVE_S = 600.0, 0.005
TIMEOUT_MS = 600_000

Dump = dict[str, Any]
Sizes = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Call:
    """One call of one rank. `op` of a point-to-point call names the ranks within the group: `send 0->1`, `recv 1<-0`.

    `joins`: belongs to the same coalesced batch as the call before it, and has its sequence number.
    """

    op: str
    in_sizes: Sizes
    out_sizes: Sizes
    group: str
    state: str
    line: int
    dtype: str
    is_p2p: bool
    joins: bool = False


def call(
    op: str,
    in_size: Sequence[int] = (8,),
    out_size: Sequence[int] | None = None,
    *,
    group: str = WORLD,
    state: str = COMPLETED,
    line: int = 10,
    dtype: str = "Float",
) -> Call:
    """A call with one tensor in and one out; they are alike unless told otherwise."""
    is_p2p = op.startswith(("send ", "recv "))
    return Call(op, [in_size], [in_size if out_size is None else out_size], group, state, line, dtype, is_p2p)


def batch(*calls: Call) -> list[Call]:
    """A coalesced batch (`batch_isend_irecv`): its members, then the entry that stands for all of them."""
    first, *others = calls
    last = replace(first, op="coalesced", in_sizes=[], out_sizes=[], joins=True)
    return [first, *(replace(c, joins=True) for c in others), last]


@dataclass(frozen=True)
class SmallJob:
    """Calls per rank, and the groups; the first group is the world. `ring`: entries that the ring buffer holds.

    `only_open`: the dumps hold only calls that have not completed. `quiet_s`: from the last event to the dump.
    """

    calls: Mapping[int, Sequence[Call]]
    groups: Mapping[str, Sequence[int]]
    ring: int = 2000
    only_open: bool = False
    quiet_s: float = HANGS_S
    changes: Mapping[int, Callable[[Dump], Any]] = field(default_factory=dict)

    def dump(self, rank: int) -> Dump:
        """The dump of one rank."""
        mine = [name for name, members in self.groups.items() if rank in members]
        placed = _placed(self.calls[rank])
        entries = [_entry(p, self._number(p.call.group), self._met_ns[p.meeting]) for p in placed]
        status = {str(self._number(name)): _status(entries, self._name(name)) for name in mine}
        kept = [e for e in entries if e["state"] != COMPLETED] if self.only_open else entries[-self.ring :]
        return {
            "version": "2.10",
            "pg_config": {
                self._name(g): {"name": self._name(g), "desc": g, "ranks": str(list(self.groups[g]))} for g in mine
            },
            "comm_lib_version": "2.29.7",
            "pg_status": status,
            "entries": kept,
        }

    def write(self, folder: Path, leave_out: Iterable[int] = ()) -> Path:
        """Writes the dumps under torch's names, with the time of the dump as their modification time."""
        folder.mkdir(parents=True, exist_ok=True)
        written_ns = self._last_ns() + int(self.quiet_s * 1e9)
        for rank in sorted(set(self.calls) - set(leave_out)):
            dump = self.changes.get(rank, _unchanged)(self.dump(rank))
            path = folder / f"nccl_trace_rank_{rank}"
            path.write_bytes(dump if isinstance(dump, bytes) else pickle.dumps(dump, protocol=2))
            os.utime(path, ns=(written_ns, written_ns))
        return folder

    def _number(self, group: str) -> int:
        return list(self.groups).index(group)

    def _name(self, group: str) -> str:
        return str(self._number(group))

    def _last_ns(self) -> int:
        times = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
        return max(e[t] or 0 for r in self.calls for e in self.dump(r)["entries"] for t in times)

    @cached_property
    def _met_ns(self) -> Mapping[tuple[object, ...], int]:
        """When the last partner of each call came."""
        met: dict[tuple[object, ...], int] = {}
        for placed in (p for rank in self.calls for p in _placed(self.calls[rank])):
            met[placed.meeting] = max(met.get(placed.meeting, 0), placed.created_ns)
        return met


def job(
    calls: Mapping[int, Sequence[Call]], groups: Mapping[str, Sequence[int]] | None = None, **more: Any
) -> SmallJob:
    """A job whose world is all ranks that have calls; `groups` names the others."""
    return SmallJob(calls, {WORLD: tuple(sorted(calls)), **(groups or {})}, **more)


def everybody(world: int, calls: Sequence[Call], **more: Any) -> SmallJob:
    """A job whose ranks all make the same calls."""
    return job(dict.fromkeys(range(world), calls), **more)


def _unchanged(dump: Dump) -> Dump:
    return dump


@dataclass(frozen=True)
class _Placed:
    """A call at its place within its rank. `meeting` is equal for the calls that complete each other."""

    call: Call
    number: int
    collective_seq: int
    p2p_seq: int
    meeting: tuple[object, ...]

    @property
    def created_ns(self) -> int:
        return BEGAN_NS + self.number * STEP_NS


def _placed(calls: Sequence[Call]) -> list[_Placed]:
    counts: Counter[tuple[object, ...]] = Counter()
    placed = []
    for number, c in enumerate(calls):
        counts[c.group, c.is_p2p] += not c.joins
        collective_seq, p2p_seq = counts[c.group, False], counts[c.group, True]
        meeting: tuple[object, ...] = (c.group, collective_seq, c.op)
        if c.is_p2p:
            kind, *pair = re.split(r" |->|<-", c.op)
            ends = tuple(pair if kind == "send" else reversed(pair))
            counts[c.group, kind, ends] += 1
            meeting = (c.group, ends, counts[c.group, kind, ends])
        placed.append(_Placed(c, number, collective_seq, p2p_seq, meeting))
    return placed


def _entry(p: _Placed, group: int, met_ns: int) -> Dump:
    c, created_ns = p.call, p.created_ns
    return {
        "frames": [
            {
                "name": c.op.split(" ")[0],
                "filename": "/x/site-packages/torch/distributed/distributed_c10d.py",
                "line": 99,
            },
            {"name": "train", "filename": "/home/me/train.py", "line": c.line},
        ],
        "record_id": p.number,
        "pg_id": group,
        "process_group": (str(group), c.group),
        "thread_name": "pt_main_thread",
        "thread_id": "139664455928704",
        "collective_seq_id": p.collective_seq,
        "p2p_seq_id": p.p2p_seq,
        "op_id": p.number + 1,
        "profiling_name": f"nccl:{c.op}",
        "time_created_ns": created_ns,
        "input_sizes": [list(s) for s in c.in_sizes],
        "input_dtypes": [c.dtype] * len(c.in_sizes),
        "output_sizes": [list(s) for s in c.out_sizes],
        "output_dtypes": [c.dtype] * len(c.out_sizes),
        "state": c.state,
        "time_discovered_started_ns": None if c.state == SCHEDULED else created_ns + LASTS_NS,
        "time_discovered_completed_ns": met_ns + 2 * LASTS_NS if c.state == COMPLETED else None,
        "retired": c.state == COMPLETED,
        "timeout_ms": TIMEOUT_MS,
        "is_p2p": c.is_p2p,
    }


def _status(entries: Sequence[Dump], name: str) -> dict[str, int]:
    """What the rank says of one group: the last call that it enqueued, started and completed, -1 where none."""
    of_group = [e for e in entries if e["process_group"][0] == name]
    seqs = {
        "last_enqueued_collective": (SCHEDULED, STARTED, COMPLETED),
        "last_started_collective": (STARTED, COMPLETED),
        "last_completed_collective": (COMPLETED,),
    }
    return {
        key: max((e["collective_seq_id"] for e in of_group if e["state"] in states and not e["is_p2p"]), default=-1)
        for key, states in seqs.items()
    }
