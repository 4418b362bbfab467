"""What stands around a failure in whole logs, and says nothing of it: starts, helper jobs, backtraces, stacks that somebody pasted."""

from __future__ import annotations

import random

LIBRARY = "/usr/lib/python3/dist-packages/torch/lib"
BACKTRACE = [
    "Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:632 (most recent call first):",
    f"frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f1b2d5781b6 in {LIBRARY}/libc10.so)",
    f"frame #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::duration<long> >) + 0x282 (0x7f1b2e8e5c74 in {LIBRARY}/libtorch_cuda.so)",
    f"frame #2: c10d::ProcessGroupNCCL::watchdogHandler() + 0x233 (0x7f1b2e8ec7d3 in {LIBRARY}/libtorch_cuda.so)",
    f"frame #3: c10d::ProcessGroupNCCL::ncclCommWatchdog() + 0x14d (0x7f1b2e8ee6ed in {LIBRARY}/libtorch_cuda.so)",
    "frame #4: <unknown function> + 0xdc253 (0x7f1b845b0253 in /lib/x86_64-linux-gnu/libstdc++.so.6)",
    "frame #5: clone + 0x44 (0x7f1b8ddada04 in /lib/x86_64-linux-gnu/libc.so.6)",
    "",
]
WARNINGS = [
    "/opt/conda/lib/python3.11/site-packages/torch/utils/checkpoint.py:87: UserWarning: None of the inputs have requires_grad=True.",
    "huggingface/tokenizers: The current process just got forked, after parallelism has already been used.",
    "FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated.",
    "DeprecationWarning: pkg_resources is deprecated as an API.",
]
_START = [
    "Collecting packaging==24.1 (from -r requirements.txt (line {n}))",
    "Requirement already satisfied: numpy in /opt/conda/lib/python3.11/site-packages (1.26.{n})",
    "INFO:root:config: model.layers.{n}.hidden_size = 4096",
    "  learning_rate: 3.0e-4  # line {n}",
    "export OMP_NUM_THREADS={n}",
    "DeprecationWarning: pkg_resources is deprecated as an API. See line {n}",
    "wandb: Tracking run with wandb version 0.17.{n}",
    "model.layers.{n}.self_attn.q_proj.weight torch.Size([4096, 4096])",
    "Some weights were newly initialized: ['score.{n}.weight']. You should probably TRAIN this model.",
    "Module anaconda/2024.{n} loaded.",
    "[INFO] seed everything with {n}",
    "number of parameters: {n}.31M",
]
HELPERS = [
    "+ srun python prepare_data.py",
    *(f"tokenized shard {i:05d} of 00020" for i in range(20)),
    "20 shards written",
    "+ mpirun -np 8 ./build/all_reduce_perf -b 8 -e 128M -f 2 -g 1",
    "# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0",
    "#",
    "# Using devices",
    "#  Rank  0 Group  0 Pid  31337 on   node-1 device  0 [0x07] NVIDIA H100 80GB HBM3",
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong",
    *(
        f"{8 << i:12d}  {2 << i:12d}     float     sum      -1    {29 + i}.81    0.00    0.00      0    {28 + i}.58    0.00    0.00      0"
        for i in range(12)
    ),
    "# Out of bounds values : 0 OK",
    "# Avg bus bandwidth    : 92.8551",
    "#",
]
FAILED_ATTEMPT = [
    "+ torchrun --nproc-per-node=8 train.py",
    *(f"{{'loss': {3 - i / 50:.4f}, 'learning_rate': 0.0003, 'epoch': {i / 100:.2f}}}" for i in range(1, 21)),
    "[rank2]: Traceback (most recent call last):",
    '[rank2]:   File "/workspace/train.py", line 118, in <module>',
    "[rank2]:     main()",
    '[rank2]:   File "/workspace/train.py", line 84, in main',
    "[rank2]:     batch = next(batches)",
    "[rank2]: KeyError: 'input_ids'",
    "W0301 10:00:00.000000 139872 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 4711 closing signal SIGTERM",
    "E0301 10:00:00.000000 139872 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 2 (pid: 4713) of binary: /opt/conda/bin/python",
    "+ sleep 60",
]
GOOD_ATTEMPT = [*FAILED_ATTEMPT[:21], "Training completed.", "+ sleep 60"]
PASTED = [
    "$ py-spy dump --pid 4700",
    "Process 4700: /opt/conda/bin/python /opt/conda/bin/torchrun --nproc-per-node=8 train.py",
    "Python v3.11.9 (/opt/conda/bin/python3.11)",
    "",
    'Thread 4700 (idle): "MainThread"',
    "    _invoke_run (torch/distributed/elastic/agent/server/api.py:870)",
    "    run (torch/distributed/elastic/agent/server/api.py:711)",
    "    launch_agent (torch/distributed/launcher/api.py:255)",
    "    main (torch/distributed/run.py:918)",
    "    <module> (torchrun:8)",
    "",
    "(gdb) thread apply all bt",
    'Thread 2 (Thread 0x7f2b3c7fe640 (LWP 4702) "python"):',
    "#0  __futex_abstimed_wait_common64 (private=0, cancel=true) at ./nptl/futex-internal.c:57",
    "#1  __pthread_cond_wait_common (abstime=0x0, clockid=0) at ./nptl/pthread_cond_wait.c:503",
    "#2  start_thread (arg=<optimized out>) at ./nptl/pthread_create.c:442",
    "#3  clone3 () at ../sysdeps/unix/sysv/linux/x86_64/clone3.S:81",
    "",
    '{"gpu": 0, "temperature": 61, "power": 388.2, "utilization": 100}',
    '{"gpu": 1, "temperature": 60, "power": 391.7, "utilization": 100}',
]


def start(draw: random.Random, count: int) -> list[str]:
    """So many lines of a start; none of them says that training moved."""
    return [draw.choice(_START).format(n=draw.randrange(1, 64)) for _ in range(count)]
