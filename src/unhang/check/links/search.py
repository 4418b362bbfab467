"""Which members, or which links between two of them, are bad: found by testing chosen groups, disjoint ones at the same time.

    search = Search(n=256)
    while groups := search.next_round():
        search.record([run_collective(group) for group in groups])  # all of them at once, an Answer each
    print(search.verdict)

A group with a bad member fails; so does one with both ends of a bad link, as everyone in it talks to everyone. Members are found by
pairs: in the second round everyone in question has a partner that is known to be good. Links by halving a group that fails.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from itertools import combinations, islice
from random import Random
from typing import TypeVar

from unhang.check.links.evidence import (
    Accusation,
    Answer,
    Evidence,
    Group,
    GroupTest,
    Noise,
    Pair,
    Status,
    Undecided,
    Verdict,
)

T = TypeVar("T")
Steps = Generator[list[Group], None, T]
"""What tests: each `yield` is a round of disjoint groups, whose answers are in the evidence when it returns."""
Place = tuple[Group, Group]
"""Where a bad link is: between two sets, each of which is good by itself; within the first one, where the second is empty."""
_ENOUGH_TO_GO_ON = math.log(50)
"""The search for a link may err at first: what it finds is tested by itself, and a stricter attempt follows."""
_DECISIONS = 20
_MOST_FRUITLESS, _MOST_SILENT, _MOST_UNANSWERED = 4, 3, 2
_MAX_FALSE, _MAX_MISSED = (
    0.001,
    0.01,
)  # the chance of a search to accuse anything that is good, and to clear what is bad


class Search:
    """Plans the rounds, one after the other, and judges. The same answers with the same `seed` give the same plan.

    Args:
        n: members, 0 to n - 1.
        max_bad: how many bad members are expected at most. More are found as well; the error limits hold up to here.
        max_bad_links: how many bad links are expected at most. 0: links are good, one failing test with a good partner is of
            the member. Else a member is accused after failing with more good partners than this, and one whose links to that
            many partners are bad counts as bad.
        noise: how often a test answers wrongly. More false alarms than that are noticed, from some fifty members on.
        max_rounds: after so many rounds the rest is undecided.
        seed: of all choices by chance.

    Raises:
        ValueError: a number out of range.
    """

    def __init__(
        self,
        n: int,
        *,
        max_bad: int = 4,
        max_bad_links: int = 2,
        noise: Noise | None = None,
        max_rounds: int = 200,
        seed: int = 0,
    ) -> None:
        if n < 1 or max_bad < 1 or max_bad_links < 0 or max_rounds < 1:
            raise ValueError("n, max_bad and max_rounds are at least 1, max_bad_links at least 0")
        self.n, self.max_bad, self.max_bad_links, self.max_rounds = n, max_bad, max_bad_links, max_rounds
        self._evidence = Evidence(n, max_bad, max_bad_links, noise or Noise(), _MAX_FALSE, _MAX_MISSED, max_rounds)
        self._random = Random(seed)
        self._enough = math.log(_DECISIONS / _MAX_MISSED)
        self._rounds = self._silent = self._fruitless = 0
        self._unexplained: Group = ()
        self._notes: dict[str, None] = {}
        self._pending: tuple[Group, ...] = ()
        self._plan = self._steps()

    def next_round(self) -> tuple[Group, ...]:
        """Groups to test at the same time, disjoint, their members in ascending order; empty when the search is over."""
        if self._pending:
            return self._pending
        if self._silent >= _MOST_SILENT:
            self._note(f"{_MOST_SILENT} rounds in a row gave no answer")
            return ()
        groups = next(self._plan, [])
        if groups and self._rounds >= self.max_rounds:
            self._note(f"the limit of {self.max_rounds} rounds was reached")
            self._plan.close()
            return ()
        self._pending = tuple(groups)
        return self._pending

    def record(self, answers: Sequence[Answer], unreachable: Collection[int] = ()) -> None:
        """Takes the answers of the round, in the order of its groups; unreachable members are tested no more.

        Raises:
            ValueError: not one answer per group of the round, or no such member.
        """
        if not self._pending or len(answers) != len(self._pending) or any(not 0 <= m < self.n for m in unreachable):
            raise ValueError(f"{len(self._pending)} answers are awaited, and members 0 to {self.n - 1}")
        groups, self._pending = self._pending, ()
        self._rounds += 1
        self._silent = self._silent + 1 if all(a is Answer.MISSING for a in answers) and not unreachable else 0
        self._evidence.add(self._rounds, groups, answers, unreachable)

    def _note(self, text: str) -> None:
        self._notes[text] = None

    def _steps(self) -> Steps[None]:
        """All rounds: the whole group, then members by pairs, then links between good members, until nothing new is found."""
        everyone = tuple(range(self.n))
        if self.max_bad_links and self.n > 1:
            (is_bad,) = yield from self._decide([everyone], self._enough)
            if is_bad is False:
                self._evidence.vouch(everyone)
                return
        has_failed, known = False, self._known()
        while True:
            while groups := self._pairing():
                yield groups
            self._fruitless = self._fruitless + 1 if has_failed and known == self._known() else 0
            if not self.max_bad_links or self._fruitless >= _MOST_FRUITLESS:
                return
            known = self._known()
            has_failed = yield from self._test_links()
            if not has_failed and known == self._known():
                return

    def _known(self) -> tuple[list[Pair], list[int]]:
        return self._evidence.bad_links(), self._evidence.members(Status.GOOD)

    def _decide(self, groups: Sequence[Group], enough: float) -> Steps[list[bool | None]]:
        """Tests disjoint groups until each is known to be bad (True) or not; None for a group that does not answer.

        A group of one has no link and is not tested.
        """
        evidence, unanswered = self._evidence, dict.fromkeys(groups, 0)
        while True:
            before = {g: evidence.weight(g) if len(g) > 1 else -enough for g in groups}
            open_ones = [g for g in groups if abs(before[g]) < enough and unanswered[g] < _MOST_UNANSWERED]
            still = [g for g in open_ones if evidence.is_reachable(g)]
            if not still:
                return [None if abs(before[g]) < enough else before[g] > 0 for g in groups]
            yield still
            for group in still:
                unanswered[group] = 0 if evidence.weight(group) != before[group] else unanswered[group] + 1

    # Members: everyone in question in a pair, with a partner that is known to be good.

    def _pairing(self) -> list[Group]:
        """The next round of disjoint pairs; empty if no test of two would help.

        Links that a failing pair of good members put in question are tested in the same round.
        """
        evidence = self._evidence
        in_question, good = evidence.members(Status.OPEN), evidence.members(Status.GOOD)
        self._random.shuffle(in_question)
        self._random.shuffle(good)
        in_question.sort(key=lambda m: -evidence.log_odds_N[m])
        groups = self._matched(in_question, good + in_question[::-1])
        busy = {m for group in groups for m in group}
        for pair, weight in evidence.links():
            if weight < evidence.accuse_link_at and busy.isdisjoint(pair):
                groups.append(pair)
                busy.update(pair)
        return groups

    def _matched(self, in_question: list[int], partners: list[int]) -> list[Group]:
        """Disjoint pairs: the most suspicious member first, the best partners first."""
        groups: list[Group] = []
        busy: set[int] = set()
        first = 0
        for member in (m for m in in_question if m not in busy):
            while first < len(partners) and partners[first] in busy:
                first += 1
            busy.add(member)
            partner = self._partner(member, (p for p in islice(partners, first, None) if p not in busy))
            if partner is not None:
                groups.append((min(member, partner), max(member, partner)))
                busy.add(partner)
        return groups

    def _partner(self, member: int, free: Iterable[int]) -> int | None:
        """A partner that the member did not have yet, else one with whom the answers are not clear."""
        tested = dict(self._evidence.partners(member))
        again = None
        for partner in free:
            if partner not in tested:
                return partner
            if again is None and abs(tested[partner]) < self._evidence.accuse_link_at:
                again = partner
        return again

    # Links: a group of good members fails, and which two of them cannot talk is to be found.

    def _test_links(self) -> Steps[bool]:
        """Tests the links between good members, and those by themselves that are in question when a group fails.

        Returns whether one failed.
        """
        bad = self._evidence.bad_links()
        if len(bad) > self.max_bad_links:
            self._note(f"more than {self.max_bad_links} links are bad; not all of them were sought")
            return False
        centres = _cover(bad)
        rest = tuple(m for m in self._evidence.members(Status.GOOD) if m not in centres)
        self._unexplained = rest if (yield from self._failing([(rest, ())])) else ()
        if self._unexplained:
            return (yield from self._find([(rest, ())]))
        if self._notes:
            return False
        for places in _stars(centres, rest, set(bad)):
            if failing := (yield from self._failing(places)):
                self._unexplained = _merged(*failing[0])
                return (yield from self._find(failing))
        for pairs in _in_rounds(p for p in combinations(centres, 2) if p not in bad):
            if any((yield from self._decide(pairs, self._enough))):
                return True
        return False

    def _failing(self, places: list[Place]) -> Steps[list[Place]]:
        """The places that fail; a note for those that do not answer."""
        groups = [_merged(*place) for place in places]
        answers = yield from self._decide(groups, self._enough)
        for group in (g for g, is_bad in zip(groups, answers, strict=True) if is_bad is None):
            self._note(f"a test of {len(group)} members gave no answer: not all links were tested")
        return [place for place, is_bad in zip(places, answers, strict=True) if is_bad]

    def _find(self, places: list[Place]) -> Steps[bool]:
        """Looks for the bad links in places that fail, and tests those in question by themselves; True."""
        pairs = yield from self._halve(places, _ENOUGH_TO_GO_ON * (1 + self._fruitless))
        for chosen in _in_rounds(pairs):
            yield from self._decide(chosen, self._enough)
        return True

    def _halve(self, starts: Sequence[Place], enough: float) -> Steps[list[Pair]]:
        """Pairs to accuse: at least one bad link of each place; about 1.5 rounds for each halving of its size.

        What a test cannot tell is found by elimination, so the pairs are to be tested by themselves. A job is a list of tries
        for one bad link: places that are tested together; the next try follows where none of them fails.
        """
        found: list[Pair] = []
        jobs = [[[place]] for place in starts]
        while jobs:
            jobs = list(self._without_certain(jobs, found))
            tried = [place for job in jobs for place in job[0]]
            answers = yield from self._decide([_merged(*place) for place in tried], enough)
            bad = {place for place, is_bad in zip(tried, answers, strict=True) if is_bad}
            following = []
            for job in jobs:
                following += [[[place]] for place in job[0] if place in bad] or ([job[1:]] if job[1:] else [])
            jobs = following
        return found

    def _without_certain(self, jobs: list[list[list[Place]]], found: list[Pair]) -> Iterator[list[list[Place]]]:
        """Narrows every place that needs no test, because it is the only one left; pairs go to `found`."""
        for given in jobs:
            job = given
            while len(job) == 1 and len(job[0]) == 1:
                place = _merged(*job[0][0])
                if len(place) == 2:
                    found.append((place[0], place[1]))
                    break
                job = self._narrowed(job[0][0])
            else:
                yield job

    def _narrowed(self, place: Place) -> list[list[Place]]:
        """Smaller places, in the order in which to try them: those of one try are disjoint, and all tries cover the place."""
        (a1, a2), (b1, b2) = self._halves(place[0]), self._halves(place[1])
        if not b1:
            return [[(a1, ()), (a2, ())], [(a1, a2)]]
        if not a2:
            return [[(a1, b1)], [(a1, b2)]]
        if not b2:
            return [[(a1, b1)], [(a2, b1)]]
        return [[(a1, b1), (a2, b2)], [(a1, b2), (a2, b1)]]

    def _halves(self, members: Group) -> tuple[Group, Group]:
        mixed = self._random.sample(members, len(members))
        return _merged(mixed[: (len(mixed) + 1) // 2]), _merged(mixed[(len(mixed) + 1) // 2 :])

    @property
    def verdict(self) -> Verdict:
        """What the answers so far show."""
        evidence = self._evidence
        bad, notes = evidence.members(Status.BAD), list(self._notes)
        accused: list[Group] = [*((m,) for m in bad), *evidence.bad_links()]
        if len(bad) > self.max_bad:
            why = "fewer were expected, so the limits of error do not hold"
            notes.append(f"more than {self.max_bad} members are bad: {why}")
        return Verdict(
            accused=tuple(Accusation(item, self._tests_of(item)) for item in accused),
            undecided=tuple(self._undecided()),
            unreachable=tuple(evidence.members(Status.UNREACHABLE)),
            notes=tuple(notes),
            rounds=self._rounds,
            member_tests=sum(len(test.group) for test in evidence.tests),
            noise=evidence.noise,
        )

    def _tests_of(self, item: Group) -> tuple[GroupTest, ...]:
        """The tests of a member with good partners, or of a link by itself."""
        good = {*self._evidence.members(Status.GOOD), *item}
        small = [test for test in self._evidence.tests if len(test.group) <= 2]
        return tuple(test for test in small if good.issuperset(test.group) and set(item) <= set(test.group))

    def _undecided(self) -> Iterator[Undecided]:
        evidence = self._evidence
        for member in evidence.members(Status.OPEN):
            failed_with = tuple(sorted(p for p, weight in evidence.partners(member) if weight > 0))
            reason = "it failed with these: it is bad, or they are, or the links to them"
            yield Undecided((member,), failed_with, reason if failed_with else "too few tests")
        for pair, weight in evidence.links():
            if weight < evidence.accuse_link_at:
                yield Undecided(pair, (), "the two failed together, which may have been chance")
        if self._unexplained:
            yield Undecided(self._unexplained, (), "the group fails, and no member or link in it was found to be bad")


def _merged(*parts: Iterable[int]) -> Group:
    """All members of the parts, in order."""
    return tuple(sorted({m for part in parts for m in part}))


def _in_rounds(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """The pairs, distributed over few rounds of disjoint ones."""
    rounds: list[list[Pair]] = []
    for pair in pairs:
        chosen = next((r for r in rounds if all(set(pair).isdisjoint(other) for other in r)), None)
        if chosen is None:
            rounds.append(chosen := [])
        chosen.append(pair)
    return rounds


def _stars(centres: Sequence[int], rest: Group, bad: set[Pair]) -> list[list[Place]]:
    """Rounds in which every centre meets every member of the rest, without the links that are known to be bad."""
    parts = [rest[i :: len(centres)] for i in range(len(centres))]
    rounds = []
    for shift in range(len(centres)):
        places: list[Place] = []
        for i, centre in enumerate(centres):
            part = parts[(i + shift) % len(parts)]
            places.append(((centre,), tuple(m for m in part if (min(m, centre), max(m, centre)) not in bad)))
        rounds.append([place for place in places if place[1]])
    return rounds


def _cover(pairs: Iterable[Pair]) -> tuple[int, ...]:
    """Few members without which none of the pairs is whole."""
    left, chosen = list(pairs), []
    while left:
        ends = [m for pair in left for m in pair]
        chosen.append(max(sorted(set(ends)), key=ends.count))
        left = [pair for pair in left if chosen[-1] not in pair]
    return tuple(sorted(chosen))
