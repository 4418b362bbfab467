"""The cases of gpu-visibility-isolation."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_217 = "Cuda failure 217 'peer access is not supported between these two devices'"

CASES = {
    "gpu-visibility-isolation": (
        Fires(
            log_case(
                "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3699, unhandled cuda error, NCCL version "
                f"2.27.3\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n{_217}"
            ),
            (),
        ),
        Fires(log_case("node-a:1:9 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'"), ()),
        Quiet(
            log_case("node-a:1:9 [0] NCCL INFO P2P is disabled between connected GPUs 1 and 0."),
            "NCCL takes another way by itself",
        ),
        Quiet(log_case("RuntimeError: CUDA error: invalid device ordinal"), "the process's own device does not exist"),
    ),
}
