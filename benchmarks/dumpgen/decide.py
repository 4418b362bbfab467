"""Whether the evidence that is left names the culprits: a property of the dumps, not of any tool that reads them.

A culprit is recognised in one of four ways.

1. It is idle: its dump is there and whole and shows no call under way, and others are seen to wait for it. (In a dump of
   active calls alone, members of a coalesced batch without its closing entry have completed: only that entry is tracked.)
2. It departs: its dump shows the calls around its fault, and what it should have called is known, from an iteration of its
   own before, or from two ranks at the same place of the mesh (unless of two that disagree there either may be it).
3. Its device stands still: it issued a call that its peers have started, and has not started it (which is recorded only
   with timing).
4. It left no dump, and it alone: everybody else is accounted for, and waits for it or for somebody who does. Of two files
   that are gone, either may be that of a mere victim of the other.

What spoils this: a file that is lost or cut off proves nothing about its rank, so nobody innocent may be waited for whose
file is gone: a crash would have left the same evidence. A rank that ran ahead until its ring buffer held nothing but calls
under way has overwritten the one in which it waits: where dumps tell of devices that stand still, its own may be one, so it
cannot be cleared of the fault of a rank without a file. A host that stops while another fault keeps a call of its rank open
may as well wait for that call. And where the members of a group are not recorded, an absent member cannot be missed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dumpgen.faults import CRASHED, HEALTHY, NETWORK_STALL, SLOW
from dumpgen.fields import is_older
from dumpgen.job import Job, Truth

_IDLE = ("missing", CRASHED)


def decidable(job: Job) -> bool:
    """Whether what is left of the evidence allows to name the culprits, all of them and nobody else."""
    return not why_undecidable(job)


def suspects(job: Job) -> frozenset[int]:
    """Whom the evidence incriminates: the culprits, and in a hang the ranks whose files are gone."""
    is_hang = job.truth.kind not in (HEALTHY, SLOW)
    gone = job.loss.lost | set(job.loss.truncated) if is_hang else frozenset()
    return job.truth.all_culprits | gone


def why_undecidable(job: Job) -> str:
    """What keeps the evidence from naming the culprits; "" if nothing does."""
    truth = job.truth
    if truth.kind == HEALTHY:
        return ""
    if truth.kind == SLOW:
        return "lateness shows on one clock, in many calls"
    if is_older(job.recording.version, "2.4"):
        return "the members of the groups are not recorded"
    unseen = job.loss.lost | set(job.loss.truncated)
    if unseen and job.recording.backend == "gloo":
        return "the members of the groups are not recorded, and a file is gone"
    culprits = truth.all_culprits
    hides_its_wait = job.recording.timing and any(_lost_its_front(job, r) for r in range(job.world) if r not in unseen)
    if unseen & culprits:
        if unseen != culprits or len(unseen) > 1:
            return "more files are gone than that of one culprit"
        if all(_lost_its_front(job, rank) for rank in _arrived_where_needed(job, culprits) - unseen):
            return "the calls in which others wait for the culprit are overwritten"
        return "another device may stand still in a call that is overwritten" if hides_its_wait else ""
    if _awaits_unseen(job, unseen):
        return "somebody innocent is awaited whose file is gone"
    if truth.kind == NETWORK_STALL:
        is_recorded = job.recording.timing and not unseen and not hides_its_wait
        return "" if is_recorded else "that all have arrived is not recorded, or is overwritten"
    for fault in (truth, *truth.others):
        if not any(rank not in unseen for call in fault.awaited for rank in call.waiters):
            return "nobody is seen to wait for a culprit"
        if reason := _unrecognised(job, fault):
            return reason
    return ""


def _unrecognised(job: Job, truth: Truth) -> str:
    """Why the culprits of one fault cannot be recognised although their dumps are there."""
    if truth.kind == "device_stall":
        if any(_lost_its_front(job, rank) for rank in truth.culprits):
            return "the call in which it waits is overwritten"
        return "" if job.recording.timing else "that the others have started is not recorded"
    if truth.kind in _IDLE and all(_is_idle(job, rank) for rank in truth.culprits):
        return ""
    if truth.kind in _IDLE and any(_waits_for_another_fault(job, truth, rank) for rank in truth.culprits):
        return "its host may wait for a call that another fault keeps open"
    if 2 * len(truth.culprits) >= job.world and truth.kind in ("uneven_batches", "two_missing"):
        return "the others are no majority"
    if job.recording.only_active:
        return "what was called before is not recorded"
    return "" if all(_shows_departure(job, rank) for rank in truth.culprits) else "what it called before is lost"


def _is_idle(job: Job, rank: int) -> bool:
    """Whether no call of a rank is under way."""
    return bool(all(job.final.done[rank][: len(job.final.issued[rank])]))


def _waits_for_another_fault(job: Job, truth: Truth, rank: int) -> bool:
    """Whether a rank waits in a call for the culprit of another fault, directly or through ranks that do.

    Proof that its own stop is not recorded then: let the other fault be the only one, and let this rank's host, at the place
    where it stopped, wait for the result of its open call, as the rank that prints the loss every so many steps does. No dump
    records what a host waits for. The open call is not done because of the other culprit, so this host issues nothing more
    under that truth either, and every file is the same. That its peers went on does not tell: they print nothing.
    """
    targets = {r for fault in (job.truth, *job.truth.others) if fault is not truth for r in fault.culprits} - {rank}
    waits: dict[int, set[int]] = {}
    for key, meeting in job.final.open_meetings.items():
        came = {r for r, _ in meeting[3]} if isinstance(meeting[3], list) else set()
        for r in came:
            waits.setdefault(r, set()).update(_needed(job, key) - came)
    reached, pending = {rank}, [rank]
    while pending:
        new = waits.get(pending.pop(), set()) - reached
        reached |= new
        pending.extend(new)
    return bool(reached & targets)


def _lost_its_front(job: Job, rank: int) -> bool:
    """Whether an earlier call under way may be overwritten: of the group of the first one that is left, no call before it is."""
    entries, (_, last) = job.seen(rank), job.programs(rank)
    if not len(entries) or int(entries.record_id[0]) == 0:
        return False
    rows = [row for row, _ in job.rows(rank, entries)]
    kinds = [(row.step.axis, row.step.is_p2p) for row in rows]
    is_open = [
        bool(is_last) and not job.final.done[rank][last.step_K[k]]
        for is_last, k in zip(entries.program.tolist(), entries.row.tolist(), strict=True)
    ]
    first = is_open.index(True) if any(is_open) else 0
    return any(is_open) and kinds[first] not in kinds[:first]


def _shows_departure(job: Job, rank: int) -> bool:
    """Whether an iteration before the fault is in a rank's ring buffer, or two ranks at its place show what is usual.

    With the call before that iteration: what follows the end of one is seen only at the end of the one before.
    """
    steady, _ = job.programs(rank)
    entries = job.seen(rank)
    if int(np.count_nonzero(entries.program == 0)) > len(steady.rows):
        return True
    is_whole = len(entries) > 0 and int(entries.record_id[0]) == 0
    plan = job.past_plans[rank]
    unseen = job.loss.lost | set(job.loss.truncated) | job.truth.all_culprits
    equals = [r for r in range(job.world) if job.past_plans[r] is plan and r not in unseen]
    return is_whole and len(equals) >= 2 and not _may_be_either_of_two(job, rank, equals)


def _may_be_either_of_two(job: Job, rank: int, equals: Sequence[int]) -> bool:
    """Whether another truth leaves the same files: the culprit and one rank at its place disagree, and no other shows the call.

    Proof: let the program of this place prescribe what the culprit called, and let its partner be the one that made the
    other call. Each of the two has then recorded what it has recorded. The others at this place complete these calls under
    the same numbers either way, and the entries in which they differ are overwritten; the numbers, all that is said of
    completed calls elsewhere, are the same. Ranks at other places never make these calls. So every file is the same, and
    the culprit is the other one.
    """
    last, record = job.programs(rank)[1].rows, job.past.iterations * len(job.programs(rank)[0].rows)
    partners = [
        r
        for call in job.truth.awaited
        if call.differs and not call.is_p2p and len(call.waiters) == 1 and not call.absent
        for r in call.waiters
        if r in equals
    ]
    for partner in partners:
        usual = job.programs(partner)[1].rows
        places = [k for k, (own, other) in enumerate(zip(last, usual, strict=False)) if own.step != other.step]
        firsts = [int(job.seen(r).record_id[0]) for r in equals if r != partner and len(job.seen(r))]
        if len(last) == len(usual) and places and all(first > record + max(places) for first in firsts):
            return True
    return False


def _awaits_unseen(job: Job, unseen: frozenset[int] | set[int]) -> bool:
    """Whether a rank whose dump is left waits in a call to which a rank must come whose file is gone."""
    return bool(_arrived_where_needed(job, unseen) - unseen)


def _arrived_where_needed(job: Job, needed: frozenset[int] | set[int]) -> set[int]:
    """The ranks that wait, on their devices, in calls to which one of the needed ranks must come."""
    found: set[int] = set()
    for key, meeting in job.final.open_meetings.items():
        if _needed(job, key) & needed and isinstance(meeting[3], list):
            found.update(rank for rank, _ in meeting[3])
    return found


def _needed(job: Job, key: tuple[int, ...]) -> set[int]:
    """Who must come to a meeting."""
    ranks = job.mesh.groups[key[0]].ranks
    return set(ranks if len(key) == 2 else (ranks[key[1]], ranks[key[2]]))
