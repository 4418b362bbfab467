"""The truth about a job: who is at fault, in which calls others wait for them, and who merely waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dumpgen.faults import CRASHED, SLOW, Placed
from dumpgen.job import Awaited, Job, Truth
from dumpgen.simulate import Key, Meeting

Member = tuple[int, int]  # (rank, step)


def truth_of(job: Job, placed: Sequence[Placed]) -> Truth:
    """The truth about faults that took effect, the first of them with the others in it."""
    if not placed:
        return Truth()
    culprits = {r for p in placed for r in p.culprits}
    victims = tuple(r for r in stuck_ranks(job) if r not in culprits)
    truths = [_truth(job, p, victims) for p in placed]
    return replace(truths[0], others=tuple(truths[1:]))


def stuck_ranks(job: Job) -> list[int]:
    """Ranks with a call that was issued and is not done."""
    if not job.final.open_meetings:
        return []
    return [r for r, issued in enumerate(job.final.issued) if not all(job.final.done[r][: len(issued)])]


def _truth(job: Job, placed: Placed, victims: tuple[int, ...]) -> Truth:
    _, file, line = (placed.own or placed.call).line
    base = Truth(placed.kind, placed.culprits, op=placed.call.op, frame=(file, line), victims=victims)
    if placed.kind == SLOW:
        return base
    found = awaited(job, placed)
    if not found:
        return base
    return replace(base, group=found[0].group, seq=found[0].seq, op=found[0].op, awaited=tuple(found))


def seq_of(job: Job, rank: int, step: int) -> int:
    """The sequence number of a step of the last stretch."""
    steady, last = job.programs(rank)
    row = last.rows[last.issued(step)]
    before = steady.counts.get(row.step.axis, (0, 0, 0))
    own = (row.p2p_seq, before[1]) if row.step.is_p2p else (row.collective_seq, before[0])
    return own[0] + own[1] * job.past.iterations


def awaited(job: Job, placed: Placed) -> list[Awaited]:
    """The calls in which others wait for the culprits, the most telling first.

    First those in which calls differ, then the one that the culprits were to make next (or, where nothing tells, those
    of the group at fault), then by the time of the first arrival.
    """
    final, mesh = job.final, job.mesh
    culprits, next_keys = set(placed.culprits), _next_keys(job, placed)
    found = []
    for key, meeting in final.open_meetings.items():
        members = _arrived(meeting)
        ranks = {rank for rank, _ in members}
        needed = _needed(job, key)
        differs = key in final.mismatched and bool(culprits & ranks)
        absent = tuple(sorted(set(needed) - ranks))
        concerns = bool(culprits & set(absent)) or differs if culprits else not absent
        others = [m for m in members if m[0] not in culprits] or (members if placed.kind == "p2p_cycle" else [])
        if not concerns or not others:
            continue
        first_ns, rank, step = min((final.arrived[r][i], r, i) for r, i in others)
        group, call = mesh.groups[key[0]], final.plans[rank].steps[step]
        told = Awaited(
            (group.name, group.desc),
            seq_of(job, rank, step),
            call.op,
            call.is_p2p,
            differs,
            tuple(sorted(r for r, _ in others)),
            absent,
        )
        order = (not differs, key not in next_keys, group.axis != placed.call.axis, first_ns, rank)
        found.append((order, told))
    return [told for _, told in sorted(found, key=lambda pair: pair[0])]


def _next_keys(job: Job, placed: Placed) -> set[Key]:
    """Where the culprits were to come next, if they stopped."""
    if placed.kind not in ("missing", CRASHED, "device_stall"):
        return set()
    keys: set[Key] = set()
    for rank in placed.culprits:
        plan, i = job.final.plans[rank], placed.step
        step = plan.steps[i]
        group, me = job.mesh.groups_of[rank][step.axis], job.mesh.places[rank][step.axis]
        if not step.is_p2p:
            keys.add((group.number, plan.numbers[i][0]))
        for part, n in zip(step.parts, plan.numbers[i], strict=False):
            keys.add((group.number, *((me, part.peer) if part.op == "send" else (part.peer, me)), n))
    return keys


def _arrived(meeting: Meeting) -> list[Member]:
    members = meeting[3]
    assert isinstance(members, list)
    return members


def _needed(job: Job, key: Key) -> tuple[int, ...]:
    """Who must come to a meeting."""
    ranks = job.mesh.groups[key[0]].ranks
    return ranks if len(key) == 2 else (ranks[key[1]], ranks[key[2]])
