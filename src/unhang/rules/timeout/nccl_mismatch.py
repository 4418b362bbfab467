"""Rule: NCCL itself saw calls that do not match."""

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


class NcclMismatch(LineRule):
    """NCCL compared the calls of neighbouring ranks and found that they differ.

    What it detects:
        "Mismatched collective detected, please check your collective calls at and around rank N".

    Why it hangs:
        The ranks bring other sizes, or make calls in another order.

    How to confirm:
        NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=COLL prints each call with its count; compare the last lines of this rank and its neighbours.

    How to fix:
        The same sizes in the same order on all ranks.

    Sources:
        NCCL 2.4, init.cc: the check is made on the ring, so the rank named may also be the neighbour of the odd one.
    """

    id = "nccl-mismatch"
    cause = "size-mismatch"
    kinds = ("fingerprint.nccl",)
    confidence = 0.85
    headline = "NCCL found calls that do not match between neighbouring ranks"
    reason = "NCCL compares count and type along the ring; the rank that it names or a neighbour of it differs. Another order of the calls looks the same."
    fixes = (PAD, SEE_IT)
    EXAMPLES: ClassVar = (
        Fires(
            log_case(
                "init.cc:1247 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 39."
            ),
            (39,),
        ),
        Quiet(log_case("NCCL INFO comm 0x1 rank 39 nranks 64 - Init COMPLETE"), "a rank of a job that runs"),
        Quiet(
            log_case(
                "NCCL WARN NET/IB : Got completion with error 4, opcode 1, len 21938, vendor err 81\n"
                "init.cu:1197 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 11."
            ),
            "the network failed, so that the neighbours stand at other calls",
        ),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """The lines, unless the transport failed: then the ranks stand where it left them."""
        return () if s.events.has("rdma.completion_error") else super().evidence(s)
