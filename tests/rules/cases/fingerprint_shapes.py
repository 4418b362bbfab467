"""The cases of fingerprint-shapes."""

from __future__ import annotations

from tests.rules.cases.fingerprint_mismatch import printed
from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

CASES = {
    "fingerprint-shapes": (
        Fires(log_case(printed((0, 5, "ALLGATHER", "41, 256"), (1, 5, "ALLGATHER", "40, 256"))), ()),
        Fires(
            log_case("\n".join(printed((r, 5, "ALLGATHER", "40, 256" if r == 2 else "41, 256")) for r in range(4))),
            (2,),
        ),
        Quiet(log_case(printed((1, 31, "BARRIER", ""), (0, 31, "GATHER", "4"))), "different operations"),
    ),
}
