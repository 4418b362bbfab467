"""Rule: connections break in the middle although no process ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from unhang.analyze.failures import Failure, is_timeout
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Finding, Fix, LogEvent
from unhang.model.example import Fires, Quiet, ended, raised
from unhang.rules import wording as w
from unhang.rules.examples import log_case, make_case
from unhang.rules.line_rule import LineRule
from unhang.rules.network.died_first import somebody_died

_BROKEN = re.compile(r"Connection closed by peer|Connection reset by peer|Broken pipe")
_CLOSED = "RuntimeError: Connection closed by peer [127.0.0.1]:4242@main:10"
_ENDS = {r: ended("os._exit", 1, at_s=10.2) for r in (0, 1)}
_CRASHED: dict[str, Any] = {"world": 2, "hang": None, "exit_code": 1}
_SENDING = frozenset({"write", "writev", "send", "sendmsg"})


class NetworkUnstable(LineRule):
    """An established connection broke, on both sides, and nobody had died.

    What it detects:
        NCCL reports resets for sending and for receiving, or a transfer on an open connection that times out or loses its
        route, in a log in which no process ended before. Or ranks report that a peer closed or reset its connection, and all
        processes of the job were alive then: none had ended, and none had given up for a timeout.

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
        Fires(make_case({}, errors=dict.fromkeys((0, 1), _CLOSED), exits=_ENDS, **_CRASHED), ()),
        Quiet(
            make_case({}, errors={0: _CLOSED}, exits={0: _ENDS[0], 1: ended("exit", 0, at_s=9)}, **_CRASHED),
            "the peer had come to its end",
        ),
        Quiet(
            make_case({}, errors={0: _CLOSED}, exits={0: _ENDS[0], 1: ended("signal", -9, at_s=10.1)}, **_CRASHED),
            "the peer was killed, which was noticed late",
        ),
        Quiet(
            make_case(
                {},
                errors={0: _CLOSED, 1: raised("RuntimeError: Timed out waiting 3000ms for recv operation@main:9", 9.9)},
                exits=_ENDS,
                **_CRASHED,
            ),
            "the peer closed it, after its own timeout",
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

    def check(self, s: Situation) -> Iterable[Finding]:
        """What NCCL said of open connections; else what all ranks say of theirs."""
        said = tuple(super().check(s))
        yield from said
        broken = _broken_everywhere(s) if not said else ()
        if broken:
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=self.headline,
                confidence=0.72,
                culprit_ranks=(),
                because=f"{w.name_ranks(sorted(f.rank for f in broken))} lost a connection within the job, and no process had ended before the "
                "first of them did. Which end broke is not told by these errors.",
                evidence=tuple(
                    EvidenceLine(f"rank {f.rank} exception", f"{f.error.type}: {f.error.message[:200]}")
                    for f in broken[:4]
                    if f.error
                ),
                fixes=self.advice(s, ()),
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


def _broken_everywhere(s: Situation) -> tuple[Failure, ...]:
    """Two or more failures, if ranks lost connections while every process of the job lived.

    Ranks that felt nothing were ended by the launcher, after the first that failed had ended.
    """
    broken = tuple(f for f in s.failures if f.kind == "exception" and f.error is not None and f.error.time_ns)
    ends = {r: e.exit.time_ns for r, e in s.case.ranks.items() if e.exit is not None}
    if len(broken) < 2 or sorted(ends) != list(s.case.world) or any(not f.secondary for f in s.failures):
        return ()
    first, first_end = min(f.error.time_ns for f in broken if f.error), min(ends.values())
    lost = {f.rank for f in broken}
    is_alive = first_end > first and all(r in lost or (ends[r] > first_end and _was_ended(s, r)) for r in s.case.world)
    gave_up = any(is_timeout(h) for e in s.case.ranks.values() for h in e.handled)
    return (
        broken if is_alive and not gave_up and all(f.error and _BROKEN.search(f.error.message) for f in broken) else ()
    )


def _was_ended(s: Situation, rank: int) -> bool:
    """Whether a signal that a launcher sends ended the rank."""
    end = s.case.ranks[rank].exit
    return end is not None and end.kind == "signal" and end.code == -15
