"""Memory that ran out: of a device as torch, NCCL and the libraries print it, of a host as kernel, Slurm, Ray and pods do."""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

PATTERNS = (
    Pattern(
        "oom.device",
        r"(?:CUDA|HIP|NPU|XPU|MUSA) out of memory\.?(?: Tried to allocate (?P<asked>[\d.]+ ?[KMGT]i?B))?"
        r"(?:.{0,4}?\(?GPU (?P<device>\d+))?(?:.{0,120}?(?P<free>[\d.]+ ?[KMG]i?B) (?:is )?free)?",
        ("CUDA out of memory", "HIP out of memory", "NPU out of memory", "XPU out of memory", "MUSA out of memory"),
        (
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 3; 39.59 GiB total capacity; "
            "36.01 GiB already allocated; 1.2 GiB free; 37.1 GiB reserved in total by PyTorch)",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.35 GiB. GPU 3 has a total capacity of 63.42 GiB "
            "of which 1.70 GiB is free.",
            "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total capacity)",
        ),
        says="crash",
    ),
    Pattern(
        "oom.device",
        r"(?:CUDA error|HIP error|CUDA driver error|CUDA runtime error|cuda runtime error \(2\)|CUDA Error)\s?:? ?:? ?"
        r"(?P<what>out of memory)|\b(?:CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation)\b",
        ("out of memory", "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation"),
        (
            "RuntimeError: CUDA error: out of memory",
            "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/THCCachingHostAllocator.cpp:278",
            "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        ),
        not_examples=("Some of your processes may have been killed by the cgroup out of memory handler.",),
        says="crash",
    ),
    Pattern(
        "oom.device_library",
        r"\b(?P<what>CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|CUSPARSE_STATUS_ALLOC_FAILED|"
        r"CUSOLVER_STATUS_ALLOC_FAILED)\b",
        ("STATUS_ALLOC_FAILED",),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",),
        says="crash",
    ),
    Pattern(
        "oom.kernel",
        r"(?P<what>Out of memory: Kill(?:ed)? process|Memory cgroup out of memory|invoked oom-killer|oom-kill:constraint=|"
        r"oom_reaper: reaped process)(?:.*?\b(?:process |pid=)(?P<pid>\d+))?",
        ("ut of memory: Kill", "Memory cgroup out of memory", "oom-killer", "oom-kill:", "oom_reaper:"),
        (
            "[88216.1] Out of memory: Killed process 4242 (python) total-vm:210000000kB, anon-rss:120000000kB",
            "Memory cgroup out of memory: Killed process 77123 (pt_main_thread)",
            "python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        ),
        says="crash",
    ),
    Pattern(
        "oom.slurm",
        r"Detected (?P<count>\d+) oom[-_]kill event|Some of (?:your processes may|the step tasks) have been "
        r"(?:killed by the cgroup out-of-memory handler|OOM Killed)|Exceeded (?:step|job) memory limit|"
        r"CANCELLED.*DUE TO MEMORY|State: OUT_OF_MEMORY",
        ("oom-kill event", "oom_kill event", "out-of-memory handler", "OOM Killed", "memory limit", "OUT_OF_MEMORY"),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=440575.0. Some of the step tasks have been OOM Killed.",
            "slurmstepd: error: Detected 2 oom-kill event(s) in StepId=191.batch cgroup. Some of your processes may have been "
            "killed by the cgroup out-of-memory handler.",
            "slurmstepd: error: Exceeded job memory limit at some point.",
        ),
        not_examples=("CUDA_ERROR_OUT_OF_MEMORY: x",),
        says="crash",
    ),
    Pattern(
        "oom.pod",
        r"\bOOMKilled\b",
        ("OOMKilled",),
        ("    Reason:       OOMKilled", 'pod "train-worker-3" terminated: OOMKilled (exit code 137)'),
        not_examples=("OOMKilledCount is 0",),
        says="crash",
    ),
    Pattern(
        "oom.ray",
        r"killed due to (?:memory pressure|the node running low on memory)|ray\.exceptions\.OutOfMemoryError|"
        r"due to the node running low on memory|killed by the (?:OOM killer|Ray memory monitor)",
        (
            "due to memory pressure",
            "running low on memory",
            "exceptions.OutOfMemoryError",
            "OOM killer",
            "memory monitor",
        ),
        (
            "(raylet) 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons",
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        ),
        not_examples=(
            "There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to",
        ),
        says="crash",
    ),
    Pattern(
        "oom.loading",
        r"Loading checkpoint shards|Loading (?:model )?weights|Loading extension module cpu_adam|Offload(?:ing)? (?:optimizer|param)|"
        r"cpu_offload|CPUAdam|Fetching \d+ files|Loading (?:the )?(?:pretrained )?model\b",
        (
            "Loading checkpoint shards",
            "Loading weights",
            "Loading model",
            "Loading the model",
            "Loading pretrained",
            "Loading the pretrained",
            "cpu_adam",
            "ffload",
            "CPUAdam",
            "Fetching ",
        ),
        (
            "Loading checkpoint shards:  50%|#####     | 2/4 [00:27<00:27, 13.69s/it]",
            "DeepSpeed Basic Optimizer = DeepSpeedCPUAdam",
        ),
        not_examples=("Fetching the batch",),
        is_background=True,
    ),
    Pattern(
        "oom.host_allocation",
        r"^MemoryError\b|DefaultCPUAllocator: (?:can't allocate memory|not enough memory)|numpy\S*MemoryError|"
        r"OSError: \[Errno 12\] Cannot allocate memory|^std::bad_alloc|what\(\): +std::bad_alloc|"
        r"Unable to allocate [\d.]+ [KMGTP]iB for an array",
        ("MemoryError", "DefaultCPUAllocator", "[Errno 12]", "std::bad_alloc", "Unable to allocate "),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
            "to allocate 34359738368 bytes. Error code 12 (Cannot allocate memory)",
            "OSError: [Errno 12] Cannot allocate memory",
            "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 31.2 GiB for an array with shape (4, 1000)",
        ),
        not_examples=("torch.OutOfMemoryError: CUDA out of memory",),
        says="crash",
    ),
)
