"""Rule: NCCL fails in itself, in a way that is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.device.shm_too_small import ShmTooSmall
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule
from unhang.rules.network.died_first import somebody_died


class NcclOrLibraryBug(LineRule):
    """An internal check of NCCL failed on the machine's topology or device, with a line that says so.

    What it detects:
        NCCL's own checks: kernels that want more shared memory than the device has (2.25 on consumer Blackwell), rings that
        miss a rank, attributes missing in the topology, a path that cannot be found together with an error.

    Why it hangs:
        The communicator cannot be made or its kernels are not launched; the ranks wait or fail with an internal error.

    How to confirm:
        `NCCL_DEBUG=INFO`: the same check fails with nccl-tests on the same machine.

    How to fix:
        Another version of NCCL; a report with the topology (NCCL_TOPO_DUMP_FILE).

    Sources:
        NCCL release notes; NCCL graph/ and enqueue.cc.
    """

    id = "nccl-or-library-bug"
    cause = "nccl-or-library-bug"
    kinds: ClassVar = ("nccl.internal_assert",)
    EXAMPLES: ClassVar = (
        Fires(
            log_case(
                "NCCL version 2.25.1+cuda12.8\n"
                "node-a:3:4 [0] enqueue.cc:1436 NCCL WARN ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856\n"
            ),
            (),
        ),
        Quiet(
            log_case(
                "node-a:3:4 [0] graph/search.cc:1080 NCCL WARN Could not find a path for pattern 4, falling back to simple order\n"
            ),
            "a fallback that works",
        ),
        Quiet(
            log_case(
                "ncclInternalError: Internal check failed.\nLast error:\nSocket recv failed while polling for opId=0x1\n"
            ),
            "an internal error is often the echo of another rank's",
        ),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """Failed checks; those with a fallback only beside an error of NCCL, and none where something else came first."""
        found = s.events.of(*self.kinds)
        if not found or somebody_died(s, found) or s.events.has(*ShmTooSmall.kinds, "fabric.connect_failed", "rdma."):
            return ()
        has_error = s.events.has("nccl.error", "nccl.result")
        return tuple(e for e in found if has_error or not e["assertion"].startswith(("Could not", "Attribute")))

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """Nobody."""
        return ()

    def certainty(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """The known check is strong; the others may be the machine's."""
        return 0.85 if any("maxSharedMem" in e["assertion"] for e in events) else 0.66

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """The check."""
        version = s.events.first("nccl.version")
        which = f" {version['version']}" if version else ""
        return f"NCCL{which} fails in an internal check: {events[0]['assertion'][:80]}"

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """Why it is NCCL and not the program."""
        return "The check is about NCCL's own plan for this machine; nothing in the log failed before it."

    def advice(self, s: Situation, events: Sequence[LogEvent]) -> tuple[Fix, ...]:
        """What to change."""
        return (
            Fix(
                "Use another release of NCCL",
                command="pip install -U nvidia-nccl-cu12   # or the build of torch that brings a newer one",
                verify="python -c 'import torch; print(torch.cuda.nccl.version())', and the line is gone",
                undo="pip install the former version",
            ),
            Fix(
                "Report it with the topology",
                setting="NCCL_TOPO_DUMP_FILE=/tmp/topo.xml NCCL_DEBUG=INFO",
                verify="nccl-tests on the same machine fails with the same line",
                undo="unset both",
            ),
        )
