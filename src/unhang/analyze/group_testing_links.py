"""Finds bad links among members that are good: a group of them fails, and which two of them cannot talk is to be found.

What tests is a generator: each `yield` is a round of disjoint groups, whose answers are in the book when it returns.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from random import Random
from typing import Literal, TypeVar

from unhang.analyze.group_testing_answers import Group, Pair
from unhang.analyze.group_testing_book import Book

T = TypeVar("T")
Steps = Generator[list[Group], None, T]
Wiring = Literal["mesh", "ring", "tree"]
"""Who talks to whom in a group. mesh: everyone with everyone; ring: each with the next one, the last with the first; tree: the
i-th with the (2i+1)-th and the (2i+2)-th. Groups are in ascending order."""
Sides = tuple[Group, Group]
"""Where a bad link is: between two sets, each of which is good by itself; within the first one, where the second is empty."""
_MOST_UNANSWERED = 2


def merged(*parts: Iterable[int]) -> Group:
    """All members of the parts, in order."""
    return tuple(sorted({m for part in parts for m in part}))


def decide(book: Book, groups: Sequence[Group], enough: float) -> Steps[list[bool | None]]:
    """Tests disjoint groups until each is known to be bad (True) or not; None for a group that does not answer.

    A group of one has no link and is not tested.
    """
    unanswered = dict.fromkeys(groups, 0)
    while True:
        before = {g: book.weight(g) if len(g) > 1 else -enough for g in groups}
        still = [
            g for g in groups if abs(before[g]) < enough and unanswered[g] < _MOST_UNANSWERED and book.is_reachable(g)
        ]
        if not still:
            return [None if abs(before[g]) < enough else before[g] > 0 for g in groups]
        yield still
        for group in still:
            unanswered[group] = 0 if book.weight(group) != before[group] else unanswered[group] + 1


def _halves(members: Group, random: Random) -> tuple[Group, Group]:
    mixed = random.sample(members, len(members))
    return merged(mixed[: (len(mixed) + 1) // 2]), merged(mixed[(len(mixed) + 1) // 2 :])


def _narrowed(sides: Sides, random: Random) -> list[list[Sides]]:
    """Smaller places, in the order in which to try them: those of one try are disjoint, and all tries cover the place."""
    (a1, a2), (b1, b2) = _halves(sides[0], random), _halves(sides[1], random)
    if not b1:
        return [[(a1, ()), (a2, ())], [(a1, a2)]]
    if not a2:
        return [[(a1, b1)], [(a1, b2)]]
    if not b2:
        return [[(a1, b1)], [(a2, b1)]]
    return [[(a1, b1), (a2, b2)], [(a1, b2), (a2, b1)]]


def search(book: Book, starts: Sequence[Sides], enough: float, random: Random) -> Steps[list[Pair]]:
    """Pairs to accuse: at least one bad link of each place, in a mesh; about 1.5 rounds for each halving of its size.

    What a test cannot tell is found by elimination, so the pairs are to be tested by themselves.
    """
    found: list[Pair] = []
    jobs = [[[sides]] for sides in starts]
    while jobs:
        jobs = list(_without_certain(jobs, found, random))
        tried = [sides for job in jobs for sides in job[0]]
        answers = dict(zip(tried, (yield from decide(book, [merged(*s) for s in tried], enough)), strict=True))
        following = []
        for job in jobs:
            bad = [sides for sides in job[0] if answers[sides]]
            following += [[[sides]] for sides in bad] or ([job[1:]] if job[1:] else [])
        jobs = following
    return found


def _without_certain(jobs: list[list[list[Sides]]], found: list[Pair], random: Random) -> Iterable[list[list[Sides]]]:
    """Narrows every place that needs no test, because it is the only one left; pairs go to `found`."""
    for given in jobs:
        job = given
        while len(job) == 1 and len(job[0]) == 1:
            place = merged(*job[0][0])
            if len(place) == 2:
                found.append((place[0], place[1]))
                break
            job = _narrowed(job[0][0], random)
        else:
            yield job


def links_of(group: Group, wiring: Wiring) -> list[Pair]:
    """The links that a group uses, except in a mesh."""
    n = len(group)
    ring = [(i, (i + 1) % n) for i in range(n if n > 2 else n - 1)]
    near = ring if wiring == "ring" else [((i - 1) // 2, i) for i in range(1, n)]
    return [(min(group[a], group[b]), max(group[a], group[b])) for a, b in near]


def in_rounds(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """The pairs, distributed over few rounds of disjoint ones."""
    rounds: list[tuple[set[int], list[Pair]]] = []
    for pair in pairs:
        busy, chosen = next((r for r in rounds if r[0].isdisjoint(pair)), (set(), []))
        if not busy:
            rounds.append((busy, chosen))
        busy.update(pair)
        chosen.append(pair)
    return [chosen for _, chosen in rounds]


def stars(centres: Sequence[int], rest: Group, bad: set[Pair]) -> list[list[Sides]]:
    """Rounds in which every centre meets every member of the rest, without the links that are known to be bad."""
    parts = [rest[i :: len(centres)] for i in range(len(centres))]
    rounds = []
    for shift in range(len(centres)):
        met: list[Sides] = []
        for i, centre in enumerate(centres):
            part = parts[(i + shift) % len(parts)]
            met.append(((centre,), tuple(m for m in part if (min(m, centre), max(m, centre)) not in bad)))
        rounds.append([sides for sides in met if sides[1]])
    return rounds


def cover(pairs: Iterable[Pair]) -> tuple[int, ...]:
    """Few members without which none of the pairs is whole."""
    left, chosen = list(pairs), []
    while left:
        ends = [m for pair in left for m in pair]
        chosen.append(max(sorted(set(ends)), key=ends.count))
        left = [pair for pair in left if chosen[-1] not in pair]
    return tuple(sorted(chosen))
