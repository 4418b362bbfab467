"""Rule: one rank had issued one collective less than all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.log_activity import failed_by_itself, work_before_the_wait
from unhang.analyze.situation import Situation
from unhang.analyze.watchdog import GroupCounters, Watchdogs
from unhang.model import Finding
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import log_case
from unhang.rules.line_rule import quote
from unhang.rules.timeout.advice import EQUAL_BATCHES, NO_LONGER_TIMEOUT, SEE_IT

_LEAST = 3


def behind(watchdogs: Watchdogs) -> tuple[int, tuple[GroupCounters, ...], tuple[GroupCounters, ...]]:
    """(by how many calls, the ranks that are behind, the others) in the first group in which most agree; by 0 if none is."""
    groups: dict[str, list[GroupCounters]] = {}
    for counters in watchdogs.counters:
        groups.setdefault(counters.group, []).append(counters)
    for known in groups.values():
        (most, count), *_ = Counter(c.enqueued for c in known).most_common()
        late = [
            c
            for c in known
            if c.enqueued < most and c.enqueued == (c.completed if c.completed is not None else c.enqueued)
        ]
        if late and count > len(late) and count + len(late) == len(known):
            return most - max(c.enqueued for c in late), tuple(late), tuple(c for c in known if c not in late)
    return 0, (), ()


def counted(*ranks: tuple[int, int, int]) -> str:
    """A log of counters, for examples: (rank, enqueued, completed)."""
    line = (
        "[rank{0}]:[E ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Timeout at NCCL work: {3}, "
        "last enqueued NCCL work: {1}, last completed NCCL work: {2}."
    )
    return "\n".join(line.format(r, enqueued, done, done + 1) for r, enqueued, done in ranks)


class RankLags(Rule):
    """One rank had completed everything that it issued, and had issued exactly one collective less than all others.

    What it detects:
        The counters of the watchdog: "last enqueued" of one rank is one lower than of all others, and equal to its "last completed".

    Why it hangs:
        That rank has one batch or micro-batch less: it dropped a sample, or its share of the data ended.

    How to confirm:
        Print the number of batches of each rank, and what the loader or collate function drops.

    How to fix:
        The same number of batches on all ranks; decide together whether to skip.

    Sources:
        ProcessGroupNCCL.cpp: the counters are kept per process group.
    """

    id = "rank-lags"
    cause = "uneven-inputs"
    EXAMPLES: ClassVar = (
        Fires(log_case(counted((0, 37, 36), (1, 36, 36), (2, 37, 36), (3, 37, 36))), (1,)),
        Quiet(
            log_case(counted((0, 37, 36), (1, 12, 12), (2, 37, 36))),
            "far behind: it left the common path, the reason is not told",
        ),
        Quiet(log_case(counted((0, 37, 36), (1, 37, 36), (2, 37, 36))), "all are at the same call"),
        Quiet(
            log_case("Saving model checkpoint to out\n" + counted((0, 36, 36), (1, 37, 36), (2, 37, 36))),
            "the log tells what the rank does instead",
        ),
        Quiet(log_case(counted((0, 37, 36), (1, 36, 35))), "two ranks: either may be the odd one"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the rank that is one behind."""
        by, late, others = behind(s.watchdogs)
        if by != 1 or len(late) + len(others) < _LEAST or work_before_the_wait(s.events) is not None:
            return
        if failed_by_itself(s.failures) is not None:
            return
        ranks = tuple(sorted(c.rank for c in late))
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{w.name_ranks(ranks)} {w.verb(ranks, 'is', 'are')} one collective behind: it issued {late[0].enqueued}, the others {others[0].enqueued}",
            confidence=0.65,
            culprit_ranks=ranks,
            victim_ranks=_ranks(others),
            because="It has nothing under way, and made one call less than every other rank: one batch or micro-batch less is the usual reason. "
            "A skipped branch, or a rank that is stuck in its own code, looks the same; the line where it is tells them apart.",
            evidence=quote(c.event for c in (*late, *others)),
            fixes=(EQUAL_BATCHES, SEE_IT, NO_LONGER_TIMEOUT),
        )


def _ranks(counters: Sequence[GroupCounters]) -> tuple[int, ...]:
    return tuple(sorted(c.rank for c in counters))
