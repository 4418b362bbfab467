"""What each rank's recorder, watchdogs and heartbeat monitor leave: dumps as torch writes them, pickle or JSON."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ncclsim.device import RankRun
from ncclsim.program import Group, Mesh, Step

POLL_NS = 100_000_000
Dump = dict[str, Any]
# torch: the version of its dumps, and what the entries of that version lack.
VERSIONS = {
    "2.4": ("2.3", ("thread_id", "thread_name")),
    "2.5": ("2.4", ("thread_id", "thread_name")),
    "2.7": ("2.9", ()),
    "2.9": ("2.10", ()),
    "2.13": ("2.10", ()),
}


@dataclass(frozen=True)
class Recording:
    """How a job records, and what is dumped.

    `only_open`: completed calls are left out; `as_json`: without stacks; `past`: iterations before those that were simulated.
    """

    torch: str = "2.9"
    timing: bool = False
    ring: int = 2000
    only_open: bool = False
    as_json: bool = False
    has_frames: bool = True
    past: int = 0


@dataclass(frozen=True)
class Sight:
    """What one rank could see: when it dumped, when its watchdogs stopped noting, whether its device answers with errors.

    `clock_ns`: by how much its clock is ahead.
    """

    dumped_ns: int
    frozen_ns: int
    raises: bool
    has_frames: bool
    clock_ns: int = 0


class RankDump:
    """The dump of one rank."""

    def __init__(self, mesh: Mesh, run: RankRun, sight: Sight, recording: Recording, iteration: Sequence[Step]) -> None:
        self.mesh, self.run, self.sight, self.recording = mesh, run, sight, recording
        self.past = Counter((s.group.number, s.is_p2p) for s in iteration)
        for key in self.past:
            self.past[key] *= recording.past
        self.record = recording.past * entries_of(iteration)
        self.groups = [g for g in mesh.groups if run.rank in g.ranks and (len(g.ranks) > 1 or g.number == 0)]
        self.slots = {g.number: slot for slot, g in enumerate(self.groups)}

    def polled(self, i: int) -> int | None:
        """When the watchdog of its group noted that a call was done; None if it did not before the dump."""
        done = self.run.done.get(i)
        if done is None:
            return None
        shift = (self.run.rank * 7919 + self.run.steps[i].group.number * 104729) % POLL_NS
        noted = done + POLL_NS - (done - shift) % POLL_NS
        return noted if noted <= min(self.sight.dumped_ns, self.sight.frozen_ns) else None

    def made(self) -> Dump:
        """What is written."""
        entries = self.entries()
        version = VERSIONS[self.recording.torch][0]
        library = "comm_lib_version" if version >= "2.10" or version == "2.9" else "nccl_version"
        text = str if self.recording.as_json else int
        status = {
            str(self.slots[number]): {name: text(value) for name, value in numbers.items()}
            for number, numbers in self.status.items()
        }
        config = {g.name: {"name": g.name, "desc": g.desc, "ranks": str(list(g.ranks))} for g in self.groups}
        return {"version": version, "pg_config": config, library: "2.27.5", "pg_status": status, "entries": entries}

    def encoded(self) -> bytes:
        """The content of the file."""
        made = self.made()
        return json.dumps(made).encode() if self.recording.as_json else pickle.dumps(made, protocol=2)

    def entries(self) -> list[Dump]:
        """The entries that are dumped; notes the status of groups."""
        run, found = self.run, list[Dump]()
        counts = Counter(self.past)
        self.status: dict[int, dict[str, int]] = {
            n: self._at(seq) for (n, is_p2p), seq in sorted(self.past.items()) if seq
        }
        last_noted: dict[int, tuple[int, int]] = {}
        for i, created in enumerate(run.issued):
            if created > self.sight.dumped_ns:
                break
            step = run.steps[i]
            counts[step.group.number, step.is_p2p] += 1
            seqs = counts[step.group.number, False], counts[step.group.number, True]
            numbers = self.status.setdefault(step.group.number, self._at(-1))
            numbers["last_enqueued_collective"] = seqs[step.is_p2p]
            if self.recording.timing and run.ready.get(i, 1 << 62) <= min(self.sight.dumped_ns, self.sight.frozen_ns):
                numbers["last_started_collective"] = seqs[step.is_p2p]
            noted = self.polled(i)
            if noted is not None:
                last = max(last_noted.get(step.group.number, (0, 0)), (noted, seqs[step.is_p2p]))
                last_noted[step.group.number] = last
                numbers["last_completed_collective"] = last[1]
            found.extend(self._entries_of(i, step, seqs, self.record + len(found), noted))
        kept = found[-self.recording.ring :]
        if self.recording.only_open:
            kept = [e for e in kept if not e["time_discovered_completed_ns"]]
        return kept

    def _at(self, seq: int) -> dict[str, int]:
        is_timed = self.recording.timing
        return {
            f"last_{w}_collective": seq if is_timed or w != "started" else -1
            for w in ("enqueued", "started", "completed")
        }

    def _entries_of(self, i: int, step: Step, seqs: tuple[int, int], record: int, noted: int | None) -> list[Dump]:
        run, dumped = self.run, self.sight.dumped_ns
        done = run.done.get(i, 1 << 62) <= dumped
        if self.sight.raises:
            done = noted is not None
        is_started = self.recording.timing and run.ready.get(i, 1 << 62) <= min(
            dumped, self.sight.frozen_ns if self.sight.raises else dumped
        )
        state = "completed" if done else "started" if is_started else "scheduled"
        started = run.ready[i] if is_started and i in run.ready else None
        completed = (noted or dumped) if done else None
        facts = (state, started, completed, noted is not None)
        names = [
            f"{op} {self._place(step.group, run.rank)}{'->' if op == 'send' else '<-'}{self._place(step.group, p)}"
            for op, p in step.peers
        ]
        if not step.is_batch:
            op = names[0] if names else step.op
            return [self._entry(op, step, seqs, record, run.issued[i], facts)]
        members = [
            self._entry(name, step, seqs, record + k, run.issued[i], ("scheduled", None, None, False))
            for k, name in enumerate(names)
        ]
        whole = self._entry("coalesced", step, seqs, record + len(names), run.issued[i] + 2_000, facts)
        whole |= {name: [] for name in ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes")}
        return [*members, whole]

    def _entry(
        self, op: str, step: Step, seqs: tuple[int, int], record: int, created: int,
        facts: tuple[str, int | None, int | None, bool],
    ) -> Dump:  # fmt: skip
        state, started, completed, retired = facts
        as_json = self.recording.as_json
        unknown = 0 if as_json else None
        sizes = [[], []] if step.op == "barrier" else [[[step.numel]], [[step.out_numel]]]
        fields: Dump = {} if not self.sight.has_frames or as_json else {"frames": _frames(op, step.line)}
        fields |= {
            "record_id": record,
            "pg_id": self.slots[step.group.number],
            "process_group": [step.group.name, step.group.desc] if as_json else (step.group.name, step.group.desc),
            "thread_name": step.thread,
            "thread_id": "139664455928704",
            "collective_seq_id": seqs[0],
            "p2p_seq_id": seqs[1],
            "op_id": record + 1,
            "profiling_name": f"nccl:{op}",
            "time_created_ns": created + self.sight.clock_ns,
            "input_sizes": sizes[0],
            "input_dtypes": [step.dtype] * len(sizes[0]),
            "output_sizes": sizes[1],
            "output_dtypes": [step.dtype] * len(sizes[1]),
            "state": state,
            "time_discovered_started_ns": unknown if started is None else started + self.sight.clock_ns,
            "time_discovered_completed_ns": unknown if completed is None else completed + self.sight.clock_ns,
            "retired": retired,
            "timeout_ms": step.group.timeout_ms,
            "is_p2p": step.is_p2p,
        }
        return {k: v for k, v in fields.items() if k not in VERSIONS[self.recording.torch][1]}

    @staticmethod
    def _place(group: Group, rank: int) -> int:
        return group.ranks.index(rank)


def entries_of(steps: Sequence[Step]) -> int:
    """How many entries these calls leave."""
    return sum(len(s.peers) + 1 if s.is_batch else 1 for s in steps)


def _frames(op: str, line: int) -> list[dict[str, object]]:
    name = op.split(" ")[0]
    return [
        {
            "name": name,
            "filename": "/opt/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py",
            "line": 2810,
        },
        {"name": "step", "filename": "/workspace/train/model.py", "line": line},
        {"name": "<module>", "filename": "/workspace/train/main.py", "line": 41},
    ]


def names_of(files: Sequence[int], host_ranks: int, style: str) -> dict[int, str]:
    """Where each rank's dump lies."""
    names = {
        "nccl": lambda r: f"nccl_trace_rank_{r}",
        "comm_lib": lambda r: f"comm_lib_trace_rank_{r}",
        "host": lambda r: f"nccl_trace_rank_gpu-node-{r // host_ranks:02d}_{r}",
        "folders": lambda r: f"node{r // host_ranks}/comm_lib_trace_rank_{r}",
    }
    return {r: names[style](r) for r in files}
