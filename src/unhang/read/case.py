"""The one place where evidence becomes a Case: what `unhang run` left, dumps of any origin, logs, and mixtures of them."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from unhang.errors import UnreadableInput
from unhang.model import (
    Case,
    CollectiveTable,
    HangObservation,
    Job,
    LogEvent,
    LogLine,
    ProcessGroup,
    RaisedError,
    RankEvidence,
    Unavailable,
)
from unhang.numeric import np
from unhang.read.files import decode_json, regular_size, text, texts, unreadable, whole, wholes
from unhang.read.gathered import Alike, Gathered
from unhang.read.launchers import MAX_WORLD, RankExit, ended_by_signal, ending_began_ns, forget_since
from unhang.read.rank_evidence import evidence_of
from unhang.read.rank_folder import NO_SIGN, OUT_OF_SIGHT, RankCalls, RankRecord, absent_calls, present_evidence
from unhang.read.ras import ras_evidence
from unhang.read.runs import out_of_sight

if TYPE_CHECKING:
    from unhang.read.dumps import Shard
    from unhang.read.dumps.objects import FlightTable

# The shapes of a model's tensors: of a JSON file that a user made, or of the header of a safetensors file. No tensor is read.

_MOST_BYTES, _MOST_TENSORS = 64 << 20, 1_000_000
_HELP = "give {name: [sizes]} as JSON, json.dump({n: list(p.shape) for n, p in model.named_parameters()}, f), or a .safetensors file"

Shapes = Mapping[str, tuple[int, ...]]
"""The sizes of each tensor, in the order in which the model has them."""


def read_shapes(path: Path) -> Shapes:
    """The shapes in a file.

    Raises:
        UnreadableInput: it cannot be read, or holds no shapes.
    """
    try:
        regular_size(path)
        with path.open("rb") as f:
            data = f.read(_MOST_BYTES + 1)
    except OSError as error:
        raise unreadable(str(path), error.strerror or str(error), "check its permissions") from error
    if path.suffix == ".safetensors":
        length = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0
        if not 0 < length <= min(len(data) - 8, _MOST_BYTES):
            raise unreadable(str(path), "it is not a safetensors file, or cut", _HELP)
        data = data[8 : 8 + length]
    elif len(data) > _MOST_BYTES:
        raise unreadable(str(path), f"it is larger than {_MOST_BYTES >> 20} MiB", _HELP)
    try:
        content = decode_json(data, str(path))
    except UnreadableInput as error:
        raise unreadable(str(path), "it is not JSON", _HELP) from error
    shapes = {name: sizes for name, value in _items(content) if (sizes := _sizes(value)) is not None}
    if not shapes:
        raise unreadable(str(path), "it holds no shapes of tensors", _HELP)
    return shapes


def _items(content: object) -> list[tuple[str, object]]:
    if not isinstance(content, Mapping):
        return []
    return [(str(name), value) for name, value in list(content.items())[:_MOST_TENSORS] if name != "__metadata__"]


def _sizes(value: object) -> tuple[int, ...] | None:
    sizes = value.get("shape") if isinstance(value, Mapping) else value
    if not isinstance(sizes, list) or not all(type(n) is int and 0 <= n < 1 << 40 for n in sizes):
        return None
    return tuple(sizes)


MAX_NAMED_RANKS = 16

Records = Mapping[int, RankRecord]


def assemble(gathered: Gathered, dumps: Shard | None = None, trusted: bool = False) -> Case:
    """The case in all that was gathered.

    Args:
        gathered: the evidence. What its dumps lack is noted in its records.
        dumps: what was read of the dumps that lie outside of the ranks' folders.
        trusted: our own job writes the dumps in the ranks' folders at this moment.
    """
    if dumps is not None:
        return _of_dumps(gathered, dumps)
    if gathered.logs and not gathered.has_processes and not gathered.job:
        from unhang.read.logs.case import case_of_outputs

        absent = (*gathered.absent, *(a for record in gathered.records.values() for a in record.absent))
        return case_of_outputs(gathered.logs, absent, ranks_of_records(gathered))
    return _of_processes(gathered, trusted)


def _of_dumps(gathered: Gathered, shard: Shard) -> Case:
    """The case in dumps and in whatever was given with them."""
    from unhang.read.dumps import observed_hang, ranks_of, unseen, world_size  # a job's watcher never needs it

    ranks = ranks_of(shard) | ranks_of_records(gathered)
    lines = _lines(gathered)
    events = _events_in(lines)
    counts = {r: RankCalls(d.entries, d.has_frames, d.backend) for r, d in shard.dumps.items()}
    backend = next((d.backend for d in shard.dumps.values() if d.backend), "")
    return Case(
        job=Job(world_size=world_size(shard) or None, backend=backend),
        ranks=ranks,
        groups=shard.table.groups,
        calls=shard.table,
        log=lines,
        events=events,
        hang=observed_hang(shard),
        present=(*present_evidence(counts, ranks, len(lines)), *ras_evidence(events, lines)),
        absent=(*gathered.absent, *shard.absent, *unseen(shard)),
    )


def _of_processes(gathered: Gathered, trusted: bool) -> Case:
    """The case in the folders of ranks, with the dumps that lie in them."""
    from unhang.read.dumps import Membership
    from unhang.read.dumps.objects import FlightTable  # a log never needs these
    from unhang.read.restricted_pickle import PickleGuard

    alike = gathered.alike
    records, unheard = _heard(gathered.records)
    if alike and alike.is_whole:
        records = {rank: record for rank, record in records.items() if rank in alike.expected}
    gathered = replace(gathered, records=records)
    began_ns = ending_began_ns(gathered.job, gathered.verdict)
    if began_ns is not None:
        for record in records.values():
            forget_since(record, began_ns, by_signal=ended_by_signal(gathered.job))
    ranks = ranks_of_records(gathered, began_ns)
    membership = Membership(
        {r: record.groups for r, record in records.items()}, _known_world(records) or tuple(records)
    )
    with PickleGuard() as guard:
        flights = FlightTable(membership, guard, trusted)
        for rank, record in records.items():
            flights.add(record, ranks[rank].error)
    # Reading the dumps has noted more.
    ranks = {rank: replace(e, unavailable=tuple(records[rank].absent)) for rank, e in ranks.items()}
    calls, lines = flights.build(), _lines(gathered)
    earlier = () if trusted else gathered.earlier  # while the job runs nobody asks for the attempts that are over
    events = _events_in(lines)
    known = {group.name: group for group in (*calls.groups, *membership.all_groups())}
    job = _job(gathered, flights, _known_world(records) or membership.world())
    expected = alike.expected if alike else set(range(job.world_size or 0))
    hidden = alike.hidden if alike else out_of_sight(gathered.runs, records, expected)
    unseen = tuple(sorted({*hidden, *unheard}))
    case = Case(
        job=job,
        ranks=ranks,
        groups=tuple({**known, **{group.name: group for group in calls.groups}}.values()),
        calls=calls,
        log=lines,
        events=events,
        launcher_stacks=gathered.launcher_stacks,
        hang=_hang(gathered.verdict, job.started_ns),
        present=(*present_evidence(flights.ranks, ranks, len(lines)), *ras_evidence(events, lines)),
        absent=(
            *_absent_by_the_watcher(gathered.job),
            *gathered.absent,
            *absent_calls(flights.ranks, records, ranks),
            *_absent_ranks(expected - {*records, *unseen}, job, NO_SIGN),
            *_absent_ranks([rank for rank in unseen if rank not in unheard], job, OUT_OF_SIGHT),
            *(Unavailable(f"rank {rank}", reason) for rank, reason in list(unheard.items())[:MAX_NAMED_RANKS]),
            *(absence for record in records.values() for absence in record.absent),
        ),
        out_of_sight=unseen,
        course=gathered.course,
        shapes=_shapes(records),
        attempt=len(gathered.earlier),
        earlier=tuple(replace(_of_processes(g, trusted), attempt=i) for i, g in enumerate(earlier)),
    )
    return smaller(case, alike) if alike else case


def _shapes(records: Records) -> Shapes:
    """Those that the first rank with a file of them has: a wrapped model is the same on all."""
    for _, record in sorted(records.items()):
        path = Path(record.path) / "shapes.json"
        if record.path and path.exists():
            return record.attempt("shapes", partial(read_shapes, path)) or {}
    return {}


def _heard(records: Records) -> tuple[dict[int, RankRecord], dict[int, str]]:
    """The ranks whose node was heard to the end, and of the others why not: what they did when it mattered is unknown."""
    unheard = {
        rank: f"its node {r.identity.host} was no longer heard: {r.unheard}"
        for rank, r in records.items()
        if r.unheard and "died_ns" not in r.proc_fields
    }
    return {rank: r for rank, r in records.items() if rank not in unheard}, unheard


def _lines(gathered: Gathered) -> tuple[LogLine, ...]:
    return tuple(line for log in gathered.logs for line in log.lines)


def _events_in(lines: Sequence[LogLine]) -> tuple[LogEvent, ...]:
    if not lines:
        return ()
    from unhang.read.logs import events_of

    return events_of(lines)


def _absent_by_the_watcher(job: Mapping[str, object]) -> list[Unavailable]:
    """What the supervisor or the agent noted that they could not do."""
    listed = job.get("absent")
    fields = [f for f in listed if isinstance(f, dict)] if isinstance(listed, list) else []
    return [Unavailable(text(f, "what", "something"), text(f, "reason")) for f in fields]


def _absent_ranks(ranks: Collection[int], job: Job, reason: str) -> list[Unavailable]:
    """Ranks of the job of which there is nothing; named one by one only while they are few."""
    if len(ranks) > MAX_NAMED_RANKS:
        shown = ", ".join(map(str, sorted(ranks)[:MAX_NAMED_RANKS]))
        return [Unavailable(f"{len(ranks)} of {job.world_size} ranks ({shown}, ...)", reason)]
    return [Unavailable(f"rank {rank}", reason) for rank in sorted(ranks)]


def ranks_of_records(gathered: Gathered, began_ns: int | None = None) -> dict[int, RankEvidence]:
    """What the files and logs say of each process. `began_ns`: the moment from which we ended the job."""
    exits: dict[int, RankExit] = {}
    logged: dict[int, list[RaisedError]] = {}
    gone = {r.identity.pid for attempt in gathered.earlier for r in attempt.records.values()}
    for log in gathered.logs:
        exits.update({rank: e for rank, e in log.exits.items() if not _is_ours(e, began_ns) and e.pid not in gone})
        for rank, error in log.errors:
            if rank is not None and began_ns is None:
                logged.setdefault(rank, []).append(error)
    return {
        rank: evidence_of(record, exits.get(rank), logged.get(rank, ())) for rank, record in gathered.records.items()
    }


def _is_ours(seen: RankExit, began_ns: int | None) -> bool:
    """Whether the launcher reports an end that we brought about. Its times are whole seconds."""
    if began_ns is None:
        return False
    return seen.time_ns + 1_000_000_000 > began_ns if seen.time_ns else seen.code in (-9, -15)


def _known_world(records: Records) -> tuple[int, ...]:
    """All ranks of the job, by the ranks' own word; empty where none tells."""
    sizes = [r.identity.world_size for r in records.values() if r.identity.world_size]
    return tuple(range(max(sizes))) if sizes and max(sizes) <= MAX_WORLD else ()


