"""The cases of fabric-manager."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

CASES = {
    "fabric-manager": (
        Fires(
            log_case(
                "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)\n"
                "transport/nvls.cc:287 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory\n"
                "  of size 2097152 : CUDA error 401 'the operation cannot be performed in the present state'.\n"
            ),
            (),
        ),
        Fires(
            log_case(
                "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized\n"
            ),
            (),
        ),
        Quiet(
            log_case("node-a:3:4 [0] NCCL INFO NVLS multicast support is not available on dev 0\n"),
            "a node without NVLS is no fault",
        ),
        Quiet(
            log_case(
                "node-a:3:4 [0] NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'\n"
            ),
            "another failure of CUDA",
        ),
    ),
}
