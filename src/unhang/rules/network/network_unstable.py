"""Rule: connections break in the middle although no process ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule
from unhang.rules.network.died_first import somebody_died

_SENDING = frozenset({"write", "writev", "send", "sendmsg"})


class NetworkUnstable(LineRule):
    """An established connection broke, on both sides, and nobody had died.

    What it detects:
        NCCL reports resets for sending and for receiving, or a transfer on an open connection that times out or loses its
        route, in a log in which no process ended before.

    Why it hangs:
        NCCL does not connect again. Older versions stop the transport's thread and let the kernels wait for ever.

    How to confirm:
        `ss -ti` and the counters of the overlay network or firewall at that time; the peers' logs have no exception before it.

    How to fix:
        The host's network instead of an overlay; a firewall or NAT that does not forget idle connections; a restart of the job
        from its checkpoint is the only remedy within the job.

    Sources:
        NCCL user guide, troubleshooting: networking issues.
    """

    id = "network-unstable"
    cause = "network-unstable"
    kinds: ClassVar = ("fabric.connection_reset", "fabric.connection_lost")
    headline: ClassVar = "an open connection between ranks broke while all processes were alive"
    EXAMPLES: ClassVar = (
        Fires(
            log_case(
                "worker0:15:91 [3] include/socket.h 398 NCCL WARN Call to write failed : Connection reset by peer.\n"
                "worker0:15:91 [3] include/socket.h 398 NCCL WARN Call to recv failed : Connection reset by peer.\n"
            ),
            (),
        ),
        Fires(
            log_case(
                "node-a:3:4 [0] misc/socket.cc:58 NCCL WARN socketProgressOpt: Call to recv from 10.0.0.1<4242> failed : Connection "
                "timed out\n"
            ),
            (),
        ),
        Quiet(
            log_case(
                '[rank1]: Traceback (most recent call last):\n[rank1]:   File "train.py", line 9, in <module>\n'
                "[rank1]: ValueError: corrupt\n"
                "node-a:3:4 [0] misc/socket.cc:58 NCCL WARN Call to recv from 10.0.0.1<4242> failed : Connection reset by peer\n"
                "node-a:3:4 [0] misc/socket.cc:58 NCCL WARN Call to send to 10.0.0.1<4242> failed : Connection reset by peer\n"
            ),
            "a dead peer resets its connections",
        ),
        Quiet(
            log_case(
                "node-a:3:4 [0] misc/socket.cc:58 NCCL WARN Call to recv from 10.0.0.1<4242> failed : Connection reset by peer\n"
            ),
            "one side only: the peer may have ended",
        ),
        Quiet(
            log_case(
                "node-a:3:4 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node-b<47494>\n"
                "node-a:3:4 [0] misc/socket.cc:58 NCCL WARN Call to recv from 10.0.0.1<4242> failed : Connection reset by peer\n"
                "node-a:3:4 [0] misc/socket.cc:58 NCCL WARN Call to send to 10.0.0.1<4242> failed : Connection reset by peer\n"
            ),
            "a peer that closed its connections has ended",
        ),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """Resets of both directions, or losses that a dead peer cannot cause."""
        lost, resets = s.events.of("fabric.connection_lost"), s.events.of("fabric.connection_reset")
        both = {e["call"] in _SENDING for e in resets} == {True, False}
        if s.events.has("nccl.echo_peer_closed") and not lost:
            return ()  # an orderly end of a connection: its process ended, and the resets may be that as well
        found = tuple(sorted((*lost, *(resets if both or lost else ())), key=lambda e: e.order))
        return () if somebody_died(s, found) else found

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """Nobody: a connection has two ends."""
        return ()

    def certainty(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """A lost route is clearer than resets."""
        return 0.8 if any(e.kind == "fabric.connection_lost" for e in events) else 0.72

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """What was seen, and what was not."""
        return (
            "The connection had been established. No rank shows an exception, a signal or an exit before it, so that the network "
            "between them is left. It is an inference: the log of a rank that died silently would change it."
        )

    def advice(self, s: Situation, events: Sequence[LogEvent]) -> tuple[Fix, ...]:
        """What to change."""
        return (
            Fix(
                "Take the overlay network out of the path",
                setting="hostNetwork: true (Kubernetes), docker run --network host",
                verify="no reset in the logs over the time in which one came before",
                undo="remove the option",
            ),
            Fix(
                "Look for who drops the connection",
                command="conntrack -S; ethtool -S <interface> | grep -Ei 'drop|err'; dmesg -T | grep -i link",
                verify="a counter moves at the time of the reset",
                undo="nothing is changed",
            ),
            Fix(
                "Does not help: a longer timeout",
                setting="timeout= of init_process_group",
                verify="NCCL does not connect again: the wait only ends later",
            ),
        )
