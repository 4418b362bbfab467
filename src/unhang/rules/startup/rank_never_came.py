"""Rule: not all ranks came to the check."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.reading_rule import ReadingRule, cite, ranks_of

_MOST = 8


class RankNeverCame(ReadingRule):
    """A rank never came to the check, or stopped answering in the middle of it.

    What it detects:
        The ranks meet in the store before anything is tested. One is not there within the limit.

    Why it hangs:
        A job needs all its ranks: the first collective, or already the rendezvous, waits for the one that is missing until
        the timeout, which names those that wait.

    How to confirm:
        The scheduler's state of that node, and its first lines of output: `srun -w NODE hostname`, `kubectl describe pod`.

    How to fix:
        Bring the node back, or leave it out. A longer timeout only makes the others wait longer.

    Sources:
        torch/distributed/elastic: the rendezvous has the same need, with a timeout of 600 s.
    """

    id = "rank-never-came"
    cause = "rendezvous-incomplete"
    reads = ("party.size",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read("party.size", expected=4, came=3),
                read("party.missing 2", rank=2, reason="never came: nothing from it within 30 s"),
            ),
            (2,),
        ),
        Quiet(readings_case(read("party.size", expected=4, came=4)), "all came"),
        Quiet(readings_case(absent={"party": "one process"}), "nobody else was expected"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all that are missing."""
        missing = s.readings.of("party.missing")
        if not missing:
            return
        ranks = ranks_of(missing)
        named = ", ".join(map(str, ranks[:_MOST])) + (f" and {len(ranks) - _MOST} others" * (len(ranks) > _MOST))
        came = any(not r.text("reason").startswith("never came") for r in missing)
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"rank{'s' * (len(ranks) > 1)} {named} {'stopped answering' if came else 'never came'}",
            confidence=0.97,
            culprit_ranks=ranks,
            victim_ranks=s.others(ranks),
            because="The others met in the store and went on; nothing came from there within the limit.",
            evidence=cite(missing),
            fixes=(
                Fix(
                    "Look at the node of that rank",
                    command="unhang check   # on that node alone, as one process",
                    verify="the check of the whole job names no missing rank",
                    undo="nothing is changed",
                ),
            ),
        )
