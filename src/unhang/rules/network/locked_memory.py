"""Rule: locked memory is limited where RDMA is used."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.process.forecast import size
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of

_ENOUGH = 64 << 30


class LockedMemory(ReadingRule):
    """A process on a host with RDMA devices may lock only little memory.

    What it detects:
        An RDMA device with a port that is up, and a soft limit of locked memory (`ulimit -l`) below 64 GB in a process without
        CAP_IPC_LOCK, which would exempt it.

    Why it hangs:
        NCCL registers its buffers with the adapter, which locks their pages; it fails with "Cannot allocate memory", and the
        peers wait in the set-up of the communicator.

    How to confirm:
        `ulimit -l` in the launched process, not in the login shell.

    How to fix:
        Unlimited locked memory where the processes are started.

    Sources:
        NCCL user guide, troubleshooting: InfiniBand and ulimit; ibv_reg_mr(3).
    """

    id = "locked-memory"
    cause = "memlock-limit"
    reads = ("machine.limit",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(read("machine.limit memlock", soft=8 << 20, hard=8 << 20, rdma_devices=8, gpus=8)),
            (0,),
        ),
        Quiet(readings_case(read("machine.limit memlock", soft=8 << 20, rdma_devices=0)), "no RDMA device"),
        Quiet(readings_case(read("machine.limit memlock", soft=None, rdma_devices=8)), "no limit"),
        Quiet(
            readings_case(read("machine.limit memlock", soft=8 << 20, rdma_devices=8, is_exempt=True)),
            "the capability exempts it",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all ranks that are limited."""
        short = [
            r
            for r in s.readings.of("machine.limit", subject="memlock")
            if (r.number("rdma_devices") or 0) > 0 and not r["is_exempt"] and (r.number("soft") or _ENOUGH) < _ENOUGH
        ]
        if not short:
            return
        with_devices = any((r.number("gpus") or 0) > 0 for r in short)
        least = min(r.number("soft") or 0 for r in short)
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"locked memory is limited to {size(least)} on {hosts_of(short)}, which has RDMA devices",
            confidence=0.9 if with_devices else 0.75,
            culprit_ranks=ranks_of(short),
            because="Memory that is registered with an RDMA adapter is locked, and counts against this limit. limits.conf does "
            "not reach processes that a daemon starts (slurmd, sshd, kubelet).",
            evidence=cite(short),
            fixes=(
                Fix(
                    "Raise the limit where the processes are started",
                    setting="docker run --ulimit memlock=-1 / LimitMEMLOCK=infinity in the unit of slurmd or sshd / "
                    "`* - memlock unlimited` in limits.conf and a new login",
                    verify="`ulimit -l` printed by the launched process says unlimited",
                    undo="restore the former limit",
                ),
            ),
        )
