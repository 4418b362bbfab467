"""Evidence -> the schedule of the calls that did not complete, with a few calls before them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from unhang.analyze.calls.positions import bare_op, numels
from unhang.analyze.situation import Situation
from unhang.errors import UnhangError
from unhang.model import CallState, CollectiveCall, Diagnosis, Finding, Frame, Outcome, PendingCall, user_frames
from unhang.reproduce.schedule import P2P, WORLD, Key, Schedule, Step

CALLS_BEFORE = 2
_OPS = {
    "allreduce": "all_reduce",
    "all_reduce_barrier": "barrier",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "allgather": "all_gather",
    "_all_gather_base": "all_gather_into_tensor",
    "_allgather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter": "reduce_scatter_tensor",
    "all_to_allv": "all_to_all",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
}
COLLECTIVES = (
    "all_reduce", "barrier", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor",
    "gather", "scatter", "all_to_all",
)  # fmt: skip
_NEED_ALL = ("all_reduce", "barrier", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all")
_DTYPES = {
    "Double": "float64", "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "uint8",
    "Half": "float16", "BFloat16": "bfloat16",
}  # fmt: skip
_NOT_IN_A_SCHEDULE = {
    "a device or its driver failed": ("gpu-hardware", "driver-bug", "cuda-kernel-error", "fabric-manager", "p2p-acs-iommu"),
    "the network failed": ("network-interface", "network-unstable", "ib-roce-config", "ib-link", "memlock-limit"),
    "the kernel ended a process for want of memory": ("host-oom",),
    "the machine lacked a resource": ("shm-too-small", "fd-exhaustion"),
    "the job was ended from outside": ("external-signal",),
    "the job did not come up": (
        "device-mapping", "gpu-visibility-isolation", "port-in-use", "rendezvous-endpoint", "launcher-misuse", "stale-store",
        "version-mismatch", "misconfigured-env",
    ),
    "the fault is in a library": ("nccl-or-library-bug",),
    "nothing waited for ever": ("silent-desync", "not-learning", "slow-steps", "straggler"),
}  # fmt: skip
_WAITS = {
    "data": ("queue", "waits for its data loader"),
    "lock": ("event", "waits for a lock, an event or a queue"),
    "outside": ("event", "waits for a file, a socket or another process"),
    "communication": ("event", "waits for other ranks elsewhere"),
}


class NotReproducible(UnhangError):
    """The failure is not in the order of the ranks' calls, or the evidence does not show it."""

    exit_code = 3


def cut(s: Situation, diagnosis: Diagnosis) -> Schedule:
    """The schedule of a failure.

    Raises:
        NotReproducible: with the reason.
    """
    finding = _finding(diagnosis)
    recorded = _Recorded(s, finding)
    culprits = tuple(c for c in finding.culprit_ranks if c in recorded.steps)
    kept = Schedule(recorded.steps, recorded.groups, culprits).without(recorded.completed())
    if not kept.expected:
        raise NotReproducible(
            "nothing to replay: no rank is left in a call, or all made the same ones and a device or the network did not complete them"
        )
    if not kept.waiting:
        raise NotReproducible(f"nothing to replay: no rank waits in a call for another ({finding.title})")
    if not culprits:
        raise NotReproducible(f"cannot be replayed: nothing is known of the rank that caused it ({finding.title})")
    return kept


def _finding(diagnosis: Diagnosis) -> Finding:
    if diagnosis.outcome in (Outcome.CLEAN, Outcome.STRAGGLER, Outcome.MOVES):
        raise NotReproducible(f"nothing to reproduce: the job did not fail ({diagnosis.outcome})")
    if not diagnosis.findings:
        raise NotReproducible("nothing to reproduce: no cause is established, so no program could be said to show it")
    finding = diagnosis.findings[0]
    if not finding.culprit_ranks:
        raise NotReproducible(f"cannot be replayed: no rank is named as the cause ({finding.title})")
    for reason, causes in _NOT_IN_A_SCHEDULE.items():
        if finding.cause in causes:
            why = f"{reason} ({finding.cause}: {finding.title})"
            raise NotReproducible(f"cannot be replayed from the ranks' calls: {why}")
    return finding


