"""The cases of cuda-kernel-error."""

from __future__ import annotations

from tests.rules.notation import log_case, make_case
from unhang.testing import Fires, Quiet

_WATCHDOG = """\
{'loss': 0.2786, 'grad_norm': 0.59, 'learning_rate': 1.9e-07, 'epoch': 3.73}
[rank7]:[E ProcessGroupNCCL.cpp:1182] [Rank 7] NCCL watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
"""

_ASSERTION = """\
../aten/src/ATen/native/cuda/Indexing.cu:1292: indexSelectLargeIndex: block: [180,0,0], thread: [64,0,0] Assertion `srcIndex < srcSelectDimSize` failed.
../aten/src/ATen/native/cuda/Indexing.cu:1292: indexSelectLargeIndex: block: [180,0,0], thread: [65,0,0] Assertion `srcIndex < srcSelectDimSize` failed.
[rank3]: RuntimeError: CUDA error: device-side assert triggered
[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)
"""

CASES = {
    "cuda-kernel-error": (
        Fires(log_case(_WATCHDOG), (7,)),
        Fires(log_case(_ASSERTION), (3,)),
        Fires(
            make_case(
                {},
                errors={1: "RuntimeError: CUDA error: device-side assert triggered@main:9>step:31"},
                hang=None,
                exit_code=1,
            ),
            (1,),
            31,
        ),
        Quiet(log_case("[rank1]: RuntimeError: CUDA error: out of memory"), "memory that ran out is another thing"),
        Quiet(log_case("[rank1]: RuntimeError: CUDA error: invalid device ordinal"), "a device that is not there"),
    ),
}
