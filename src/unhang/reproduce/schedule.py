"""The calls of each rank around a failure, which a stand-alone program replays; made smaller as long as it fails in the same way.

Source: delta debugging (Zeller and Hildebrandt, 2002), on ranks, calls, groups and sizes; each candidate is run for real.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

Key = tuple[str | int, ...]
ROOTED = ("broadcast", "reduce", "gather", "scatter")
P2P = {"send": "recv", "recv": "send", "isend": "irecv", "irecv": "isend"}
LOCAL = ("sleep", "event", "queue", "stop", "kill", "exit", "raise", "never_joins")
WORLD = "default_pg"
_BLOCKING = ("new_group", "store_wait", "init", *LOCAL)


@dataclass(frozen=True, slots=True)
class Step:
    """One call of one rank. `text` reads as the report does: "all_reduce #7 of default_pg".

    `key`: equal for the calls that belong together (one position of a group, the two sides of a transfer); empty for what a
    rank does alone. `peer`: the other side, or the root. `number`: a signal or an exit code. `is_done`: it completed.
    """

    text: str
    op: str
    key: Key = ()
    group: str = WORLD
    size: int = 1
    dtype: str = "float32"
    peer: int | None = None
    members: tuple[int, ...] = ()
    number: int = 0
    place: str = ""
    is_done: bool = False

    @property
    def is_local(self) -> bool:
        """Whether it waits for no other rank."""
        return self.op in LOCAL

    @property
    def position(self) -> int:
        """The number of the call in its group; 0 for what has none."""
        return int(self.key[2]) if self.key[:1] == ("c",) else 0

    @property
    def agreed(self) -> tuple[object, ...]:
        """What the members of a group must agree on."""
        return (self.op,) if self.op in P2P else (self.op, self.size, self.dtype)


@dataclass(frozen=True)
class Schedule:
    """The steps of each rank, in the order of issue. `groups` but the one of all ranks; ranks are those of the job."""

    steps: Mapping[int, tuple[Step, ...]]
    groups: Mapping[str, tuple[int, ...]]
    culprits: tuple[int, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that are left."""
        return tuple(sorted(self.steps))

    @property
    def expected(self) -> dict[int, str]:
        """Where each rank that does not come to its end stands: its first step that did not complete.

        Whether a rank completes a `new_group` that the others take for another one depends on time.
        """
        last = {r: steps[-1] for r, steps in self.steps.items() if steps and steps[-1].op == "new_group"}
        fronts = {r: self.front(r) or last.get(r) for r in self.ranks}
        return {r: step.text for r, step in fronts.items() if step is not None}

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ranks that wait for others."""
        return tuple(r for r in self.ranks if (step := self.front(r)) is not None and not step.is_local)

    @property
    def core(self) -> frozenset[int]:
        """Ranks of which one at least must wait: those in the culprits' calls, or all that wait if culprits are in none."""
        fronts = {r: self.front(r) for r in self.ranks}
        keys = {f.key for r, f in fronts.items() if r in self.culprits and f is not None and f.key}
        return frozenset(r for r in self.waiting if not keys or ((f := fronts[r]) is not None and f.key in keys))

    @property
    def keys(self) -> tuple[Key, ...]:
        """The positions and transfers that all their ranks completed, oldest first. Groups are only known by their number."""
        found: dict[Key, bool] = {}
        for steps in self.steps.values():
            for step in steps:
                found[step.key] = found.get(step.key, True) and step.is_done
        return tuple(key for key, is_done in found.items() if is_done and key and key[0] != "n")

    def front(self, rank: int) -> Step | None:
        """The first step of a rank that did not complete."""
        return next((s for s in self.steps[rank] if not s.is_done), None)

    def members(self, group: str) -> tuple[int, ...]:
        """The ranks of a group."""
        return self.groups.get(group, self.ranks)

    def is_left_open(self, rank: int, step: Step) -> bool:
        """Whether the rank went on although calls had not completed: they were asynchronous, or another thread's."""
        is_open = not step.is_done and step.op not in _BLOCKING
        return is_open and sum(not s.is_done for s in self.steps[rank]) > 1

    def steps_after_front(self, rank: int) -> int:
        """How many calls a rank started after the one that did not complete."""
        front = self.front(rank)
        return 0 if front is None else len(self.steps[rank]) - 1 - self.steps[rank].index(front)

    def fronts_only(self) -> Schedule:
        """Without the calls that ranks started after the one that did not complete."""
        return self.keep_after_front(dict.fromkeys(self.ranks, 0))

    def keep_after_front(self, left: Mapping[int, int]) -> Schedule:
        """With only so many of the calls that each rank started after the one that did not complete."""
        steps = {}
        for rank, of_rank in self.steps.items():
            steps[rank] = of_rank[: len(of_rank) - max(0, self.steps_after_front(rank) - left[rank])]
        return replace(self, steps=steps).tidy()

    def sizes(self) -> tuple[int, ...]:
        """The different numbers of elements."""
        return tuple(sorted({s.size for steps in self.steps.values() for s in steps if not s.is_local}))

    def only(self, ranks: Collection[int]) -> Schedule | None:
        """Without the other ranks; None if one of these waits for a transfer with one of those."""
        kept: dict[int, tuple[Step, ...]] = {}
        for rank in ranks:
            steps = []
            for step in self.steps[rank]:
                if step.op in P2P and step.peer not in ranks:
                    if not step.is_done:
                        return None
                    continue
                root = None if step.peer not in ranks else step.peer
                steps.append(replace(step, peer=root, members=tuple(m for m in step.members if m in ranks)))
            kept[rank] = tuple(steps)
        groups = {name: tuple(m for m in members if m in ranks) for name, members in self.groups.items()}
        return Schedule(kept, groups, tuple(c for c in self.culprits if c in ranks)).tidy()

    def without(self, keys: Collection[Key]) -> Schedule:
        """Without these positions, on every rank."""
        steps = {r: tuple(s for s in steps if not s.key or s.key not in keys) for r, steps in self.steps.items()}
        return replace(self, steps=steps).tidy()

    def mapped(self, sizes: Mapping[int, int], dtypes: Mapping[str, str]) -> Schedule:
        """With other sizes and data types."""
        return self._each(lambda s: replace(s, size=sizes.get(s.size, s.size), dtype=dtypes.get(s.dtype, s.dtype)))

    @property
    def has_open_root(self) -> bool:
        """Whether a call that has a root did not complete."""
        return any(s.op in ROOTED and not s.is_done for steps in self.steps.values() for s in steps)

    def rooted_at(self, rank: int) -> Schedule:
        """With this rank as the root wherever there is one: the recorder does not tell which it was."""
        return self._each(lambda s: replace(s, peer=rank) if s.op in ROOTED and rank in self.members(s.group) else s)

    def _each(self, change: Callable[[Step], Step]) -> Schedule:
        return replace(self, steps={rank: tuple(map(change, steps)) for rank, steps in self.steps.items()})

    def tidy(self) -> Schedule:
        """Without the groups that nobody uses."""
        used = {s.group for steps in self.steps.values() for s in steps if s.key}
        return replace(self, groups={name: ranks for name, ranks in self.groups.items() if name in used})

    def fix(self) -> dict[int, tuple[Step, ...]] | None:
        """The steps of those ranks that must make other calls for all to complete; None where no order of calls helps."""
        if any(s.op == "store_wait" for steps in self.steps.values() for s in steps):
            return None
        positions = self._positions()
        transfers = self._transfers()
        made = ([s for s in steps if s.op == "new_group"] for steps in self.steps.values())
        groups = max(made, key=len, default=[])
        fixed = {}
        for rank, steps in self.steps.items():
            mine = tuple(p for p in positions if rank in self.members(p.group))
            own = tuple(replace(s, is_done=False) for s in (*groups, *transfers.get(rank, ()), *mine))
            does, right = ([(s.op, s.group, s.size, s.dtype, s.peer) for s in some] for some in (steps, own))
            if does != right:
                fixed[rank] = own
        return fixed

    def _positions(self) -> tuple[Step, ...]:
        """Each position as those who are not to blame make it, in the order in which they do."""
        order: dict[Key, Step] = {}
        for rank in sorted(self.steps, key=lambda r: (r in self.culprits, r)):
            for step in self.steps[rank]:
                if step.key and step.key[0] == "c":
                    order.setdefault(step.key, step)
        ranked = {key: i for i, key in enumerate(order)}
        return tuple(sorted(order.values(), key=lambda s: (not s.is_done, ranked[s.key])))

    def _transfers(self) -> dict[int, tuple[Step, ...]]:
        """Both sides of each transfer, started together; what a culprit sends to nobody is left out."""
        made = {(r, s.key): s for r, steps in self.steps.items() for s in steps if s.op in P2P}
        is_waited_for = {s.peer for (_, _), s in made.items() if not s.is_done}
        found: dict[int, list[Step]] = {}
        for (rank, key), step in made.items():
            assert step.peer is not None
            has_other = (step.peer, key) in made
            is_wrong = step.op.endswith("send") and rank in self.culprits and rank in is_waited_for
            if is_wrong and not has_other:
                continue
            op = step.op if step.op.startswith("i") else f"i{step.op}"
            found.setdefault(rank, []).append(replace(step, op=op))
            if not has_other:
                text = f"{P2P[op]} {'from' if P2P[op] == 'irecv' else 'to'} rank {rank}"
                found.setdefault(step.peer, []).append(replace(step, op=P2P[op], peer=rank, text=text, place=""))
        return {r: tuple(steps) for r, steps in found.items()}


