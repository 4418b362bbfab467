"""Makes a failing schedule smaller as long as it fails in the same way.

Source: delta debugging (Zeller and Hildebrandt, 2002), on ranks, calls, groups and sizes; each candidate is run for real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from unhang.reproduce.schedule import P2P, ROOTED, Schedule

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
        if fails(schedule.cut_after_fronts(dict.fromkeys(after, middle))):
            high = middle
        else:
            low = middle + 1
    left = {rank: min(count, high) for rank, count in after.items()}
    for rank in [rank for rank, count in left.items() if count]:
        if fails(schedule.cut_after_fronts({**left, rank: 0})):
            left[rank] = 0
    return schedule.cut_after_fronts(left)


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
    if any(s.op in ROOTED and not s.is_done for steps in schedule.steps.values() for s in steps):
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
