"""The cases of no-address."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_LINE = "torch.distributed.DistStoreError: wait timeout after 8000ms, keys: /default_pg/0//cpu//0/{}"

CASES = {
    "no-address": (
        Fires(log_case("\n".join(_LINE.format(2) for _ in range(3))), (2,)),
        Quiet(
            log_case("DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cuda//0"),
            "the id of NCCL's root",
        ),
        Quiet(log_case(_LINE.format(1).replace("0//cpu", "0//3//cpu")), "a later group"),
        Quiet(log_case(_LINE.format(2) + "\nep 1 train, step 7, loss 0.1"), "training began"),
        Quiet(log_case("[rank1]: " + _LINE.format(1)), "the rank itself waits: the key is of another meaning"),
    ),
}
