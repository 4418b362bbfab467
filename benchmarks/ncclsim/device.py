"""Hosts, streams and devices: when each call was issued, when its kernel could start, and when it was done.

A host issues in the order of its program. It stops where it reads a result, and is at most so many calls ahead of its compute
stream. A call's kernel starts when the compute stream has come to it and the call before it in its own stream is done: one
stream per group, and per pair of ranks for transfers outside of batches. A collective is done when all members have started it
and agree; what a root may leave behind is done alone. All times follow from these rules, in whatever order ranks are looked at.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ncclsim.program import Step

BEGAN_NS = 1_795_000_000_000_000_000
HOST_NS, LAUNCH_NS, LEAST_NS = 12_000, 8_000, 30_000
FOREVER = 1 << 62
Key = tuple[object, ...]


@dataclass
class Trouble:
    """What goes wrong apart from the programs, by rank.

    `host_stops`: before which call the host stops. `host_ends_ns`: after when it issues nothing. `spins`: the call at which the
    compute stream stands still for ever. `dies_ns`: from when on the device does nothing; calls under way are not done there,
    and on the peers only if `leaves_peers`. `wedged`: meetings that all come to and that are never done.
    """

    host_stops: dict[int, int] = field(default_factory=dict)
    host_ends_ns: dict[int, int] = field(default_factory=dict)
    spins: dict[int, int] = field(default_factory=dict)
    dies_ns: dict[int, int] = field(default_factory=dict)
    leaves_peers: bool = False
    wedged: set[Key] = field(default_factory=set)


class RankRun:
    """One rank. Lists are by call: issued, passed (the compute stream came to it); ready and done have those that were."""

    def __init__(self, rank: int, steps: Sequence[Step], run_ahead: int) -> None:
        self.rank, self.steps, self.run_ahead = rank, steps, run_ahead
        self.issued: list[int] = []
        self.passed: list[int] = []
        self.ready: dict[int, int] = {}
        self.done: dict[int, int] = {}
        self.streams: dict[Key, deque[int]] = {}
        self.stream_free: dict[Key, int] = {}
        self.keys = [list(_keys(rank, s, counts)) for counts in [Counter[Key]()] for s in steps]
        self.pending: list[int] = []  # asynchronous calls that the compute stream has not waited for
        self.compute_ns = self.host_ns = BEGAN_NS


def _keys(rank: int, step: Step, counts: Counter[Key]) -> Iterator[Key]:
    """Where a call meets its partners."""
    group = step.group.number
    names: list[Key] = [(group, *((rank, p) if op == "send" else (p, rank))) for op, p in step.peers] or [(group,)]
    for name in names:
        side = (name, rank) if step.peers else name
        counts[side] += 1
        yield (*name, counts[side])


def stream_of(step: Step, rank: int) -> Key:
    """The stream in which a call's kernel runs."""
    if step.is_p2p and not step.is_batch:
        return (step.group.number, *sorted((rank, step.peers[0][1])))
    return (step.group.number,)


@dataclass
class _Meeting:
    need: int
    agreed: tuple[object, ...]
    came: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # rank -> (call, when, part)
    differs: bool = False


