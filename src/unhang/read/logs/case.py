"""Logs alone -> a case: their lines in one order, however far the clocks of the machines are apart; who failed, and what the lines say."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from statistics import median

from unhang.model import Case, Job, LogEvent, LogLine, ProcessExit, RaisedError, RankEvidence, RankIdentity, Unavailable
from unhang.model.evidence import SEEN_BY_LAUNCHER
from unhang.read.launchers import RankExit, reported_world
from unhang.read.logs import events_of
from unhang.read.logs.attempts import end_of
from unhang.read.logs.clock import DAY_NS, SECOND_NS, in_year, year_of
from unhang.read.output_log import OutputLog, parse_output
from unhang.read.rank_folder import present_evidence
from unhang.read.ras import ras_evidence

MIN_CORRECTED_S = 1.0
MAX_NAMED = 4
_ATTEMPT = re.compile(r"attempt_\d+")


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """How far a machine's clock is ahead of the reference's (negative: behind), estimated from events that both logged.

    `events`: how many such events; 0 for the reference itself and where it could not be estimated (`is_known` is false).
    `applied_s`: what was taken off the machine's times; 0 where the difference is within the uncertainty.
    """

    machine: str
    ahead_s: float
    uncertainty_s: float
    events: int
    is_known: bool = True
    applied_s: float = 0.0

    def __str__(self) -> str:
        if not self.is_known:
            return f"{self.machine}: not known"
        direction = "ahead" if self.ahead_s >= 0 else "behind"
        plural = "" if self.events == 1 else "s"
        return (
            f"{self.machine}'s clock is {abs(self.ahead_s):.1f} s {direction} "
            f"(+-{self.uncertainty_s:.1f} s, estimated from {self.events} event{plural})"
        )


@dataclass(frozen=True)
class Timeline:
    """All lines in one order. `offsets`: one for each machine, the reference first; empty for one log."""

    lines: tuple[LogLine, ...]
    offsets: tuple[ClockOffset, ...] = ()
    reference: str = ""
    order_known: bool = True

    def notes(self) -> tuple[str, ...]:
        """The differences that were estimated, as short phrases."""
        found = [o for o in self.offsets if o.is_known and o.machine != self.reference]
        if not found:
            return ()
        apart = [o for o in found if o.applied_s]
        if not apart:
            most = max(o.uncertainty_s for o in found)
            return (f"clocks of {len(found) + 1} machines agree within {most:.1f} s (estimated from what they logged)",)
        shown = sorted(apart, key=lambda o: -abs(o.ahead_s))[:MAX_NAMED]
        return tuple(f"{o} against {self.reference}; its times are corrected" for o in shown)

    def absent(self) -> tuple[Unavailable, ...]:
        """What is not known of the order."""
        unknown = [o.machine for o in self.offsets if not o.is_known]
        if not unknown:
            return ()
        names = ", ".join(unknown[:MAX_NAMED]) + (", ..." if len(unknown) > MAX_NAMED else "")
        if not self.order_known:
            return (Unavailable(f"times in {names}", "its lines have none; the order between the logs is not known"),)
        reason = (
            "no event that several of them logged was found; differences of a few seconds between logs prove nothing"
        )
        return (Unavailable(f"clock differences of {names} against {self.reference}", reason),)


# Events that happen on all machines at nearly the same moment: what they have in common, how far apart they may be, and
# whether each occurrence counts (of the others the first, as several ranks of a machine print them).
_TOGETHER = (
    (re.compile(r"\b(commId 0x[0-9a-f]+)\b.*Init COMPLETE"), 1.0, False),
    (re.compile(r"Completed store-based barrier for (key:\S+)"), 1.0, False),
    (re.compile(r"(Rendezvous complete for workers)"), 1.0, True),
    (re.compile(r"(?:Received a|Observed flight recorder) (dump signal)"), 2.0, False),
    (re.compile(r"Watchdog caught collective operation timeout: ?Work\w+\((SeqNum=\d+, OpType=\w+)"), 30.0, False),
    (
        re.compile(r"(remote=\[?[^\s\]]+\]?:\d+)\).*(?:[Cc]onnection reset|[Cc]onnection closed|Broken pipe)"),
        5.0,
        False,
    ),
)
_STEP = re.compile(r"\b(step|iteration|iter|epoch|global_step)s?\W{0,3}(\d+)\b", re.IGNORECASE)
_STEP_FLOOR_S = 5.0
_CLOSE_S = 2.0
MAX_STEPS = 2000
Anchors = dict[str, tuple[int, float]]


def timeline(outputs: Sequence[OutputLog]) -> tuple[LogLine, ...]:
    """The lines of all logs in one order: by time, and within a log as written. Lines without a time take the last one."""
    return merged(outputs).lines


def merged(outputs: Sequence[OutputLog]) -> Timeline:
    """The lines of all logs in one order, with what is known of the machines' clocks."""
    if len(outputs) == 1:
        return Timeline(_carried(outputs[0].lines))
    timed = [o for o in _with_common_year(outputs) if o.lines]
    machines = _machines(timed)
    offsets, reference = _offsets(machines, timed)
    by_machine = {offset.machine: offset for offset in offsets}
    streams = []
    for name, indexes in machines.items():
        shift = round(by_machine[name].applied_s * SECOND_NS) if name in by_machine else 0
        streams += [(i, _shifted(_carried(timed[i].lines), shift)) for i in indexes]
    streams.sort()
    some_untimed = any(all(line.time_ns is None for line in lines) for _, lines in streams)
    return Timeline(_merge([lines for _, lines in streams]), offsets, reference, not some_untimed or len(offsets) < 2)


