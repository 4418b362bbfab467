"""How ranks ended and how many there are, as launchers tell it; and which ends `unhang run` brought about itself.

DeepSpeed's launcher is left out on purpose: the command before its "exits with return code = N" is that of the process that
it started last, whichever of them failed.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from unhang.model import LogEvent, RaisedError, Source
from unhang.read.files import read_object, text, unreadable, whole
from unhang.read.logs import is_echo
from unhang.read.logs.whose import tells_several_nodes
from unhang.read.rank_folder import DUMP_AT_EXIT, RankRecord
from unhang.read.stack_texts import last_traceback

_FIELD = re.compile(r"\s+(time|host|rank|exitcode|error_file|traceback)\s*: ?(.*)")
_RULE = re.compile(r"={20,}$")
_RECORD = re.compile(r"\[(\d+)\]:$")
_LOCAL = re.compile(r"\(local_rank: (\d{1,6})\)")
_NUMBER = re.compile(r"-?\d+")
_PID = re.compile(r"\(pid: (\d+)\)")
_LINES = (
    re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)"),
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
_NAMED = ("SIGHUP", "SIGINT", "SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL", "SIGSEGV", "SIGTERM")
_SIGNALS = {name: signal.Signals[name].value for name in _NAMED}


@dataclass
class RankExit:
    """How the launcher saw one rank end. `code` is negative for a signal; `is_root`: the failure it saw first."""

    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    code: int | None = None
    time_ns: int = 0
    is_root: bool = False
    line: int = 0


class SummaryReader:
    """Takes the lines of the launcher's output. `exits` is what it found so far, in the order printed."""

    def __init__(self) -> None:
        self.exits: list[RankExit] = []
        self._in_block = False
        self._is_root = False
        self._has_launcher = self._has_nodes = False
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

    def _single(self, line: str, number: int) -> None:
        self._has_launcher = self._has_launcher or _LAUNCHER.search(line) is not None
        self._has_nodes = self._has_nodes or tells_several_nodes(line)
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
                local = int(parts["local"][:9]) if "local" in parts else None
                rank = int(parts["rank"][:9]) if local is None else local
                self.exits.append(RankExit(rank, local, pid, code or None, line=number))
                return

    def ends(self) -> tuple[RankExit, ...]:
        """All ends, in the order printed; those that srun tells only where no launcher tells its own.

        A line that knows only the local rank tells no rank where the job has several nodes.
        """
        told = [
            replace(e, rank=None) if self._has_nodes and e.local_rank is not None and not e.time_ns else e
            for e in self.exits
        ]
        return (*told, *(() if self._has_launcher else self._tasks))


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


MAX_WORLD = 1 << 20


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


_INTERRUPTED = (-signal.SIGINT, 128 + signal.SIGINT)
_GRACE_NS = 15_000_000_000
# A signal from outside may have reached a rank before a busy supervisor noticed it.
FELT_BEFORE_NS = 2_000_000_000


def ending_began_ns(job: Mapping[str, object], verdict: Mapping[str, object]) -> int | None:
    """The moment from which we, or a signal, ended the job; None where it ended by itself. A proven hang is ended at once."""
    if job.get("ended_by_us") is not True:
        return whole(job, "interrupted_ns") if ended_by_signal(job) else None
    if began := whole(job, "aborted_ns"):
        return began
    detected, ended = whole(verdict, "detected_ns") or 0, whole(job, "ended_ns") or 0
    return detected if text(verdict, "kind") == "proven" else max(detected, ended - _GRACE_NS) or None


def ended_by_signal(job: Mapping[str, object]) -> str:
    """The signal that ended the job, "" if none did: one that the job took, and ended well after it, did not.

    A job that somebody started in the background may get a Ctrl-C that `unhang run` itself ignores: its exit code tells.
    """
    code = whole(job, "exit_code")
    if code == 0 or job.get("ended_by_us") is True:
        return ""
    return text(job, "interrupted_by") or ("SIGINT" if code in _INTERRUPTED else "")


def _felt(record: RankRecord, name: str) -> bool:
    """Whether a rank shows the mark of a signal from outside: its stack at that moment, its end by it, or the loss of a peer."""
    code = whole(record.proc_fields, "exit_code")
    number = signal.Signals[name].value if name in signal.Signals.__members__ else 0
    error = record.error
    is_echoed = error is not None and (error.type == "KeyboardInterrupt" or is_echo(error.text))
    return bool(record.at_interrupt) or (number > 0 and code in (-number, 128 + number)) or is_echoed


def forget_since(record: RankRecord, began_ns: int, by_signal: str = "") -> None:
    """Drops errors and ends that began after `began_ns`, and the dump that was written because of them.

    `by_signal`: the signal from outside that ended the job, if one did: a rank that felt it may have ended a little earlier.
    """
    record.handled = tuple(e for e in record.handled if e.time_ns <= began_ns)
    if by_signal and _felt(record, by_signal):
        began_ns -= FELT_BEFORE_NS
    was_ended = False
    left_ns = whole(record.exit_fields, "time_ns") or whole(record.proc_fields, "died_ns") or 0
    if record.page is not None and not 0 < left_ns <= began_ns:
        record.page = replace(record.page, ended=False)
    if (whole(record.proc_fields, "died_ns") or 0) > began_ns:
        of_end = {"died_ns", "exit_code", *(("state",) if record.proc_fields.get("state") == "gone" else ())}
        record.proc_fields = {name: value for name, value in record.proc_fields.items() if name not in of_end}
        record.fault_dumps = tuple(dump for dump in record.fault_dumps if dump.reason is None)
    if record.error is not None and record.error.time_ns > began_ns:
        record.error, record.forgotten, was_ended = None, record.error, True
    if (whole(record.exit_fields, "time_ns") or 0) > began_ns:
        record.exit_fields, was_ended = {}, True
    if was_ended and len(record.dump_paths) > 1:
        record.dump_paths = [p for p in record.dump_paths if p.name != DUMP_AT_EXIT]


def has_others_at_work(events: Sequence[LogEvent]) -> bool:
    """Whether DeepSpeed's launcher on the one node of a job saw fewer processes come to their end than it had started."""
    world = next((e.number("world_size") for e in events if e.kind == "launchers.world"), None)
    is_one_node = all(e["of"] == "1" for e in events if e.kind == "launchers.node_begins")
    left = {e["left"] for e in events if e.kind == "ending.succeeded" and e["left"]}
    return bool(left) and is_one_node and world is not None and len(left) < world
