"""What NCCL's RAS client reports of the communicators of a running job: put together from its lines, and from its JSON.

Its counts are those of *launches*: of what the host has issued, not of what the device has completed. A running job shows
differences at any moment. Ranks are numbered within their communicator.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any, TypeGuard

from unhang.model import LogEvent, LogLine

_TOTALS = re.compile(r"\s*\d{1,7}\s+\d{1,7}\s+\d{1,7}\s+\d{1,7}\s+(\d{1,7})\s*")
_FAMILY = "ras."


@dataclass(frozen=True)
class Member:
    """A rank of a communicator. `rank`: its rank in the job, where it is known. `launched`: None where it is missing."""

    member: int
    rank: int | None
    pid: int | None
    node: str
    launched: int | None
    event: LogEvent


@dataclass
class Counts:
    """How often the ranks of one communicator have launched one operation. `shares`: how many ranks, by their count."""

    communicator: str
    operation: str
    size: int
    shares: dict[int, int] = field(default_factory=dict)
    members: list[Member] = field(default_factory=list)
    events: list[LogEvent] = field(default_factory=list)

    @property
    def most(self) -> int:
        """The highest count."""
        return max(self.shares, default=0)

    @property
    def behind(self) -> list[Member]:
        """The members that are listed with a lower count."""
        return [m for m in self.members if m.launched is not None and m.launched < self.most]

    @property
    def is_whole(self) -> bool:
        """Whether every member that is behind is listed: a short report leaves out what is more than a quarter."""
        lower = sum(count for launched, count in self.shares.items() if launched < self.most)
        return lower == len(self.behind) and sum(self.shares.values()) >= self.size


@dataclass
class Report:
    """One answer of RAS.

    Args:
        world: how many GPUs the job has, 0 if not reported.
        largest: how many ranks its largest communicator has.
        is_agreed: whether its table finds nothing wrong with any communicator. `is_cut`: whether communicators are cut off.
        processes: the node and pid of the missing and the dead.
    """

    world: int = 0
    communicators: int = 0
    largest: int = 0
    is_agreed: bool = True
    is_cut: bool = False
    troubled: set[str] = field(default_factory=set)
    counts: list[Counts] = field(default_factory=list)
    missing: list[Member] = field(default_factory=list)
    missing_events: list[LogEvent] = field(default_factory=list)
    processes: set[tuple[str, int]] = field(default_factory=set)
    dead: int = 0


@dataclass(frozen=True)
class Crossing:
    """Members that have launched more of one operation than their peers, and less of another one, in the same communicator.

    All members launch the same calls in the same order, so that at any moment one of two has launched at least as much of everything.
    Where that is not so, their programs have parted.
    """

    odd: tuple[Member, ...]
    more: Counts
    less: Counts


def crossing_in(reports: Sequence[Report]) -> Crossing | None:
    """The first one of the last report."""
    last = reports[-1].counts if reports else []
    for communicator in dict.fromkeys(c.communicator for c in last):
        counts = [c for c in last if c.communicator == communicator and len(c.shares) == 2]
        for more, less in permutations(counts, 2):
            ahead, behind = _odd(more, is_ahead=True), _odd(less, is_ahead=False)
            if ahead and {(m.node, m.pid, m.member) for m in ahead} == {(m.node, m.pid, m.member) for m in behind}:
                return Crossing(tuple(ahead), more, less)
    return None


def _odd(counts: Counts, is_ahead: bool) -> list[Member]:
    """The smaller side, where it is listed, and is ahead of the larger one, or behind it."""
    (first, n), (other, m) = counts.shares.items()
    launched, size = (first, n) if n < m else (other, m)
    found = [member for member in counts.members if (member.launched or 0) == launched]
    return found if n != m and len(found) == size and (launched == counts.most) == is_ahead else []


class _Reader:
    """Takes the events of RAS in their order."""

    def __init__(self, lines: Sequence[LogLine]) -> None:
        self.reports: list[Report] = []
        self._lines = lines
        self._world = 0
        self._sizes: dict[str, int] = {}
        self._communicator, self._state, self._group = "", "", ""
        self._counts: Counts | None = None
        self._share: int | None = None

    def take(self, e: LogEvent) -> None:
        what = e.kind.removeprefix(_FAMILY)
        if what == "job":
            self._world = self._total(e.order)
        elif what == "report":
            self.reports.append(Report(self._world))
            self._world, self._sizes = 0, {}
            self._close()
        else:
            if not self.reports:
                self.reports.append(Report(self._world))
            self._part(self.reports[-1], what, e)

    def _total(self, order: int) -> int:
        """The GPUs of the job, in one of the lines under the heading."""
        rows = (_TOTALS.fullmatch(line.text) for line in self._lines[order + 1 : order + 4])
        return next((int(row[1]) for row in rows if row), 0)

    def _close(self) -> None:
        self._communicator, self._state, self._group, self._counts, self._share = "", "", "", None, None

    def _part(self, report: Report, what: str, e: LogEvent) -> None:
        if what == "row":
            report.communicators += e.number("communicators") or 0
            report.is_agreed = report.is_agreed and e["errors"] == "OK"
            self._sizes[e["group"]] = size = e.number("size") or 0
            report.largest = max(report.largest, size)
        elif what == "cut":
            report.is_cut = True
        elif what == "communicator":
            self._close()
            self._communicator, self._state, self._group = e["hash"], e["state"], e["group"]
            report.troubled.add(e["hash"])
        elif what == "counts":
            self._share, self._counts = None, None
            if e["operation"]:
                self._counts = Counts(self._communicator, e["operation"], self._sizes.get(self._group, 0))
                self._counts.events.append(e)
                report.counts.append(self._counts)
        elif what == "share" and self._counts is not None:
            self._share = e.number("launched") or 0
            self._counts.shares[self._share] = e.number("count") or 0
            self._counts.events.append(e)
        elif what == "rank":
            self._rank(report, e)
        elif what in ("missing", "missing_ranks", "dead", "process"):
            self._missing(report, what, e)

    def _rank(self, report: Report, e: LogEvent) -> None:
        if self._state == "INCOMPLETE":
            report.missing.append(self._member(report, e, e.number("member") or 0, None))
            report.missing_events.append(e)
            if (pid := e.number("pid")) is not None:
                report.processes.add((e["node"], pid))
        elif self._counts is not None:
            launched = (e.number("launched") or 0) if e["state"] else self._share
            if e["state"]:
                self._counts.shares[launched or 0] = 1
            self._counts.members.append(self._member(report, e, e.number("member") or 0, launched))
            self._counts.events.append(e)

    def _missing(self, report: Report, what: str, e: LogEvent) -> None:
        report.missing_events.append(e)
        if what == "dead":
            report.dead += e.number("count") or 0
        elif what == "process":
            report.processes.add((e["node"], e.number("pid") or 0))
        elif what == "missing_ranks":
            for part in e["ranks"].replace(" ", "").split(","):
                first, _, last = part.partition("-")
                for member in range(int(first), min(int(last or first), int(first) + 4096) + 1):
                    report.missing.append(self._member(report, e, member, None))

    def _member(self, report: Report, e: LogEvent, member: int, launched: int | None) -> Member:
        """In a communicator of all GPUs of the job a rank is that of the job."""
        size = self._sizes.get(self._group, 0)
        rank = e.number("rank")
        is_of_all = size == report.world if report.world else report.communicators == 1
        if rank is None and size and is_of_all:
            rank = member
        return Member(member, rank, e.number("pid"), e["node"], launched, e)


def reports_in(events: Iterable[LogEvent], lines: Sequence[LogLine]) -> list[Report]:
    """The reports, in the order given. A part of one that begins in its middle counts, too."""
    reader = _Reader(lines)
    for event in events:
        if event.kind.startswith(_FAMILY):
            reader.take(event)
    return [r for r in reader.reports if r.communicators or r.troubled or r.missing_events]


def silent_ranks(reports: Sequence[Report]) -> frozenset[int]:
    """Those of which the last report has no data: it is a thread of NCCL that answers, whatever the program is at."""
    return frozenset(m.rank for m in reports[-1].missing if m.rank is not None) if reports else frozenset()


def ras_evidence(events: Iterable[LogEvent], lines: Sequence[LogLine]) -> tuple[str, ...]:
    """What the last report says of the communicators, in a short phrase."""
    reports = reports_in(events, lines)
    if not reports:
        return ()
    last = reports[-1]
    more = ", the report is cut off" if last.is_cut else ""
    more += "" if len(reports) == 1 else f" (the last of {len(reports)} reports)"
    s = "" if last.communicators == 1 else "s"
    if last.is_agreed and not last.troubled and not last.missing_events:
        return (f"RAS: all ranks of {last.communicators} communicator{s} agree{more}",)
    of = f" of {last.communicators} communicator{s}" if last.communicators else ""
    found = f"{len(last.troubled)}{of}" if last.troubled else "some communicators"
    return (f"RAS: missing or differing ranks in {found}{more}",)


_IS_RAS = ('"communicators_count"', '"ranks_count"')
_HEAD = 4096
_REPORT = re.compile(r'"nccl_version"\s*:')
_COMMUNICATOR = re.compile(r'\{\s*"hash"\s*:')
_STATED = re.compile(r'"communicators_count"\s*:\s*(\d{1,7})\b')
_NO_COMMA = re.compile(r'("nvml_dev"\s*:\s*-?\d+)(\s+"status")')  # so NCCL 2.28 writes missing ranks
_IN_PROGRESS = 7
_Object = Mapping[str, Any]
_Process = tuple[str, int, int]


def is_ras(head: str) -> bool:
    """Whether a text begins as such a report."""
    return all(name in head[:_HEAD] for name in _IS_RAS) or ('"communicators_count": 0' in head[:_HEAD])


def ras_lines(content: str) -> list[tuple[int, str]]:
    """The reports in a file, one after the other, as text; [] where there is none. Of one that is cut off what is whole.

    The number of a line is that of the line in the file where its report, or its communicator, begins.
    """
    if content[:64].lstrip()[:1] != "{" or not is_ras(content):
        return []
    text = _NO_COMMA.sub(r"\1,\2", content)
    begins = [match.start() for match in _REPORT.finditer(text)] or [0]
    found: list[tuple[int, str]] = []
    for begin, end in zip(begins, [*begins[1:], len(text)], strict=True):
        communicators, first = list(_communicators(text, begin, end)), text.count("\n", 0, begin) + 1
        stated = _STATED.search(text, begin, end)
        cut = max(0, int(stated[1]) - len(communicators)) if stated else 0
        if communicators or (stated and not cut):
            found += _report(first, communicators, cut)
    return found


def _communicators(text: str, begin: int, end: int) -> Iterator[tuple[int, _Object]]:
    """Those that are whole, with the line where each begins."""
    decoder, line, at = json.JSONDecoder(), text.count("\n", 0, begin) + 1, begin
    for match in _COMMUNICATOR.finditer(text, begin, end):
        line, at = line + text.count("\n", at, match.start()), match.start()
        try:
            found, _ = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            continue
        if all(_is_rank(rank) for rank in [*_list(found, "ranks"), *_list(found, "missing_ranks")]):
            yield line, found


def _list(found: _Object, name: str) -> list[Any]:
    value = found.get(name)
    return value if isinstance(value, list) else []


def _is_rank(rank: object) -> bool:
    return isinstance(rank, dict) and all(_is_count(rank.get(name)) for name in ("rank", "pid")) and "host" in rank


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _process(rank: _Object) -> _Process:
    return str(rank["host"]), rank["pid"], rank.get("nvml_dev", 0)


def _report(line: int, communicators: Sequence[tuple[int, _Object]], cut: int) -> Iterator[tuple[int, str]]:
    """One report: a communicator is a group of its own. `cut`: how many of them are not whole."""
    if not communicators:
        yield line, "No communicator data collected!"
        return
    everyone: dict[_Process, int | None] = {}
    for _, c in communicators:
        everyone.update(dict.fromkeys(map(_process, (*_list(c, "ranks"), *_list(c, "missing_ranks")))))
    for _, c in () if cut else communicators:
        members = [*_list(c, "ranks"), *_list(c, "missing_ranks")]
        if len(members) == len(everyone):
            everyone.update((_process(rank), rank["rank"]) for rank in members)
            break
    yield line, "  Nodes  Processes         GPUs  Processes     GPUs"
    nodes, processes = len({p[0] for p in everyone}), len({p[:2] for p in everyone})
    if not cut:
        yield line, f"{nodes}  {-(-processes // max(nodes, 1))}  1  {processes}  {len(everyone)}"
    yield line, "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors"
    found = [(at, c, list(_troubles(c, i, everyone))) for i, (at, c) in enumerate(communicators)]
    for i, (_, c, lines) in enumerate(found):
        states = [s for s in ("INCOMPLETE", "ERROR", "MISMATCH") if any(text.endswith(f") {s}") for text in lines)]
        ranks, size = _list(c, "ranks"), c.get("size")
        size = size if _is_count(size) else len(ranks) + len(_list(c, "missing_ranks"))
        hosts = len({r["host"] for r in ranks})
        yield line, f"{i}  1  {hosts}  1  {size}  {len(ranks)}  RUNNING  {','.join(states) or 'OK'}"
    if cut:
        yield line, f"[{cut} communicators are cut off]"
    yield from ((at, text) for at, _, lines in found for text in lines)


def _troubles(c: _Object, group: int, everyone: Mapping[_Process, int | None]) -> Iterator[str]:
    def whose(rank: _Object) -> str:
        place = f"-- GPU {rank.get('cuda_dev', '?')} managed by process {rank['pid']} on node {rank['host']}"
        known = everyone.get(_process(rank))
        return place if known is None else f"{place}, rank {known} of the job"

    name = f"#{group}-0 ({str(c.get('hash', '0')).removeprefix('0x')})"
    missing = [r for r in _list(c, "missing_ranks") if _flag(r, "unresponsive") or _flag(r, "considered_dead")]
    if missing:
        yield f"{name} INCOMPLETE"
        yield f"  Missing communicator data from {len(missing)} rank{'s' if len(missing) > 1 else ''}"
        yield from (f"  Rank {r['rank']} {whose(r)}" for r in missing)
        if dead := [r for r in missing if _flag(r, "considered_dead")]:
            are = "es are" if len(dead) > 1 else " is"
            yield f"  {len(dead)} job process{are} considered dead (unreachable via the RAS network)"
            yield from (f"  Process {r['pid']} on node {r['host']} managing GPU {r.get('cuda_dev', '?')}" for r in dead)
    failed = [r for r in _list(c, "ranks") if _error(r)]
    if failed:
        yield f"{name} ERROR"
        yield from (f"  Rank {r['rank']} reported error {_error(r)} {whose(r)}" for r in failed)
    if differing := [line for op in _operations(c) for line in _counts(c, op, whose)]:
        yield f"{name} MISMATCH"
        yield from differing


def _flag(rank: _Object, name: str) -> bool:
    status = rank.get("status")
    return isinstance(status, dict) and status.get(name) is True


def _error(rank: _Object) -> int:
    status = rank.get("status")
    codes = [status.get(n) for n in ("async_error", "init_state")] if isinstance(status, dict) else []
    return next((code for code in codes if isinstance(code, int) and code not in (0, _IN_PROGRESS)), 0)


def _operations(c: _Object) -> list[str]:
    counts = (r.get("collective_counts") for r in _list(c, "ranks"))
    return list(dict.fromkeys(op for found in counts if isinstance(found, dict) for op in found))


def _counts(c: _Object, op: str, whose: Any) -> Iterator[str]:
    """The counts of one operation, where they differ: how many ranks have launched most, and each of the others."""
    counted = ((r, (r.get("collective_counts") or {}).get(op)) for r in _list(c, "ranks"))
    launched: list[tuple[_Object, int]] = [(r, n) for r, n in counted if _is_count(n)]
    shares = Counter(n for _, n in launched)
    if len(shares) < 2:
        return
    yield f"  Communicator ranks have different {op} operation counts"
    for n, count in shares.most_common():
        is_listed = n != max(shares) or count == 1
        what = f"launched up to operation {n}" if n else "not launched any operations"
        if count > 1:
            yield f"  {count} ranks have {what}"
        for rank in (r for r, launches in launched if launches == n and is_listed):
            yield f"  Rank {rank['rank']} {f'has {what} ' if count == 1 else ''}{whose(rank)}"
