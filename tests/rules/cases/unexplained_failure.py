"""The cases of unexplained-failure."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_NOT_LET_IN = (
    "[2025-01-25 08:22:57,421 E 759 801] core_worker.cc:496: Failed to register worker to Raylet: IOError: [RayletClient] "
    "Unable to register worker with raylet. Failed to read data from the socket: End of file\n"
)

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
        Fires(log_case("INFO worker.py:1841 -- Started a local Ray instance.\n" + _NOT_LET_IN), ()),
        Quiet(log_case("0: train.py: loaded\n1: train.py: loaded\n"), "no failure"),
    ),
}
