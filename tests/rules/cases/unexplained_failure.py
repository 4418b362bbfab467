"""The cases of unexplained-failure."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

CASES = {
    "unexplained-failure": (
        Fires(log_case("train.py: error: the following arguments are required: --data\n"), ()),
        Fires(
            log_case(
                "[rank2]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, internal error\n"
                "[rank2]: Last error:\n[rank2]: something that nobody knows\n"
            ),
            (),
        ),
        Quiet(log_case("0: train.py: loaded\n1: train.py: loaded\n"), "no failure"),
    ),
}
