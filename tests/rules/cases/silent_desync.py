"""The cases of silent-desync."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_DIFFER = (
    "[replicas] replicas differ since step 4 (equal at step 2): first in 0.weight, rank 1 differs from ranks 0, 2\n"
)


def _values(*rounds: tuple[str, str], also: str = "") -> str:
    return "".join(
        f"[rank{r}] step {i} loss=1.{r} {also}w.sum={v}\n" for i, of in enumerate(rounds) for r, v in enumerate(of)
    )


_ROUNDS = (("0.381742", "0.381742"), ("0.362175", "0.386592"), ("0.343527", "0.391501"), ("0.325771", "0.395370"))

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
        Fires(log_case(_values(*_ROUNDS)), ()),
        Fires(log_case("policy: DistributedDataParallel(device_ids=[0])\n" + _values(*_ROUNDS[1:])), ()),
        Quiet(
            log_case(_values(*_ROUNDS[1:])),
            "the ranks print different values from the start: each may hold a part of the model",
        ),
        Quiet(
            log_case(_values(*_ROUNDS, also="DiLoCo ")),
            "local SGD, sharding, or stages of a pipeline: there replicas differ by design",
        ),
        Quiet(log_case(_values(*(_ROUNDS[0],) * 4)), "a check that passed"),
        Quiet(log_case("[replicas] not compared: the model has no parameters\n"), "a comparison that was not made"),
        Quiet(log_case("step 10, loss 0.41\nparameters are the same across ranks"), "a check that passed"),
    ),
}