def _started_ns(gathered: Gathered) -> int:
    known = [r.identity.started_ns for r in gathered.records.values() if r.identity.started_ns]
    return whole(gathered.job, "started_ns") or min(known, default=0)


def _job(gathered: Gathered, flights: FlightTable, world: tuple[int, ...]) -> Job:
    identities = [r.identity for r in gathered.records.values()]
    backends = [i.backend for i in identities] + [calls.backend for calls in flights.ranks.values()]
    return Job(
        world_size=max(world) + 1 if world and max(world) < MAX_WORLD else None,
        nodes=len({i.host for i in identities if i.host}) or 1,
        command=texts(gathered.job, "command"),
        backend=next((b for b in backends if b), ""),
        torch_version=next((i.torch_version for i in identities if i.torch_version), ""),
        exit_code=whole(gathered.job, "exit_code"),
        ended_by_us=gathered.job.get("ended_by_us") is True,
        interrupted_by=ended_by_signal(gathered.job),
        interrupted_ns=whole(gathered.job, "interrupted_ns") or 0,
        started_ns=_started_ns(gathered),
        environment=_texts_of(gathered.job, "environment"),
        added=_texts_of(gathered.job, "added"),
        report_dirs=tuple(d for job in gathered.runs.values() if (d := text(job, "report_dir"))),
    )


