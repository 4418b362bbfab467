"""Rule: one node cannot reach the address that another one listens on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule
from unhang.rules.network.died_first import somebody_died

_NAMED = ("fabric.no_interface", "fabric.no_family", "fabric.bind_failed", "gloo.family_mismatch", "gloo.no_interface")
_FAILED = ("fabric.connect_failed", "fabric.connect_exhausted", "fabric.gloo_connect_failed", "gloo.connect_failed")
_UNREACHABLE = ("No route to host", "Network is unreachable", "Cannot assign requested address", "Host is down")
_BLOCKED = ("Connection timed out", "Software caused connection abort", "Operation not permitted", "Network is down")
_FELL_BACK = "gloo.unresolved"
_OTHER = (
    "rdma.",
    "shm.",
    "fabric.too_many_files",
    "fabric.connection_reset",
    "fabric.connection_lost",
    "nccl.cuda_failure",
)
_LOOPBACK = ("127.", "::1", "localhost", "[127.")
_LOCAL = ("169.254.", "fe80:", "172.17.0.")  # of a link or of Docker's bridge: no other node has a way there


class NetworkInterface(LineRule):
    """A process was told an address of its peer that it cannot reach, or has no usable interface itself.

    What it detects:
        NCCL or gloo report that a connection to a peer's address has no route, is refused or times out; that there is no
        interface with an address; that nodes use different address families.

    Why it hangs:
        The rendezvous uses one known port. NCCL and gloo then listen on random ports of an interface that they choose
        themselves: a firewall, a second network or a bridge of containers makes that address unreachable although the
        rendezvous worked. The peers of the rank that cannot connect wait for it.

    How to confirm:
        `nc -l 42042` on one node and `nc -v <the address in the line> 42042` on the other; `ip -br addr` on all nodes.

    How to fix:
        Name the interface that connects the nodes; open the ports between the nodes; give containers the host's network.

    Sources:
        NCCL user guide, NCCL_SOCKET_IFNAME; gloo/transport/tcp/device.cc.
    """

    id = "network-interface"
    cause = "network-interface"
    kinds: ClassVar = (*_NAMED, *_FAILED, "fabric.connect_retry", "fabric.bootstrap_using")
    EXAMPLES: ClassVar = (
        Fires(
            log_case(
                "node-a:135:149 [0] include/socket.h:409 NCCL WARN Net : Connect to 10.0.0.2<36978> failed : No route to host\n"
                "RuntimeError: Socket Timeout\n"
            ),
            (),
        ),
        Fires(
            log_case(
                "[rank0]: RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:276] ss1.ss_family == ss2.ss_family. 2 vs 10\n"
                "[rank1]: RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:276] ss1.ss_family == ss2.ss_family. 10 vs 2\n"
            ),
            (),
        ),
        Fires(log_case("node-a:3:3 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\n"), ()),
        Fires(
            log_case(
                "node-a:12:12 [0] NCCL INFO Bootstrap : Using ib1:fe80::966d:ae03:b2:62c4%ib1<0>\n"
                "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1333, unhandled system error, NCCL version 2.18.1\n"
            ),
            (),
        ),
        Fires(
            log_case(
                "[rank9]:[W ProcessGroupGloo.cpp:721] Warning: Unable to resolve hostname to a (local) address. Using the loopback address as "
                "fallback. Manually set the network interface to bind to with GLOO_SOCKET_IFNAME. (function operator())\n"
                "[rank8]:[E ProcessGroupGloo.cpp:144] Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no "
                "error\n"
            ),
            (),
        ),
        Quiet(
            log_case(
                "[rank0]:[W ProcessGroupGloo.cpp:721] Warning: Unable to resolve hostname to a (local) address. Using the loopback address as "
                "fallback. Manually set the network interface to bind to with GLOO_SOCKET_IFNAME. (function operator())\nstep 3 loss 0.1\n"
            ),
            "loopback is enough on one node",
        ),
        Quiet(
            log_case(
                "node-a:12:12 [0] NCCL INFO Bootstrap : Using ib1:fe80::966d:ae03:b2:62c4%ib1<0>\n"
                "node-a:12:12 [0] NCCL INFO comm 0x5f rank 0 nranks 2 cudaDev 0 busId 47000 - Init COMPLETE\n"
            ),
            "the choice of an interface is no fault",
        ),
        Quiet(
            log_case(
                '[rank1]: Traceback (most recent call last):\n[rank1]:   File "train.py", line 9, in <module>\n'
                "[rank1]: ValueError: corrupt\n"
                "node-a:1:2 [0] os/linux.cc:200 NCCL WARN ncclOsSocketPollConnect: connect to 10.8.1.2<37857> returned Connection refused, "
                "exceeded error retry count after 35 attempts\n"
            ),
            "a peer that died before is not there to connect to",
        ),
        Quiet(
            log_case(
                "node-a:3:3 [0] NCCL INFO socketPollConnect: connect returned Connection refused, retrying (1/34) after sleep for "
                "100 msec\nepoch 1 done\n"
            ),
            "a peer that listens a little later",
        ),
        Quiet(
            log_case(
                "node-a:3:3 [0] misc/ibvwrap.cc:61 NCCL INFO Failed to open libibverbs.so[.1]\nNET/IB : No device found.\n"
            ),
            "a node without InfiniBand is no fault",
        ),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """Lines that name it, and failed connections that are not the echo of a death."""
        named = s.events.of(*_NAMED)
        failed = s.events.of(*_FAILED)
        if somebody_died(s, failed):
            failed = tuple(e for e in failed if _is_telling(e))
        retries = [e for e in s.events.of("fabric.connect_retry") if _is_nearly_last(e)]
        found = (*named, *failed, *retries)
        if any(e.kind == "gloo.connect_failed" for e in found):
            found = (*found, *(e for e in s.events.of(_FELL_BACK) if "loopback" in e.text))
        return tuple(sorted(found or self._on_a_link_only(s), key=lambda e: e.order))

    def _on_a_link_only(self, s: Situation) -> tuple[LogEvent, ...]:
        """NCCL listens on an address of one link (fe80::), and a system call failed that nothing else explains."""
        using = tuple(e for e in s.events.of("fabric.bootstrap_using") if e["address"].startswith("fe80:"))
        is_system = any(e["result"] == "SystemError" for e in s.events.of("nccl.result")) or any(
            e["what"] == "unhandled system error" for e in s.events.of("nccl.error")
        )
        if (
            not using
            or not is_system
            or s.events.has(*_OTHER)
            or somebody_died(s, s.events.of("nccl.error", "nccl.result"))
        ):
            return ()
        return using

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """Nobody: both ends of a connection that fails are told of by the same line."""
        return ()

    def certainty(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """The clearest line decides."""
        return max(_weight(e) for e in events)

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """With the address that was not reached."""
        best = max(events, key=_weight)
        if best.kind == "fabric.bootstrap_using":
            return f"NCCL chose {best['interface']} with an address of that link only ({best['address']}), and a system call failed"
        if best.kind == "fabric.bind_failed":
            return "NCCL cannot listen on the interface that it chose: its address is not usable"
        if best.kind in ("fabric.no_interface", "fabric.no_family"):
            return "NCCL finds no network interface with an address"
        if best.kind == _FELL_BACK:
            return "gloo fell back to the loopback address: the host's own name does not resolve, and no other node can connect"
        if best.kind == "gloo.family_mismatch":
            return "some nodes resolve to IPv4 and others to IPv6 addresses"
        if best.kind == "gloo.no_interface":
            return f"there is no interface {best['interface'] or best['looked_up']} with an address"
        where = f" {best['address']}" if best["address"] else " the address of another node"
        return f"a rank cannot connect to{where}: {best['error'] or 'it gives up'}"

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """What the line says, and what follows from it."""
        best = max(events, key=_weight)
        text = (
            "The rendezvous may work all the same: it uses one port of the master, while NCCL and gloo listen on random ports of an "
            "interface that they choose themselves. Timeouts and closed connections of other ranks follow from this line."
        )
        if _is_loopback(best) or best.kind == _FELL_BACK:
            text = (
                "The peer advertised a loopback address: its host name resolves to 127.x, which no other node can reach. "
                + text
            )
        elif best["address"].startswith(_LOCAL):
            text = "The peer advertised an address that is valid on its own link or bridge only. " + text
        elif best["error"] == "Connection refused":
            text += " A refusal may also mean that the peer had already ended; nothing in the log shows that it had."
        return text

    def advice(self, s: Situation, events: Sequence[LogEvent]) -> tuple[Fix, ...]:
        """What to change."""
        return _FIXES


def _is_loopback(event: LogEvent) -> bool:
    return event["address"].startswith(_LOOPBACK) or "remote=[127." in event["reason"]


def _is_telling(event: LogEvent) -> bool:
    """Whether no death of a peer explains it: a dead process does not take the route away."""
    return event["error"] in _UNREACHABLE or any(e in event["reason"] for e in _UNREACHABLE)


def _is_nearly_last(event: LogEvent) -> bool:
    attempt, attempts = event.number("attempt"), event.number("attempts")
    if attempt is None or not attempts:
        return False
    return 2 * attempt >= attempts


def _weight(event: LogEvent) -> float:
    error = event["error"]
    if event.kind in _NAMED:
        return 0.96
    if event.kind == _FELL_BACK:
        return 0.97  # taken up only where connections then failed
    if event.kind == "fabric.bootstrap_using":
        return 0.66
    if error in _UNREACHABLE:
        return 0.93 if event.kind != "fabric.connect_retry" else 0.9
    if _is_loopback(event) or event["address"].startswith(_LOCAL):
        return 0.88
    if event.kind == "gloo.connect_failed" and any(e in event["reason"] for e in _UNREACHABLE):
        return 0.93
    if error in _BLOCKED or event["what"]:
        return 0.78
    if event.kind == "gloo.connect_failed":
        return 0.72
    return 0.62


_FIXES = (
    Fix(
        "Name the interface that connects the nodes",
        setting="NCCL_SOCKET_IFNAME=<name of `ip route get OTHER_NODE`> and the same name in GLOO_SOCKET_IFNAME (one name, no list)",
        verify="NCCL_DEBUG=INFO prints `Bootstrap : Using <that interface>` on every node, and all reach Init COMPLETE",
        undo="unset NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME",
    ),
    Fix(
        "Allow all TCP ports between the nodes of the job",
        command="nc -l 42042   # there; here: nc -v <address in the line> 42042",
        verify="the connection succeeds for any port, not only for the master's",
        undo="nothing is changed by the test",
    ),
    Fix(
        "In containers, use the host's network",
        setting="docker run --network host / hostNetwork: true",
        verify="`ip -br addr` in the container shows the address that the nodes share",
        undo="remove the option",
    ),
    Fix(
        "Does not help: a longer timeout",
        setting="timeout= of init_process_group, more retries",
        verify="the same line comes after the same number of attempts: an address without a route stays so",
    ),
)
