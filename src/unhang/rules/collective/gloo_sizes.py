"""Rule: gloo received more than a rank expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule
from unhang.rules.timeout.advice import SEE_IT
from unhang.rules.timeout.amounts_disagree import PAD

_LINE = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at ../gloo/transport/tcp/"
    "pair.cc:446] op.preamble.length <= op.nbytes. 8192 vs 4096. Received data size doesn't match expected size."
)


class GlooSizes(LineRule):
    """gloo aborted a rank that received more bytes than it expected.

    What it detects:
        "op.preamble.length <= op.nbytes", the check of gloo's receiving side, in a log without recorded calls.

    Why it hangs:
        It does not: gloo aborts the receiver, and the others report a closed connection. NCCL hangs in the same program.

    How to confirm:
        TORCH_DISTRIBUTED_DEBUG=DETAIL (without DDP) or `unhang run` names the rank and both shapes.

    How to fix:
        The same shape and dtype on every rank. If the calls themselves differ, see the lines of the ranks first.

    Sources:
        gloo/transport/tcp/pair.cc.
    """

    id = "gloo-sizes"
    cause = "size-mismatch"
    kinds = ("gloo.size_mismatch",)
    confidence = 0.8
    headline = "a rank received more data than it expected: the ranks brought tensors of different size"
    reason = (
        "gloo checks the length of what arrives. The rank that aborted is the one that expected less; which size is the wrong one "
        "is not told. A different call on one rank can look the same."
    )
    fixes = (PAD, SEE_IT)
    EXAMPLES: ClassVar = (
        Fires(log_case(_LINE), ()),
        Quiet(log_case("INFO preamble length of the message: 8192 bytes"), "no failed check"),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """The lines, where no recorded calls tell more."""
        return () if len(s.case.calls) else super().evidence(s)

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """Not told."""
        return ()
