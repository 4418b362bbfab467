"""Whole logs of jobs that ended well, composed: a framework's start, steps and end, with what goes wrong in between and is overcome.

Not taken from runs: the lines are those that the frameworks print, the numbers are drawn.
"""

# ruff: noqa: E501  the lines are as they are printed
from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

STEPS = 24


class Framework(NamedTuple):
    """How a framework prints a job. `step`: (number, loss) -> its line; `end`: its last lines."""

    start: list[str]
    step: Callable[[int, float], str]
    end: list[str]


def _bar(step: int, loss: float) -> str:
    return f"\r{100 * step // STEPS:3d}%|{'█' * (step // 3):8s}| {step}/{STEPS} [00:{step:02d}<00:{STEPS - step:02d},  1.01s/it, loss={loss:.3f}]"


FRAMEWORKS = {
    "lightning": Framework(
        [
            "GPU available: True (cuda), used: True",
            "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/2",
            "Initializing distributed: GLOBAL_RANK: 1, MEMBER: 2/2",
            "----------------------------------------------------------------------------------------------------",
            "distributed_backend=nccl",
            "All distributed processes registered. Starting with 2 processes",
            "LOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES: [0,1]",
            "Sanity Checking DataLoader 0: 100%|██████████| 2/2 [00:00<00:00,  6.17it/s]",
        ],
        lambda i, loss: (
            f"\rEpoch 0: {100 * i // STEPS:3d}%|{'█' * (i // 3):8s}| {i}/{STEPS} [00:{i:02d}<00:{STEPS - i:02d}, 1.00it/s, v_num=3, train_loss={loss:.3f}]"
        ),
        ["`Trainer.fit` stopped: `max_epochs=1` reached."],
    ),
    "accelerate": Framework(
        [
            "The following values were not passed to `accelerate launch` and had defaults used instead:",
            "\t`--dynamo_backend` was set to a value of `'no'`",
            "03/01/2026 10:00:01 - INFO - __main__ - Distributed environment: DistributedType.MULTI_GPU  Backend: nccl",
            "Num processes: 2",
            "Process index: 0",
            "03/01/2026 10:00:05 - INFO - __main__ - ***** Running training *****",
        ],
        _bar,
        [
            "Configuration saved in out/config.json",
            "Model weights saved in out/model.safetensors",
            "03/01/2026 10:09:05 - INFO - __main__ - Training finished.",
        ],
    ),
    "hf_trainer": Framework(
        [
            "***** Running training *****",
            "  Num examples = 1,024",
            "  Num Epochs = 3",
            f"  Total optimization steps = {STEPS}",
        ],
        lambda i, loss: (
            f"{{'loss': {loss:.4f}, 'grad_norm': {loss / 3:.4f}, 'learning_rate': {1e-4 * (1 - i / STEPS):.3e}, 'epoch': {i / STEPS:.2f}}}"
        ),
        [
            "",
            "Training completed. Do not forget to share your model on huggingface.co/models =)",
            "",
            "{'train_runtime': 124.7, 'train_samples_per_second': 24.6, 'train_steps_per_second': 0.19, 'train_loss': 1.61, 'epoch': 1.0}",
        ],
    ),
    "deepspeed": Framework(
        [
            "[2026-03-01 10:00:00,112] [WARNING] [runner.py:203:fetch_hostfile] Unable to find hostfile, will proceed with training with local resources only.",
            "[2026-03-01 10:00:01,301] [INFO] [launch.py:145:main] WORLD INFO DICT: {'localhost': [0, 1]}",
            "[2026-03-01 10:00:01,301] [INFO] [launch.py:164:main] dist_world_size=2",
            "[2026-03-01 10:00:05,118] [INFO] [comm.py:652:init_distributed] cdb=None",
        ],
        lambda i, loss: (
            f"[2026-03-01 10:01:{i:02d},512] [INFO] [logging.py:96:log_dist] [Rank 0] step={i}, skipped=0, lr=[0.0001], mom=[(0.9, 0.999)] loss: {loss:.4f}"
        ),
        [
            "[2026-03-01 10:09:00,001] [INFO] [launch.py:351:main] Process 31337 exits successfully.",
            "[2026-03-01 10:09:00,002] [INFO] [launch.py:351:main] Process 31338 exits successfully.",
        ],
    ),
    "torchrun_fsdp": Framework(
        [
            "W0301 10:00:00.101000 4711 torch/distributed/run.py:793] *****************************************",
            "W0301 10:00:00.101000 4711 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default",
            "W0301 10:00:00.101000 4711 torch/distributed/run.py:793] *****************************************",
            "[rank0]: sharding strategy FULL_SHARD over 2 ranks",
        ],
        lambda i, loss: f"[rank0]: iteration {i} loss {loss:.4f} tokens/s 18231",
        [
            "I0301 10:09:00.002000 4711 torch/distributed/elastic/agent/server/api.py:879] [default] worker group successfully finished. Waiting 300 seconds for other agents to finish."
        ],
    ),
    "ray": Framework(
        [
            "2026-03-01 10:00:00,010\tINFO worker.py:1786 -- Started a local Ray instance. View the dashboard at 127.0.0.1:8265",
            "(RayTrainWorker pid=3301) Setting up process group for: env:// [rank=0, world_size=2]",
            "(TorchTrainer pid=3200) Started distributed worker processes:",
            "(TorchTrainer pid=3200) - (node_id=5a90, ip=10.0.0.4, pid=3301) world_rank=0, local_rank=0, node_rank=0",
        ],
        lambda i, loss: f"(RayTrainWorker pid=3301) step {i} loss {loss:.4f} lr 1.0e-04",
        [
            "Training completed after 1 iterations at 2026-03-01 10:09:00. Total running time: 9min 0s",
            "Job 'raysubmit_9q2mFzKdp4aXyW7h' succeeded",
        ],
    ),
    "megatron": Framework(
        [
            "using world size: 2, data-parallel size: 2, tensor-model-parallel size: 1",
            "> initializing torch distributed ...",
            "> building train, validation, and test datasets ...",
            "[before the start of training step] datetime: 2026-03-01 10:00:30",
        ],
        lambda i, loss: (
            f" [2026-03-01 10:01:{i:02d}] iteration {i:8d}/{STEPS:8d} | consumed samples: {i * 64:12d} | elapsed time per iteration (ms): 1012.4 | learning rate: 1.000000E-04 | global batch size: 64 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 1.231 | number of skipped iterations: 0 | number of nan iterations: 0 |"
        ),
        ["[after training is done] datetime: 2026-03-01 10:09:00", "exiting program after 24 iterations", "RC=0"],
    ),
    "slurm": Framework(
        [
            "+ export MASTER_PORT=29500",
            "+ srun --ntasks-per-node=8 --label python train.py",
            "0: world 16, backend nccl",
            "1: world 16, backend nccl",
        ],
        lambda i, loss: f"{i % 2}: step {i} loss {loss:.4f} lr 1.0e-04",
        ["0: saved out/last.pt", "+ echo RC=0", "RC=0"],
    ),
    "wandb": Framework(
        [
            "wandb: Tracking run with wandb version 0.17.5",
            "wandb: Run data is saved locally in /workspace/wandb/run-20260301_100000-3fgk2a",
            "wandb: Syncing run rosy-snow-3",
        ],
        lambda i, loss: f"epoch 0 step {i} loss {loss:.4f}",
        [
            "Training done.",
            "wandb: Waiting for W&B process to finish... (success).",
            "wandb: Run history:",
            "wandb: loss █▇▅▃▁",
            "wandb: Synced 5 W&B file(s), 0 media file(s), 0 artifact file(s) and 0 other file(s)",
        ],
    ),
    "tqdm": Framework(
        ["loading 3 shards", "Loading checkpoint shards: 100%|██████████| 3/3 [00:02<00:00,  1.31it/s]"],
        _bar,
        [f"\r100%|██████████| {STEPS}/{STEPS} [00:24<00:00,  1.01s/it]", "Training complete in 24 s"],
    ),
    "torchtitan": Framework(
        [
            "[rank0]:[titan] 2026-03-01 10:00:00,001 - root - INFO - Starting job: llama3_8b",
            "[rank0]:[titan] 2026-03-01 10:00:04,410 - root - INFO - Building 1-D device mesh with ['dp_shard'], [8]",
        ],
        lambda i, loss: (
            f"[rank0]:[titan] 2026-03-01 10:01:{i:02d},120 - root - INFO - step: {i:2d}  loss: {loss:8.4f}  memory: 41.02GiB(51.83%)  tps: 6,102  mfu: 41.11%"
        ),
        [
            "[rank0]:[titan] 2026-03-01 10:09:00,500 - root - INFO - Sleeping 2 seconds for other ranks to complete",
            "[rank0]:[titan] 2026-03-01 10:09:02,501 - root - INFO - Training completed",
        ],
    ),
    "nccl_tests": Framework(
        [
            "# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0",
            "#",
            "# Using devices",
            "#  Rank  0 Group  0 Pid  31337 on   node-1 device  0 [0x07] NVIDIA H100 80GB HBM3",
        ],
        lambda i, loss: (
            f"{8 << i % 20:12d}  {2 << i % 20:12d}     float     sum      -1    {29 + loss:.2f}    0.00    0.00      0    {28 + loss:.2f}    0.00    0.00      0"
        ),
        ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 92.8551", "#"],
    ),
}
# Overcome: the steps go on behind it.
OVERCOME = {
    "nothing": [],
    "handled": [
        "Traceback (most recent call last):",
        '  File "/workspace/train.py", line 88, in next_batch',
        "    record = decode(raw)",
        "ValueError: corrupt record 7 in shard-2.tar",
        "skipping the corrupt record on all ranks",
    ],
    "retries": [
        "'(ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)\"))' thrown while requesting HEAD https://huggingface.co/m/resolve/main/config.json",
        "Retrying in 1s [Retry 1/5].",
        "urllib3.connectionpool - WARNING - Retrying (Retry(total=2, connect=None, read=None, redirect=None, status=None)) after connection broken by 'NewConnectionError': /api/v1/runs",
        "wandb: Network error (ConnectionError), entering retry loop.",
        "wandb: ERROR Error while calling W&B API: HTTP 503, retrying",
    ],
    "memory": [
        "WARNING:train:caught torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB; halving the micro batch and going on",
        "[W301 10:01:12.120000000 CUDACachingAllocator.cpp:1101] Warning: expandable_segments not supported on this platform (function operator())",
        "pytorch_allocator: 3 alloc retries (cudaMalloc failed and was retried after the cache was freed)",
    ],
    "causes": [
        "NOTE: if a worker is killed by signal 9, common causes include: the OOM killer, a preempted node, or `ulimit -v`.",
        "Hint: a hang in all_reduce can be caused by mismatched collectives, a crashed rank, or a network failure. See https://example.org/debug.",
        "UserWarning: This DataLoader will create 12 worker processes in total. Our suggested max number of worker in current system is 8, which is smaller; the creation of more might get DataLoader running slow or even freeze",
        "If you see 'NCCL timeout' or 'Watchdog caught collective operation timeout' errors, increase --ddp-timeout.",
    ],
    "overflow": [
        "[2026-03-01 10:01:04,991] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, but hysteresis is 2. Reducing hysteresis to 1",
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0",
        "WARNING: non-finite grad norm nan, skipping the update of this step",
    ],
    "slow_save": [
        "Saving model checkpoint to out/checkpoint-12",
        "checkpoint saved in 184.2 s (writing took 181.0 seconds)",
        "WARNING: step 12 took 184.9 s, usually 1.0 s; rank 3 was the last to arrive",
        "[rank0]:[W301 10:01:40.000000000 ProcessGroupNCCL.cpp:1250] Warning: heartbeat monitor: no update for 30 s, will wait (function operator())",
    ],
    "worker": [
        "(raylet) [2026-03-01 10:01:00,000 W 99 99] memory_monitor: 91% of memory is used, no task was killed",
        "[W301 10:01:10.000000000 socket.cpp:464] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97 - Address family not supported by protocol).",
        "[W301 10:01:10.000000000 socket.cpp:697] [c10d] The client socket has failed to connect to [node-1]:29500 (errno: 111 - Connection refused).",
        "[I301 10:01:11.000000000 socket.cpp:884] [c10d] The client socket has connected to [node-1]:29500",
    ],
}
# Behind the end: what interpreters and launchers print when they go.
SHUTDOWN = {
    "quiet": [],
    "ignored": [
        "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f21b0c3d3a0>",
        "Traceback (most recent call last):",
        '  File "/opt/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1604, in __del__',
        "    self._shutdown_workers()",
        "AssertionError: can only test a child process",
    ],
    "atexit": [
        "Error in atexit._run_exitfuncs:",
        "Traceback (most recent call last):",
        '  File "/opt/env/lib/python3.11/multiprocessing/util.py", line 300, in _run_finalizers',
        "    finalizer()",
        "OSError: [Errno 16] Device or resource busy: '.nfs0000000000a1'",
    ],
    "store": [
        "[rank1]:[W301 10:09:03.100000000 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=60, addr=[node-1]:51234, remote=[node-1]:29500): Connection reset by peer",
        '[rank1]:[W301 10:09:03.100000000 ProcessGroupNCCL.cpp:1659] [PG ID 0 PG GUID 0(default_pg) Rank 1] Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Connection reset by peer',
        "W0301 10:09:04.000000 4711 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1292] The node 'node-1_4711_0' has failed to send a keep-alive heartbeat to the rendezvous 'none' due to an error of type RendezvousConnectionError.",
    ],
    "leaks": [
        "[rank0]:[W301 10:09:03.100000000 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL. On normal program exit, the application should call destroy_process_group to ensure that any pending NCCL operations have finished in this process.",
        "/opt/env/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 6 leaked semaphore objects to clean up at shutdown",
        "  warnings.warn('resource_tracker: There appear to be %d '",
    ],
}


def all_jobs() -> Iterator[tuple[str, str]]:
    """(name, log) of each composed job: each framework with each shutdown, and with several troubles in turn."""
    of_training = list(OVERCOME)
    for i, (name, framework) in enumerate(FRAMEWORKS.items()):
        troubles = ["nothing", "causes", "worker"] if name == "nccl_tests" else of_training
        for k, shutdown in enumerate(SHUTDOWN):
            trouble = troubles[(i + k * 3) % len(troubles)]
            yield f"{name}-{trouble}-{shutdown}", composed(name, framework, trouble, shutdown)


def composed(name: str, framework: Framework, trouble: str, shutdown: str) -> str:
    """A whole log."""
    draw = random.Random(f"{name} {trouble} {shutdown}")
    lines = [framework.step(i, 3 / (1 + i / 8) + draw.random() / 5) for i in range(1, STEPS + 1)]
    lines[12:12] = OVERCOME[trouble]
    text = "\n".join([*framework.start, *lines, *framework.end, *SHUTDOWN[shutdown]])
    return text.replace("\n\r", "\r") + "\n"
