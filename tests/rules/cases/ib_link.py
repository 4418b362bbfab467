"""The cases of ib-link."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

CASES = {
    "ib-link": (
        Fires(
            log_case(
                "[1,12]<stdout>:node-c:394:477 [0] transport/net_ib.cu:80 NCCL WARN NET/IB : Got async event : local catastrophic error\n"
                "[1,13]<stdout>:node-c:561:506 [0] transport/net_ib.cu:80 NCCL WARN NET/IB : Got async event : local catastrophic error\n"
            ),
            (12, 13),
        ),
        Fires(
            log_case(
                "NCCL WARN NET/IB : Got async event : port error\n"
                "node-a:1:2 [0] NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129\n"
            ),
            (),
        ),
        Quiet(
            log_case(
                "NET/IB : mlx5_0:1 Got non-fatal async event: port error(10)\n"
                "NET/IB : mlx5_0:1 Got non-fatal async event: port active(9)\nstep 400 loss 2.1\n"
            ),
            "a port that came back, in a job that went on",
        ),
        Quiet(
            log_case("NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129\n"),
            "retries exceeded alone may be the configuration, or a peer that died",
        ),
    ),
}