class Machine:
    """Runs the programs until nothing can move."""

    def __init__(
        self, programs: Sequence[Sequence[Step]], trouble: Trouble, run_ahead: Sequence[int], eager: bool
    ) -> None:
        self.ranks = [RankRun(r, steps, run_ahead[r]) for r, steps in enumerate(programs)]
        self.trouble, self.eager = trouble, eager
        self.open: dict[Key, _Meeting] = {}
        self._parts: dict[tuple[int, int], list[int]] = {}
        self._queue = deque(range(len(programs)))
        self._queued = set(self._queue)

    def run(self) -> Machine:
        """Lets everything happen."""
        while self._queue:
            rank = self._queue.popleft()
            self._queued.discard(rank)
            run = self.ranks[rank]
            while self._issue(run) | self._pass(run) | self._start(run):
                pass
        return self

    @property
    def last_ns(self) -> int:
        """The last event of all."""
        return max(max((*r.issued[-1:], *r.done.values(), *r.ready.values()), default=BEGAN_NS) for r in self.ranks)

    def _issue(self, run: RankRun) -> bool:
        stop = min(len(run.steps), self.trouble.host_stops.get(run.rank, FOREVER))
        ends_ns = self.trouble.host_ends_ns.get(run.rank, FOREVER)
        begin = i = len(run.issued)
        while i < stop:
            now = run.host_ns + HOST_NS + (run.rank * 2654435761 + i * 40503 & 0x3FFF)
            if i >= run.run_ahead:
                if len(run.passed) <= i - run.run_ahead:
                    break
                now = max(now, run.passed[i - run.run_ahead])
            if i and run.steps[i - 1].blocks:
                if i - 1 not in run.done:
                    break
                now = max(now, run.done[i - 1])
            if now > ends_ns:
                break
            run.issued.append(now)
            run.host_ns = now
            i += 1
        return i > begin

    def _pass(self, run: RankRun) -> bool:
        """Moves the compute stream on."""
        begin = i = len(run.passed)
        spins = self.trouble.spins.get(run.rank, FOREVER)
        while i < min(len(run.issued), spins):
            step = run.steps[i]
            awaited = [] if not i or run.steps[i - 1].is_async else [i - 1]
            if step.joins:
                awaited += run.pending
            if any(w not in run.done for w in awaited):
                break
            if step.joins:
                run.pending.clear()
            now = max([run.compute_ns, run.issued[i] + LAUNCH_NS, *(run.done[w] for w in awaited)]) + step.compute_ns
            if now > self.trouble.dies_ns.get(run.rank, FOREVER):
                break
            run.compute_ns = now
            run.passed.append(now)
            if step.is_async:
                run.pending.append(i)
            run.streams.setdefault(stream_of(step, run.rank), deque()).append(i)
            i += 1
        return i > begin

    def _start(self, run: RankRun) -> bool:
        """Starts what heads its stream."""
        moved = False
        for key, stream in run.streams.items():
            while stream and stream[0] not in run.ready:
                i = stream[0]
                now = max(run.passed[i], run.stream_free.get(key, 0))
                if now > self.trouble.dies_ns.get(run.rank, FOREVER):
                    break
                run.ready[i] = now
                self._parts[run.rank, i] = [len(run.keys[i]), 0]
                moved = True
                for part, meeting in enumerate(run.keys[i]):
                    self._meet(meeting, run, i, part, now)
        return moved

    def _meet(self, key: Key, run: RankRun, i: int, part: int, now: int) -> None:
        step = run.steps[i]
        agrees: tuple[object, ...] = (step.numel, step.dtype) if step.is_p2p else step.agrees_on
        need = 2 if step.is_p2p else len(step.group.ranks)
        meeting = self.open.setdefault(key, _Meeting(need, agrees))
        meeting.came[run.rank] = (i, now, part)
        meeting.differs |= meeting.agreed != agrees
        if key in self.trouble.wedged or meeting.differs:
            return
        is_alone = (
            self.eager and step.is_p2p and not step.is_batch and step.peers[part][0] == "send"
        ) or step.root == run.rank
        if is_alone and len(meeting.came) < need:
            self._finish(run.rank, i, now + LEAST_NS)
            return
        if len(meeting.came) < need:
            return
        end = max(t for _, t, _ in meeting.came.values()) + LEAST_NS + step.numel // 4096
        dead = [r for r in meeting.came if end > self.trouble.dies_ns.get(r, FOREVER)]
        if dead and not self.trouble.leaves_peers:
            return
        del self.open[key]
        for rank, (call, _, _) in meeting.came.items():
            if rank not in dead:
                self._finish(rank, call, end)

    def _finish(self, rank: int, i: int, end: int) -> None:
        run, left = self.ranks[rank], self._parts[rank, i]
        if i in run.done:
            return
        left[0], left[1] = left[0] - 1, max(left[1], end)
        if left[0]:
            return
        run.done[i] = left[1]
        key = stream_of(run.steps[i], rank)
        if run.streams[key] and run.streams[key][0] == i:
            run.streams[key].popleft()
        run.stream_free[key] = left[1]
        if rank not in self._queued:
            self._queued.add(rank)
            self._queue.append(rank)
