"""Rule: DETAIL mode saw tensors of different size in the same call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.fingerprints import fingerprints
from unhang.analyze.situation import Situation
from unhang.analyze.watchdog import minority
from unhang.model import Finding
from unhang.model.example import Fires, Quiet
from unhang.rules.base import Rule
from unhang.rules.examples import log_case
from unhang.rules.line_rule import quote
from unhang.rules.timeout.amounts_disagree import PAD
from unhang.rules.timeout.fingerprint_mismatch import is_other_tensor, printed


class FingerprintShapes(Rule):
    """The ranks were about to make the same collective with tensors of different size or dtype.

    What it detects:
        "Detected mismatch between collectives" where operation and position agree, and shape or dtype does not.

    Why it hangs:
        Without the debug mode NCCL waits for data that nobody sends, and gloo aborts.

    How to confirm:
        Print the shape on each rank before the call: dropped samples, a last incomplete batch, sequences of other length.

    How to fix:
        Pad to a common size, exchange the sizes first, or drop the last incomplete batch.

    Sources:
        torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp.
    """

    id = "fingerprint-shapes"
    cause = "size-mismatch"
    EXAMPLES: ClassVar = (
        Fires(log_case(printed((0, 5, "ALLGATHER", "41, 256"), (1, 5, "ALLGATHER", "40, 256"))), ()),
        Fires(
            log_case("\n".join(printed((r, 5, "ALLGATHER", "40, 256" if r == 2 else "41, 256")) for r in range(4))),
            (2,),
        ),
        Quiet(log_case(printed((1, 31, "BARRIER", ""), (0, 31, "GATHER", "4"))), "different operations"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the sizes that were compared."""
        found = fingerprints(s.events)
        sizes = {rank: (f.shape, f.dtype) for rank, f in found.items()}
        if len({f.op for f in found.values()}) != 1 or len(set(sizes.values())) < 2 or is_other_tensor(found.values()):
            return
        odd = minority(sizes)
        sides = ", ".join(f"rank {r} {f}" for r, f in sorted(found.items())[:4])
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"the same call with different tensors: {sides}",
            confidence=0.92,
            culprit_ranks=odd,
            victim_ranks=tuple(r for r in found if r not in odd) if odd else (),
            because="Operation and position agree, the tensors do not"
            + ("." if odd else "; there is no majority that tells which size is the right one."),
            collective={"op": next(iter(found.values())).op, "seq": next(iter(found.values())).seq},
            evidence=quote(f.event for f in found.values()),
            fixes=(PAD,),
        )
