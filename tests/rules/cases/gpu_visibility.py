"""The cases of gpu-visibility-isolation."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_217 = "Cuda failure 217 'peer access is not supported between these two devices'"

_IPC = "node-a:2:9 [0] transport/p2p.cc:298 NCCL WARN Cuda failure 'invalid argument'\nRuntimeError: NCCL error: unhandled cuda error"
_CUMEM = "node-a:2:9 [0] NCCL INFO NCCL_CUMEM_ENABLE set by environment to {}.\n"
_REFUSED = "\nRuntimeError: peer access is not supported between these two devices"

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
        Fires(log_case(_CUMEM.format(0) + _IPC), (), cause="misconfigured-env"),
        Fires(log_case(_CUMEM.format(1) + _IPC), (), cause="gpu-visibility-isolation"),
        Fires(log_case(f"worker 0 on cuda:0\nworker 1 on cuda:1{_REFUSED}"), (), cause="p2p-acs-iommu"),
        Fires(log_case(f"Setting device to 3\nSetting device to 2{_REFUSED}"), (), cause="p2p-acs-iommu"),
        Fires(log_case(f"worker 0 on cuda:0\nworker 1 on cuda:0{_REFUSED}"), (), cause="gpu-visibility-isolation"),
        Quiet(
            log_case("node-a:1:9 [0] NCCL INFO P2P is disabled between connected GPUs 1 and 0."),
            "NCCL takes another way by itself",
        ),
        Quiet(log_case("RuntimeError: CUDA error: invalid device ordinal"), "the process's own device does not exist"),
        Quiet(
            log_case(_CUMEM.format(0) + "".join(f"step {n} loss 2.{n}\n" for n in range(9))),
            "a variable, and transfers that work",
        ),
    ),
}
