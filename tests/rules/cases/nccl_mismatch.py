"""The cases of nccl-mismatch."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

CASES = {
    "nccl-mismatch": (
        Fires(
            log_case(
                "init.cc:1247 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 39."
            ),
            (39,),
        ),
        Quiet(log_case("NCCL INFO comm 0x1 rank 39 nranks 64 - Init COMPLETE"), "a rank of a job that runs"),
        Quiet(
            log_case(
                "NCCL WARN NET/IB : Got completion with error 4, opcode 1, len 21938, vendor err 81\n"
                "init.cu:1197 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 11."
            ),
            "the network failed, so that the neighbours stand at other calls",
        ),
    ),
}