class _Recorded:
    """What was recorded of each rank, as steps."""

    def __init__(self, s: Situation, finding: Finding) -> None:
        self._s, self._case, self._finding = s, s.case, finding
        self._labels = _labels(s)
        self.groups = {
            self._labels[g.name]: g.ranks or s.case.world for g in s.case.groups if self._labels[g.name] != WORLD
        }
        self.steps: dict[int, tuple[Step, ...]] = {r: self._recorded(r) for r in s.case.world}
        self._key_waits = self._take_key_waits()
        self._end_dead_ranks()
        self._settle()
        if any(s.op == "new_group" and not s.is_done for steps in self.steps.values() for s in steps):
            # The failure is in the creation of the groups: what was called on them does not matter.
            self.groups = {}
            self._keep(lambda s: s.group == WORLD and s.key[:1] != ("c",))
        else:
            self._keep(lambda s: s.op != "new_group")
            self._add_what_culprits_do()

    def _keep(self, is_kept: Callable[[Step], bool]) -> None:
        self.steps = {rank: tuple(filter(is_kept, steps)) for rank, steps in self.steps.items()}

    def completed(self) -> set[Key]:
        """The completed positions that lie further back than the last few before the first open one of their group."""
        whole = Schedule(self.steps, self.groups, ())
        keep: set[Key] = set()
        made = {r: {s.key for s in steps} for r, steps in self.steps.items()}
        for group in {key[1] for key in whole.keys if key[0] == "c"}:
            members = whole.members(str(group))  # of a rank that was killed the last calls may not be recorded
            done = [k for k in whole.keys if k[:2] == ("c", group) and all(k in made[m] for m in members)]
            keep.update(sorted(done, key=lambda k: k[2])[max(0, len(done) - CALLS_BEFORE) :])
        return set(whole.keys) - keep

    def _recorded(self, rank: int) -> tuple[Step, ...]:
        rows = [(c.created_ns, c.record_id, self._collective(c)) for c in self._case.calls.calls_of(rank)]
        has_p2p = any(step.op in P2P for _, _, step in rows)
        evidence, seen = self._case.ranks.get(rank), dict[Key, int]()
        noted = evidence.pending if evidence else ()
        pending = [p for p in noted if p.ended_ns is None or p.kind in (*P2P, "new_group")]
        starts = any(p.kind in ("new_group", "init_process_group") and p.ended_ns is None for p in pending)
        for i, call in enumerate(pending):
            if not (call.kind in P2P and has_p2p) and not (call.kind == "store_wait" and starts):
                rows += [(call.started_ns, i, step) for step in self._pending(rank, call)]
        found = []
        for _, _, step in sorted(rows, key=lambda row: row[:2]):
            if step.key and step.key[0] == "p":  # the n-th transfer of a pair
                seen[step.key] = seen.get(step.key, 0) + 1
                step = replace(step, key=(*step.key, seen[step.key]))
            found.append(step)
        return tuple(found)

    def _collective(self, call: CollectiveCall) -> Step:
        op, label = bare_op(call.op).split(" ")[0], self._labels[call.group.name]
        op = _OPS.get(op, op)
        done, place = call.state is CallState.COMPLETED, _place(call.frames)
        if call.is_p2p or op in P2P:
            return _transfer(call.rank, op, call.peer, 0, sum(numels(call.in_sizes or call.out_sizes)), done, place)
        if op not in COLLECTIVES:
            if not done:
                raise NotReproducible(f"cannot be replayed: gloo has nothing like {call.op}")
            op = "barrier"
        is_scattered = op in ("reduce_scatter_tensor", "scatter")
        size = sum(numels(call.out_sizes if is_scattered else call.in_sizes))
        if op == "all_to_all":
            size //= max(1, len(call.group.ranks))
        dtype = _DTYPES.get(call.dtype.split(",")[0].strip(), "float32")
        text, key = f"{op} #{call.seq} of {label}", ("c", label, call.seq)
        return Step(text, op, key, label, max(1, size), dtype, place=place, is_done=done)

    def _pending(self, rank: int, call: PendingCall) -> Iterable[Step]:
        done, place = call.ended_ns is not None, _place(call.frames)
        if call.kind in P2P:
            yield _transfer(rank, call.kind, call.peer, call.tag, 1, done, place)
        elif call.kind == "new_group":
            members = tuple(map(int, re.findall(r"\d+", call.detail))) or self._case.world
            text = f"new_group #{call.index} (ranks {call.detail})"
            yield Step(text, "new_group", ("n", call.index, *members), members=members, place=place, is_done=done)
        elif call.kind == "store_wait":
            text = f"wait for key {call.detail!r} of the store"
            yield Step(text, "store_wait", ("s", call.detail), call.detail, place=place)
        elif call.kind == "init_process_group":
            yield Step("init_process_group", "init", ("i",), place=place)

    def _take_key_waits(self) -> dict[int, str]:
        """Waits for keys matter only where nothing else is open: else another thread's, or what a rank does instead."""
        is_open = {r: [s for s in steps if not s.is_done] for r, steps in self.steps.items()}
        if all(s.op == "store_wait" for steps in is_open.values() for s in steps):
            return {}
        self._keep(lambda s: s.op != "store_wait")
        return {r: s.text for r, steps in is_open.items() for s in steps if s.op == "store_wait"}

    def _end_dead_ranks(self) -> None:
        """A rank that died or froze is not in its last call, but where the calls disagree it died of that."""
        open_keys: dict[Key, set[tuple[object, ...]]] = {}
        for steps in self.steps.values():
            for step in steps:
                open_keys.setdefault(step.key, set()).add(step.agreed)
        for rank in self._case.world:
            end = self._death(rank)
            disagrees = any(len(open_keys[s.key]) > 1 and s.key[0] == "c" for s in self.steps[rank] if not s.is_done)
            if end is not None and not disagrees:
                self.steps[rank] = (*(s for s in self.steps[rank] if s.is_done), end)

    def _settle(self) -> None:
        """Calls that all members made alike may merely not be marked as completed."""
        at: dict[Key, dict[int, Step]] = {}
        for rank, steps in self.steps.items():
            for step in steps:
                if step.key and step.key[0] == "c":
                    at.setdefault(step.key, {})[rank] = step
        # All may have made two calls of different groups, each in another order: then the graph holds them there.
        edges = [e for e in self._s.waits.edges if e.kind == "collective" and e.seq is not None]
        held = {("c", self._labels.get(e.group, e.group), e.seq) for e in edges}
        settled = set()
        for key, made in at.items():
            members = self.groups.get(next(iter(made.values())).group, self._case.world)
            # One that completed shows that all took part, also where a dead rank's last calls are not recorded.
            is_shown = any(s.is_done and s.op in _NEED_ALL for s in made.values())
            is_alike = len({s.agreed for s in made.values()}) == 1
            if is_alike and (is_shown or (set(made) >= set(members) and key not in held)):
                settled.add(key)
        for rank, steps in self.steps.items():
            self.steps[rank] = tuple(replace(s, is_done=s.is_done or s.key in settled) for s in steps)

    def _add_what_culprits_do(self) -> None:
        late = {r.rank: r for r in self._s.late}
        for rank in sorted({*late, *self._finding.culprit_ranks}):
            steps = self.steps.get(rank)
            if steps is None or any(not s.is_done for s in steps):
                continue
            edge = late[rank].edge if rank in late else None
            starts = edge is not None and (edge.kind == "rendezvous" or edge.what == "init_process_group")
            self.steps[rank] = (*steps, self._what_it_does(rank, bool(starts)))

    def _what_it_does(self, rank: int, starts: bool) -> Step:
        """What a rank does that others wait for."""
        if starts:
            return Step("does not come to init_process_group", "never_joins")
        evidence, activity = self._case.ranks.get(rank), self._s.activities.get(rank)
        if evidence is None or activity is None or activity.kind == "unknown":
            if rank in self._s.waits.waiting:
                raise NotReproducible(f"cannot be replayed: the call in which rank {rank} waits is not recorded")
            return Step("makes no further call", "sleep")
        if evidence.exit is not None and activity.kind in ("dead", "shutdown") and evidence.exit.kind != "signal":
            return Step("ended", "exit", number=evidence.exit.code or 0)
        if rank in self._key_waits:
            return Step(self._key_waits[rank].replace("wait", "waits", 1), "event")
        is_blamed = (rank,) == self._finding.culprit_ranks
        frame = (self._finding.location if is_blamed else None) or activity.frame
        place = f", {frame}" if frame else ""
        op, text = _WAITS.get(activity.kind, ("sleep", "is in its own code"))
        return Step(f"{text}{place}", op)

    def _death(self, rank: int) -> Step | None:
        activity = self._s.activities.get(rank)
        if activity is not None and activity.kind == "frozen":
            return Step("is stopped", "stop")
        failure = next((f for f in self._s.failures if f.rank == rank and not f.secondary), None)
        if failure is None:
            return None
        if failure.kind == "exception" and failure.error is not None:
            name = failure.error.type.rsplit(".", 1)[-1]
            return Step(f"raises {name}", "raise", group=f"{name}: {failure.error.message.splitlines()[0][:60]}")
        code = failure.exit.code if failure.exit is not None else None
        if code is not None and code < 0:
            return Step(f"is killed by signal {-code}", "kill", number=-code)
        return Step(f"ends with exit code {code or 0}", "exit", number=code or 0)


def _transfer(rank: int, op: str, peer: int | None, tag: int, size: int, done: bool, place: str) -> Step:
    if peer is None:
        raise NotReproducible(f"cannot be replayed: the other side of {op} on rank {rank} is not known")
    is_receive = op.endswith("recv")
    ends = (peer, rank) if is_receive else (rank, peer)
    text = f"{op} {'from' if is_receive else 'to'} rank {peer}"
    return Step(text, op, ("p", *ends, tag), size=max(1, size), peer=peer, place=place, is_done=done)


def _labels(s: Situation) -> Mapping[str, str]:
    """A name for each group; the one of all ranks is WORLD."""
    found: dict[str, str] = {}
    named = sorted(s.case.groups, key=lambda g: (g.desc != WORLD, g.name not in ("", "0"), g.name))
    for group in named:
        is_first = not found and (not group.ranks or group.ranks == s.case.world)
        label = WORLD if is_first and (group.desc == WORLD or group.name in ("", "0")) else str(group)
        found[group.name] = f"{label} {group.name}" if label in found.values() else label
    return found


def _place(frames: tuple[Frame, ...] | None) -> str:
    user = user_frames(frames or ())
    return str(user[0]) if user else ""
