"""The cases of nccl-or-library-bug."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_RAISED = """[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/srv/serve.py", line 40, in <module>
[rank{0}]:     warm_up()
[rank{0}]:   File "/srv/serve.py", line 31, in {1}
[rank{0}]:     dist.all_reduce(x)
[rank{0}]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1333, unhandled cuda error, NCCL version 2.18.1
[rank{0}]: ncclUnhandledCudaError: Call to CUDA function failed.
[rank{0}]: Last error:
[rank{0}]: Cuda failure 'invalid argument'
"""

CASES = {
    "nccl-or-library-bug": (
        Fires(
            log_case(
                "NCCL version 2.25.1+cuda12.8\n"
                "node-a:3:4 [0] enqueue.cc:1436 NCCL WARN ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856\n"
            ),
            (),
        ),
        Fires(log_case(_RAISED.format(0, "capture_graphs") + _RAISED.format(1, "capture_graphs")), ()),
        Fires(log_case(_RAISED.format(1, "make_cudagraph") + _RAISED.format(3, "make_cudagraph")), ()),
        Quiet(
            log_case(
                "node-a:3:4 [0] graph/search.cc:1080 NCCL WARN Could not find a path for pattern 4, falling back to simple order\n"
            ),
            "a fallback that works",
        ),
        Quiet(
            log_case(
                "ncclInternalError: Internal check failed.\nLast error:\nSocket recv failed while polling for opId=0x1\n"
            ),
            "an internal error is often the echo of another rank's",
        ),
        Quiet(log_case(_RAISED.format(0, "train") + _RAISED.format(1, "train")), "a call outside of a capture"),
        Quiet(log_case(_RAISED.format(0, "capture_graphs")), "one rank alone"),
    ),
}
