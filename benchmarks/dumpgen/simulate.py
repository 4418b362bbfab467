"""Runs programs of calls on hosts and devices, and tells when each step was issued, arrived and was done.

A host issues steps in program order. It stops at a step that blocks it, and runs at most LOOK_AHEAD steps ahead of the
device. A step arrives (its kernel starts) after all earlier synchronous steps of its rank and after the step before it in
its own stream: one stream for each group, and one for each pair of ranks that transfer outside of batches. A collective is
done some time after all members have arrived with equal calls, a transfer when both sides have; a batch, when all its
transfers are. Times follow from these rules alone, so the order in which ranks are looked at does not matter.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt

from dumpgen.schedule import UNEVEN_OPS, Group, Mesh, Part, Step

LOOK_AHEAD = 12
LAUNCH_NS = 8_000
FOREVER = 1 << 62

Signature = tuple[object, ...]
Meeting = list[int | Signature | list[tuple[int, int]]]
Key = tuple[int, ...]


class Plan:
    """A program with what the simulation asks again and again. All lists are by step.

    `barrier`: the last synchronous step before, `behind`: the step before in the same stream, -1 where none.
    `numbers`: for a collective, the how-manieth of its group; for a transfer, of its pair and direction, for each part.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = tuple(steps)
        self.barrier: list[int] = []
        self.behind: list[int] = []
        self.numbers: list[tuple[int, ...]] = []
        self.signatures: list[tuple[Signature, ...]] = []
        self.duration_ns: list[int] = []
        self.blocks = [s.blocks for s in steps]
        self.cost_ns = [s.cost_ns for s in steps]
        last_waits, in_stream, counts = -1, dict[object, int](), Counter[object]()
        for i, step in enumerate(self.steps):
            stream = _stream(step)
            self.barrier.append(last_waits)
            self.behind.append(in_stream.get(stream, -1))
            in_stream[stream] = i
            self.numbers.append(_numbers(step, counts))
            self.signatures.append(tuple(_signature(p) for p in step.parts))
            self.duration_ns.append(60_000 + sum(prod(s) for p in step.parts for s in p.out_sizes) // 64)
            if step.waits:
                last_waits = i

    def __len__(self) -> int:
        return len(self.steps)


def _stream(step: Step) -> object:
    return (step.axis, step.parts[0].peer) if step.is_p2p and not step.batched else step.axis


def _numbers(step: Step, counts: Counter[object]) -> tuple[int, ...]:
    numbers = []
    for key in [(step.axis, p.op, p.peer) for p in step.parts] if step.is_p2p else [step.axis]:
        numbers.append(counts[key])
        counts[key] += 1
    return tuple(numbers)


def _signature(part: Part) -> Signature:
    """What members must agree on."""
    if part.peer >= 0:
        return (sum(prod(s) for s in part.in_sizes), part.dtype)
    if part.op in UNEVEN_OPS:
        return (part.op, part.dtype)
    return (part.op, part.dtype, *(prod(s) for s in part.in_sizes), *(prod(s) for s in part.out_sizes))


def _jitter_ns(rank: int, step: int) -> int:
    """Up to 16 us, different for each call, the same in each run."""
    mixed = (rank * 0x9E3779B1 + step * 0x85EBCA6B) & 0xFFFFFFFF
    return ((mixed ^ mixed >> 15) * 0x2C1B3C6D & 0xFFFFFFFF) >> 18


@dataclass
class Disturbance:
    """What goes wrong apart from the programs. `dead_devices`: from which step on a rank's device executes nothing.

    `host_stops`: before which step a rank's host stops for ever. `slow_hosts`: what a rank's host takes longer per step.
    `cut`: (rank, step) whose collective or transfer never completes.
    """

    dead_devices: dict[int, int] = field(default_factory=dict)
    host_stops: dict[int, int] = field(default_factory=dict)
    slow_hosts: dict[int, int] = field(default_factory=dict)
    cut: tuple[int, int] | None = None


class Timeline:
    """When each step of each rank was issued, arrived and was done: arrays of shape [steps], 0 where it never was.

    `open_meetings`: [how many are missing, latest arrival, what they agree on, those who arrived] by its key.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.plans = plans
        self.issued = [array("q") for _ in plans]
        self.arrived = [array("q", bytes(8 * len(p))) for p in plans]
        self.done = [array("q", bytes(8 * len(p))) for p in plans]
        self.open_meetings: dict[Key, Meeting] = {}
        self.mismatched: set[Key] = set()

    @property
    def last_ns(self) -> int:
        """The last event of all."""
        return max(max(max(a, default=0) for a in ranks) for ranks in (self.issued, self.arrived, self.done))

    def columns(self, rank: int) -> tuple[npt.NDArray[np.int64], ...]:
        """Issued, arrived and done, of the steps that were issued."""
        n = len(self.issued[rank])
        return tuple(np.array(a[rank][:n], dtype=np.int64) for a in (self.issued, self.arrived, self.done))


def simulate(mesh: Mesh, plans: Sequence[Plan], begin_ns: int, disturbance: Disturbance | None = None) -> Timeline:
    """Runs until nothing can move."""
    return _Run(mesh, plans, begin_ns, disturbance or Disturbance()).run()


class _Run:
    def __init__(self, mesh: Mesh, plans: Sequence[Plan], begin_ns: int, disturbance: Disturbance) -> None:
        self._t = Timeline(plans)
        self._groups: list[dict[str, Group]] = mesh.groups_of
        self._places, self._plans = mesh.places, plans
        self._waiting: list[list[int]] = [[] for _ in plans]
        self._begin_ns, self._what = begin_ns, disturbance
        self._queue = deque(range(len(plans)))
        self._is_queued = [True] * len(plans)
        self._parts_left: dict[tuple[int, int], list[int]] = {}
        self._cut_keys: set[Key] = set()
        if disturbance.cut is not None:
            rank, step = disturbance.cut
            self._cut_keys = set(self._keys(rank, step))

    def run(self) -> Timeline:
        queue, is_queued = self._queue, self._is_queued
        while queue:
            rank = queue.popleft()
            is_queued[rank] = False
            self._issue(rank)
            while self._arrive(rank):
                self._issue(rank)
        return self._t

    def _issue(self, rank: int) -> None:
        plan, issued, done = self._plans[rank], self._t.issued[rank], self._t.done[rank]
        end = min(len(plan), self._what.host_stops.get(rank, FOREVER))
        i = len(issued)
        now = issued[-1] if i else self._begin_ns
        while i < end:
            if i >= LOOK_AHEAD:
                freed = done[i - LOOK_AHEAD]
                if not freed:
                    return
                now = max(now, freed)
            if i and plan.blocks[i - 1]:
                if not done[i - 1]:
                    return
                now = max(now, done[i - 1])
            now += plan.cost_ns[i] + _jitter_ns(rank, i) + self._what.slow_hosts.get(rank, 0)
            issued.append(now)
            self._waiting[rank].append(i)
            i += 1

    def _arrive(self, rank: int) -> bool:
        """Lets all steps arrive that can. Returns whether one of them was done by that."""
        plan, t, waiting = self._plans[rank], self._t, self._waiting[rank]
        issued, arrived, done = t.issued[rank], t.arrived[rank], t.done[rank]
        dead_from = self._what.dead_devices.get(rank, FOREVER)
        gone: list[int] = []
        is_done = False
        for i in waiting:
            before, behind = plan.barrier[i], plan.behind[i]
            if i >= dead_from or (before >= 0 and not done[before]):
                break
            if behind >= 0 and not done[behind]:
                continue
            now = issued[i] + LAUNCH_NS
            if before >= 0 and done[before] > now:
                now = done[before]
            if behind >= 0 and done[behind] > now:
                now = done[behind]
            arrived[i] = now
            gone.append(i)
            is_done = self._meet(rank, i, now) or is_done
        if gone:
            self._waiting[rank] = [i for i in waiting if i not in gone] if len(gone) < len(waiting) else []
        return is_done

    def _meet(self, rank: int, i: int, now: int) -> bool:
        step = self._plans[rank].steps[i]
        if not step.is_p2p:
            group = self._groups[rank][step.axis]
            key: Key = (group.number, self._plans[rank].numbers[i][0])
            return self._join(key, len(group.ranks), self._plans[rank].signatures[i], rank, i, now)
        if len(step.parts) == 1:
            return self._join(self._keys(rank, i)[0], 2, self._plans[rank].signatures[i][0], rank, i, now)
        self._parts_left[rank, i] = [len(step.parts), 0]
        for key, signature in zip(self._keys(rank, i), self._plans[rank].signatures[i], strict=True):
            self._join(key, 2, signature, rank, i, now)
        return bool(self._t.done[rank][i])

    def _join(self, key: Key, need: int, signature: Signature, rank: int, i: int, now: int) -> bool:
        meeting = self._t.open_meetings.get(key)
        if meeting is None:
            self._t.open_meetings[key] = [need - 1, now, signature, [(rank, i)]]
            return False
        left, latest, agreed, members = meeting
        assert isinstance(left, int)
        assert isinstance(latest, int)
        assert isinstance(members, list)
        members.append((rank, i))
        if signature != agreed:
            self._t.mismatched.add(key)
        meeting[0], meeting[1] = left - 1, max(latest, now)
        if left > 1 or key in self._cut_keys or key in self._t.mismatched:
            return False
        del self._t.open_meetings[key]
        end = max(latest, now) + self._plans[rank].duration_ns[i]
        for member, step in members:
            self._finish(member, step, end, is_self=member == rank)
        return True

    def _finish(self, rank: int, i: int, end: int, is_self: bool) -> None:
        parts = self._parts_left.get((rank, i))
        if parts is not None:
            parts[0] -= 1
            parts[1] = end = max(parts[1], end)
            if parts[0]:
                return
            del self._parts_left[rank, i]
        self._t.done[rank][i] = end
        if not (is_self and parts is None) and not self._is_queued[rank]:
            self._is_queued[rank] = True
            self._queue.append(rank)

    def _keys(self, rank: int, i: int) -> list[Key]:
        return meeting_keys(self._groups[rank], self._places[rank], self._plans[rank], i)


def meeting_keys(groups: Mapping[str, Group], places: Mapping[str, int], plan: Plan, i: int) -> list[Key]:
    """Where a step of a rank with these groups and places meets its partners, for each of its transfers."""
    step = plan.steps[i]
    group, me = groups[step.axis], places[step.axis]
    if not step.is_p2p:
        return [(group.number, plan.numbers[i][0])]
    ends = [(me, p.peer) if p.op == "send" else (p.peer, me) for p in step.parts]
    return [(group.number, *pair, n) for pair, n in zip(ends, plan.numbers[i], strict=True)]
