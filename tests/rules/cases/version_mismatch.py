"""The cases of version-mismatch."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_DIFFERS = (
    "node-a:1:1 [0] init.cc:810 NCCL WARN Mismatched NCCL version detected : rank 0 version 21805 rank 8 version 22005"
)

_OFI = "register_rail_mr_buffer:617 NCCL WARN NET/OFI Unable to register memory (type = 2) for device 4. RC: -22, Error: Invalid argument"

_OPTION = "node-a:60:150 [0] configure_ep:213 NCCL WARN NET/OFI {} set FI_OPT_{}. RC: {}, ERROR: {}\nRuntimeError: NCCL error: unhandled system error"

_WARNED = """\
NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    model = DDP(model)
"""

CASES = {
    "version-mismatch": (
        Fires(log_case(_DIFFERS), ()),
        Fires(log_case("ImportError: /opt/env/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister"), ()),
        Fires(log_case(_OFI), ()),
        Fires(
            log_case(
                _OPTION.format("Couldn't", "EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES", -92, "Protocol not available")
            ),
            (),
        ),
        Fires(log_case(_OPTION.format("Could not", "CUDA_API_PERMITTED", -92, "Protocol not available")), ()),
        Quiet(
            log_case(_OPTION.format("Couldn't", "EFA_USE_DEVICE_RDMA", -95, "Operation not supported")),
            "an option that libfabric knows, and the device has not",
        ),
        Fires(log_case(f"{_WARNED}RuntimeError: NCCL Error 1: unhandled cuda error"), ()),
        Fires(
            log_case(
                f"{_WARNED}RuntimeError: NCCL error in: ../torch/csrc/x.cpp:1047, unhandled cuda error, NCCL version 21.0.3"
            ),
            (),
        ),
        Fires(
            log_case(
                'Traceback (most recent call last):\n  File "/opt/site-packages/torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py", line 56, '
                "in next_rendezvous\n    multi_tenant=True,\n"
                "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:\n"
                "    1. torch._C._distributed_c10d.TCPStore(host_name: str, port: int, world_size: int, is_master: bool)\n\n"
                "Invoked with: '127.0.0.1', 29500, 1, True, datetime.timedelta(0, 900); kwargs: multi_tenant=True\n"
            ),
            (),
        ),
        Quiet(log_case("NCCL version 2.19.3+cuda12.3\nNCCL version 2.19.3+cuda12.3"), "one version"),
        Quiet(
            log_case("NCCL error in: ProcessGroupNCCL.cpp:1727, internal error, NCCL version 2.19.3"),
            "a version is no fault",
        ),
        Quiet(log_case(f"{_WARNED}KeyError: 'lr'"), "what failed is no call of CUDA"),
    ),
}
