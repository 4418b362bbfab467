"""Run directories, live or copied, and any mixture of recognised files -> one Case."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from unhang.errors import NothingToJudge, UnreadableInput
from unhang.model import (
    Case,
    HangObservation,
    Job,
    LogEvent,
    LogLine,
    RaisedError,
    RankEvidence,
    Unavailable,
)
from unhang.read.dumps.assemble import observed_hang, ranks_of, unseen, world_size
from unhang.read.dumps.shard import DumpFile, Shard
from unhang.read.fields import text, texts, whole, wholes
from unhang.read.flight_table import FlightTable, RankCalls
from unhang.read.gathered import Gathered, holds_run_directory
from unhang.read.inventory import NO_DUMP, absent_calls, present_evidence
from unhang.read.membership import Membership
from unhang.read.our_ending import ending_began_ns, forget_since
from unhang.read.pickle_guard import PickleGuard
from unhang.read.rank_evidence import evidence_of
from unhang.read.rank_folder import RankRecord

if TYPE_CHECKING:
    from unhang.read.dumps.reader import DumpReader
    from unhang.read.logs.source import Tell
    from unhang.read.output_log import OutputLog
    from unhang.read.torchrun_summary import RankExit

MAX_WORLD = 1 << 20
MAX_NAMED_RANKS = 16

Records = Mapping[int, RankRecord]


def read_bundle(path: Path, *, trusted: bool = False) -> Case:
    """The case in a run directory or a report folder. `trusted`: our own job writes it at this moment.

    Raises:
        NothingToJudge: there is nothing in it that unhang can read.
    """
    return read_paths([path], trusted=trusted)


def read_paths(paths: Sequence[Path], *, trusted: bool = False) -> Case:
    """The case in folders and files, see `open_paths`."""
    return open_paths(paths, trusted=trusted).case


class Evidence:
    """A case, and the dumps that it was read from, as far as the first look at them went."""

    def __init__(self, case: Case, dumps: DumpReader | None = None, put: Callable[[Shard], Case] | None = None) -> None:
        self.case, self.dumps, self._put = case, dumps, put

    def closer(self, ranks: Collection[int]) -> Case:
        """The case with all calls of these ranks and their stacks."""
        if self.dumps is not None and self._put is not None and ranks and not self.dumps.is_whole:
            with _without_collector():
                self.case = self._put(self.dumps.closer(ranks))
        return self.case

    def whole(self) -> Case:
        """The case with all calls of all ranks, with their stacks where the dumps are few."""
        if self.dumps is not None and self._put is not None and not self.dumps.is_whole:
            with _without_collector():
                self.case = self._put(self.dumps.everything())
        return self.case


def open_paths(
    paths: Sequence[Path | str],
    *,
    trusted: bool = False,
    reader: Callable[[Sequence[DumpFile]], DumpReader] | None = None,
    tell: Tell | None = None,
) -> Evidence:
    """The evidence in folders and files, which are recognised by their content. `tell`: called while logs are read.

    Raises:
        UnreadableInput: only files were given, and none of them can be read.
        NothingToJudge: there is nothing in them that unhang can read.
    """
    gathered = Gathered(tell=tell)
    with PickleGuard() as guard, _without_collector():
        elsewhere = []
        for path in paths:
            if isinstance(path, Path) and holds_run_directory(path):
                gathered.add(path)
            else:
                elsewhere.append(path)
        if elsewhere:
            gathered.add_located(elsewhere)
        if gathered.dumps and not gathered.attempts:
            dumps = (reader or _default_reader)(gathered.dumps)
            put = partial(_case_of_dumps, gathered)
            evidence = Evidence(put(dumps.look()), dumps, put)
        else:
            evidence = Evidence(_case(gathered, guard, trusted))
    case = evidence.case
    if case.present or gathered.job:
        return evidence
    reasons = [a.reason for a in (*case.absent, *gathered.absent) if a.reason != NO_DUMP]
    if reasons and not any(isinstance(path, Path) and path.is_dir() for path in paths):
        raise UnreadableInput(reasons[0])
    shown = f" ({'; '.join(reasons[:3])})" if reasons else ""
    raise NothingToJudge(f"no evidence in {', '.join(map(str, paths[:3]))}{shown}")


def _default_reader(files: Sequence[DumpFile]) -> DumpReader:
    from unhang.read.dumps.reader import DumpReader  # a job's watcher never needs it

    return DumpReader(files)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Millions of small objects are made, none of them in cycles: the garbage collector would double the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _case(gathered: Gathered, guard: PickleGuard, trusted: bool) -> Case:
    records = gathered.chosen()
    logs = gathered.outputs(records)
    if logs and not records and not gathered.job:
        from unhang.read.logs.case import case_of_outputs

        return case_of_outputs(logs, gathered.absent)
    began_ns = ending_began_ns(gathered.job, gathered.verdict)
    if began_ns is not None:
        for record in records.values():
            forget_since(record, began_ns)
    ranks = _ranks(gathered, records, logs, began_ns)
    membership = Membership({r: record.groups for r, record in records.items()}, _ranks_told(records) or tuple(records))
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
        events=_events(lines),
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


def _case_of_dumps(gathered: Gathered, shard: Shard) -> Case:
    """The case in dumps that lie outside of a run directory, and in whatever was given with them."""
    records = gathered.chosen()
    logs = gathered.outputs(records)
    ranks = {**ranks_of(shard), **_ranks(gathered, records, logs, None)}
    lines = tuple(line for log in logs for line in log.lines)
    counts = {r: RankCalls(d.entries, d.has_frames, d.backend) for r, d in shard.dumps.items()}
    backend = next((d.backend for d in shard.dumps.values() if d.backend), "")
    return Case(
        job=Job(world_size=world_size(shard) or None, backend=backend),
        ranks=ranks,
        groups=shard.table.groups,
        calls=shard.table,
        log=lines,
        events=_events(lines),
        hang=observed_hang(shard),
        present=present_evidence(counts, ranks, len(lines)),
        absent=(*gathered.absent, *shard.absent, *unseen(shard)),
    )


def _events(lines: Sequence[LogLine]) -> tuple[LogEvent, ...]:
    if not lines:
        return ()
    from unhang.read.logs.events import events_of

    return events_of(lines)


def _unseen_ranks(job: Job, records: Records) -> list[Unavailable]:
    """The ranks of the job of which there is nothing; named one by one only while they are few."""
    unseen = [rank for rank in range(job.world_size or 0) if rank not in records]
    reason = "no process and no file of it was seen"
    if len(unseen) > MAX_NAMED_RANKS:
        shown = ", ".join(map(str, unseen[:MAX_NAMED_RANKS]))
        return [Unavailable(f"{len(unseen)} of {job.world_size} ranks ({shown}, ...)", reason)]
    return [Unavailable(f"rank {rank}", reason) for rank in unseen]


def _ranks(
    gathered: Gathered, records: Records, logs: Sequence[OutputLog], began_ns: int | None
) -> dict[int, RankEvidence]:
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
