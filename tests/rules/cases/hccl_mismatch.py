"""The cases of hccl-mismatch."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_TOLD = "[rank{}]: EI0005: The parameters of operator HcclAllReduce are inconsistent between ranks, parameter {} is {} on the local rank and {} on the remote rank."
_OLD = "EI0005: The arguments for collective communication are inconsistent between ranks: tag [AllReduce_x_0], parameter [{}], local [1], remote [2]"

CASES = {
    "hccl-mismatch": (
        Fires(log_case(_TOLD.format(3, "count", 1024, 2048)), (), cause="size-mismatch"),
        Fires(log_case(_OLD.format("dataType")), (), cause="size-mismatch"),
        Fires(log_case(_OLD.format("OpType")), (), cause="code-divergence"),
        Fires(log_case(_OLD.format("ranktable CRC")), (), cause="misconfigured-env"),
        Quiet(
            log_case("Solution: Check whether the training script and ranktable of each NPU are consistent."),
            "the advice beside it",
        ),
        Quiet(log_case("[rank3]: sendCount 1320960, recvCount 1323264"), "a rank that tells its own counts"),
    ),
}
