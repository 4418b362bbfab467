"""How ranks ended, as launchers print it and as torch's `@record` writes it; and the attempts of a job that a launcher started anew."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from unhang.model import RaisedError, Source, Unavailable
from unhang.read.files import read_object, text, unreadable, whole
from unhang.read.rank_folder import RankRecord
from unhang.read.stack_texts import last_traceback

if TYPE_CHECKING:
    from unhang.read.output_log import OutputLog

_FIELD = re.compile(r"\s+(time|host|rank|exitcode|error_file|traceback)\s*: ?(.*)")
_RULE = re.compile(r"={20,}$")
_RECORD = re.compile(r"\[(\d+)\]:$")
_LOCAL = re.compile(r"\(local_rank: (\d{1,6})\)")
_NUMBER = re.compile(r"-?\d+")
_PID = re.compile(r"\(pid: (\d+)\)")
_LINES = (
    re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+) \(pid: (?P<pid>\d+)\)"),
    re.compile(r"[Pp]rocess (?P<rank>\d+) terminated with signal (?P<signal>SIG\w+)"),
    re.compile(r"[Pp]rocess (?P<rank>\d+) terminated with exit code (?P<code>-?\d+)"),
    re.compile(r"\bGlobal rank (?P<rank>\d+) \(PID (?P<pid>\d+)\) exited with code (?P<code>-?\d+)"),  # Composer
    re.compile(r"\bfirst noticed rank (?P<rank>\d+)\) terminated with signal (?P<number>\d+)"),  # jsrun
    re.compile(
        r"noticed that process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node \S+ exited on signal (?P<number>\d+)"
    ),
)
# One task of srun is one rank, unless each task starts a launcher of its own; the launcher's lines then say so.
_SRUN = re.compile(
    r"srun: error: \S+: tasks? (?P<tasks>[\d,-]+): (?:(?P<what>Killed|Aborted|Bus error|Segmentation fault|"
    r"Floating point exception|Illegal instruction|Out Of Memory|Terminated)|Exited with exit code (?P<code>\d+))"
)
_SRUN_CODES = {
    "Killed": -9,
    "Out Of Memory": -9,
    "Aborted": -6,
    "Bus error": -7,
    "Segmentation fault": -11,
    "Floating point exception": -8,
    "Illegal instruction": -4,
    "Terminated": -15,
}
_LAUNCHER = re.compile(
    r"torch[./]distributed[./](?:elastic|run|launch)|torchrun|ChildFailedError|\[launch\.py:\d+:|failed \(exitcode: "
)
MAX_TASKS = 4096
_SIGNALS = {
    "SIGHUP": 1,
    "SIGINT": 2,
    "SIGABRT": 6,
    "SIGBUS": 7,
    "SIGFPE": 8,
    "SIGKILL": 9,
    "SIGSEGV": 11,
    "SIGTERM": 15,
}


@dataclass
class RankExit:
    """How the launcher saw one rank end. `code` is negative for a signal; `is_root`: the failure it saw first."""

    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    code: int | None = None
    time_ns: int = 0
    error_file: str = ""
    is_root: bool = False
    line: int = 0


class SummaryReader:
    """Takes the lines of the launcher's output. `exits` is what it found so far, in the order printed."""

    def __init__(self) -> None:
        self.exits: list[RankExit] = []
        self._in_block = False
        self._is_root = False
        self._has_launcher = False
        self._tasks: list[RankExit] = []

    def take(self, line: str, number: int = 0) -> bool:
        """Takes one line; returns whether it lies in the summary block."""
        if line.startswith("Root Cause (first observed failure)"):
            self._in_block = self._is_root = True
        elif line == "Failures:" or line.startswith("Other Failures:"):
            self._in_block, self._is_root = True, False
        elif self._in_block and _RULE.match(line):
            self._in_block = False
            return True
        elif self._in_block:
            self._field(line, number)
        else:
            self._single(line, number)
        return self._in_block

    def _field(self, line: str, number: int) -> None:
        if _RECORD.match(line):
            self.exits.append(RankExit(is_root=self._is_root, line=number))
            return
        match = _FIELD.match(line)
        if match is None or not self.exits:
            return
        found, (key, value) = self.exits[-1], (match[1], match[2].strip())
        first = _NUMBER.match(value)
        if key == "time":
            found.time_ns = _wall_ns(value)
        elif key == "rank" and first:
            found.rank = int(first[0][:9])
            local = _LOCAL.search(value)
            found.local_rank = int(local[1]) if local else None
        elif key == "exitcode" and first:
            pid = _PID.search(value)
            found.code, found.pid = int(first[0][:9]), int(pid[1][:9]) if pid else None
        elif key == "error_file" and value != "<N/A>":
            found.error_file = value

    def _single(self, line: str, number: int) -> None:
        self._has_launcher = self._has_launcher or _LAUNCHER.search(line) is not None
        if task := _SRUN.search(line):
            code = _SRUN_CODES[task["what"]] if task["what"] else int(task["code"][:9])
            self._tasks.extend(RankExit(rank, code=code or None, line=number) for rank in _tasks(task["tasks"]))
            return
        for pattern in _LINES:
            if match := pattern.search(line):
                parts = match.groupdict()
                by_signal = _SIGNALS.get(parts.get("signal") or "", 0) or int((parts.get("number") or "0")[:3])
                code = -by_signal or int((parts.get("code") or "0")[:9])
                pid = int(parts["pid"][:9]) if parts.get("pid") else None
                self.exits.append(RankExit(int(parts["rank"][:9]), pid=pid, code=code or None, line=number))
                return

    def ends(self) -> tuple[RankExit, ...]:
        """All ends, in the order printed; those that srun tells only where no launcher tells its own."""
        return (*self.exits, *(() if self._has_launcher else self._tasks))


