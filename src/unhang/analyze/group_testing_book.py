"""What the answers so far say of every member and of every pair that was tested by itself.

Legend of shapes: N members, E pairs tested by themselves. Weights are logarithms of likelihood ratios, fault against none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from unhang.analyze.group_testing_answers import Answer, Group, GroupTest, Noise, Pair

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_MIN_PAIRS = 20


class Status(IntEnum):
    """What is established of a member."""

    OPEN = 0
    GOOD = 1
    BAD = 2
    UNREACHABLE = 3


class Book:
    """Keeps all answers and judges the members after each round.

    A member is cleared by Bayes' rule, over all pairs that it was in. It is accused by a stricter count: only pairs with
    members that are cleared, as if the `max_bad_links` of them that speak loudest against it were bad links, and with a
    likelihood ratio so large that (Ville's inequality) the chance to accuse anyone innocent stays below `max_false`.
    """

    def __init__(
        self,
        n: int,
        max_bad: int,
        max_bad_links: int,
        noise: Noise,
        max_false: float,
        max_missed: float,
        max_rounds: int,
    ) -> None:
        self.n, self.max_bad_links, self.noise = n, max_bad_links, noise
        self.tests: list[GroupTest] = []
        self.status_N = np.zeros(n, dtype=np.int8)
        self.clear_at = math.log(max_missed / max_bad)
        self.accuse_at = math.log(n / max_false)
        self.accuse_link_at = math.log(n * max_rounds / 2 / max_false)
        self._prior = math.log(min(max_bad / n, 0.5) / (1 - min(max_bad / n, 0.5)))
        self.log_odds_N: Floats = np.full(n, self._prior)
        self._vouched_N = np.zeros(n, dtype=bool)
        self._link_prior = min(max_bad_links / max(n * (n - 1) / 2, 1), 0.5)
        self._at: dict[Pair, int] = {}
        self._room_E2: Ints = np.zeros((max(n, 16), 2), dtype=np.int64)  # the pairs, and room for more
        self._room_E3: Ints = np.zeros((max(n, 16), 3), dtype=np.int64)  # bad, ok, whether the first answer was bad
        self._partners: dict[int, list[int]] = {}  # member: its pairs
        self._alone: dict[int, list[int]] = {}
        self._groups: dict[Group, list[int]] = {}

    def add(self, number: int, groups: Sequence[Group], answers: Sequence[Answer], unreachable: Iterable[int]) -> None:
        """Takes the answers of a round. A group with an unreachable member says nothing of the others."""
        gone = set(unreachable)
        self.status_N[list(gone)] = Status.UNREACHABLE
        for group, given in zip(groups, answers, strict=True):
            answer = given if gone.isdisjoint(group) else Answer.MISSING
            self.tests.append(GroupTest(number, group, answer))
            if answer is not Answer.MISSING:
                self._count(group, int(answer is not Answer.OK))
        self.judge()

    def _count(self, group: Group, is_bad: int) -> None:
        if len(group) == 2:
            pair = (min(group), max(group))
            at = self._at.get(pair)
            if at is None:
                at = self._new(pair)
                self._room_E3[at, 2] = is_bad
            self._room_E3[at, 1 - is_bad] += 1
        elif len(group) == 1:
            self._alone.setdefault(group[0], [0, 0])[1 - is_bad] += 1
        else:
            self._groups.setdefault(group, [0, 0])[1 - is_bad] += 1

    def _new(self, pair: Pair) -> int:
        at = len(self._at)
        if at == len(self._room_E2):
            self._room_E2 = np.concatenate([self._room_E2, np.zeros_like(self._room_E2)])
            self._room_E3 = np.concatenate([self._room_E3, np.zeros_like(self._room_E3)])
        self._at[pair], self._room_E2[at] = at, pair
        for member in pair:
            self._partners.setdefault(member, []).append(at)
        return at

    def weight(self, group: Group) -> float:
        """How much the answers of this very group say that something in it is bad."""
        if len(group) == 1:
            return self._weight(self._alone.get(group[0], (0, 0)))
        if len(group) > 2:
            return self._weight(self._groups.get(group, (0, 0)))
        at = self._at.get((min(group), max(group)))
        return 0.0 if at is None else self._pair_weight(at)

    def _weight(self, counts: Sequence[int]) -> float:
        return counts[0] * self.noise.bad_weight + counts[1] * self.noise.ok_weight

    def _pair_weight(self, at: int) -> float:
        bad, ok, _ = self._room_E3[at].tolist()
        return self._weight((bad, ok))

    def vouch(self, group: Group) -> None:
        """Clears all members of a group whose own answers are enough for that."""
        self._vouched_N[list(group)] = True
        self.judge()

    def judge(self) -> None:
        """Sets the status of every member anew."""
        pairs_E2, counts_E3 = self._room_E2[: len(self._at)], self._room_E3[: len(self._at)]
        self._judge(pairs_E2, counts_E3)
        if self._learn_noise(pairs_E2, counts_E3):
            self._judge(pairs_E2, counts_E3)

    def _judge(self, pairs_E2: Ints, counts_E3: Ints) -> None:
        weight_E = counts_E3[:, 0] * self.noise.bad_weight + counts_E3[:, 1] * self.noise.ok_weight
        alone_N = np.zeros(self.n)
        for member, counts in self._alone.items():
            alone_N[member] = self._weight(counts)
        reachable_N = self.status_N != Status.UNREACHABLE
        for _ in range(2):
            probability_N = self._probability_N()
            self.log_odds_N = self._prior + alone_N
            for me, other in ((0, 1), (1, 0)):
                says_E = self._says_of_me(weight_E, probability_N[pairs_E2[:, other]])
                self.log_odds_N += np.bincount(pairs_E2[:, me], says_E, minlength=self.n)
            is_good_N = self._vouched_N | (self.log_odds_N - self._prior <= self.clear_at)
            self.status_N[reachable_N] = np.where(is_good_N, Status.GOOD, Status.OPEN)[reachable_N]
        for member in np.flatnonzero((self.status_N == Status.OPEN) & (self.log_odds_N > self._prior)).tolist():
            if self.evidence_against(member) >= self.accuse_at:
                self.status_N[member] = Status.BAD

    def _probability_N(self) -> Floats:
        """`[N]`: how probable it is that each member is bad, by what was known before."""
        open_N: Floats = 1 / (1 + np.exp(-np.clip(self.log_odds_N, -700, 700)))
        return np.select([self.status_N == Status.GOOD, self.status_N == Status.BAD], [0.0, 1.0], default=open_N)

    def _says_of_me(self, weight_E: Floats, other_E: Floats) -> Floats:
        """`[E]`: what each pair says of one of its members, where the other one, or the link, is bad with this probability."""
        excuse_E = 1 - (1 - other_E) * (1 - self._link_prior)
        with np.errstate(divide="ignore"):
            return weight_E - np.logaddexp(np.log1p(-excuse_E), np.log(excuse_E) + weight_E)

    def evidence_against(self, member: int) -> float:
        """The weight that an accusation of the member rests on: see the class."""
        says = [weight for partner, weight in self.partners(member) if self.status_N[partner] == Status.GOOD]
        says.sort()
        kept = says[: len(says) - min(self.max_bad_links, sum(w > 0 for w in says))]
        return sum(kept) + self.weight((member,))

    def _learn_noise(self, pairs_E2: Ints, counts_E3: Ints) -> bool:
        """Raises the rate of false alarms to what pairs of good members show, beyond what bad links explain."""
        of_good_E = (self.status_N[pairs_E2] == Status.GOOD).all(axis=1)
        pairs = int(of_good_E.sum())
        alarms = int(counts_E3[of_good_E, 2].sum()) - self.max_bad_links
        if pairs < _MIN_PAIRS or alarms <= 0 or (alarms + 1) / pairs <= self.noise.false_alarm:
            return False
        self.noise = replace(self.noise, false_alarm=min((alarms + 1) / pairs, (1 - self.noise.miss) / 2))
        return True

    def is_reachable(self, group: Group) -> bool:
        """Whether all members of the group can be tested."""
        return not (self.status_N[list(group)] == Status.UNREACHABLE).any()

    def members(self, status: Status) -> list[int]:
        """The members of which this is established, in order."""
        found: list[int] = np.flatnonzero(self.status_N == status).tolist()
        return found

    def links(self) -> list[tuple[Pair, float]]:
        """Pairs of good members whose own answers speak against the link between them, and how much."""
        if not self.max_bad_links:
            return []
        pairs_E2, counts_E3 = self._room_E2[: len(self._at)], self._room_E3[: len(self._at)]
        at_K = np.flatnonzero((counts_E3[:, 0] > 0) & (self.status_N[pairs_E2] == Status.GOOD).all(axis=1))
        found = [
            ((int(self._room_E2[at, 0]), int(self._room_E2[at, 1])), self._pair_weight(at)) for at in at_K.tolist()
        ]
        return sorted((pair, weight) for pair, weight in found if weight > 0)

    def bad_links(self) -> list[Pair]:
        """The links that are established to be bad."""
        return [pair for pair, weight in self.links() if weight >= self.accuse_link_at]

    def partners(self, member: int) -> list[tuple[int, float]]:
        """With whom the member was tested in a pair, and what these answers say."""
        at = self._partners.get(member, [])
        return [(int(self._room_E2[i].sum()) - member, self._pair_weight(i)) for i in at]