Fails = Callable[[Schedule], bool]
Part = TypeVar("Part")
MOST_RANKS = 8
_VICTIMS_TRIED = 2


def shrink(schedule: Schedule, fails: Fails) -> Schedule:
    """The smallest schedule on the way down that `fails`; deterministic. `fails` is asked for candidates only."""
    fronts = schedule.fronts_only()
    if fronts.steps != schedule.steps:
        schedule = fronts if fails(fronts) else _fewer_after_fronts(schedule, fails)
    schedule = _fewer_calls(schedule, fails)
    smaller = _fewer_ranks(schedule, fails)
    if smaller is not schedule:
        schedule = _fewer_calls(smaller, fails)
    return _smaller_tensors(schedule, fails)


def leap(schedule: Schedule, fails: Fails) -> Schedule | None:
    """The smallest form that there could be, if that `fails`: the culprit and a victim, and the calls in which they stand."""
    small = _checked(schedule.only(next(_culprit_and_victim(schedule))))
    if small is None:
        return None
    small = small.fronts_only()
    small = _with_small_tensors(small.without(small.keys), is_one_type=True)
    return next((form for form in _with_its_root(small) if fails(form)), None)


def few_ranks(schedule: Schedule) -> Schedule | None:
    """The culprits and some of those who wait, so that it can be run on one machine; None if that is not possible."""
    if len(schedule.ranks) <= MOST_RANKS:
        return schedule
    culprits = schedule.culprits[: MOST_RANKS // 2]
    victims = [r for r in schedule.waiting if r not in culprits][: MOST_RANKS - len(culprits)]
    return _checked(schedule.only({*culprits, *victims}))


def _checked(candidate: Schedule | None) -> Schedule | None:
    """A candidate that can show the failure: somebody who caused it, and somebody who waits."""
    if candidate is None or not candidate.culprits or not candidate.waiting:
        return None
    return candidate if len(candidate.ranks) > 1 else None


def _fewer_after_fronts(schedule: Schedule, fails: Fails) -> Schedule:
    """Fewer of the calls that ranks started after their open one; without all of them it may complete, or not begin."""
    after = {rank: schedule.steps_after_front(rank) for rank in schedule.ranks}
    low, high = 1, max(after.values())
    while low < high:
        middle = (low + high) // 2
        if fails(schedule.keep_after_front(dict.fromkeys(after, middle))):
            high = middle
        else:
            low = middle + 1
    left = {rank: min(count, high) for rank, count in after.items()}
    for rank in [rank for rank, count in left.items() if count]:
        if fails(schedule.keep_after_front({**left, rank: 0})):
            left[rank] = 0
    return schedule.keep_after_front(left)


def _fewer_calls(schedule: Schedule, fails: Fails) -> Schedule:
    keys = schedule.keys
    kept = minimize(keys, lambda some: fails(schedule.without([k for k in keys if k not in some])))
    return schedule.without([k for k in keys if k not in kept]) if len(kept) < len(keys) else schedule


def _fewer_ranks(schedule: Schedule, fails: Fails) -> Schedule:
    def still_fails(ranks: Sequence[int]) -> bool:
        candidate = _checked(schedule.only(ranks))
        return candidate is not None and fails(candidate)

    if len(schedule.ranks) <= 2:
        return schedule
    for few in _culprit_and_victim(schedule):
        candidate = _checked(schedule.only(few))
        for form in _with_its_root(candidate) if candidate is not None else ():
            if fails(form):
                return form
    return schedule.only(minimize(schedule.ranks, still_fails)) or schedule


def _culprit_and_victim(schedule: Schedule) -> Iterator[Sequence[int]]:
    """A culprit, a rank that waits for it, and the other sides of their transfers: first the victim that is furthest behind.

    Others may wait for that one, and where a call needs no answer they are calls ahead of it.
    """
    culprit = schedule.culprits[0]
    fronts = {r: front for r in schedule.ranks if (front := schedule.front(r)) is not None}
    victims = [r for r in schedule.waiting if r not in schedule.culprits]
    beside = [r for r in victims if r in schedule.core]
    direct = [r for r in victims if fronts[r].op in P2P and fronts[r].peer == culprit]
    chosen = sorted(beside or direct or victims, key=lambda r: (fronts[r].position, r))
    for victim in chosen[:_VICTIMS_TRIED] or [culprit]:
        ranks = {culprit, victim}
        peers = {f.peer for r in ranks if (f := fronts.get(r)) is not None and f.op in P2P and f.peer is not None}
        yield sorted(ranks | peers)


def _with_its_root(schedule: Schedule) -> Iterator[Schedule]:
    """As it is, and with the culprit as the root: which rank it was is not recorded, and may have been left out."""
    yield schedule
    if schedule.has_open_root:
        yield schedule.rooted_at(schedule.culprits[0])


def _smaller_tensors(schedule: Schedule, fails: Fails) -> Schedule:
    for is_one_type in (True, False):
        candidate = _with_small_tensors(schedule, is_one_type)
        if candidate.steps == schedule.steps or fails(candidate):
            return candidate
    return schedule


def _with_small_tensors(schedule: Schedule, is_one_type: bool) -> Schedule:
    """Different sizes stay different."""
    types = {s.dtype: "float32" for steps in schedule.steps.values() for s in steps} if is_one_type else {}
    return schedule.mapped({n: i for i, n in enumerate(schedule.sizes(), 1)}, types)


def minimize(parts: Sequence[Part], still_fails: Callable[[Sequence[Part]], bool]) -> Sequence[Part]:
    """A subset that still fails and from which no part can be left out: first nothing, then halves, then single parts."""
    if not parts or still_fails(()):
        return ()
    chunk = (len(parts) + 1) // 2
    while chunk:
        at = 0
        while at < len(parts):
            fewer = [*parts[:at], *parts[at + chunk :]]
            if fewer and len(fewer) < len(parts) and still_fails(fewer):
                parts = fewer
            else:
                at += chunk
        chunk //= 2
    return parts
