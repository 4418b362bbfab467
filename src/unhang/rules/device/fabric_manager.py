"""Rule: the NVLink fabric (fabric manager, NVSwitch, multicast) is not ready."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule

_OUT_OF_MEMORY = "2"


class FabricManager(LineRule):
    """NVLink SHARP or the NVSwitch fabric of a node cannot be used.

    What it detects:
        NCCL fails to bind multicast memory (CUDA error 401, 802 or "invalid argument" in nvls.cc); CUDA says "system not yet
        initialized" (802); the fabric manager failed, or its version differs from the driver's.

    Why it hangs:
        The communicator cannot be made on some ranks; the others wait for them or fail with an unhandled CUDA error.

    How to confirm:
        `systemctl status nvidia-fabricmanager`, `nvidia-smi -q | grep -A3 Fabric` (State: Completed, Status: Success).

    How to fix:
        Stop the fabric manager, reset all GPUs, start it (or reboot the node); NCCL without NVLS until then.

    Sources:
        NVIDIA Fabric Manager user guide; NCCL transport/nvls.cc.
    """

    id = "fabric-manager"
    cause = "fabric-manager"
    kinds: ClassVar = ("fabric.multicast_failed", "fabric.system_not_ready", "fabric.manager_failed")
    EXAMPLES: ClassVar = (
        Fires(
            log_case(
                "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)\n"
                "transport/nvls.cc:287 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory\n"
                "  of size 2097152 : CUDA error 401 'the operation cannot be performed in the present state'.\n"
            ),
            (),
        ),
        Fires(
            log_case(
                "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized\n"
            ),
            (),
        ),
        Quiet(
            log_case("node-a:3:4 [0] NCCL INFO NVLS multicast support is not available on dev 0\n"),
            "a node without NVLS is no fault",
        ),
        Quiet(
            log_case(
                "node-a:3:4 [0] NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'\n"
            ),
            "another failure of CUDA",
        ),
    )

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """Nobody: the fabric of the node."""
        return ()

    def certainty(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """The full message names it; a bare code is weaker, and want of memory may be want of multicast slots."""
        kinds = {e.kind for e in events}
        codes = {e["code"] for e in events}
        if kinds & {"fabric.system_not_ready", "fabric.manager_failed"} or "401" in codes:
            return 0.96
        if _OUT_OF_MEMORY in codes:
            return 0.75
        return 0.9 if any("Failed to bind" in e.text for e in events) else 0.82

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """What failed."""
        kinds = {e.kind for e in events}
        if "fabric.multicast_failed" in kinds:
            return "NCCL cannot bind NVLink multicast memory: the NVSwitch fabric of the node is in a bad state"
        if "fabric.system_not_ready" in kinds:
            return "CUDA is not ready on this node (error 802): the fabric manager is not running or has not finished"
        return "the fabric manager of the node failed"

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """Why it is the node."""
        return (
            "Multicast memory is set up by the fabric manager and the NVSwitches, before any collective. The same program runs on a node "
            "whose fabric is healthy. A fabric manager that was restarted without a reset of the GPUs (an unattended upgrade) leaves this."
        )

    def advice(self, s: Situation, events: Sequence[LogEvent]) -> tuple[Fix, ...]:
        """What to change."""
        return (
            Fix(
                "Bring the fabric up again on the node, with no job on it",
                command="systemctl stop nvidia-fabricmanager && nvidia-smi --gpu-reset && systemctl start nvidia-fabricmanager",
                verify="nvidia-smi -q | grep -A3 Fabric says Completed and Success on all GPUs; reboot the node if it does not",
                undo="not needed",
            ),
            Fix(
                "Run without NVLink SHARP until then",
                setting="NCCL_NVLS_ENABLE=0 (slower; it does not mend error 802)",
                verify="the communicator reaches Init COMPLETE on all ranks",
                undo="unset NCCL_NVLS_ENABLE",
            ),
            Fix(
                "Same version of fabric manager and driver",
                command="nv-fabricmanager --version; nvidia-smi --query-gpu=driver_version --format=csv,noheader",
                verify="both versions are equal",
                undo="nothing is changed by looking",
            ),
        )
