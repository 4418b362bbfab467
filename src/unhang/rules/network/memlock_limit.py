"""Rule: the limit of locked memory is too small for RDMA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule
from unhang.rules.network.died_first import in_trouble

_FAILED = ("rdma.register_no_memory", "rdma.create_no_memory")


class MemlockLimit(LineRule):
    """Memory for RDMA could not be locked.

    What it detects:
        Registration of memory with the adapter fails with "Cannot allocate memory"; libibverbs warns of RLIMIT_MEMLOCK.

    Why it hangs:
        The rank cannot build its connection and fails; its peers wait in the set-up of the communicator.

    How to confirm:
        `ulimit -l` in the launched process, not in the login shell: `srun bash -c 'ulimit -l'`, `mpirun bash -c 'ulimit -l'`.

    How to fix:
        Unlimited locked memory where the processes are started: the daemon's unit, the container, limits.conf and a new login.

    Sources:
        NCCL user guide, troubleshooting: InfiniBand and ulimit; ibv_reg_mr(3).
    """

    id = "memlock-limit"
    cause = "memlock-limit"
    kinds: ClassVar = (*_FAILED, "rdma.memlock_warning")
    EXAMPLES: ClassVar = (
        Fires(
            log_case(
                "misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory\n"
            ),
            (),
        ),
        Quiet(log_case("OSError: [Errno 12] Cannot allocate memory\n"), "the host's memory is another thing"),
        Quiet(
            log_case(
                "libibverbs: Warning: RLIMIT_MEMLOCK is 32768 bytes.\n    This will severely limit memory registrations.\n"
            ),
            "a warning in a job that works",
        ),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """Failed registrations; the warning alone only where the job is in trouble with RDMA."""
        failed = s.events.of(*_FAILED)
        if failed:
            return tuple(sorted((*failed, *s.events.of("rdma.memlock_warning")), key=lambda e: e.order))
        if (
            in_trouble(s)
            and s.events.has("nccl.error", "nccl.result")
            and s.events.has("rdma.ofi_failed", "nccl.ib_device")
        ):
            return s.events.of("rdma.memlock_warning")
        return ()

    def certainty(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """The warning beside the failure names the limit."""
        kinds = {e.kind for e in events}
        if kinds == {"rdma.memlock_warning"}:
            return 0.6
        if "rdma.memlock_warning" in kinds:
            return 0.96
        return 0.88 if "rdma.register_no_memory" in kinds else 0.8

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """With the limit where it is told."""
        limit = next((e["limit"] or f"{e['kbytes']} kB" for e in events if e["limit"] or e["kbytes"]), "")
        return f"memory cannot be registered for RDMA: locked memory is limited{f' ({limit})' if limit else ''}"

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """Why it is the limit."""
        return (
            "Registration pins pages, which counts against the limit of locked memory (ulimit -l); the host has memory enough where "
            "nothing else fails to allocate. limits.conf does not reach processes started by a daemon (slurmd, sshd, kubelet) before "
            "that is restarted."
        )

    def advice(self, s: Situation, events: Sequence[LogEvent]) -> tuple[Fix, ...]:
        """What to change."""
        return (
            Fix(
                "Raise the limit where the processes are started",
                setting="docker run --ulimit memlock=-1 / LimitMEMLOCK=infinity in the unit of slurmd or sshd / "
                "`* - memlock unlimited` in limits.conf and a new login",
                verify="`ulimit -l` printed by the launched process itself says unlimited",
                undo="restore the former limit",
            ),
            Fix(
                "Prove it: run once over sockets",
                setting="NCCL_IB_DISABLE=1 on all nodes (slow; a test, no remedy)",
                verify="the job passes the point where registration failed",
                undo="unset NCCL_IB_DISABLE",
            ),
        )
