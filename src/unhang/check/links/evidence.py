"""What the answers to tests of groups say of every member, and of every pair that was tested by itself.

Legend of shapes: N members, E pairs tested by themselves. Weights are logarithms of likelihood ratios, fault against none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import TypeAlias

from unhang.numeric import np, npt

Group = tuple[int, ...]
Pair = tuple[int, int]
Floats: TypeAlias = "npt.NDArray[np.float64]"

_CERTAIN = 1e-12  # the least probability that an answer is wrong: contradictions stay finite
_LEAST_PAIRS = 20  # from which the rate of false alarms is learned
_LEAST_PEERS = 8  # fewer groups of one size in a round give no yardstick
_OUTLIER_DEVIATIONS, _MAD_TO_DEVIATION = 6.0, 1.4826
_TIMES_SLOWER = 1.5


class Answer(StrEnum):
    """What a group did. `HUNG` did not end and counts as bad; `MISSING` says nothing: not run, or not to be judged."""

    OK = "ok"
    BAD = "bad"
    HUNG = "hung"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class GroupTest:
    """One test that was run; rounds count from 1."""

    round: int
    group: Group
    answer: Answer


@dataclass(frozen=True, slots=True)
class Noise:
    """How often one test answers wrongly.

    `false_alarm`: bad, though nothing in the group is. `miss`: ok, though something is. A fault that shows in every second
    test is a `miss` of 0.5.

    Raises:
        ValueError: no probabilities, or an answer would say nothing.
    """

    false_alarm: float = 0.01
    miss: float = 0.01

    def __post_init__(self) -> None:
        if not (self.false_alarm >= 0 and self.miss >= 0 and self.false_alarm + self.miss < 1):
            raise ValueError("false_alarm and miss are probabilities, and less than 1 together")

    def weight(self, bad: int, ok: int) -> float:
        """How much so many answers say that there is a fault."""
        bad_weight = math.log((1 - self.miss) / max(self.false_alarm, _CERTAIN))
        return bad * bad_weight + ok * math.log(max(self.miss, _CERTAIN) / (1 - self.false_alarm))


class Status(IntEnum):
    """What is established of a member."""

    OPEN = 0
    GOOD = 1
    BAD = 2
    UNREACHABLE = 3


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
    """What the tests show.

    `notes` say what could not be done. `noise`: as given, or with more false alarms if the answers showed more.
    """

    accused: tuple[Accusation, ...]
    undecided: tuple[Undecided, ...]
    unreachable: tuple[int, ...]
    notes: tuple[str, ...]
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


class Evidence:
    """Keeps all answers and judges the members after each round. The arguments are those of `Search`.

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
        share = min(max_bad / n, 0.5)
        self._prior = math.log(share / (1 - share))
        self._link_prior = min(max_bad_links / max(n * (n - 1) / 2, 1), 0.5)
        self.log_odds_N: Floats = np.full(n, self._prior)
        self._vouched_N = np.zeros(n, dtype=bool)
        self._counts: dict[Group, list[int]] = {}  # of groups that are no pairs: bad, ok
        self._at: dict[Pair, int] = {}
        self._pairs_of: dict[int, list[int]] = {}
        # A row per pair, and room for more: its members, then how often it was bad and ok, and whether the first answer was bad.
        self._rows_E5 = np.zeros((max(n, 16), 5), dtype=np.int64)

    def add(self, number: int, groups: Sequence[Group], answers: Sequence[Answer], unreachable: Iterable[int]) -> None:
        """Takes the answers of a round. A group with an unreachable member says nothing of the others."""
        gone = set(unreachable)
        self.status_N[list(gone)] = Status.UNREACHABLE
        for group, given in zip(groups, answers, strict=True):
            answer = given if gone.isdisjoint(group) else Answer.MISSING
            self.tests.append(GroupTest(number, group, answer))
            is_ok = answer is Answer.OK
            if answer is not Answer.MISSING and len(group) == 2:
                at = self._row(group, is_ok)  # may make more room
                self._rows_E5[at, 2 + is_ok] += 1
            elif answer is not Answer.MISSING:
                self._counts.setdefault(group, [0, 0])[is_ok] += 1
        self.judge()

    def _row(self, group: Group, is_ok: bool) -> int:
        a, b = group
        pair = (min(a, b), max(a, b))
        if (at := self._at.get(pair)) is not None:
            return at
        at = self._at[pair] = len(self._at)
        if at == len(self._rows_E5):
            self._rows_E5 = np.concatenate([self._rows_E5, np.zeros_like(self._rows_E5)])
        self._rows_E5[at] = (*pair, 0, 0, not is_ok)
        for member in pair:
            self._pairs_of.setdefault(member, []).append(at)
        return at

    def weight(self, group: Group) -> float:
        """How much the answers of this very group say that something in it is bad."""
        if len(group) != 2:
            return self.noise.weight(*self._counts.get(group, (0, 0)))
        at = self._at.get((min(group), max(group)))
        return 0.0 if at is None else self._pair_weight(at)

    def _pair_weight(self, at: int) -> float:
        return self.noise.weight(*self._rows_E5[at, 2:4].tolist())

    def vouch(self, group: Group) -> None:
        """Clears all members of a group whose own answers are enough for that."""
        self._vouched_N[list(group)] = True
        self.judge()

    def judge(self) -> None:
        """Sets the status of every member anew; twice where more false alarms come to light."""
        self._judge()
        if self._learned_noise():
            self._judge()

    def _judge(self) -> None:
        rows_E5 = self._rows_E5[: len(self._at)]
        weight_E = rows_E5[:, 2] * self.noise.weight(1, 0) + rows_E5[:, 3] * self.noise.weight(0, 1)
        reachable_N = self.status_N != Status.UNREACHABLE
        for _ in range(2):
            probability_N = self._probability_N()
            self.log_odds_N = np.full(self.n, self._prior)
            for me, other in ((0, 1), (1, 0)):
                says_E = self._says_of_me(weight_E, probability_N[rows_E5[:, other]])
                self.log_odds_N += np.bincount(rows_E5[:, me], says_E, minlength=self.n)
            is_good_N = self._vouched_N | (self.log_odds_N - self._prior <= self.clear_at)
            self.status_N[reachable_N] = np.where(is_good_N, Status.GOOD, Status.OPEN)[reachable_N]
        for member in np.flatnonzero((self.status_N == Status.OPEN) & (self.log_odds_N > self._prior)).tolist():
            if self._evidence_against(member) >= self.accuse_at:
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

    def _evidence_against(self, member: int) -> float:
        """The weight that an accusation of the member rests on: see the class."""
        says = sorted(weight for partner, weight in self.partners(member) if self.status_N[partner] == Status.GOOD)
        kept = says[: len(says) - min(self.max_bad_links, sum(w > 0 for w in says))]
        return sum(kept)

    def _learned_noise(self) -> bool:
        """Raises the rate of false alarms to what pairs of good members show, beyond what bad links explain."""
        first_bad_E = self._rows_E5[: len(self._at), 4][self._of_good_E()]
        alarms, pairs = int(first_bad_E.sum()) - self.max_bad_links, len(first_bad_E)
        if pairs < _LEAST_PAIRS or alarms <= 0 or (alarms + 1) / pairs <= self.noise.false_alarm:
            return False
        self.noise = replace(self.noise, false_alarm=min((alarms + 1) / pairs, (1 - self.noise.miss) / 2))
        return True

    def _of_good_E(self) -> npt.NDArray[np.bool_]:
        """`[E]`: whether both members of a pair are good."""
        status_E2 = self.status_N[self._rows_E5[: len(self._at), :2]]
        is_good_E: npt.NDArray[np.bool_] = (status_E2 == Status.GOOD).all(axis=1)
        return is_good_E

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
        at_K = np.flatnonzero((self._rows_E5[: len(self._at), 2] > 0) & self._of_good_E())
        found = [((int(self._rows_E5[i, 0]), int(self._rows_E5[i, 1])), self._pair_weight(i)) for i in at_K.tolist()]
        return sorted((pair, weight) for pair, weight in found if weight > 0)

    def bad_links(self) -> list[Pair]:
        """The links that are established to be bad."""
        return [pair for pair, weight in self.links() if weight >= self.accuse_link_at]

    def partners(self, member: int) -> list[tuple[int, float]]:
        """With whom the member was tested in a pair, and what these answers say."""
        at = self._pairs_of.get(member, [])
        return [(int(self._rows_E5[i, :2].sum()) - member, self._pair_weight(i)) for i in at]


