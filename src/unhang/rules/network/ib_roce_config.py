"""Rule: RDMA between the nodes is not configured so that they reach each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule
from unhang.rules.network.died_first import in_trouble, somebody_died

RETRIES_EXCEEDED = "12"
_LINK = ("rdma.port_error", "rdma.device_fatal", "rdma.link_down", "rdma.adapter_failed")
_MODIFY = {
    "Network is unreachable": 0.95,
    "No route to host": 0.95,
    "Connection timed out": 0.88,
    "Invalid argument": 0.86,
    "No such device": 0.86,
    "No data available": 0.9,
    "No such file or directory": 0.8,
}


class IbRoceConfig(LineRule):
    """Two adapters do not reach each other by RDMA: another GID, network or address family, or RDMA on one side only.

    What it detects:
        A queue pair cannot be connected (`ibv_modify_qp`), the GID table changed under a running job, one side speaks
        InfiniBand where the other speaks sockets (`wrong type 3 != 4`), or transfers over RoCE end with retries exceeded (12).

    Why it hangs:
        The connection is agreed on by TCP, which works; the data go by RDMA to an address that leads nowhere. NCCL retries for
        up to half a minute for each queue pair; older versions then leave the kernels waiting.

    How to confirm:
        `show_gids` on both nodes: the index used must be a RoCE v2 address of the same network on both. `ib_write_bw -x INDEX`
        between them.

    How to fix:
        The right GID index, the adapters of the shared network only, or the same kind of network on all nodes.

    Sources:
        NCCL user guide, troubleshooting: RDMA over Converged Ethernet; NCCL_IB_GID_INDEX, NCCL_IB_HCA, NCCL_CROSS_NIC.
    """

    id = "ib-roce-config"
    cause = "ib-roce-config"
    kinds: ClassVar = ("rdma.modify_qp_failed", "rdma.wrong_type", "rdma.gid_change", "rdma.completion_error")
    EXAMPLES: ClassVar = (
        Fires(
            log_case(
                "node-c:862:485 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable\n"
                "node-c:862:485 [0] proxy.cc:1519 NCCL WARN [Proxy Service 1] Failed to execute operation Connect from rank 1, retcode 2\n"
                "node-c:862:607 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node-c<49657>\n"
            ),
            (),
        ),
        Fires(
            log_case(
                "vm-14:165:607 [0] transport/net_ib.cc:73 NCCL WARN NET/IB : Got async event : GID table change\n"
                "vm-14:706:640 [0] transport/net_ib.cc:816 NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 32633, vendor "
                "err 129\n"
            ),
            (),
        ),
        Fires(log_case("node-a:3:4 [0] misc/socket.cc:343 NCCL WARN socketFinalizeAccept: wrong type 3 != 4\n"), ()),
        Fires(
            log_case(
                "node-a:1:2 [0] NCCL INFO Using network IB\nnode-b:3:4 [0] NCCL INFO Using network Socket\n"
                "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1333, internal error, NCCL version 2.18.1\n"
            ),
            (),
        ),
        Quiet(
            log_case(
                "node-a:1:2 [0] NCCL INFO Using network IB\nnode-b:3:4 [0] NCCL INFO Using network IBext_v8\nstep 3 loss 0.1\n"
            ),
            "InfiniBand on both, and a job that works",
        ),
        Quiet(
            log_case(
                "NET/IB : Got async event : port error\nNET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129\n"
            ),
            "a link that goes down is another cause",
        ),
        Quiet(
            log_case("NET/IB : Got completion with error 5, opcode 0, len 0, vendor err 249\n"),
            "flushed requests (5) follow from an earlier failure",
        ),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """What speaks for the configuration, and not for a link or a dead peer."""
        named = s.events.of("rdma.modify_qp_failed", "rdma.wrong_type")
        retried = [e for e in s.events.of("rdma.completion_error") if e["status"] == RETRIES_EXCEEDED]
        changed = s.events.of("rdma.gid_change")
        if s.events.has(*_LINK):
            return named
        if named:
            return named
        if changed and (retried or in_trouble(s)):
            return tuple(sorted((*changed, *retried), key=lambda e: e.order))
        if _is_roce(s, retried) and not somebody_died(s, retried):
            return tuple(retried)
        return _different_networks(s) if in_trouble(s) and not retried else ()

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """Nobody: the two ends do not fit together."""
        return ()

    def certainty(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """The clearest line decides."""
        kinds = {e.kind for e in events}
        if "rdma.modify_qp_failed" in kinds:
            return max(_MODIFY.get(e["error"], 0.75) for e in events)
        if "rdma.wrong_type" in kinds:
            return 0.85
        if "nccl.network" in kinds:
            return 0.7
        if kinds == {"rdma.gid_change", "rdma.completion_error"}:
            return 0.93
        return 0.62 if "rdma.gid_change" in kinds else 0.68

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """What does not fit."""
        first = next((e for e in events if e.kind == "rdma.modify_qp_failed"), events[0])
        if first.kind == "rdma.modify_qp_failed":
            gid = f" from GID {first['gid']}" if first["gid"] else ""
            return f"a queue pair cannot reach its peer by RDMA{gid}: {first['error']}"
        if first.kind == "rdma.wrong_type":
            return "one side connects for InfiniBand and the other for sockets: the nodes chose different networks"
        if first.kind == "nccl.network":
            chosen = sorted({f"{e['network']} on {e['node']}" for e in events})[:4]
            return f"the nodes chose different networks: {', '.join(chosen)}"
        if first.kind == "rdma.gid_change":
            return "the GID table of an adapter changed while the job ran"
        return "transfers over RoCE get no answer (error 12, retries exceeded)"

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """Why it is the configuration."""
        kinds = {e.kind for e in events}
        if "rdma.gid_change" in kinds:
            return (
                "Queue pairs keep the address that they were made with. When an address of the interface is removed or added, the GID "
                "goes stale and transfers on it end with retries exceeded (12). NCCL_IB_TIMEOUT only makes this later; 0 or 32 and "
                "more means infinite and turns the error into a silent hang."
            )
        if "nccl.network" in kinds:
            return (
                "All ranks of a communicator have to use the same kind of network. A node without a working adapter falls back to sockets "
                "without a word, and the connections between the two kinds of node cannot be made."
            )
        if "rdma.wrong_type" in kinds:
            return (
                "NCCL marks its connections with what they are for. Different marks mean that one node found a working adapter and the "
                "other did not, or that settings differ between nodes. NCCL_IB_DISABLE=1 makes them agree, at the price of RDMA."
            )
        if "rdma.modify_qp_failed" in kinds:
            return (
                "This call connects a queue pair; it fails before any data flow, because there is no path from this adapter's address "
                "to the peer's. Closed sockets and internal errors after it are echoes."
            )
        return (
            "Error 12 means that the peer's adapter did not answer any retry. No port reported an error and no process is seen to have "
            "died, and the adapters are RoCE: a wrong GID index or a switch that does not route is the usual reason. Error 5 on other "
            "requests follows from it. A link that fails silently is possible."
        )

    def advice(self, s: Situation, events: Sequence[LogEvent]) -> tuple[Fix, ...]:
        """What to change."""
        kinds = {e.kind for e in events}
        if kinds & {"rdma.gid_change"}:
            return (_KEEP_ADDRESSES, _GID, _NO_TIMEOUT)
        return (_GID, _SAME, _RAILS)


def _different_networks(s: Situation) -> tuple[LogEvent, ...]:
    """The first choice of each node, where not all chose the same: InfiniBand (with or without a plugin) or another."""
    chosen: dict[str, LogEvent] = {}
    for event in s.events.of("nccl.network"):
        chosen.setdefault(event["node"], event)
    kinds = {"IB" if e["network"].startswith("IB") else e["network"] for e in chosen.values()}
    is_failing = s.is_hang or s.events.has("nccl.error", "nccl.result", "nccl.echo_peer_closed", "nccl.echo_proxy")
    alone = not s.events.has("fabric.connect_failed", "shm.", "cuda.", "oom.device", "fabric.too_many_files")
    return tuple(chosen.values()) if len(kinds) > 1 and "IB" in kinds and is_failing and alone else ()


def _is_roce(s: Situation, retried: Sequence[LogEvent]) -> bool:
    """Whether the adapters are known to be RoCE: NCCL prints a GID for these only."""
    return any(e["gid"] for e in retried) or (
        s.events.has("nccl.roce_device") and not s.events.has("nccl.ib_device") and bool(retried)
    )


_GID = Fix(
    "Use the GID of RoCE v2 with the address of the network that the nodes share",
    setting="NCCL_IB_GID_INDEX=<index from show_gids, often 3>; with NCCL 2.21 and later leave it unset first",
    verify="ib_write_bw -d <adapter> -x <index> between the two nodes, then the job with NCCL_DEBUG=INFO",
    undo="unset NCCL_IB_GID_INDEX",
)
_SAME = Fix(
    "Make all nodes use the same kind of network",
    setting="NCCL_IB_HCA=<adapters that all nodes have>; to prove the point: NCCL_IB_DISABLE=1 on all nodes (slower)",
    verify="NCCL_DEBUG=INFO prints the same `Using network` on every node",
    undo="unset NCCL_IB_HCA NCCL_IB_DISABLE",
)
_RAILS = Fix(
    "Where adapters reach only those of the same number (rails)",
    setting="NCCL_CROSS_NIC=0",
    verify="ibv_modify_qp no longer fails",
    undo="unset NCCL_CROSS_NIC",
)
_KEEP_ADDRESSES = Fix(
    "Stop what changes the interface's addresses while jobs run",
    command="journalctl -u NetworkManager -u systemd-networkd --since '-2 hours' | grep -i address",
    verify="no `GID table change` in the next run",
    undo="nothing is changed by looking",
)
_NO_TIMEOUT = Fix(
    "Does not help: a higher NCCL_IB_TIMEOUT",
    setting="NCCL_IB_TIMEOUT is an exponent (4.096 us x 2^n, at most 31); 0 and 32 or more mean infinite",
    verify="the transfer to a stale address fails later, or never",
)
