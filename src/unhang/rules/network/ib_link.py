"""Rule: an InfiniBand or Ethernet adapter of the fabric, its port or its cable fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule
from unhang.rules.network.died_first import in_trouble, somebody_died
from unhang.rules.network.ib_roce_config import RETRIES_EXCEEDED
from unhang.rules.network.nodes import on_nodes

_FATAL = ("rdma.device_fatal", "rdma.adapter_failed")
_DOWN = ("rdma.port_error", "rdma.link_down")
_FLAPPING = 3


class IbLink(LineRule):
    """The link or the adapter of a node failed while the job ran.

    What it detects:
        Asynchronous events of the adapter (port error, local catastrophic error), the kernel's word of a link that went down or
        an adapter that is not healthy; retries exceeded (12) on InfiniBand without another reason.

    Why it hangs:
        Transfers in flight get no answer; NCCL gives up after the retries of the adapter, the other ranks wait for that node.

    How to confirm:
        `ibstat`, `ibqueryerrors`, `mlxlink -d <adapter>`, `dmesg -T | grep mlx5` on the node that reports the event.

    How to fix:
        Cable, transceiver, switch port or adapter; keep the node out of the pool until then.

    Sources:
        rdma-core, ibv_get_async_event; NCCL user guide, troubleshooting: InfiniBand.
    """

    id = "ib-link"
    cause = "ib-link"
    kinds: ClassVar = (*_FATAL, *_DOWN, "rdma.completion_error")
    EXAMPLES: ClassVar = (
        Fires(
            log_case(
                "[1,12]<stdout>:node-c:394:477 [0] transport/net_ib.cu:80 NCCL WARN NET/IB : Got async event : local catastrophic error\n"
                "[1,13]<stdout>:node-c:561:506 [0] transport/net_ib.cu:80 NCCL WARN NET/IB : Got async event : local catastrophic error\n"
            ),
            (12, 13),
        ),
        Fires(
            log_case(
                "NCCL WARN NET/IB : Got async event : port error\n"
                "node-a:1:2 [0] NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129\n"
            ),
            (),
        ),
        Quiet(
            log_case(
                "NET/IB : mlx5_0:1 Got non-fatal async event: port error(10)\n"
                "NET/IB : mlx5_0:1 Got non-fatal async event: port active(9)\nstep 400 loss 2.1\n"
            ),
            "a port that came back, in a job that went on",
        ),
        Quiet(
            log_case("NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129\n"),
            "retries exceeded alone may be the configuration, or a peer that died",
        ),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """Events of the adapter; retries exceeded beside them, or alone on InfiniBand."""
        retried = [e for e in s.events.of("rdma.completion_error") if e["status"] == RETRIES_EXCEEDED]
        fatal, down = s.events.of(*_FATAL), s.events.of(*_DOWN)
        if fatal or (down and (not _came_back(s) or in_trouble(s))):
            return tuple(sorted((*fatal, *down, *retried), key=lambda e: e.order))
        is_ib = s.events.has("nccl.ib_device") and not s.events.has("nccl.roce_device", "rdma.gid_change")
        return tuple(retried) if is_ib and not somebody_died(s, retried) else ()

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """The ranks whose own adapter reports; who only gets no answer is a victim."""
        fatal = {e.rank for e in events if e.kind in _FATAL and e.rank is not None}
        return tuple(sorted(fatal or {e.rank for e in events if e.kind in _DOWN and e.rank is not None}))

    def certainty(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """A fatal event names itself; a port error counts more with failed transfers."""
        kinds = {e.kind for e in events}
        if kinds & set(_FATAL):
            return 0.96
        if kinds & set(_DOWN):
            repeated = sum(e.kind in _DOWN for e in events) >= _FLAPPING
            return 0.92 if "rdma.completion_error" in kinds else 0.85 if repeated else 0.76
        return 0.6

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """What failed."""
        kinds = {e.kind for e in events}
        if kinds & set(_FATAL):
            return (
                f"a network adapter failed{on_nodes(e for e in events if e.kind in _FATAL)}: fatal error of the device"
            )
        if kinds & set(_DOWN):
            count = sum(e.kind in _DOWN for e in events)
            where = on_nodes(e for e in events if e.kind in _DOWN)
            return f"the port of a network adapter went down{where}{f' ({count} times)' if count > 1 else ''}"
        return "transfers over InfiniBand get no answer (error 12, retries exceeded)"

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """What is the cause, and what its echo."""
        if {e.kind for e in events} == {"rdma.completion_error"}:
            return (
                "Error 12 means that the adapter of the peer did not answer any retry, on InfiniBand, and no process is seen to have "
                "died. Which of the two ends is at fault the line does not tell: compare the counters of both ports."
            )
        return (
            "The adapter itself reports it. Completions with error 12 (no answer) and 5 (flushed), closed sockets and timeouts of other "
            "ranks are consequences; the program is innocent."
        )

    def advice(self, s: Situation, events: Sequence[LogEvent]) -> tuple[Fix, ...]:
        """What to change."""
        return (
            Fix(
                "Look at the port on the node that reports it",
                command="ibstat; ibqueryerrors; dmesg -T | grep -i mlx5",
                verify="symbol errors or `Link down` at the time of the event",
                undo="nothing is changed",
            ),
            Fix(
                "Take the node out until cable, transceiver or adapter are replaced",
                command="scontrol update nodename=NODE state=drain reason='link errors'",
                verify="the job runs on the other nodes; ib_write_bw on the mended one shows no new errors",
                undo="scontrol update nodename=NODE state=resume",
            ),
            Fix(
                "Does not help: a longer collective timeout",
                setting="timeout= of init_process_group",
                verify="the adapter gives up after its own retries (about 30 s by default), whatever the collective allows",
            ),
        )


def _came_back(s: Situation) -> bool:
    errors, active = s.events.of(*_DOWN), s.events.of("rdma.port_active", "rdma.link_up")
    return bool(errors) and bool(active) and active[-1].order > errors[-1].order
