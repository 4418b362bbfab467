"""The truth about a job: who is at fault, in which calls others wait for them, and who merely waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dumpgen.faults import CRASHED, NETWORK_STALL, SLOW, Placed
from dumpgen.job import Awaited, Job, Truth
from dumpgen.simulate import Key, Meeting, meeting_keys

Member = tuple[int, int]  # (rank, step)
_STOPS = ("missing", CRASHED, "device_stall", NETWORK_STALL, SLOW)


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
    base = replace(base, departs=departs(job, placed))
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
    """The calls in which others wait, or will wait, for the culprits; the most telling first.

    First those in which the members that arrived differ, then the one that the culprits were to make next (or, where
    nothing tells, those of the group at fault), then by the time of the first arrival. Last those to which nobody has
    come yet: they are issued, and the culprits issued none or another one.
    """
    found: dict[Awaited, tuple[object, ...]] = {}
    next_keys, culprits = _next_keys(job, placed), set(placed.culprits)
    for key, members in _issued(job).items():
        meeting = job.final.open_meetings.get(key)
        came = _arrived(meeting) if meeting else []
        others_came = any(rank not in culprits for rank, _ in came)
        told = (_awaited(job, placed, key, came) if others_came else None) or _awaited(job, placed, key, members)
        if told is None:
            continue
        if told.is_p2p:
            told = replace(told, seqs=tuple(sorted({seq_of(job, r, i) for r, i in members})))
        axis = job.mesh.groups[key[0]].axis
        first_ns = min(job.final.issued[r][i] for r, i in members)
        order = (not others_came, not told.differs, key not in next_keys, axis != placed.call.axis, first_ns)
        found[told] = min(order, found.get(told, order))
    return sorted(found, key=found.__getitem__)


def departs(job: Job, placed: Placed) -> tuple[str, int]:
    """(group, sequence number) from which on the culprits' calls differ from what they should be; ("", 0) if none does."""
    rank = placed.culprits[0] if placed.culprits else 0
    call, steps = placed.own or placed.call, job.final.plans[rank].steps
    for i in range(placed.step, len(job.final.issued[rank])):
        if placed.kind not in _STOPS and steps[i].axis == call.axis and steps[i].is_p2p == call.is_p2p:
            return job.mesh.groups_of[rank][call.axis].name, seq_of(job, rank, i)
    return "", 0


def _awaited(job: Job, placed: Placed, key: Key, members: Sequence[Member]) -> Awaited | None:
    """The call at which these members are, if it concerns the culprits."""
    final, culprits = job.final, set(placed.culprits)
    ranks = {rank for rank, _ in members}
    others = [m for m in members if m[0] not in culprits] or (list(members) if placed.kind == "p2p_cycle" else [])
    absent = tuple(sorted(set(_needed(job, key)) - ranks))
    signatures = {final.plans[r].signatures[i] for r, i in members} if len(key) == 2 else set()
    differs = (len(signatures) > 1 or key in final.mismatched) and bool(culprits & ranks)
    concerns = bool(culprits & set(absent)) or differs if culprits else not absent and key in final.open_meetings
    if not concerns or not others:
        return None
    _, rank, step = min((final.issued[r][i], r, i) for r, i in others)
    group, call = job.mesh.groups[key[0]], final.plans[rank].steps[step]
    label, seq, waiters = (group.name, group.desc), seq_of(job, rank, step), tuple(sorted(r for r, _ in others))
    return Awaited(label, seq, call.op, call.is_p2p, differs, waiters, absent, (seq,))


def _issued(job: Job) -> dict[Key, list[Member]]:
    """All calls that were issued and are not done, by where they meet."""
    found: dict[Key, list[Member]] = {}
    for rank, plan in enumerate(job.final.plans):
        done = job.final.done[rank]
        groups, places = job.mesh.groups_of[rank], job.mesh.places[rank]
        for i in range(len(job.final.issued[rank])):
            if not done[i]:
                for key in meeting_keys(groups, places, plan, i):
                    found.setdefault(key, []).append((rank, i))
    return found


def _next_keys(job: Job, placed: Placed) -> set[Key]:
    """Where the culprits were to come next, if they stopped."""
    if placed.kind not in ("missing", CRASHED, "device_stall"):
        return set()
    plans, mesh = job.final.plans, job.mesh
    places = [(mesh.groups_of[r], mesh.places[r], plans[r]) for r in placed.culprits]
    return {key for place in places for key in meeting_keys(*place, placed.step)}


def _arrived(meeting: Meeting) -> list[Member]:
    members = meeting[3]
    assert isinstance(members, list)
    return members


def _needed(job: Job, key: Key) -> tuple[int, ...]:
    """Who must come to a meeting."""
    ranks = job.mesh.groups[key[0]].ranks
    return ranks if len(key) == 2 else (ranks[key[1]], ranks[key[2]])