def answers_from_times(groups: Sequence[Group], times_s: Sequence[float | None]) -> tuple[Answer, ...]:
    """Answers of one round from how long each group took; None stands for a group that did not end.

    A group is bad if it took one and a half times as long as the median of the groups of its size, and more than six deviations
    (by the median absolute deviation) longer. Fewer than eight groups of a size are not judged; more than half of them bad pass for good.
    """
    of_size: dict[int, list[float]] = {}
    for group, time_s in zip(groups, times_s, strict=True):
        of_size.setdefault(len(group), []).extend([] if time_s is None else [time_s])
    limits = {size: _limit_s(found) for size, found in of_size.items()}
    answers = []
    for group, time_s in zip(groups, times_s, strict=True):
        limit_s = limits[len(group)]
        if time_s is None or limit_s is None:
            answers.append(Answer.HUNG if time_s is None else Answer.MISSING)
        else:
            answers.append(Answer.BAD if time_s > limit_s else Answer.OK)
    return tuple(answers)


def _limit_s(times_s: Sequence[float]) -> float | None:
    """From which time on a group of these is bad; None if nothing tells."""
    if len(times_s) < _LEAST_PEERS:
        return None
    median_s = float(np.median(times_s))
    deviation_s = _MAD_TO_DEVIATION * float(np.median(np.abs(np.array(times_s) - median_s)))
    return max(_TIMES_SLOWER * median_s, median_s + _OUTLIER_DEVIATIONS * deviation_s)