def by_rank(exits: Iterable[RankExit]) -> dict[int, RankExit]:
    """The fullest record of each rank: the block's before a single line's, which knows only the local rank.

    A process that a block names as another rank was that one: on the second node a local rank is no rank.
    """
    found: dict[int, RankExit] = {}
    exits = tuple(exits)
    in_blocks: dict[tuple[int | None, int | None], int | None] = {
        (seen.pid, seen.code): seen.rank for seen in exits if seen.time_ns and seen.pid is not None
    }
    for seen in exits:
        is_other = not seen.time_ns and in_blocks.get((seen.pid, seen.code), seen.rank) != seen.rank
        if seen.rank is None or is_other:
            continue
        known = found.get(seen.rank)
        if known is None or (seen.time_ns and not known.time_ns):
            found[seen.rank] = seen
    return found


def _tasks(text: str) -> list[int]:
    """`2,4-5,7` -> 2, 4, 5, 7."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if first.isdecimal() and len(first) <= 7 and (not last or (last.isdecimal() and len(last) <= 7)):
            found.extend(range(int(first), min(int(last or first), int(first) + MAX_TASKS) + 1))
    return found[:MAX_TASKS]


def _wall_ns(value: str) -> int:
    """`2026-11-21_09:35:20`, local time of the launcher."""
    try:
        return int(datetime.strptime(value, "%Y-%m-%d_%H:%M:%S").timestamp()) * 1_000_000_000
    except (ValueError, OverflowError):
        return 0


def read_elastic_error(path: Path) -> RaisedError:
    """The exception of one rank.

    Raises:
        UnreadableInput: it is no error file of torch.
    """
    message = read_object(path).get("message")
    source = Source("torchelastic error file", str(path))
    if isinstance(message, str):
        return _error(message, "", 0, source)
    if not isinstance(message, dict):
        raise unreadable(str(path), "no 'message' in torch's error file", "leave it out")
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    time_ns = (whole(extra, "timestamp") or 0) * 1_000_000_000
    return _error(text(message, "message"), text(extra, "py_callstack"), time_ns, source)


def _error(message: str, callstack: str, time_ns: int, source: Source) -> RaisedError:
    found = last_traceback(callstack.splitlines())
    if found is not None:
        return RaisedError(found.type, found.text, time_ns, tuple(reversed(found.frames)), source=source)
    kind, colon, rest = message.partition(": ")
    known = bool(colon) and kind.replace(".", "").replace("_", "").isalnum()
    return RaisedError(kind if known else "Error", rest if known else message, time_ns, (), source=source)


Processes = dict[int, RankRecord]
"""The processes of one attempt, by rank."""

ANOTHER_WITH_ITS_RANK = "another process of this rank started while it ran"
_LEFT_OUT = b"... unhang: output left out here ..."
_NOTICED_LATE_NS = 1_000_000_000  # an end is noted a little after it
_OF_AN_END = ("elastic.worker_failed", "elastic.closing_signal")


def attempts_of(records: Mapping[int, Sequence[RankRecord]]) -> tuple[list[Processes], list[Unavailable]]:
    """The processes of each attempt, the last attempt last; and the processes that belong to none.

    The restart count of the launcher tells attempts apart, and the times of ends and starts where a program starts its ranks
    again by itself. A rank that goes on while another one is started anew belongs to the last attempt.
    """
    absent: list[Unavailable] = []
    left = {rank: _one_after_another(rank, found, absent) for rank, found in records.items()}
    attempts: list[Processes] = []
    while left:
        last = {rank: found[-1] for rank, found in left.items()}
        renewed = [(found[-1], found[-2]) for found in left.values() if len(found) > 1]
        if renewed:
            newest, before = max(renewed, key=lambda pair: _order(pair[0]))
            last = {rank: record for rank, record in last.items() if not _is_earlier(record, newest, before)}
        attempts.append(dict(sorted(last.items())))
        rest = {rank: [r for r in found if r is not last.get(rank)] for rank, found in left.items()}
        left = {rank: found for rank, found in rest.items() if found}
    return attempts[::-1], absent


def began_ns(attempt: Processes) -> int:
    """When the first process of an attempt that is known started; 0 where none tells."""
    return min((t for r in attempt.values() if (t := r.identity.started_ns)), default=0)


def _order(record: RankRecord) -> tuple[int, int, str]:
    return record.identity.restart, record.identity.started_ns, record.path


def _one_after_another(rank: int, records: Sequence[RankRecord], absent: list[Unavailable]) -> list[RankRecord]:
    """The processes of a rank of which each had ended before the next one started; of two at once the later one."""
    found: list[RankRecord] = []
    for record in sorted(records, key=_order):
        if found and not _is_followed_by(found[-1], record):
            old = found.pop()
            is_same = old.identity == record.identity
            if not is_same and _lived_together(old, record):
                record.twins = (*old.twins, old.identity.pid or 0)
            reason = "it was given twice" if is_same else ANOTHER_WITH_ITS_RANK
            absent.append(Unavailable(f"process {old.identity.pid} of rank {rank}", reason))
        found.append(record)
    return found


def _is_followed_by(old: RankRecord, new: RankRecord) -> bool:
    if old.identity == new.identity:
        return False
    if old.identity.restart != new.identity.restart:
        return True
    return 0 < _ended_ns(old) <= new.identity.started_ns + _NOTICED_LATE_NS


def _lived_together(old: RankRecord, new: RankRecord) -> bool:
    """Whether two processes with one rank came to the start at the same time, in the same attempt of the same launcher."""
    pages = [r.page.pending if r.page else () for r in (old, new)]
    if not all(any(c.kind == "init_process_group" for c in calls) for calls in pages):
        return False  # what a rank starts may have its RANK too
    of = [(r.identity.host, r.identity.restart) for r in (old, new)]
    died_ns = whole(old.proc_fields, "died_ns")
    return of[0] == of[1] and bool(old.proc_fields) and (died_ns is None or died_ns > new.identity.started_ns > 0)


def _is_earlier(record: RankRecord, newest: RankRecord, before: RankRecord) -> bool:
    """Whether the last process of a rank had its end before `newest` followed `before`, on another rank."""
    if record is newest:
        return False
    mine, its = record.identity, newest.identity
    if mine.restart < its.restart and mine.host == its.host:
        return True
    has_ended = 0 < _ended_ns(record) <= its.started_ns + _NOTICED_LATE_NS
    return has_ended and mine.started_ns < (_ended_ns(before) or its.started_ns)


def _ended_ns(record: RankRecord) -> int:
    """When a process ended, by its own word or as it was seen; 0 where nothing tells that it has."""
    times = (whole(record.exit_fields, "time_ns"), whole(record.proc_fields, "died_ns"))
    return min((t for t in times if t), default=0)


def outputs_of(logs: Iterable[tuple[Path, OutputLog]], attempts: Sequence[Processes]) -> list[tuple[OutputLog, ...]]:
    """The part of each output that belongs to each attempt."""
    found: list[list[OutputLog]] = [[] for _ in attempts]
    for path, log in logs:
        borders = [0, *(_first_line(path, log, attempts, i) for i in range(1, len(attempts))), 0]
        for i in range(1, len(attempts)):
            borders[i] = max(borders[i], borders[i - 1])
        for i, mine in enumerate(found):
            mine.append(log.between(borders[i], borders[i + 1] if i + 1 < len(attempts) else None))
    return [tuple(mine) for mine in found]


def _first_line(path: Path, log: OutputLog, attempts: Sequence[Processes], number: int) -> int:
    """The line with which an attempt begins.

    It comes after what a launcher said of the processes before, and after what had been written when its first process started.
    """
    from unhang.read.logs.patterns import events_of

    pids = {r.identity.pid for attempt in attempts[:number] for r in attempt.values()}
    ends = (e for e in events_of(log.lines) if e.kind in _OF_AN_END and e.number("pid") in pids)
    said = max((e.source.line or 0 for e in ends), default=-1) + 1
    here = [r for r in attempts[number].values() if r.path and Path(r.path).parent.parent == path.parent]
    sizes = [r.output_bytes for r in here if r.output_bytes is not None]
    return max(said, _line_at(path, min(sizes)) if sizes else 0)


def _line_at(path: Path, size: int) -> int:
    """The number of the line that begins after so many bytes; 0 where the middle of the output was left out."""
    with suppress(OSError), path.open("rb") as f:
        data = f.read(size)
        return 0 if _LEFT_OUT in data or len(data) < size else data.count(b"\n") + 1
    return 0
