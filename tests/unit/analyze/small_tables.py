"""Small tables of calls and their cases, written down rank by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unhang.model import (
    CallState,
    Case,
    CollectiveTable,
    HangObservation,
    Job,
    ProcessGroup,
    RankEvidence,
    RankIdentity,
    TableBuilder,
)

WORLD = ProcessGroup("0", "default_pg", (0, 1, 2, 3), backend="nccl")
OPEN, STARTED, DONE = CallState.SCHEDULED, CallState.STARTED, CallState.COMPLETED


def table_of(calls: Mapping[int, Sequence[dict[str, Any]]], *groups: ProcessGroup) -> CollectiveTable:
    """Rank -> its calls; each has op, and may have group, seq, state, peer, sizes."""
    builder = TableBuilder()
    indexes = {g.name: builder.group(g) for g in (groups or (WORLD,))}
    for rank, theirs in calls.items():
        counts: dict[tuple[str, bool], int] = {}
        for i, call in enumerate(theirs):
            group, is_p2p = call.get("group", "0"), "peer" in call
            counts[group, is_p2p] = seq = call.get("seq", counts.get((group, is_p2p), 0) + 1)
            builder.add(
                rank=rank,
                group=indexes[group],
                seq=seq,
                op=call["op"],
                in_sizes=call.get("sizes", ((4,),)),
                dtype=call.get("dtype", "Float"),
                state=call.get("state", DONE),
                started_ns=call.get("started", 0),
                is_p2p=is_p2p,
                peer=call.get("peer", -1),
                created_ns=10**18 + i * 10**6 + rank,
                record_id=call.get("record", i),
            )
    return builder.build()


def case_of(table: CollectiveTable, world: int = 4, absent: Sequence[int] = ()) -> Case:
    ranks = {r: RankEvidence(RankIdentity(r)) for r in range(world) if r not in absent}
    return Case(Job(world, backend="nccl"), ranks, table.groups, table, hang=HangObservation("suspected", 1.0, 600.0))


def reduce_(state: CallState = DONE, **more: Any) -> dict[str, Any]:
    return {"op": "all_reduce", "state": state, **more}


def send(peer: int, state: CallState = DONE, **more: Any) -> dict[str, Any]:
    return {"op": "send", "peer": peer, "state": state, **more}


def recv(peer: int, state: CallState = DONE, **more: Any) -> dict[str, Any]:
    return {"op": "recv", "peer": peer, "state": state, **more}
