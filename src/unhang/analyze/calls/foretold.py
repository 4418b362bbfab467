"""What the past of a rank, and of ranks with the same program, foretells: the longest stretch of calls that ends like the present one tells what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from unhang.numeric import np, npt

LEAST_STRETCH = 3
_LATEST = 32
_OFTEN, _MOST_WRONG = 3, 0.2

Keys: TypeAlias = "npt.NDArray[np.uint64]"
Ints: TypeAlias = "npt.NDArray[np.int64]"


@dataclass(frozen=True)
class Voter:
    """A rank that made the same calls under the same numbers (record ids) from `begin` until before `agreed`.

    `vote`: its other call there, None where its record ends. `is_from_first`: the first call of both has one number.
    `is_party`: it is a suspect itself. `is_same_stage`: it is at the same place of a pipeline.
    """

    begin: int
    agreed: int
    vote: int | None
    is_from_first: bool
    is_party: bool
    is_same_stage: bool = False

    def is_rival_at(self, i: int) -> bool:
        """Whether it made another call there, after a stretch of equal ones."""
        return self.agreed == i and self.vote is not None and i - self.begin >= LEAST_STRETCH


@dataclass(frozen=True)
class Past:
    """The calls of a rank up to the one in question, `[N]`.

    `all_groups`: those in which it made calls. `is_whole`: the very first of its calls is there.
    `restart`: the number of calls in the first repetition, where other ranks tell it, else 0. `voters`: the ranks with the
    same program. `companions`: how many ranks, with this one, wait in the call in question. `alike`: how many wait in a
    call of its kind, in any group. `unseen`: how many ranks left no record.
    """

    stream: Keys
    group: npt.NDArray[np.int32]
    all_groups: frozenset[int]
    is_whole: bool
    restart: int
    voters: tuple[Voter, ...] = ()
    companions: int = 1
    alike: int = 1
    unseen: int = 0

    def repeats(self, start: int, end: int) -> bool:
        """Whether the calls from `start` to `end` are a whole round of the program, and not of a loop within it.

        A loop that ends for the first time looks like a departure. In a whole round the rank makes all the calls, in all
        the groups, that it made before.
        """
        return self.has_all_groups(start, end) and bool(np.isin(self.stream[:start], self.stream[start:end]).all())

    def has_all_groups(self, start: int, end: int) -> bool:
        """Whether from `start` to `end` there are calls in all the groups in which the rank makes any."""
        return start <= self._round_before[end]

    @cached_property
    def _round_before(self) -> list[int]:
        """For each end the last start from which on there are calls in all the groups, -1 where there is none."""
        last = dict.fromkeys(self.all_groups, -1)
        found = [-1]
        for i, group in enumerate(self.group.tolist()):
            last[group] = i
            found.append(min(last.values()))
        return found

    def goes_back(self, at: Ints, stretch: int, i: int) -> bool:
        """Whether the stretch before `i` reaches back to the beginning of what is known, or of the second repetition.

        What is left of a past that is lost in part may be the end of a longer stretch.
        """
        if len(at) != 1 or not stretch:
            return False
        begin = i - self.restart + 1 if self.restart else 0
        return stretch == (begin if self.is_whole else int(at[0]))

    def is_cut_loop(self, at: Ints, i: int) -> bool:
        """Whether the call at `i` begins another round of a loop of which but the end is left in the past.

        What is left reads, from its end, like rounds of the calls before `i`; the lost rounds may have been as many as these.
        """
        n, stream = int(at[0]), self.stream
        if self.is_whole or len(at) > 1:
            return False
        for start in np.flatnonzero(stream[:i] == stream[i]).tolist()[::-1]:
            calls = i - start
            if self.has_all_groups(start, i):
                break
            last, begin = min(n, calls), max(0, n - calls)
            is_loop = np.array_equal(stream[calls:n], stream[:begin])
            if is_loop and np.array_equal(stream[n - last : n], stream[i - last : i]):
                return True
        return False

    def is_shared(self, i: int, stretch: int) -> bool:
        """Whether a rank with the same program made the same call under the same number, after a stretch as long.

        What is left of a past that is lost in part may be the end of one as long.
        """
        least = min(stretch, LEAST_STRETCH)
        return any(v.agreed > i and i - v.begin >= (least if v.begin > 0 else stretch) for v in self.voters)

    @cached_property
    def _partings(self) -> frozenset[int]:
        return frozenset(v.agreed for v in self.voters if v.vote is not None)

    def is_outvoted(self, i: int) -> bool:
        """Whether more than its companions, who made the same calls under the same numbers up to this one, all made another now.

        Right after the beginning of the program they must all have made the same other one: ranks may start differently. Where
        it is a pipeline those at the same stage decide. Of two sides that blame each other the smaller may be larger by the
        ranks whose files are gone.
        """
        if i not in self._partings:
            return False
        known = [v for v in self.voters if v.begin + LEAST_STRETCH <= i or (self.is_whole and v.is_from_first)]
        votes = [v for v in known if v.agreed == i and v.vote is not None]
        if any(v.agreed > i for v in known):
            return False
        if i < LEAST_STRETCH:
            votes = [v for v in votes if v.is_same_stage] or votes
        rivals = max(1, self.companions, self.alike if i == len(self.stream) - 1 else 1)
        looking_on = [v.vote for v in votes if not v.is_party]
        return any(
            len(those) > others and (i >= LEAST_STRETCH or len(set(those)) == 1)
            for those, others in ((looking_on, rivals), ([v.vote for v in votes], rivals + self.unseen))
        )


def departures_in(past: Past, peers: Sequence[Keys], clearing: Sequence[Keys]) -> tuple[list[int], int]:
    """(places at which the past foretold another call, calls of one repetition).

    What a rank did a whole round before counts most, then what those did who made the same calls up to now; where that
    says nothing, its peers foretell. A call is no departure if any peer, or one of `clearing`, makes it after an equal
    stretch that is as long.
    """
    stream, others = past.stream, [*peers, *clearing]
    own_run = np.zeros(len(stream) + 1, dtype=np.int64)  # length of the equal stretch that ends before each place
    runs = [np.zeros(len(r) + 1, dtype=np.int64) for r in others]
    found, distances = [], []
    guesses: dict[bytes, list[bool]] = {}  # by the calls right before: whether the past foretold what came
    for i, token in enumerate(stream):
        own_run[0] = 0 < past.restart == i  # the beginning of a repetition counts as a call
        equal_before = own_run[:i]
        longest = int(equal_before.max(initial=0))
        at = np.flatnonzero(equal_before == longest)
        if longest < LEAST_STRETCH and not past.goes_back(at, longest, i):
            at = at[:0]
        is_predicted = bool((stream[at] == token).any())
        is_open = len(at) > 0 and _is_open(
            guesses.setdefault(stream[max(0, i - LEAST_STRETCH) : i].tobytes(), []), is_predicted
        )
        is_round = is_predicted and past.has_all_groups(int(at[-1]), i)
        if is_round:
            distances.append(i - int(at[-1]))
        if not is_predicted or (not is_round and past.is_outvoted(i)):
            is_known = (
                not is_open
                and len(at) > 0
                and not is_predicted
                and past.repeats(int(at[0]), i)
                and not past.is_cut_loop(at, i)
            )
            if not len(at):
                longest = max((int(run[:-1].max(initial=0)) for run in runs[: len(peers)]), default=0)
                is_from_begin = past.is_whole and longest == i
                is_known = longest >= LEAST_STRETCH and (is_from_begin or past.repeats(i - longest, i))
            if not is_known and past.is_outvoted(i):
                longest, is_known = max(i, LEAST_STRETCH), True  # what follows a shorter one elsewhere tells nothing
            if is_known and not past.is_shared(i, longest) and not _is_made(token, longest, others, runs):
                found.append(i)
        for reference, run in zip([stream, *others], [own_run, *runs], strict=True):
            run[1:] = np.where(reference == token, run[:-1] + 1, 0)
    return found, max(distances[-_LATEST:], default=len(stream))


def _is_open(before: list[bool], is_predicted: bool) -> bool:
    """Whether what comes after these calls was often not what the past foretold: the data decide there. Keeps what came now."""
    wrong = before.count(False)
    before.append(is_predicted)
    return wrong >= _OFTEN and wrong >= _MOST_WRONG * (len(before) - 1)


def _is_made(token: np.uint64, stretch: int, others: Sequence[Keys], runs: Sequence[Ints]) -> bool:
    """Whether one of the others makes this call after an equal stretch that is as long; `runs`: those before each place."""
    return any((r[run[:-1] >= stretch] == token).any() for r, run in zip(others, runs, strict=True))
