"""Rule: processes cannot open each other's device memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.startup.start_rule import StartRule

_217 = "Cuda failure 217 'peer access is not supported between these two devices'"


class GpuVisibility(StartRule):
    """A process cannot map the memory of its neighbour's device: hidden from it, or without a peer path.

    What it detects:
        CUDA error 217 (peer access), a failed open of an IPC handle, or "invalid device ordinal" inside NCCL's peer-to-peer code.

    Why it hangs:
        NCCL plans peer-to-peer between the devices of a node and fails when the CUDA runtime of one process does not see the other
        device; the ranks that do not fail wait.

    How to confirm:
        CUDA_VISIBLE_DEVICES in each process (`xargs -0 -n1 < /proc/PID/environ`), and `nvidia-smi topo -p2p r`.

    How to fix:
        Let every process of a node see all devices and choose with set_device(LOCAL_RANK). Where the devices have no peer path,
        NCCL_P2P_DISABLE=1, in the environment of the processes themselves.

    Sources:
        CUDA runtime API, error 217 and 101; NCCL src/transport/p2p.cc.
    """

    id = "gpu-visibility-isolation"
    cause = "gpu-visibility-isolation"
    kinds = ("device.no_peer_access", "device.peer_not_visible", "device.ipc_failed")
    confidence = 0.95
    EXAMPLES: ClassVar = (
        Fires(
            log_case(
                "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3699, unhandled cuda error, NCCL version "
                f"2.27.3\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n{_217}"
            ),
            (),
        ),
        Fires(log_case("node-a:1:9 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'"), ()),
        Quiet(
            log_case("node-a:1:9 [0] NCCL INFO P2P is disabled between connected GPUs 1 and 0."),
            "NCCL takes another way by itself",
        ),
        Quiet(log_case("RuntimeError: CUDA error: invalid device ordinal"), "the process's own device does not exist"),
    )
    headline = "processes cannot open the memory of each other's device (peer access)"
    fixes = (
        Fix(
            "Let every process see all devices of the node",
            patch="# no CUDA_VISIBLE_DEVICES per process; in each: torch.cuda.set_device(local_rank)",
            verify="NCCL_DEBUG=INFO shows channels 'via P2P', and no failure 217 or 101",
            undo="restore the settings of the processes",
        ),
        Fix(
            "Where the devices have no peer path",
            setting="NCCL_P2P_DISABLE=1",
            verify="the variable is in /proc/PID/environ of a worker: actors of Ray do not inherit the shell's, they need runtime_env",
            undo="unset NCCL_P2P_DISABLE: transfers within a node are slower with it",
        ),
    )

    def sureness(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """An IPC handle may fail to open for other reasons too."""
        return 0.8 if all(e.kind == "device.ipc_failed" for e in events) else self.confidence

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """Two reasons that look alike."""
        return (
            "The first transfer between two processes of one node could not map the other's memory: either each process sees its own "
            "device only, or the devices have no peer path. NCCL_P2P_DISABLE in the shell has no effect where the workers do not get it."
        )
