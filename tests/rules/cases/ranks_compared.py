"""The cases of ranks-compared."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_FSDP = "RuntimeError: Forward order differs across ranks: rank 0 is all-gathering 1 parameters while rank 1 is all-gathering 0 parameters"

_ZERO = "RuntimeError: disagreement between rank0 and rank7: rank0: [2, 3, 4, 6], rank7: [2, 3, 5, 6]"

_DDP = "RuntimeError: DDP expects same model across all ranks, but Rank 2 has {} params, while rank 0 has inconsistent {} params."

CASES = {
    "ranks-compared": (
        Fires(log_case(_FSDP), ()),
        Fires(log_case(_ZERO), ()),
        Fires(log_case(_DDP.format(128, 126)), ()),
        Quiet(log_case(_DDP.format(128, 0)), "0 is what a first collective that never ran leaves behind"),
        Quiet(
            log_case("UserWarning: Forward order differs from that of the first iteration on rank 0"),
            "of one rank over time",
        ),
    ),
}