def _carried(lines: Iterable[LogLine]) -> tuple[LogLine, ...]:
    """The lines, those without a time with the last one before them."""
    found, last = [], None
    for line in lines:
        if line.time_ns is not None:
            last = line.time_ns
            found.append(line)
        else:
            found.append(line if last is None else replace(line, time_ns=last))
    return tuple(found)


def _shifted(lines: tuple[LogLine, ...], shift_ns: int) -> tuple[LogLine, ...]:
    if not shift_ns:
        return lines
    return tuple(x if x.time_ns is None else replace(x, time_ns=x.time_ns - shift_ns) for x in lines)


def _merge(streams: Sequence[Sequence[LogLine]]) -> tuple[LogLine, ...]:
    """The earliest of all first lines, again and again: the order within a log is never changed."""
    keys = [_keys(lines) for lines in streams]
    heap = [(keys[i][0], i, 0) for i, lines in enumerate(streams) if lines]
    heapq.heapify(heap)
    found: list[LogLine] = []
    while heap:
        _, i, at = heapq.heappop(heap)
        lines = streams[i]
        while at < len(lines) and (not heap or (keys[i][at], i) <= heap[0][:2]):
            found.append(lines[at])
            at += 1
        if at < len(lines):
            heapq.heappush(heap, (keys[i][at], i, at))
    return tuple(found)


def _keys(lines: Sequence[LogLine]) -> list[int]:
    """The times of lines; what stands before the first time goes with it, and a log without times after all others."""
    first = next((line.time_ns for line in lines if line.time_ns is not None), 1 << 62)
    return [first if line.time_ns is None else line.time_ns for line in lines]


def _with_common_year(outputs: Sequence[OutputLog]) -> list[OutputLog]:
    """Times without a year, or without a date, come near to those of a log that tells it, else of the first that has times."""
    dated = sorted(outputs, key=lambda o: (o.clock.is_dated_by_file, not o.clock.year_known))
    known = next((t for o in dated if o.clock.year_known and (t := _first_time(o)) is not None), None)
    if known is None:
        return list(outputs)
    return [o if o.clock.year_known and not o.clock.is_dated_by_file else _brought_near(o, known) for o in outputs]


def _brought_near(output: OutputLog, to_ns: int) -> OutputLog:
    first = _first_time(output)
    if first is None:
        return output
    if output.clock.date_known:
        shift = (
            min((in_year(first, year_of(to_ns) + more) for more in (-1, 0, 1)), key=lambda t: abs(t - to_ns)) - first
        )
    else:
        shift = round((to_ns - first) / DAY_NS) * DAY_NS
    return replace(output, lines=_shifted(output.lines, -shift))


