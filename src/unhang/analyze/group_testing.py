"""Which members, or which links between two of them, are bad: found by testing chosen groups, disjoint ones at the same time.

    search = Search(n=256)
    while groups := search.next_round():
        search.tell([run_collective(group) for group in groups])  # all of them at once, an Answer each
    print(search.verdict)

What is told: a group with a bad member fails; so does one in which both ends of a bad link talk to each other. Members are found
by pairs: in the second round everyone in question has a partner that is known to be good. Links by halving a group that fails.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random

from unhang.analyze.group_testing_answers import Answer, Group, GroupTest, Noise, Pair
from unhang.analyze.group_testing_book import Book, Status
from unhang.analyze.group_testing_links import (
    Sides,
    Steps,
    Wiring,
    cover,
    decide,
    in_rounds,
    links_of,
    merged,
    search,
    stars,
)
from unhang.analyze.group_testing_members import pairing

_ENOUGH_TO_GO_ON = math.log(50)
"""The search for a link may err at first: what it finds is tested by itself, and a stricter attempt follows."""
_MOST_FRUITLESS = 4
_MOST_SILENT = 3
_DECISIONS = 20


@dataclass(frozen=True, slots=True)
class Accusation:
    """A bad member, or the two ends of a bad link, with the tests that say so."""

    members: Group
    tests: tuple[GroupTest, ...]


@dataclass(frozen=True, slots=True)
class Undecided:
    """What may be bad: a member, a link (two), or something in a group. `failed_with`: partners with which it failed."""

    members: Group
    failed_with: Group
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests tell.

    `notes` say what could not be done. `noise`: as given, or with more false alarms if the answers showed more.
    `has_tested_all_links`: every link between two good members was in a test that went well, or is accused.
    """

    accused: tuple[Accusation, ...]
    undecided: tuple[Undecided, ...]
    unreachable: tuple[int, ...]
    notes: tuple[str, ...]
    has_tested_all_links: bool
    rounds: int
    member_tests: int
    noise: Noise

    @property
    def bad_members(self) -> tuple[int, ...]:
        """The members that are accused."""
        return tuple(a.members[0] for a in self.accused if len(a.members) == 1)

    @property
    def bad_links(self) -> tuple[Pair, ...]:
        """The links that are accused; their ends are good."""
        return tuple((a.members[0], a.members[1]) for a in self.accused if len(a.members) == 2)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left open."""
        return not (self.undecided or self.unreachable or self.notes)


class Search:
    """Plans the rounds, one after the other, and judges. The same answers with the same `seed` give the same plan.

    Args:
        n: members, 0 to n - 1.
        max_bad: how many bad members are expected at most. More are found as well; the error limits hold up to here.
        max_bad_links: how many bad links are expected at most. 0: links are good, one failing test with a good partner is of
            the member. Else a member is accused after failing with more good partners than this, and one whose links to that
            many partners are bad counts as bad.
        noise: how often a test answers wrongly. More false alarms than that are noticed, from some fifty members on.
        wiring: which links a group of more than two uses. Only in a mesh (all-to-all) can all links be tested.
        can_test_alone: a group may be of one member, and then shows every fault of it.
        with_controls: pairs of good members are tested beside every few suspects, for `answers_from_times`.
        max_false: the chance of a search to accuse anything that is good.
        max_missed: the chance to clear what is bad.
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
        wiring: Wiring = "mesh",
        can_test_alone: bool = False,
        with_controls: bool = False,
        max_false: float = 0.001,
        max_missed: float = 0.01,
        max_rounds: int = 200,
        seed: int = 0,
    ) -> None:
        if n < 1 or max_bad < 1 or max_bad_links < 0 or max_rounds < 1:
            raise ValueError("n, max_bad and max_rounds are at least 1, max_bad_links at least 0")
        if not (0 < max_false < 1 and 0 < max_missed < 1) or wiring not in ("mesh", "ring", "tree"):
            raise ValueError("max_false and max_missed are above 0 and below 1; wiring is mesh, ring or tree")
        self.n, self.max_bad, self.max_bad_links, self.max_rounds = n, max_bad, max_bad_links, max_rounds
        self.wiring, self.can_test_alone, self.with_controls = wiring, can_test_alone, with_controls
        self._book = Book(n, max_bad, max_bad_links, noise or Noise(), max_false, max_missed, max_rounds)
        self._random = Random(seed)
        self._enough = math.log(_DECISIONS / max_missed)
        self._rounds = self._silent = self._fruitless = 0
        self._has_tested_all_links = n == 1
        self._unexplained: Group = ()
        self._notes: list[str] = []
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

    def tell(self, answers: Sequence[Answer], unreachable: Collection[int] = ()) -> None:
        """Takes the answers of the round, in the order of its groups; unreachable members are tested no more.

        Raises:
            ValueError: not one answer per group of the round, or no such member.
        """
        if not self._pending or len(answers) != len(self._pending) or any(not 0 <= m < self.n for m in unreachable):
            raise ValueError(f"{len(self._pending)} answers are awaited, and members 0 to {self.n - 1}")
        groups, self._pending = self._pending, ()
        self._rounds += 1
        self._silent = self._silent + 1 if all(a is Answer.MISSING for a in answers) and not unreachable else 0
        self._book.add(self._rounds, groups, answers, unreachable)

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _steps(self) -> Steps[None]:
        """All rounds."""
        everyone = tuple(range(self.n))
        if self.max_bad_links and self.n > 1:
            (is_bad,) = yield from decide(self._book, [everyone], self._enough)
            if is_bad is False:
                self._book.vouch(everyone)
                self._has_tested_all_links = self.wiring == "mesh"
                return
        has_failed, known = False, self._known()
        while True:
            while groups := pairing(self._book, self._random, self.can_test_alone, self.with_controls):
                yield groups
            self._fruitless = self._fruitless + 1 if has_failed and known == self._known() else 0
            if not self.max_bad_links or self._fruitless >= _MOST_FRUITLESS:
                return
            known = self._known()
            has_failed = yield from self._links()
            if not has_failed and known == self._known():
                return

    def _known(self) -> tuple[list[Pair], list[int]]:
        return self._book.bad_links(), self._book.members(Status.GOOD)

    def _links(self) -> Steps[bool]:
        """Tests the links between good members, and those by themselves that are in question when a group fails.

        Returns whether one failed.
        """
        bad = self._book.bad_links()
        if len(bad) > self.max_bad_links:
            self._note(f"more than {self.max_bad_links} links are bad; not all of them were sought")
            return False
        centres = cover(bad)
        rest = tuple(m for m in self._book.members(Status.GOOD) if m not in centres)
        self._unexplained = rest if (yield from self._fails([(rest, ())])) else ()
        if self._unexplained:
            return (yield from self._find([(rest, ())]))
        if self.wiring != "mesh" or self._notes:
            return False
        for places in stars(centres, rest, set(bad)):
            if failing := (yield from self._fails(places)):
                self._unexplained = merged(*failing[0])
                return (yield from self._find(failing))
        for pairs in in_rounds(p for p in combinations(centres, 2) if p not in bad):
            if any((yield from decide(self._book, pairs, self._enough))):
                return True
        self._has_tested_all_links = not self._notes
        return False

    def _fails(self, places: list[Sides]) -> Steps[list[Sides]]:
        """The places that fail; a note for those that do not answer."""
        answers = yield from decide(self._book, [merged(*sides) for sides in places], self._enough)
        for sides, is_bad in zip(places, answers, strict=True):
            if is_bad is None:
                self._note(f"a test of {len(merged(*sides))} members gave no answer: not all links were tested")
        return [sides for sides, is_bad in zip(places, answers, strict=True) if is_bad]

    def _find(self, places: list[Sides]) -> Steps[bool]:
        """Looks for the bad links in places that fail, and tests those in question by themselves; True."""
        if self.wiring == "mesh":
            enough = _ENOUGH_TO_GO_ON * (1 + self._fruitless)
            pairs = yield from search(self._book, places, enough, self._random)
        else:
            pairs = [pair for sides in places for pair in links_of(merged(*sides), self.wiring)]
        for chosen in in_rounds(pairs):
            yield from decide(self._book, chosen, self._enough)
        return True

    @property
    def verdict(self) -> Verdict:
        """What the answers so far tell."""
        book = self._book
        accused: list[Group] = [(m,) for m in book.members(Status.BAD)] + list(book.bad_links())
        notes = list(self._notes)
        if len(book.members(Status.BAD)) > self.max_bad:
            notes.append(
                f"more than {self.max_bad} members are bad: fewer were expected, so the limits of error do not hold"
            )
        return Verdict(
            accused=tuple(Accusation(item, self._tests_of(item)) for item in accused),
            undecided=tuple(self._undecided()),
            unreachable=tuple(book.members(Status.UNREACHABLE)),
            notes=tuple(notes),
            has_tested_all_links=self._has_tested_all_links and not book.members(Status.OPEN),
            rounds=self._rounds,
            member_tests=sum(len(test.group) for test in book.tests),
            noise=book.noise,
        )

    def _tests_of(self, item: Group) -> tuple[GroupTest, ...]:
        """The tests of a member with good partners, or of a link by itself."""
        good = {*self._book.members(Status.GOOD), *item}
        return tuple(
            test
            for test in self._book.tests
            if len(test.group) <= 2 and good.issuperset(test.group) and set(item) <= set(test.group)
        )

    def _undecided(self) -> Iterator[Undecided]:
        book = self._book
        for member in book.members(Status.OPEN):
            failed_with = tuple(sorted(p for p, weight in book.partners(member) if weight > 0))
            why = (
                "it failed with these: it is bad, or they are, or the links to them" if failed_with else "too few tests"
            )
            yield Undecided((member,), failed_with, why)
        for pair, weight in book.links():
            if weight < book.accuse_link_at:
                yield Undecided(pair, (), "the two failed together, which may have been chance")
        if self._unexplained:
            yield Undecided(self._unexplained, (), "the group fails, and no member or link in it was found to be bad")
