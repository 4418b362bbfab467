"""The cases of gpu-out-of-memory."""

from __future__ import annotations

from tests.rules.notation import log_case, make_case
from unhang.testing import Fires, Quiet

_LOG = """\
[rank11]:     out = attention(q, k, v)
[rank11]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.35 GiB. GPU 3 has a total capacity of 63.42 GiB of which 1.70 GiB is free.
W1017 16:21:57.292678 2124525 torch/distributed/elastic/multiprocessing/api.py:908] Sending process 4568363 closing signal SIGTERM
"""

_SKIPPED = """\
step 10, loss 0.5
CUDA out of memory. Tried to allocate 2.00 GiB
step 11, loss 0.4
step 12, loss 0.4
step 13, loss 0.3
"""

_INIT = "node-{node}: node-{node}:29{pid}:71 [{device}] NCCL INFO comm 0x7f rank {rank} nranks 4 cudaDev {device} busId 3000 - Init COMPLETE\n"
_TOLD = "".join(_INIT.format(node=r // 2, pid=10 + r, device=r % 2, rank=r) for r in range(4))
_ON_NODE_1 = """\
node-1: Traceback (most recent call last):
node-1:   File "/app/train.py", line 262, in train
node-1:     loss.backward()
node-1: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.57 GiB (GPU 1; 31.75 GiB total capacity; 28.09 GiB already allocated)
"""

CASES = {
    "gpu-out-of-memory": (
        Fires(
            make_case(
                {},
                errors={0: "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB@main:40"},
                hang=None,
                exit_code=1,
            ),
            (0,),
            40,
        ),
        Fires(log_case(_LOG), (11,)),
        Fires(log_case(_TOLD + _ON_NODE_1), (3,)),  # a device is numbered on its node
        Fires(log_case("node-0: starting\n" + _ON_NODE_1), ()),
        Quiet(
            log_case(
                "node-a:118:135 [0] include/alloc.h:125 NCCL WARN Cuda failure 500 'named symbol not found'\n"
                "node-a:118:135 [0] include/alloc.h:251 NCCL WARN Failed to CUDA calloc async 608 bytes\n"
            ),
            "NCCL could not allocate since something else of CUDA had failed",
        ),
        Quiet(
            log_case(
                "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1269, internal error, NCCL version 2.14.3\nLast error:\n"
                "Failed to CUDA calloc async 1920 bytes\n"
                "node-a:118:135 [0] include/alloc.h:38 NCCL WARN Cuda failure 'misaligned address'\n"
            ),
            "NCCL could not allocate since something else of CUDA had failed",
        ),
        Quiet(log_case(_SKIPPED), "the step was skipped and the job went on"),
        Quiet(
            make_case({}, errors={0: "MemoryError: @main:40"}, hang=None, exit_code=1), "host memory is another thing"
        ),
    ),
}
