"""What `unhang run` left, or any mixture of recognised files with processes in it -> one Case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from unhang.model import Case, HangObservation, Job, RaisedError, RankEvidence, Unavailable
from unhang.read.fields import text, texts, whole, wholes
from unhang.read.flight_table import FlightTable
from unhang.read.gathered import Gathered, events_in
from unhang.read.inventory import absent_calls, present_evidence
from unhang.read.membership import Membership
from unhang.read.our_ending import ending_began_ns, forget_since
from unhang.read.pickle_guard import PickleGuard
from unhang.read.rank_evidence import evidence_of
from unhang.read.rank_folder import RankRecord

if TYPE_CHECKING:
    from unhang.read.output_log import OutputLog
    from unhang.read.torchrun_summary import RankExit

MAX_WORLD = 1 << 20
MAX_NAMED_RANKS = 16

Records = Mapping[int, RankRecord]


def case_of_run(gathered: Gathered, trusted: bool) -> Case:
    """The case in all that was gathered, with the dumps that lie in the folders of the ranks.

    `trusted`: our own job writes them at this moment.
    """
    records = gathered.chosen()
    logs = gathered.outputs(records)
    if logs and not records and not gathered.job:
        from unhang.read.logs.case import case_of_outputs

        return case_of_outputs(logs, gathered.absent)
    began_ns = ending_began_ns(gathered.job, gathered.verdict)
    if began_ns is not None:
        for record in records.values():
            forget_since(record, began_ns)
    ranks = ranks_of_records(gathered, records, logs, began_ns)
    membership = Membership({r: record.groups for r, record in records.items()}, _ranks_told(records) or tuple(records))
    with PickleGuard() as guard:
        flights = FlightTable(membership, guard, trusted)
        for rank, record in records.items():
            flights.add(record, ranks[rank].error)
    # Reading the dumps has noted more.
    ranks = {rank: replace(e, unavailable=tuple(records[rank].absent)) for rank, e in ranks.items()}
    calls, lines = flights.build(), tuple(line for log in logs for line in log.lines)
    known = {group.name: group for group in (*calls.groups, *membership.all_groups())}
    job = _job(gathered, records, flights, _ranks_told(records) or membership.world())
    return Case(
        job=job,
        ranks=ranks,
        groups=tuple({**known, **{group.name: group for group in calls.groups}}.values()),
        calls=calls,
        log=lines,
        events=events_in(lines),
        launcher_stacks=gathered.launcher_stacks,
        hang=_hang(gathered.verdict, job.started_ns),
        present=present_evidence(flights.ranks, ranks, len(lines)),
        absent=(
            *gathered.absences_of_job(),
            *gathered.absent,
            *absent_calls(flights.ranks, records, ranks),
            *_unseen_ranks(job, records),
            *(absence for record in records.values() for absence in record.absent),
        ),
    )


def _unseen_ranks(job: Job, records: Records) -> list[Unavailable]:
    """The ranks of the job of which there is nothing; named one by one only while they are few."""
    unseen = [rank for rank in range(job.world_size or 0) if rank not in records]
    reason = "no process and no file of it was seen"
    if len(unseen) > MAX_NAMED_RANKS:
        shown = ", ".join(map(str, unseen[:MAX_NAMED_RANKS]))
        return [Unavailable(f"{len(unseen)} of {job.world_size} ranks ({shown}, ...)", reason)]
    return [Unavailable(f"rank {rank}", reason) for rank in unseen]


def ranks_of_records(
    gathered: Gathered, records: Records, logs: Sequence[OutputLog], began_ns: int | None = None
) -> dict[int, RankEvidence]:
    """What the files and logs say of each process. `began_ns`: the moment from which we ended the job."""
    exits: dict[int, RankExit] = {}
    logged: dict[int, list[RaisedError]] = {}
    for log in logs:
        exits.update({rank: e for rank, e in log.exits.items() if not _is_ours(e, began_ns)})
        for rank, error in log.errors:
            if rank is not None and began_ns is None:
                logged.setdefault(rank, []).append(error)
    now_ns = whole(gathered.verdict, "detected_ns") or whole(gathered.job, "ended_ns") or 0
    return {
        rank: evidence_of(record, exits.get(rank), logged.get(rank, ()), now_ns) for rank, record in records.items()
    }


def _is_ours(seen: RankExit, began_ns: int | None) -> bool:
    """Whether the launcher reports an end that we brought about. Its times are whole seconds."""
    if began_ns is None:
        return False
    return seen.time_ns + 1_000_000_000 > began_ns if seen.time_ns else seen.code in (-9, -15)


def _ranks_told(records: Records) -> tuple[int, ...]:
    """All ranks of the job, by the ranks' own word; empty where none tells."""
    sizes = [r.identity.world_size for r in records.values() if r.identity.world_size]
    return tuple(range(max(sizes))) if sizes and max(sizes) <= MAX_WORLD else ()


def _started_ns(gathered: Gathered, records: Records) -> int:
    known = [r.identity.started_ns for r in records.values() if r.identity.started_ns]
    return whole(gathered.job, "started_ns") or min(known, default=0)


def _job(gathered: Gathered, records: Records, flights: FlightTable, world: tuple[int, ...]) -> Job:
    identities = [r.identity for r in records.values()]
    backends = [i.backend for i in identities] + [calls.backend for calls in flights.ranks.values()]
    return Job(
        world_size=max(world) + 1 if world and max(world) < MAX_WORLD else None,
        nodes=len({i.host for i in identities if i.host}) or 1,
        command=texts(gathered.job, "command"),
        backend=next((b for b in backends if b), ""),
        torch_version=next((i.torch_version for i in identities if i.torch_version), ""),
        exit_code=whole(gathered.job, "exit_code"),
        ended_by_us=gathered.job.get("ended_by_us") is True,
        started_ns=_started_ns(gathered, records),
    )


def _hang(verdict: Mapping[str, object], started_ns: int) -> HangObservation | None:
    onset, detected = whole(verdict, "onset_ns"), whole(verdict, "detected_ns")
    kind = text(verdict, "kind")
    if not kind or (onset is None and detected is None):
        return None
    onset_ns, detected_ns = onset or detected or 0, detected or onset or 0
    return HangObservation(
        kind=kind,
        onset_s=max(0.0, (onset_ns - started_ns) / 1e9),
        detected_after_s=max(0.0, (detected_ns - onset_ns) / 1e9),
        waiting_ranks=wholes(verdict.get("waiting_ranks")),
        reason=text(verdict, "reason"),
        withdrawn=verdict.get("withdrawn") is True,
    )
