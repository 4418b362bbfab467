"""Rule: DDP parameters that took no part in the loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.failures import UNUSED_PARAMETERS
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Finding, Fix, user_frames
from unhang.model.example import Fires, Quiet, make_case
from unhang.rules import wording as w
from unhang.rules.base import Rule

_ERROR = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.@main:20"


class UnusedParameters(Rule):
    """Parameters of a DDP module got no gradient on some rank.

    What it detects:
        DDP's error "Expected to have finished reduction in the prior iteration" as the first failure of the job.

    Why it hangs:
        The bucket of a parameter without gradient is never reduced on that rank; its peers wait in the all-reduce of that bucket
        until the rank's next forward raises.

    How to confirm:
        The finding names the parameters, as far as the message or the module told them.

    How to fix:
        Make the graph equal on all ranks (add the unused branch with weight zero); `find_unused_parameters=True` also works and
        costs a walk of the graph in each step.

    Sources:
        torch/nn/parallel/distributed.py; torch/csrc/distributed/c10d/reducer.cpp.
    """

    id = "unused-parameters"
    cause = "unused-parameters"
    EXAMPLES: ClassVar = (
        Fires(make_case({}, errors={1: _ERROR}, hang=None, exit_code=1), (1,), 20),
        Quiet(make_case({}, errors={1: "ValueError: corrupt@main:20"}, hang=None, exit_code=1), "another exception"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if DDP's error is the primary failure."""
        failed = [f for f in s.failures if f.error and not f.secondary and UNUSED_PARAMETERS.search(f.error.message)]
        first = s.primary_failure
        if not failed or first is None or first.error is None or not UNUSED_PARAMETERS.search(first.error.message):
            return
        ranks = tuple(sorted(f.rank for f in failed))
        frame = next(iter(user_frames(first.error.frames)), None)
        names = first.error.parameters
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{w.name_ranks(ranks)}: parameters without gradient in the previous step"
            + (f": {', '.join(names[:6])}" if names else ""),
            confidence=0.96,
            culprit_ranks=ranks,
            victim_ranks=s.others(ranks),
            because=f"DDP on {w.name_ranks(ranks)} found at {w.place(frame)} that the step before had not reduced all buckets.",
            location=w.location_of(frame),
            evidence=(EvidenceLine(f"rank {ranks[0]} exception", first.error.message[:400]),),
            fixes=(
                Fix(
                    "Use every parameter on every rank",
                    patch="add the skipped branch with weight zero: loss = loss + 0.0 * sum(p.sum() for p in model.head.parameters())",
                    verify="unhang run -- <the same command>",
                    undo="revert the edit",
                ),
                Fix(
                    "Or let DDP search for them in each step",
                    patch="DistributedDataParallel(model, find_unused_parameters=True)   # costs a walk of the graph and one all-reduce a step",
                    verify="unhang run -- <the same command>; compare the step time",
                    undo="remove the argument",
                ),
            ),
        )
