"""Rule: direct transfers between devices (P2P) never arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule
from unhang.rules.network.died_first import somebody_died

BIG = 1_000_000  # elements; a barrier or a flag is smaller, and waits for ranks that are late
_BUS = ("kernel.iommu_fault", "kernel.p2p_wrong_data")
_SETTINGS = ("kernel.acs_redirect", "kernel.iommu_on")
_BULK = frozenset({"BROADCAST", "ALLREDUCE", "_ALLGATHER_BASE", "ALLGATHER", "_REDUCE_SCATTER_BASE", "REDUCE"})
_OTHER = ("fabric.", "rdma.", "shm.", "kernel.xid", "kernel.off_the_bus", "nccl.result", "nccl.channel_net", "work.")


class P2pAcsIommu(LineRule):
    """The devices say that they reach each other directly, and what they send is lost on the way.

    What it detects:
        Faults of the IOMMU with a hanging job, wrong data in CUDA's own P2P test, redirection by ACS with a hang; and, weakly, a
        first bulk transfer within one node that never completes although the communicator was made.

    Why it hangs:
        ACS sends transfers between devices up to the root port and the IOMMU, which drops or misdirects them. NCCL's kernels
        wait for flags that never come; set-up is done through the host and works.

    How to confirm:
        One all-reduce of 8 MB on two GPUs: it hangs, and passes with NCCL_P2P_DISABLE=1. `lspci -vvv | grep ACSCtl` shows
        `ReqRedir+`; `dmesg | grep -E 'IO_PAGE_FAULT|DMAR'`.

    How to fix:
        Turn ACS off on the bridges, IOMMU to passthrough (`iommu=pt`) or off in the BIOS; until then NCCL_P2P_DISABLE=1.

    Sources:
        NCCL user guide, troubleshooting: PCI Access Control Services; CUDA sample simpleP2P.
    """

    id = "p2p-acs-iommu"
    cause = "p2p-acs-iommu"
    kinds: ClassVar = (*_BUS, *_SETTINGS, "watchdog.timeout")
    EXAMPLES: ClassVar = (
        Fires(
            log_case(
                "nvidia 0000:41:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0035 address=0xf1000000 flags=0x0030]\n"
                "[rank1]:[E913 22:30:08.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
                "WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600023 milliseconds before "
                "timing out.\n"
            ),
            (),
        ),
        Fires(
            log_case(
                "[rank0]:[E913 22:30:08.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
                "WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=233373696, NumelOut=233373696, Timeout(ms)=600000) ran for 600023 "
                "milliseconds before timing out.\n"
                "[rank1]:[E913 22:30:08.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
                "WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=233373696, NumelOut=233373696, Timeout(ms)=600000) ran for 600023 "
                "milliseconds before timing out.\n"
            ),
            (),
        ),
        Quiet(
            log_case(
                "[rank1]:[E913 22:30:08.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
                "WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600023 milliseconds before timing "
                "out.\n"
            ),
            "a barrier waits for a rank that is late",
        ),
        Quiet(
            log_case(
                "".join(
                    f"[rank{r}]:[E913 22:30:08.1 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation timeout: "
                    "WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=233373696, NumelOut=233373696, Timeout(ms)=600000) ran for 600023 "
                    "milliseconds before timing out.\n"
                    for r in (1, 2, 3)
                )
            ),
            "rank 0 did not time out: it may still be at work",
        ),
        Quiet(
            log_case(
                'node:9:9 [0] /rccl/src/init.cc:283 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system '
                "instablity or hang!\nepoch 1 done\n"
            ),
            "a warning of a job that works",
        ),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """What the bus says; else a first bulk transfer that never moved, with nothing else to explain it."""
        bus = s.events.of(*_BUS)
        settings = s.events.of(*_SETTINGS) if s.is_hang else ()
        if bus and (s.is_hang or s.events.has("kernel.p2p_wrong_data", "nccl.")):
            return tuple(sorted((*bus, *settings), key=lambda e: e.order))
        first = self._first_bulk(s)
        if somebody_died(s, (*first, *settings)):
            return ()
        if settings and (first or s.events.has("nccl.channel_p2p")):
            return tuple(sorted((*settings, *first), key=lambda e: e.order))
        return first

    def _first_bulk(self, s: Situation) -> tuple[LogEvent, ...]:
        """The timeouts, where all are of the very first call, and of many elements or of every rank: nobody is late then."""
        timeouts = s.events.of("watchdog.timeout")
        if not timeouts or s.events.has(*_OTHER) or len({e.host for e in timeouts}) > 1:
            return ()
        calls = {(e.number("seq"), e["op"], e.number("numel_in")) for e in timeouts}
        if len(calls) != 1:
            return ()
        ranks = {e.rank for e in timeouts}
        if len(ranks) > 1 and ranks != set(range(len(ranks))):
            return ()  # a rank among them did not time out: it may never have come
        seq, op, numel = calls.pop()
        is_first = seq == 1 and op in _BULK and ((numel or 0) >= BIG or _is_everyone(s, timeouts))
        return timeouts if is_first else ()

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """Nobody: the bus between the devices."""
        return ()

    def certainty(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """Wrong data and faults are strong; that the first transfer hangs is weak."""
        kinds = {e.kind for e in events}
        if "kernel.p2p_wrong_data" in kinds:
            return 0.9
        if "kernel.iommu_fault" in kinds:
            return 0.84
        if kinds & set(_SETTINGS):
            return 0.68
        return 0.62 if len({e.rank for e in events}) > 1 or s.events.has("nccl.channel_p2p") else 0.55

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """What was seen."""
        kinds = {e.kind for e in events}
        if "kernel.iommu_fault" in kinds:
            return "the IOMMU rejects direct transfers between GPUs"
        if "kernel.p2p_wrong_data" in kinds:
            return "direct transfers between GPUs deliver wrong data"
        return "the first transfer between GPUs never completed: direct access over PCIe (P2P) may not work on this machine"

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """How sure it is, and what would settle it."""
        kinds = {e.kind for e in events}
        if kinds & set(_BUS):
            return "The bus itself reports it. A longer timeout changes nothing: what was dropped never arrives."
        return (
            "Every timeout is of the very first call of its group, and nothing else in the log explains it. A rank that had not yet come "
            "to this call would look the same where not all ranks are seen, which is why this is no more than a suspicion: one run with "
            "NCCL_P2P_DISABLE=1 decides. If that run hangs as well, P2P is innocent."
        )

    def advice(self, s: Situation, events: Sequence[LogEvent]) -> tuple[Fix, ...]:
        """What to change."""
        return (
            Fix(
                "Decide it with one small run",
                command="NCCL_P2P_DISABLE=1 torchrun --nproc-per-node 2 all_reduce_once.py; then the same without the variable",
                verify="it hangs without the variable and passes with it: P2P is broken. Both hang: look elsewhere",
                undo="unset NCCL_P2P_DISABLE",
            ),
            Fix(
                "Turn ACS off on the bridges above the GPUs",
                command="lspci -vvv | grep -E '^[0-9a-f]|ACSCtl'; setpci -s <bridge> ECAP_ACS+6.w=0000   # until the next boot",
                verify="ACSCtl shows ReqRedir- and the small run passes with P2P",
                undo="reboot",
            ),
            Fix(
                "IOMMU to passthrough, or off in the BIOS",
                setting="iommu=pt on the kernel's command line",
                verify="no IO_PAGE_FAULT or DMAR lines in dmesg during the run",
                undo="remove the option and reboot",
            ),
        )


def _is_everyone(s: Situation, timeouts: Sequence[LogEvent]) -> bool:
    """Whether every rank of the job is known to have issued the call."""
    sizes = [n for e in s.events.of("nccl.init_complete") if (n := e.number("group_size")) is not None]
    world = s.case.job.world_size or max(sizes, default=0)
    return world > 1 and {e.rank for e in timeouts} == set(range(world))
