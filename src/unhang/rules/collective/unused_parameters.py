"""Rule: DDP parameters that took no part in the loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.failures import UNUSED_PARAMETERS
from unhang.analyze.first_errors import errors_of, is_log_only
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Finding, Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import make_case
from unhang.rules.failure import first_exception
from unhang.rules.line_rule import quote

_ERROR = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.@main:20"

_LOG = """\
RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.
Parameters which did not receive grad for rank 1: head.weight, head.bias
"""


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
        first = first_exception(s)
        lines = s.events.of("ddp.unused", "ddp.unused_names", "ddp.unused_indices")
        if first is None or not UNUSED_PARAMETERS.search(first.text):
            first = None
            if not lines or not is_log_only(s) or s.primary_failure is not None:
                return
            if any(e.kind == "primary" for e in errors_of(s)[:1]):
                return
        # Which parameters, and on which ranks, DDP says on lines of their own; else it is the ranks that raised.
        told = {e.rank for e in lines if e.rank is not None and e.kind != "ddp.unused"}
        ranks = tuple(sorted(told)) or (
            first.ranks if first else tuple(sorted({e.rank for e in lines if e.rank is not None}))
        )
        frame = first.frame if first else None
        names = first.error.parameters if first and first.error.parameters else tuple(_names(lines))
        who = w.name_ranks(ranks) if ranks else "a rank"
        message = first.error.message if first else lines[0].text
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{who}: parameters without gradient in the previous step"
            + (f": {', '.join(names[:6])}" if names else ""),
            confidence=0.96,
            culprit_ranks=ranks,
            victim_ranks=s.others(ranks) if ranks else (),
            because=f"DDP on {who} found{f' at {w.place(frame)}' if frame else ''} that the step before had not reduced all buckets.",
            location=w.location_of(frame),
            evidence=(EvidenceLine(f"{who} exception", message[:400]), *quote(lines)),
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


def _names(lines: Sequence[LogEvent]) -> Iterable[str]:
    """The parameters that DDP names, or their indices."""
    for event in lines:
        yield from (name.strip() for name in event["names"].split(",") if name.strip())
        yield from (f"#{index}" for index in event["indices"].split())
