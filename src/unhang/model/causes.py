"""The names of causes: what an expert would call the first thing that went wrong, never the message that ended the job."""

from __future__ import annotations

from collections.abc import Mapping

CAUSES: Mapping[str, str] = {
    # The ranks' programs disagree.
    "code-divergence": "a rank takes another branch than its peers around a collective",
    "uneven-inputs": "the same program on every rank, but another number of batches",
    "size-mismatch": "the same collective with tensors of different size or dtype",
    "collective-order-race": "the same collectives in another order (threads, groups, point-to-point)",
    "slow-rank0-work": "one rank works alone (save, evaluate, tokenise) while the others wait for it",
    "unused-parameters": "DDP parameters that took no part in the loss",
    "rank-stuck-in-user-code": "a rank sits in CPU code: a lock, a queue, an event, an endless loop",
    "dataloader-hang": "a rank waits for its data loader",
    # A rank died or failed first.
    "user-exception": "a Python exception in one rank",
    "gpu-oom": "a device ran out of memory",
    "cuda-kernel-error": "a device-side assertion or an illegal access",
    "host-oom": "the kernel killed a process for want of memory",
    "rank-exited-early": "a rank ended before the others",
    "rank-crashed-earlier": "a peer crashed, the reason is not established",
    "rank-frozen": "a process is stopped or cannot be scheduled",
    "external-signal": "the job was ended from outside",
    # Start-up.
    "device-mapping": "wrong or duplicate device",
    "gpu-visibility-isolation": "a per-process CUDA_VISIBLE_DEVICES breaks IPC",
    "port-in-use": "the rendezvous port is taken",
    "rendezvous-endpoint": "wrong or unreachable master",
    "rendezvous-incomplete": "not all members came",
    "launcher-misuse": "the launcher was started wrongly",
    "stale-store": "keys of an earlier run are still in the store",
    "version-mismatch": "ranks run different versions",
    "misconfigured-env": "an environment variable is wrong",
    "filesystem-race": "ranks race for a file or folder",
    # Transport, node, hardware.
    "network-interface": "communication over the wrong interface",
    "network-unstable": "connections are lost",
    "ib-roce-config": "InfiniBand or RoCE is misconfigured",
    "ib-link": "an InfiniBand link is down or flapping",
    "memlock-limit": "the locked-memory limit is too small",
    "p2p-acs-iommu": "PCIe peer-to-peer is broken by ACS or IOMMU",
    "fabric-manager": "the NVSwitch fabric manager is not running",
    "driver-bug": "a fault of the driver",
    "gpu-hardware": "a broken device",
    "shm-too-small": "/dev/shm is too small",
    "fd-exhaustion": "too many open files",
    "straggler": "a rank is slow, but makes progress",
    "nccl-or-library-bug": "a fault of NCCL or another library",
    # Wrong without a hang.
    "silent-desync": "replicas diverge without an error",
    "not-learning": "the job runs, but trains nothing",
    "slow-steps": "the job goes on, but its steps take far too long",
    "shutdown-hang": "all work is done, the process cannot end",
    # Nothing is established.
    "unknown": "the evidence does not suffice",
}
