"""The cases of silent-desync."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_DIFFER = (
    "[replicas] replicas differ since step 4 (equal at step 2): first in 0.weight, rank 1 differs from ranks 0, 2\n"
)

CASES = {
    "silent-desync": (
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
    ),
}
