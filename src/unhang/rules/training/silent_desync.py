"""Rule: the replicas are not the same any more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule
from unhang.rules.training.guard_lines import quoted, ranks_that_differ, said_of_replicas

_DIFFER = (
    "[replicas] replicas differ since step 4 (equal at step 2): first in 0.weight, rank 1 differs from ranks 0, 2\n"
)


class SilentDesync(LineRule):
    """The replicas of the model are not the same on all ranks.

    What it detects:
        A check in the program or its framework that compared parameters or gradients between ranks, and found a difference;
        `unhang.check_replicas` is one, and `unhang.check_learning` tells of DDP modules that reduce nothing.

    Why it hangs:
        At first it does not: each rank trains a model of its own. It ends in a hang or a wrong model once a decision that is made
        from the parameters differs between the ranks.

    How to confirm:
        A checksum of the parameters on each rank, gathered and compared; the first parameter that differs tells the module.

    How to fix:
        Call the wrapped module, not `model.module`, in every forward whose backward shall be reduced; let parameters that are made
        after the wrapping, and those that DDP ignores, be broadcast; the same seed for everything that all ranks must decide alike.

    Sources:
        torch/nn/parallel/distributed.py.
    """

    id = "silent-desync"
    cause = "silent-desync"
    kinds = ("learn.desync",)
    confidence = 0.88
    EXAMPLES: ClassVar = (
        Fires(log_case("AssertionError: parameters are not the same across ranks"), ()),
        Fires(
            log_case(
                "FloatingPointError: Fatal error: gradients are inconsistent between workers. Try --ddp-backend=legacy_ddp."
            ),
            (),
        ),
        Fires(log_case("step 4, loss 0.41\n" + _DIFFER + "step 5, loss 0.4\n"), (1,)),
        Fires(
            log_case(
                "[replicas] replicas differ since step 4: first in 0.weight, no majority: rank 0; rank 1 differ\n"
            ),
            (),
        ),
        Quiet(log_case("[replicas] not compared: the model has no parameters\n"), "a comparison that was not made"),
        Quiet(log_case("step 10, loss 0.41\nparameters are the same across ranks"), "a check that passed"),
    )
    headline = "the replicas are not the same on all ranks"
    reason = "A check compared them and found a difference: somewhere before, a gradient or a parameter was not reduced or broadcast."

    def check(self, s: Situation) -> Iterable[Finding]:
        """What `unhang.check_replicas` or `unhang.check_learning` saw; else what another check said."""
        said = said_of_replicas(s)
        if not said:
            yield from super().check(s)
            return
        text = said[0][0]
        ranks = ranks_that_differ(text)
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=text.partition(";")[0],
            confidence=0.6 if s.is_hang or s.primary_failure is not None else 0.95,
            culprit_ranks=ranks,
            victim_ranks=s.others(ranks) if ranks else (),
            because="unhang's own check in the program compared the ranks, or watched their reductions, and said so.",
            evidence=quoted(said),
            fixes=self.fixes,
        )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """The failed checks, unless something failed before them."""
        found = s.events.of(*self.kinds)
        return found if not any(e.says == "hang" and e.order < found[0].order for e in s.events if found) else ()

    fixes = (
        Fix(
            "Find the first parameter that differs",
            patch="for name, p in model.named_parameters():\n    low, high = p.detach().sum(), p.detach().sum()\n"
            "    dist.all_reduce(low, op=dist.ReduceOp.MIN); dist.all_reduce(high, op=dist.ReduceOp.MAX)\n"
            "    if low != high: print(name); break",
            verify="the module of that parameter is called past the wrapper, or made after it",
            undo="remove the check",
        ),
        Fix(
            "Go through the wrapper",
            patch="loss = ddp_model(batch)   # instead of ddp_model.module(batch)",
            verify="the check passes after a hundred steps",
            undo="revert the edit",
        ),
    )