def _texts_of(job: Mapping[str, object], name: str) -> dict[str, str]:
    stored = job.get(name)
    return {n: v for n, v in stored.items() if isinstance(v, str)} if isinstance(stored, dict) else {}


def _hang(verdict: Mapping[str, object], started_ns: int) -> HangObservation | None:
    onset, detected = whole(verdict, "onset_ns"), whole(verdict, "detected_ns")
    kind = text(verdict, "kind")
    if not kind or (onset is None and detected is None):
        return None
    return HangObservation(
        kind=kind,
        onset_s=max(0.0, (onset - started_ns) / 1e9) if onset and started_ns else None,
        detected_after_s=max(0.0, (detected - onset) / 1e9) if onset and detected else None,
        waiting_ranks=wholes(verdict.get("waiting_ranks")),
        reason=text(verdict, "reason"),
        withdrawn=verdict.get("withdrawn") is True,
    )


def smaller(case: Case, alike: Alike) -> Case:
    """The case of the ranks that were read, as a job of its own: their groups have no other members, and nobody is missing."""
    if not alike.is_whole:
        return replace(case, out_of_sight=tuple(sorted(alike.hidden.union(case.out_of_sight))))
    kept = alike.expected
    absent = Unavailable(
        f"{alike.world - len(kept)} of {alike.world} ranks", "not read: each stands as one of those does that were read"
    )
    return replace(
        case,
        job=replace(case.job, world_size=None),
        ranks={rank: evidence for rank, evidence in case.ranks.items() if rank in kept},
        groups=tuple(_group_of(g, kept) for g in case.groups if not g.ranks or kept.intersection(g.ranks)),
        calls=_calls_of(case.calls, kept),
        absent=(absent, *case.absent),
        out_of_sight=tuple(sorted(kept.intersection({*alike.unseen, *case.out_of_sight}))),
        chosen=tuple(sorted(kept)),
        stands_for=alike.world,
    )


def _group_of(group: ProcessGroup, kept: Collection[int]) -> ProcessGroup:
    ranks = tuple(r for r in group.ranks if r in kept)
    return replace(group, ranks=ranks, left_out=group.size - len(ranks))


def _calls_of(table: CollectiveTable, kept: Collection[int]) -> CollectiveTable:
    wanted = np.array(sorted(kept), dtype=np.int32)
    rows, said = np.isin(table["rank"], wanted), np.isin(table.progress["rank"], wanted)
    return replace(
        table,
        columns={name: column[rows] for name, column in table.columns.items()},
        progress={name: column[said] for name, column in table.progress.items()},
        groups=tuple(_group_of(g, kept) for g in table.groups),
        wrapped_ranks=table.wrapped_ranks & frozenset(kept),
        active_ranks=table.active_ranks & frozenset(kept),
    )
