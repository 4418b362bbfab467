"""Dumps of open calls alone, written from the counters of each rank: what a real job on NCCL mostly leaves.

    counted({"D": (0, 2)}, {0: {"D": (41, 40)}, 2: {"D": (40, 40)}}).write(folder)

Rank 0 has enqueued 41 calls of D and completed 40, so call 41 is open; rank 2 never issued it.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unhang.diagnosis import judge_paths
from unhang.model import Diagnosis
from unhang.read.dumps.reader import DumpReader

BEGAN_NS = 1_795_000_000_000_000_000
WAITED_NS = 600_000_000_000
Counters = Mapping[int, Mapping[str, tuple[int, int]]]


@dataclass(frozen=True)
class Counted:
    """`counters`: rank -> group -> (enqueued, completed). `ops`: (group, call) -> op, all_reduce where not told.

    `elements`: (rank, group, call) -> how many; `transfers`: rank -> (group, op with places, p2p number), all open.
    """

    groups: Mapping[str, Sequence[int]]
    counters: Counters
    ops: Mapping[tuple[str, int], str] = field(default_factory=dict)
    elements: Mapping[tuple[int, str, int], int] = field(default_factory=dict)
    transfers: Mapping[int, Sequence[tuple[str, str, int]]] = field(default_factory=dict)
    no_frames: Collection[int] = ()
    issued_s: Mapping[int, float] = field(default_factory=dict)
    as_json: bool = False
    number: Mapping[int, int] = field(default_factory=dict)  # the rank that each one is called

    def called(self, rank: int) -> int:
        return self.number.get(rank, rank)

    def dump(self, rank: int) -> dict[str, Any]:
        names = sorted(g for g in self.groups if rank in self.groups[g])
        names = names[rank % len(names) :] + names[: rank % len(names)]  # slots are local to a process
        made: list[dict[str, Any]] = []
        for slot, g in enumerate(names):
            enqueued, completed = self.counters[rank].get(g, (0, 0))
            made += [
                self._entry(rank, slot, g, self.ops.get((g, seq), "all_reduce"), seq, False)
                for seq in range(max(completed, 0) + 1, enqueued + 1)
            ]
        for g, op, seq in self.transfers.get(rank, ()):
            made.append(self._entry(rank, names.index(g), g, op, seq, True))
        made.sort(key=lambda e: e["time_created_ns"])
        for at, entry in enumerate(made):
            entry["record_id"] = 5000 + at
        text = str if self.as_json else int
        words = ("last_enqueued_collective", "last_completed_collective")
        status = {
            str(slot): {
                **dict(zip(words, map(text, self.counters[rank][g]), strict=True)),
                "last_started_collective": text(-1),
            }
            for slot, g in enumerate(names)
            if g in self.counters[rank]
        }
        return {
            "version": "2.9",
            "nccl_version": "2.27.5",
            "pg_config": {g: {"name": g, "desc": g, "ranks": str([*map(self.called, self.groups[g])])} for g in names},
            "pg_status": status,
            "entries": made,
        }

    def _entry(self, rank: int, slot: int, group: str, op: str, seq: int, is_p2p: bool) -> dict[str, Any]:
        created = BEGAN_NS + int((self.issued_s.get(rank, 0.0) + seq * 1e-3) * 1e9)
        sizes = [[self.elements.get((rank, group, seq), 64)]]
        frames = [{"name": "step", "filename": "/home/me/train.py", "line": 20}]
        return {
            **({} if rank in self.no_frames or self.as_json else {"frames": frames}),
            "pg_id": slot,
            "process_group": (group, group),
            "collective_seq_id": 0 if is_p2p else seq,
            "p2p_seq_id": seq if is_p2p else 0,
            "op_id": seq,
            "profiling_name": f"nccl:{op}",
            "time_created_ns": created,
            "input_sizes": sizes,
            "input_dtypes": ["Float"],
            "output_sizes": sizes,
            "output_dtypes": ["Float"],
            "state": "scheduled",
            "time_discovered_started_ns": 0 if self.as_json else None,
            "time_discovered_completed_ns": 0 if self.as_json else None,
            "retired": False,
            "timeout_ms": 600_000,
            "is_p2p": is_p2p,
        }

    def judged(self, folder: Path, leave_out: Collection[int] = ()) -> Diagnosis:
        """What we say of these dumps, those of some ranks left out."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank in set(self.counters) - {*leave_out}:
            path = folder / f"nccl_trace_rank_{self.called(rank)}"
            dump = self.dump(rank)
            path.write_bytes(json.dumps(dump).encode() if self.as_json else pickle.dumps(dump, protocol=2))
            os.utime(path, ns=(BEGAN_NS + WAITED_NS,) * 2)
        return judge_paths([folder], lambda paths, *more: DumpReader(paths, *more, use_cache=False)).diagnosis


def named(said: Diagnosis) -> tuple[int, ...]:
    """The ranks that the first finding names, empty where it is not sure."""
    first = said.findings[0] if said.findings else None
    return first.culprit_ranks if first and first.confidence >= 0.5 else ()
