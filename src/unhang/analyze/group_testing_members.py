"""Who is tested with whom, to find bad members: everyone in question in a pair, with a partner that is known to be good."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from unhang.analyze.group_testing_answers import Group
from unhang.analyze.group_testing_book import Book, Status

_CONTROLS = 8


def pairing(book: Book, random: Random, can_test_alone: bool, with_controls: bool) -> list[Group]:
    """The next round of disjoint groups; empty if no test of one or two could tell more.

    Links that a failing pair of good members put in question are tested in the same round.
    """
    in_question, good = _mixed(book, Status.OPEN, random), _mixed(book, Status.GOOD, random)
    in_question.sort(key=lambda m: -book.log_odds_N[m])
    if can_test_alone:
        groups: list[Group] = [(m,) for m in in_question if abs(book.weight((m,))) < book.accuse_at]
    else:
        groups = _matched(book, in_question, good + in_question[::-1])
    busy = {m for group in groups for m in group}
    for pair, weight in book.links():
        if weight < book.accuse_link_at and busy.isdisjoint(pair):
            groups.append(pair)
            busy.update(pair)
    if with_controls and groups:
        idle = [m for m in good if m not in busy][: 2 * (len(groups) + _CONTROLS)]
        groups += [(min(a, b), max(a, b)) for a, b in zip(idle[::2], idle[1::2], strict=False)]
    return groups


def _mixed(book: Book, status: Status, random: Random) -> list[int]:
    found = book.members(status)
    random.shuffle(found)
    return found


def _matched(book: Book, in_question: list[int], partners: list[int]) -> list[Group]:
    """Disjoint pairs: the most suspicious member first, the best partners first."""
    groups: list[Group] = []
    busy: set[int] = set()
    first = 0
    for member in in_question:
        if member in busy:
            continue
        while first < len(partners) and partners[first] in busy:
            first += 1
        busy.add(member)
        free = (p for p in (partners[i] for i in range(first, len(partners))) if p not in busy)
        partner = _partner(book, member, free)
        if partner is not None:
            groups.append((min(member, partner), max(member, partner)))
            busy.add(partner)
    return groups


def _partner(book: Book, member: int, free: Iterable[int]) -> int | None:
    """A partner that the member did not have yet, else one with whom the answers are not clear."""
    tested = dict(book.partners(member))
    again = None
    for partner in free:
        if partner not in tested:
            return partner
        if again is None and abs(tested[partner]) < book.accuse_link_at:
            again = partner
    return again
