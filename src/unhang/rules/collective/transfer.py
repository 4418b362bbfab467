"""Rules: a send or receive whose other side is another one, or is nowhere. Told by the recorded calls alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from unhang.analyze.callpath import user_path
from unhang.analyze.situation import Situation
from unhang.model import CallState, CollectiveCall, CollectiveTable, EvidenceLine, Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import make_case

_RING = {r: [f"send>{(r + 1) % 4}[8]@main:5", f"recv<{(r - 1) % 4}[8]@main:6"] * 4 for r in range(4)}


def open_transfers(s: Situation) -> Iterator[CollectiveCall]:
    """The sends and receives in which ranks without a stack wait."""
    table = s.case.calls
    for rows in s.recorded.fronts.values():
        for row in rows:
            if table["is_p2p"][row] and table["peer"][row] >= 0:
                yield table.call(row)


def is_new_partner(table: CollectiveTable, call: CollectiveCall) -> bool:
    """Whether the rank made this kind of call before, and never with this peer."""
    if call.rank in table.active_ranks:
        return False  # its history is not in the dump
    rows = table.rank_rows(call.rank)
    same = (
        table["is_p2p"][rows]
        & (table["op"][rows] == table["op"][call.row])
        & (table["state"][rows] == CallState.COMPLETED)
    )
    peers = table["peer"][rows][same]
    return len(peers) > 0 and call.peer not in peers.tolist()


class NewPartner(Rule):
    """A send or receive names a rank with which this one never exchanged anything, and which expects nothing.

    What it detects:
        An open point-to-point call without its other side, to or from a rank that no earlier call named, where the habit of the
        rank foretold another one.

    Why it hangs:
        Both sides of a pair have to name each other.

    How to confirm:
        Compare with the same line in earlier steps: who was the peer there?

    How to fix:
        Correct the table or the arithmetic that yields the peer.

    Sources:
        MPI correctness suites: unmatched send and receive.
    """

    id = "new-partner"
    cause = "code-divergence"
    needs = ("calls",)
    EXAMPLES: ClassVar = (
        Fires(
            make_case(
                {**_RING, 2: [*_RING[2], "send>0[8]@main:5 !"], 3: [*_RING[3], "recv<2[8]@main:6 !"]}, backend="nccl"
            ),
            (2,),
            5,
        ),
        Quiet(
            make_case({**_RING, 3: [*_RING[3], "recv<2[8]@main:6 !"]}, backend="nccl"),
            "a peer that is late is the usual peer",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding per call with a peer that is new and does not answer."""
        if not s.judges_waits or s.failures:
            return
        for call in open_transfers(s):
            is_answered = s.recorded.transfers.get(call.row) is not None
            if is_answered or not is_new_partner(s.case.calls, call):
                continue
            if s.departures([call.rank]).get(call.rank) == call.row:
                path = user_path(call.frames)
                side = "to" if call.op == "send" else "from"
                yield Finding(
                    rule=self.id,
                    cause=self.cause,
                    title=f"rank {call.rank}: {call.op} {side} rank {call.peer}"
                    + (f" at {w.place(path[-1])}" if path else "")
                    + f", with which it never exchanged anything; rank {call.peer} expects nothing",
                    confidence=0.92,
                    culprit_ranks=(call.rank,),
                    victim_ranks=s.others((call.rank,)),
                    because="All its earlier calls of this kind name other ranks, and the other side was never issued.",
                    process_group=w.group_of(call.group),
                    collective=w.collective_of(call, call.seq),
                    location=w.location_of(path[-1] if path else None),
                    evidence=(
                        w.path_line(call.rank, f"{w.name_call(call)} {side} rank {call.peer} (open)", path),
                        *map(w.waiting_line, s.waits.edges_of(call.rank)[:2]),
                    ),
                    fixes=(
                        Fix(
                            "Name the right rank",
                            patch="correct the table or the arithmetic that yields the peer",
                            verify="unhang run -- <the same command>",
                            undo="revert the edit",
                        ),
                    ),
                )


class TransferMismatch(Rule):
    """A send and its receive differ in size or dtype.

    What it detects:
        Both sides of a pair are open, and do not move the same elements. The side that differs from its own earlier calls is
        named; if that does not tell, both are.

    Why it hangs:
        NCCL waits for bytes that never come, or the receiver's buffer is overrun.

    How to confirm:
        Print both shapes.

    How to fix:
        Exchange the shape first, or pad to a fixed one.

    Sources:
        PyTorch documentation, torch.distributed: send, recv.
    """

    id = "transfer-mismatch"
    cause = "size-mismatch"
    needs = ("calls",)
    EXAMPLES: ClassVar = (
        Fires(
            make_case(
                {
                    **_RING,
                    2: [*_RING[2], "send>3[9]@main:5 !"],
                    3: [*_RING[3], "send>0[8]@main:5", "recv<2[8]@main:6 !"],
                },
                backend="nccl",
            ),
            (2,),
            5,
        ),
        Quiet(
            make_case(
                {**_RING, 2: [*_RING[2], "send>3[8]@main:5 !"], 3: [*_RING[3], "recv<2[2x4]@main:6 !"]}, backend="nccl"
            ),
            "the same elements in another shape",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding per pair."""
        if not s.judges_waits:
            return
        told: set[tuple[int, ...]] = set()
        for call in open_transfers(s):
            edge = next((e for e in s.waits.edges_of(call.rank) if e.kind == "p2p" and e.mismatch), None)
            other = s.recorded.transfers.get(call.row)
            pair = tuple(sorted((call.rank, call.peer or 0)))
            if edge is None or other is None or pair in told or edge.targets != (call.peer,):
                continue
            told.add(pair)
            yield _mismatch(s, call, s.case.calls.call(other))


def _mismatch(s: Situation, call: CollectiveCall, other: CollectiveCall) -> Finding:
    new = s.departures((call.rank, other.rank))
    culprits = tuple(sorted(new)) if len(new) == 1 else tuple(sorted((call.rank, other.rank)))
    wrong, right = (call, other) if call.rank == culprits[0] else (other, call)
    path = user_path(wrong.frames)
    return Finding(
        rule=TransferMismatch.id,
        cause=TransferMismatch.cause,
        title=f"rank {wrong.rank} gives {w.name_call(wrong)} where rank {right.rank} gives {w.name_call(right)}",
        confidence=0.9 if len(culprits) == 1 else 0.6,
        culprit_ranks=culprits,
        victim_ranks=s.others(culprits),
        because="The two sides of this transfer are open and do not move the same elements."
        + ("" if len(culprits) == 1 else " Nothing tells which side is wrong."),
        process_group=w.group_of(wrong.group),
        collective=w.collective_of(wrong, wrong.seq),
        location=w.location_of(path[-1] if path else None),
        evidence=(
            w.path_line(wrong.rank, f"{w.name_call(wrong)} (open)", path),
            w.path_line(right.rank, f"{w.name_call(right)} (open)", user_path(right.frames)),
            EvidenceLine("pair", f"rank {wrong.rank} and rank {right.rank} in {wrong.group}"),
        ),
        fixes=(
            Fix(
                "Give both sides the same shape and dtype",
                patch="exchange the shape first, or pad to a fixed one",
                verify="unhang run -- <the same command>",
                undo="revert the edit",
            ),
        ),
    )
