"""Logs alone -> a case: who failed, and what the lines say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from unhang.model import Case, Job, LogEvent, LogLine, ProcessExit, RaisedError, RankEvidence, RankIdentity, Unavailable
from unhang.model.evidence import SEEN_BY_LAUNCHER
from unhang.read.launchers import RankExit
from unhang.read.logs.attempts import end_of
from unhang.read.logs.patterns import events_of
from unhang.read.logs.timeline import merged
from unhang.read.output_log import OutputLog, parse_output
from unhang.read.rank_folder import present_evidence
from unhang.read.ras import ras_evidence

MAX_WORLD = 1 << 20


def log_case(text: str, path: str = "job.log") -> Case:
    """The case in one log, for examples and tests."""
    return case_of_outputs([parse_output(text.encode(), path)])


def case_of_outputs(
    outputs: Sequence[OutputLog], absent: Sequence[Unavailable] = (), known: Mapping[int, RankEvidence] | None = None
) -> Case:
    """The case in logs. `known`: ranks of which there are files of their own; what the logs say of them is in it."""
    order = merged(outputs)
    lines = order.lines
    events = events_of(lines)
    exits: dict[int, RankExit] = {}
    raised: dict[int, list[RaisedError]] = {}
    loose: list[RaisedError] = []
    for output in outputs:
        exits.update(output.exits)
    for rank, error in _errors_in_order(outputs, lines):
        (loose if rank is None else raised.setdefault(rank, [])).append(error)
    place = {(line.source.path, line.source.line): i for i, line in enumerate(lines)}
    errors = [error for _, error in _errors_in_order(outputs, lines)]
    troubles = [place.get((error.source.path, error.source.line), len(lines)) for error in errors]
    has_failed = any(x.code for x in exits.values()) and not _were_started_again(events, troubles)
    end = None if known or has_failed else end_of(events, troubles, lines)
    is_well = end is not None and end.code == 0
    if is_well:  # whatever was raised was handled, and who failed was started again
        loose.clear()
        exits = {rank: x for rank, x in exits.items() if not x.code}
    world = reported_world(events)
    ranks = {rank: _evidence(rank, world, raised.get(rank, []), exits.get(rank), is_well) for rank in {*raised, *exits}}
    ranks = dict(sorted({**ranks, **(known or {})}.items()))
    return Case(
        job=Job(
            world_size=world,
            backend=_backend(events),
            exit_code=end.code if end else None,
            end_line=end.line if end else "",
        ),
        ranks=ranks,
        log=lines,
        events=events,
        loose_errors=tuple(loose),
        present=(*present_evidence({}, ranks, len(lines)), *ras_evidence(events, lines), *order.notes()),
        absent=(*absent, *(other for output in outputs for other in output.others), *order.absent()),
    )


def _were_started_again(events: Sequence[LogEvent], troubles: Sequence[int]) -> bool:
    """Whether a launcher started the ranks again after the last failure that the log tells."""
    last = max([*troubles, *(e.order for e in events if e.says)], default=-1)
    return any(e.kind == "elastic.restart_count" and e.order > last for e in events)


def _errors_in_order(
    outputs: Sequence[OutputLog], lines: Sequence[LogLine]
) -> Sequence[tuple[int | None, RaisedError]]:
    """All exceptions: of one log as printed, of several by time where all of them have one. An exit with code 0 is none."""
    found = [pair for output in outputs for pair in output.errors if not _left_well(pair[1])]
    if len(outputs) < 2:
        return found
    times = {(line.source.path, line.source.line): line.time_ns for line in lines}
    moments = [times.get((error.source.path, error.source.line)) for _, error in found]
    timed = [(t, rank, error) for t, (rank, error) in zip(moments, found, strict=True) if t is not None]
    if len(timed) < len(found):
        return found
    return [(rank, replace(error, time_ns=t)) for t, rank, error in sorted(timed, key=lambda item: item[0])]


_AT_SHUTDOWN = re.compile(r"(?:at|after) interpreter shutdown")


def _left_well(error: RaisedError) -> bool:
    """Whether it is `sys.exit(0)`, or was raised on the way out after it, or by a thread that found the interpreter gone."""
    first = (*error.before, error)[0]
    return bool(_AT_SHUTDOWN.search(first.message)) or (
        first.type == "SystemExit" and first.message.strip() in ("", "0")
    )


def reported_world(events: Sequence[LogEvent]) -> int | None:
    """The number of ranks that most lines tell (field `world_size`), else that of the largest group of gloo; 1 where it is said to have but one."""
    counts = Counter(n for e in events if (n := e.number("world_size")) is not None and 0 < n <= MAX_WORLD)
    if counts:
        return counts.most_common(1)[0][0]
    if any(e.kind == "launchers.alone" for e in events):
        return 1
    if (commanded := _commanded_world(events)) is not None:
        return commanded
    largest = max((n for e in events if e.kind == "gloo.connected" and (n := e.number("peers"))), default=0)
    return largest + 1 if 0 < largest < MAX_WORLD else _hinted_world(events)


def _hinted_world(events: Sequence[LogEvent]) -> int | None:
    """What a program prints of it in its own words, if all agree, else NCCL's largest communicator; nothing that a rank beyond it contradicts.

    The variable WORLD_SIZE may also be that of a scheduler, which counts nodes: it is not believed where processes per node are told.
    """
    highest = max((e.rank for e in events if e.rank is not None), default=0)
    hints = [e for e in events if e.kind == "launchers.world_hint"]
    told = {n for e in hints for name in ("size", "size_", "tasks", "started") if (n := e.number(name)) is not None}
    if not any(e.kind == "launchers.per_node" for e in events):
        told |= {n for e in hints if (n := e.number("variable")) is not None}
    sizes = (e.number("group_size") or 0 for e in events if e.kind == "nccl.init_complete")
    world = next(iter(told)) if len(told) == 1 else max(sizes, default=0) if not told else 0
    return world if highest < world < MAX_WORLD and world > 1 else None


def _commanded_world(events: Sequence[LogEvent]) -> int | None:
    """What the command line of a launcher makes of nodes and processes, where it is told in numbers and only once; one node where none are told."""
    nodes = {e.number("nodes") for e in events if e.kind == "launchers.nodes"} or {1}
    per_node = {e.number("per_node") for e in events if e.kind == "launchers.per_node"}
    if len(nodes) != 1 or len(per_node) != 1:
        return None
    (n,), (m,) = nodes, per_node
    return n * m if n and m and 0 < n * m < MAX_WORLD else None


def _evidence(
    rank: int, world: int | None, raised: Sequence[RaisedError], end: RankExit | None, is_well: bool
) -> RankEvidence:
    left = None
    if end is not None and end.code is not None:
        kind = "signal" if end.code < 0 else "exit"
        left = ProcessExit(kind, end.code, end.time_ns, text=SEEN_BY_LAUNCHER, line=end.line)
    return RankEvidence(
        identity=RankIdentity(rank, world, end.local_rank if end else None, end.pid if end else None),
        error=raised[-1] if raised and not is_well else None,
        handled=tuple(replace(e, handled=True) for e in (raised if is_well else raised[:-1])),
        exit=left,
    )


def _backend(events: Sequence[LogEvent]) -> str:
    families = {e.kind.split(".", 1)[0] for e in events}
    return "nccl" if families & {"nccl", "watchdog"} else "gloo" if "gloo" in families else ""
