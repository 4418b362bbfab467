"""Errors of device kernels, as torch, NCCL and the device runtime print them. Out of memory is in `oom`."""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

_WHAT = (
    r"(?P<what>device-side assert triggered|an illegal memory access was encountered|misaligned address|"
    r"an illegal instruction was encountered|invalid program counter|operation not supported on global/shared address space|"
    r"hardware stack error|invalid address space|unspecified launch failure|the launch timed out and was terminated)"
)
_ANCHORS = (
    "device-side assert",
    "illegal memory access",
    "misaligned address",
    "illegal instruction was",
    "invalid program counter",
    "global/shared address space",
    "hardware stack error",
    "invalid address space",
    "unspecified launch failure",
    "the launch timed out",
)

PATTERNS = (
    Pattern(
        "cuda.assertion",
        r"(?<![\w./\\-])(?P<file>[\w./\\-]{1,300}\.(?:cuh?|hip|cpp|h|py)):(?P<line>\d{1,7}): (?:(?P<kernel>.{1,300}?): )?block: \[(?P<block>[\d, -]{1,60})\],? "
        r"thread: \[(?P<thread>[\d, -]{1,60})\],? Assertion ['`](?P<assertion>.{1,500}?)['`] failed",
        ("Assertion `", "Assertion '"),
        (
            "../aten/src/ATen/native/cuda/Indexing.cu:1292: indexSelectLargeIndex: block: [180,0,0], thread: [64,0,0] "
            "Assertion `srcIndex < srcSelectDimSize` failed.",
            "/pytorch/aten/src/ATen/native/cuda/Loss.cu:257: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], "
            "thread: [4,0,0] Assertion `t >= 0 && t < n_classes` failed.",
            "C:\\build\\NLLLoss2d.cu:103: block: [0,0,0], thread: [780,0,0] Assertion `t >= 0 && t < n_classes` failed.",
        ),
        not_examples=("python: malloc.c:2617: sysmalloc: Assertion `(old_top == initial_top (av))' failed.",),
        says="crash",
    ),
    Pattern(
        "cuda.watchdog_error",
        rf"Rank (?P<group_rank>\d+)\].*watchdog thread terminated with exception: CUDA error: {_WHAT}",
        _ANCHORS,
        (
            "[rank7]:[E ProcessGroupNCCL.cpp:1182] [Rank 7] NCCL watchdog thread terminated with exception: CUDA error: an "
            "illegal memory access was encountered",
            "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread terminated with exception: CUDA "
            "error: an illegal memory access was encountered",
        ),
        says="crash",
    ),
    Pattern(
        "cuda.kernel_error",
        rf"(?:CUDA error|CUDA runtime error|cuda runtime error|CUDA driver error|HIP error|Cuda failure|CUDA failure|"
        rf"CUDA kernel|cudaError\w*|cuCtx\w*|Triton Error)\b.{{0,60}}?{_WHAT}",
        _ANCHORS,
        (
            "RuntimeError: CUDA error: device-side assert triggered",
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
            "RuntimeError: cuda runtime error (710) : device-side assert triggered at /pytorch/aten/src/Loss.cu:115",
            "node-a:71:82 [3] enqueue.cc:1130 NCCL WARN Cuda failure 'an illegal memory access was encountered'",
            "node-a:71:82 [3] NCCL WARN Cuda failure 700 'an illegal memory access was encountered'",
            "RuntimeError: Triton Error [CUDA]: misaligned address",
        ),
        says="crash",
    ),
    Pattern(
        "cuda.kernel_error",
        r"\b(?P<what>cudaErrorIllegalAddress|cudaErrorAssert|cudaErrorMisalignedAddress|CUDA_ERROR_ILLEGAL_ADDRESS|"
        r"CUDA_ERROR_ASSERT|CUDA_ERROR_MISALIGNED_ADDRESS|CUBLAS_STATUS_EXECUTION_FAILED|CUDNN_STATUS_EXECUTION_FAILED)\b",
        (
            "cudaErrorIllegalAddress",
            "cudaErrorAssert",
            "cudaErrorMisalignedAddress",
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "CUDA_ERROR_ASSERT",
            "CUDA_ERROR_MISALIGNED_ADDRESS",
            "CUBLAS_STATUS_EXECUTION_FAILED",
            "CUDNN_STATUS_EXECUTION_FAILED",
        ),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb, m, n, k)`",
            "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered",
        ),
        says="crash",
    ),
)
