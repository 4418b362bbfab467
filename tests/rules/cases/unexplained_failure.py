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
        Fires(
            log_case(
                "ERROR: the folder /data/tokens is empty, leaving\n"
                "failed (exitcode: 1) local_rank: 0 (pid: 4242) of binary: /usr/bin/python\n"
            ),
            (),
        ),
        Quiet(log_case("0: train.py: loaded\n1: train.py: loaded\n"), "no failure"),
    ),
}