def _first_time(output: OutputLog) -> int | None:
    return next((line.time_ns for line in output.lines if line.time_ns is not None), None)


def _machines(outputs: Sequence[OutputLog]) -> dict[str, list[int]]:
    """Machine -> its logs. Logs that do not tell their machine, and do not lie in one launcher's folder, count as one each."""
    found: dict[str, list[int]] = {}
    for i, output in enumerate(outputs):
        path = PurePath(output.lines[0].source.path)
        attempt = next((p for p in path.parents if _ATTEMPT.fullmatch(p.name)), None)
        name = output.host or (str(attempt) if attempt else path.name) or f"log {i + 1}"
        if not (output.host or attempt) and name in found:
            name = str(path) if str(path) not in found else f"{path} ({i + 1})"
        found.setdefault(name, []).append(i)
    return found


def _anchors(outputs: Iterable[OutputLog]) -> Anchors:
    """The events of one machine that others log too, each with its first time."""
    found: Anchors = {}
    seen: Counter[str] = Counter()
    steps = 0
    for output in outputs:
        for line in output.lines:
            if line.time_ns is None:
                continue
            for regex, floor_s, counts in _TOGETHER:
                if match := regex.search(line.text):
                    seen[match[1]] += 1
                    _keep(found, f"{match[1]} {seen[match[1]] if counts else ''}", line.time_ns, floor_s)
            if steps < MAX_STEPS and (match := _STEP.search(line.text)):
                steps += 1
                _keep(found, f"{match[1].lower()} {int(match[2][:12])}", line.time_ns, _STEP_FLOOR_S)
    return found


def _keep(found: Anchors, key: str, time_ns: int, floor_s: float) -> None:
    if key not in found or time_ns < found[key][0]:
        found[key] = (time_ns, floor_s)


def _offsets(
    machines: Mapping[str, Sequence[int]], outputs: Sequence[OutputLog]
) -> tuple[tuple[ClockOffset, ...], str]:
    """The offset of each machine against the one that shares most events, and that one's name."""
    if len(machines) < 2:
        return (), ""
    anchors = {name: _anchors(outputs[i] for i in indexes) for name, indexes in machines.items()}
    shared = Counter(key for found in anchors.values() for key in found)
    reference = max(anchors, key=lambda name: sum(shared[key] > 1 for key in anchors[name]))
    found = {reference: ClockOffset(reference, 0.0, 0.0, 0)}
    common: dict[str, list[int]] = {key: [t] for key, (t, _) in anchors[reference].items()}
    waiting = [name for name in anchors if name != reference]
    while waiting:
        placed = [o for name in waiting if (o := _offset(name, anchors[name], common)) is not None]
        if not placed:
            break
        for offset in placed:
            found[offset.machine] = offset
            for key, (time_ns, _) in anchors[offset.machine].items():
                common.setdefault(key, []).append(time_ns - round(offset.ahead_s * SECOND_NS))
        waiting = [name for name in waiting if name not in found]
    unknown = (ClockOffset(name, 0.0, 0.0, 0, is_known=False) for name in waiting)
    return (*found.values(), *unknown), reference


def _offset(name: str, anchors: Anchors, common: Mapping[str, Sequence[int]]) -> ClockOffset | None:
    """How far one machine is ahead, from what it shares; None where that is too little.

    Close events (a barrier's end) go before loose ones: in a wait that timed out, a rank may have come minutes later.
    """
    pairs = [((t - median(common[key])) / SECOND_NS, floor_s) for key, (t, floor_s) in anchors.items() if key in common]
    close = [pair for pair in pairs if pair[1] <= _CLOSE_S]
    used = close or pairs
    if len(used) < (1 if close else 2):
        return None
    differences = [difference for difference, _ in used]
    ahead_s = median(differences)
    spread = 1.4826 * median(abs(d - ahead_s) for d in differences)
    if len(used) < 5:
        spread = max(spread, (max(differences) - min(differences)) / 2)
    uncertainty_s = max(spread, min(floor for _, floor in used))
    applied_s = ahead_s if abs(ahead_s) > max(uncertainty_s, MIN_CORRECTED_S) else 0.0
    return ClockOffset(name, ahead_s, uncertainty_s, len(used), applied_s=applied_s)


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
