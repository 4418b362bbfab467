"""Rule: a collective of the check gave a wrong result, failed, or did not end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.reading_rule import ReadingRule, cite, ranks_of

_SUITE = read("collectives.suite gloo", ranks=4, cases=150)
_WRONG = "gave a wrong result"
_VERBS = {"wrong": _WRONG, "hung": "did not end", "died": "ended the process", "error": "failed"}


class CheckedCollectiveFailed(ReadingRule):
    """A collective that the check ran gave a wrong result, failed, or did not end.

    What it detects:
        Every collective runs with inputs whose exact result is known, and each element is compared. A rank is named only
        where every other rank is cleared by what the ranks saw.

    Why it hangs:
        What does not end here does not end in training either. A wrong result is worse: it trains on, and replicas part.

    How to confirm:
        `unhang check --links` tests changing groups of ranks until the rank or the link stands alone.

    How to fix:
        Leave the node out, and have it looked at: device memory errors, link errors, an NCCL plug-in of another version.

    Sources:
        The operations of torch.distributed; bus bandwidth as nccl-tests reckons it.
    """

    id = "checked-collective-failed"
    cause = "unknown"
    reads = ("collectives.suite",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                _SUITE,
                read(
                    "collectives.failure all_reduce", rank=None, verdict="wrong", said="rank 0: element 3 is 9, not 6"
                ),
                read(
                    "collectives.blame all_reduce",
                    rank=2,
                    ranks="2",
                    because="the contribution of rank 2 is in it twice",
                ),
            ),
            (2,),
        ),
        Fires(
            readings_case(
                _SUITE, read("collectives.failure barrier", rank=None, verdict="hung", because="all stand alike")
            ),
            (),
        ),
        Quiet(readings_case(_SUITE), "all results were right"),
        Quiet(readings_case(absent={"collectives": "one process"}), "nothing was run"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all failures: the first one, and whom they accuse together."""
        failures = s.readings.of("collectives.failure")
        if not failures:
            return
        blamed = s.readings.of("collectives.blame")
        ranks = ranks_of(blamed)
        first = failures[0]
        verb = _VERBS.get(first.text("verdict"), "failed")
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        who = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: " if ranks else ""
        told = [b.text("because") for b in blamed[:1]] or [first.text("because")]
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{who}{first.subject} {verb}{more}",
            confidence=0.96,
            culprit_ranks=ranks,
            victim_ranks=s.others(ranks) if ranks else (),
            because=f"{told[0] or 'The ranks stand alike'}. "
            + ("" if ranks else "The evidence does not tell which rank is at fault. ")
            + "Inputs were chosen so that the result is exact in every data type, so rounding is no excuse.",
            evidence=cite((*failures, *blamed)),
            fixes=(
                Fix(
                    "Find the rank or the link by itself",
                    command="unhang check --links",
                    verify="it names a rank or a link, or says that all groups were right",
                    undo="nothing is changed",
                ),
                Fix(
                    "Leave that node out of the job",
                    setting="srun --exclude NODE, or a taint or cordon in Kubernetes",
                    verify="unhang check --collectives all: no finding",
                    undo="take the exclusion back when the node is mended",
                ),
            ),
        )
