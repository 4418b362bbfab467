"""Rule: a rank computes, or the collectives run, slower than they should."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.reading_rule import ReadingRule, cite, ranks_of

_SUITE = read("collectives.suite gloo", ranks=4, cases=150)


class SlowInCheck(ReadingRule):
    """A rank computes slower than the others, or collectives are slower than in the reference run.

    What it detects:
        The same matrix product on every rank, in blocks: a rank whose good blocks are 1.5 times the others' usual time.
        With `--reference`: a collective that takes 1.5 times as long as then, by more than the noise of either run.

    Why it hangs:
        It does not hang: every step waits for the slowest rank.

    How to confirm:
        `unhang check --collectives benchmark` again; clocks and throttling of that device; other processes on that host.

    How to fix:
        What throttles or shares the device; or leave the node out.

    Sources:
        Synchronous training runs at the speed of its slowest rank.
    """

    id = "slow-in-check"
    cause = "straggler"
    reads = ("collectives.suite",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                _SUITE, read("collectives.slow_rank compute_speed", rank=3, ratio=2.1, median_s=0.02, others_s=0.01)
            ),
            (3,),
        ),
        Fires(
            readings_case(
                _SUITE, read("collectives.ratio benchmark", rank=0, ratio=3.0, is_slower=True, now_s=3.0, before_s=1.0)
            ),
            (),
        ),
        Quiet(
            readings_case(_SUITE, read("collectives.ratio benchmark", rank=0, ratio=1.1, is_slower=False)),
            "as fast as then",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for the slow ranks, one for the collectives."""
        slow = s.readings.of("collectives.slow_rank")
        if slow:
            worst = max(slow, key=lambda r: r.number("ratio") or 0.0)
            ranks = ranks_of(slow)
            yield self._finding(
                f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} computes {worst.text('ratio')} times slower than the others",
                "The same matrix product on every rank; even the good blocks of it are slow there, so it is no passing hiccup.",
                ranks, slow,
            )  # fmt: skip
        slower = [r for r in s.readings.of("collectives.ratio") if r["is_slower"] is True]
        if slower:
            worst = max(slower, key=lambda r: r.number("ratio") or 0.0)
            yield self._finding(
                f"{len(slower)} collective{'s' * (len(slower) > 1)} slower than in the reference, {worst.subject} {worst.text('ratio')} times",
                "Slower by more than the noise of either run. The figures do not tell which rank or link it is.",
                (), slower,
            )  # fmt: skip

    def _finding(self, title: str, because: str, ranks: tuple[int, ...], readings: Iterable[Reading]) -> Finding:
        return Finding(
            rule=self.id,
            cause=self.cause,
            title=title,
            confidence=0.8,
            culprit_ranks=ranks,
            because=because,
            evidence=cite(readings),
            fixes=(
                Fix(
                    "See what shares or throttles that processor or device",
                    command="top -b -n 1 | head -20; nvidia-smi -q -d PERFORMANCE,CLOCK",
                    verify="unhang check --collectives benchmark: no finding",
                    undo="nothing is changed",
                ),
            ),
        )
