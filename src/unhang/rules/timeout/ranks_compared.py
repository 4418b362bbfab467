"""Rule: a library compared the ranks and found that they do different things."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.first_errors import errors_of
from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule
from unhang.rules.timeout.advice import SEE_IT

_FSDP = "RuntimeError: Forward order differs across ranks: rank 0 is all-gathering 1 parameters while rank 1 is all-gathering 0 parameters"
_ZERO = "RuntimeError: disagreement between rank0 and rank7: rank0: [2, 3, 4, 6], rank7: [2, 3, 5, 6]"
_DDP = "RuntimeError: DDP expects same model across all ranks, but Rank 2 has {} params, while rank 0 has inconsistent {} params."
_EARLIER = 0.6
_SAME = 40


class RanksCompared(LineRule):
    """FSDP, ZeRO-3 or DDP compared the ranks and found that their modules or parameters differ.

    What it detects:
        FSDP's "Forward order differs across ranks", DeepSpeed's "disagreement between rank0 and rankN", and DDP's "expects same
        model across all ranks" with two different numbers of parameters.

    Why it hangs:
        Without the comparison each rank would gather or reduce other parameters than its peers, and wait for them.

    How to confirm:
        Print on each rank the modules that run in that step (or the names of the parameters given to DDP) and compare.

    How to fix:
        Build the same model and run the same modules on every rank: a dummy pass through a branch that only some batches take.

    Sources:
        torch/distributed/fsdp, execution order validation; deepspeed/runtime/zero; torch/csrc/distributed/c10d/reducer.cpp.
    """

    id = "ranks-compared"
    cause = "code-divergence"
    kinds = ("compared.forward_order", "compared.fetch_order", "ddp.inconsistent_params")
    confidence = 0.96
    headline = "the ranks run different modules or have different parameters, as the library's own comparison says"
    reason = "The library compared them before the call: their programs had parted. Which side left the common path is not told by it."
    fixes = (
        Fix(
            "Run the same modules on every rank",
            patch="out = out + 0 * self.rare_branch(dummy_input).sum()   # where only some batches take the branch",
            verify="unhang run -- <the same command>: outcome clean",
            undo="revert the edit",
        ),
        SEE_IT,
    )
    EXAMPLES: ClassVar = (
        Fires(log_case(_FSDP), ()),
        Fires(log_case(_ZERO), ()),
        Fires(log_case(_DDP.format(128, 126)), ()),
        Quiet(log_case(_DDP.format(128, 0)), "0 is what a first collective that never ran leaves behind"),
        Quiet(
            log_case("UserWarning: Forward order differs from that of the first iteration on rank 0"),
            "of one rank over time",
        ),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """The lines, without those of DDP that compare with nothing."""
        return [e for e in super().evidence(s) if e.kind != "ddp.inconsistent_params" or e["other"] not in ("", "0")]

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """Not told: the comparison has two sides."""
        return ()

    def certainty(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """Little where another exception came before it, which may be why the ranks differ."""
        before = [e for e in errors_of(s) if e.kind == "primary" and e.order < events[0].order]
        return _EARLIER if any(e.error.message[:_SAME] not in events[0].text for e in before) else self.confidence
