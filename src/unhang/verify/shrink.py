"""Makes a failing schedule smaller as long as it fails in the same way.

Source: delta debugging (Zeller and Hildebrandt, 2002), on ranks, calls, groups and sizes; each candidate is run for real.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from unhang.verify.schedule import P2P, Schedule

Fails = Callable[[Schedule], bool]
Part = TypeVar("Part")
MOST_RANKS = 8


def shrink(schedule: Schedule, fails: Fails) -> Schedule:
    """The smallest schedule on the way down that `fails`; deterministic. `fails` is asked for candidates only."""
    fronts = schedule.fronts_only()
    if fronts.steps != schedule.steps and fails(fronts):
        schedule = fronts
    schedule = _fewer_calls(schedule, fails)
    smaller = _fewer_ranks(schedule, fails)
    if smaller is not schedule:
        schedule = _fewer_calls(smaller, fails)
    return _smaller_tensors(schedule, fails)


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
    few = _culprit_and_victim(schedule)
    kept = few if still_fails(few) else minimize(schedule.ranks, still_fails)
    return schedule.only(kept) or schedule


def _culprit_and_victim(schedule: Schedule) -> Sequence[int]:
    """A culprit, a rank that waits for it, and the other sides of their transfers."""
    culprit = schedule.culprits[0]
    fronts = {r: schedule.front(r) for r in schedule.ranks}
    victims = [r for r in schedule.waiting if r not in schedule.culprits]
    beside = [r for r in victims if r in schedule.core]
    direct = [r for r in victims if (front := fronts[r]) is not None and front.op in P2P and front.peer == culprit]
    ranks = {culprit, *(beside or direct or victims)[:1]}
    peers = {f.peer for r in ranks if (f := fronts[r]) is not None and f.op in P2P and f.peer is not None}
    return sorted(ranks | peers)


def _smaller_tensors(schedule: Schedule, fails: Fails) -> Schedule:
    sizes = schedule.sizes()
    same_type = {s.dtype: "float32" for steps in schedule.steps.values() for s in steps}
    for dtypes in (same_type, {}):
        candidate = schedule.mapped({n: i for i, n in enumerate(sizes, 1)}, dtypes)
        if candidate.steps == schedule.steps or fails(candidate):
            return candidate
    return schedule


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
