"""Rule: a point-to-point call names the wrong rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.analyze.waits_for import unmatched_p2p
from unhang.model import Finding, Fix, PendingCall
from unhang.model.example import Fires, Quiet, pending
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import make_case

_SENDS, _RECEIVES = ("send", "isend"), ("recv", "irecv")
_COMM = dict.fromkeys(range(4), "main:9>~comm")


def wrong_peers(s: Situation) -> tuple[tuple[int, PendingCall, int], ...]:
    """(rank, its call, the rank that waits for the other side of it) of calls whose peer expects nothing of the kind."""
    open_calls = {e.waiter: unmatched_p2p(s.case, e.waiter) for e in s.waits.edges if e.kind == "p2p"}
    found = []
    for rank, calls in open_calls.items():
        for call in calls[:1]:
            wanted = _RECEIVES if call.kind in _SENDS else _SENDS
            peer_expects = any(c.peer == rank for c in open_calls.get(call.peer if call.peer is not None else -1, ()))
            others = [
                r
                for r, theirs in open_calls.items()
                if r != call.peer and any(c.kind in wanted and c.peer == rank for c in theirs[:1])
            ]
            if others and not peer_expects:
                found.append((rank, call, others[0]))
    return tuple(found)


class WrongPeer(Rule):
    """A send or receive names a rank that expects nothing, while another rank waits for it.

    What it detects:
        An unmatched point-to-point call whose peer has no call in return, and a third rank that waits for this one.

    Why it hangs:
        Both sides of a pair have to name each other. The message has no taker, and the third rank never gets its own.

    How to confirm:
        Compare the two lines: who sends to whom, and who expects from whom.

    How to fix:
        Correct the table or the arithmetic that yields the peer.

    Sources:
        MPI correctness suites: unmatched send and receive.
    """

    id = "wrong-peer"
    cause = "code-divergence"
    needs = ("ranks",)
    EXAMPLES: ClassVar = (
        Fires(
            make_case(
                {0: ["barrier@main:12 !"], 1: ["barrier@main:12 !"]},
                pending={2: [pending("send", peer=0, where="main:9")], 3: [pending("recv", peer=2, where="main:7")]},
                stacks=_COMM,
            ),
            (2,),
            9,
        ),
        Quiet(
            make_case(
                {},
                world=2,
                pending={r: [pending("recv", peer=1 - r, where="main:9")] for r in range(2)},
                stacks=dict.fromkeys(range(2), "main:9>~comm"),
            ),
            "two receivers that name each other have the right peer and the wrong order",
        ),
        Quiet(
            make_case(
                {},
                world=2,
                pending={1: [pending("recv", peer=0, where="main:9")]},
                stacks={0: "main:3", 1: "main:9>~comm"},
            ),
            "a sender that is late",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding per call with the wrong peer."""
        if s.divergence is not None or s.primary_failure is not None or s.late or not s.judges_waits:
            return
        for rank, call, waiter in wrong_peers(s):
            if rank not in s.proven:
                continue
            frame = next(iter(call.frames), None)
            side = "to" if call.kind in _SENDS else "from"
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=f"rank {rank}: {call.kind} {side} rank {call.peer} at {w.place(frame)}, but rank {call.peer} expects nothing and rank {waiter} waits for rank {rank}",
                confidence=0.92,
                culprit_ranks=(rank,),
                victim_ranks=s.others((rank,)),
                because=f"Rank {call.peer} has no open call with rank {rank}; rank {waiter} has one.",
                process_group={"pg_name": call.group, "pg_desc": ""},
                collective={"op": call.kind, "seq": call.index},
                location=w.location_of(frame),
                evidence=(*(w.waiting_line(e) for e in s.waits.edges[:4]), *w.stack_lines(s.case.ranks.get(rank), 3)),
                fixes=(
                    Fix(
                        "Name the right rank",
                        patch=f"{w.place(frame)}: the peer should be rank {waiter}",
                        verify="unhang run -- <the same command>",
                        undo="revert the edit",
                    ),
                ),
            )
