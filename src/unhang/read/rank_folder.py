"""What is known of one process: all files of its folder, `ranks/r<rank>-<pid>/`, its reductions, and what several witnesses say of its end."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from unhang.errors import UnreadableInput
from unhang.model import (
    REDUCE_OPS,
    Frame,
    ProcessGroup,
    RaisedError,
    RankEvidence,
    RankIdentity,
    Reading,
    Source,
    ThreadStack,
    Unavailable,
)
from unhang.read.files import (
    encodable,
    frame_triple,
    frame_triples,
    read_list,
    read_object,
    read_object_lines,
    real,
    text,
    texts,
    whole,
    wholes,
)

if TYPE_CHECKING:
    from unhang.read.dumps.entries import RecordedCall
    from unhang.read.page import Page
    from unhang.read.stack_texts import FaultDump, Traceback

FOLDER_NAME = re.compile(r"r(\d{1,9})-(\d{1,9})$")
# The moments at which they are taken, as far as that is fixed: at a suspicion, a moment later, at the end.
DUMP_AT_EXIT = "flight_exit.pickle"
FLIGHT_FILES = ("flight.json", "flight.pickle", DUMP_AT_EXIT)
MAX_HANDLED = MAX_FACTS = 64
MAX_VARIABLES, LONGEST_VARIABLE = 2048, 80

T = TypeVar("T")


@dataclass
class RankRecord:
    """What the files of one process say, before it is weighed.

    `twins`: the pids of other processes that said at the same time that they are this rank.
    `at_interrupt`: the stacks when a signal came that ends a job. `forgotten`: an error that is only the echo of the job's end.
    `output_bytes`: how much of the job's output had been kept when the process announced itself.
    `clock_offset_ns`: was added to its times, and is to be added to those in its dumps. `unheard`: why its node is heard no more.
    """

    identity: RankIdentity
    path: str = ""
    main_thread_id: int | None = None
    groups: list[ProcessGroup] = field(default_factory=list)
    page: Page | None = None
    error: RaisedError | None = None
    error_thread: str = ""
    handled: tuple[RaisedError, ...] = ()
    held: RaisedError | None = None
    exit_fields: dict[str, object] = field(default_factory=dict)
    proc_fields: dict[str, object] = field(default_factory=dict)
    fault_dumps: tuple[FaultDump, ...] = ()
    at_interrupt: tuple[FaultDump, ...] = ()
    forgotten: RaisedError | None = None
    twins: tuple[int, ...] = ()
    stacks: tuple[ThreadStack, ...] = ()
    variables: tuple[tuple[Frame, str, str], ...] = ()
    output_bytes: int | None = None
    clock_offset_ns: int = 0
    unheard: str = ""
    waits_fields: dict[str, object] = field(default_factory=dict)
    look_fields: dict[str, object] = field(default_factory=dict)
    facts: tuple[Reading, ...] = ()
    native: tuple[Frame, ...] = ()
    reductions: tuple[Reduction, ...] = ()
    dump_paths: list[Path] = field(default_factory=list)
    absent: list[Unavailable] = field(default_factory=list)

    @property
    def rank(self) -> int:
        """The global rank."""
        return self.identity.rank

    @property
    def fatal(self) -> FaultDump | None:
        """The stacks at the fatal signal, if there was one."""
        return next((d for d in reversed(self.fault_dumps) if d.reason is not None), None)

    def attempt(self, what: str, read: Callable[[], T]) -> T | None:
        """Reads one thing; a failure is noted."""
        try:
            return read()
        except UnreadableInput as error:
            self.absent.append(Unavailable(f"{what} of rank {self.rank}", str(error)))
            return None


def read_rank_folder(folder: Path) -> RankRecord | None:
    """All that one folder holds, dumps unread; None if not even its name tells a rank."""
    name, noted = FOLDER_NAME.match(folder.name), list[Unavailable]()
    fields: dict[str, object] = {}
    if (folder / "identity.json").exists():
        try:
            fields = read_object(folder / "identity.json")
        except UnreadableInput as error:
            noted.append(Unavailable(f"identity of {folder.name}", str(error)))
    rank = whole(fields, "rank")
    if rank is None or rank < 0:
        if name is None:
            return None
        rank = int(name[1])
    record = RankRecord(_identity(fields, rank, int(name[2]) if name else None), str(folder), absent=noted)
    record.main_thread_id = whole(fields, "main_thread_id")
    record.output_bytes = whole(fields, "output_bytes")
    _read_small_files(record, folder)
    record.dump_paths = [folder / file for file in FLIGHT_FILES if (folder / file).exists()]
    return record


def _identity(fields: dict[str, object], rank: int, pid: int | None) -> RankIdentity:
    return RankIdentity(
        rank=rank,
        world_size=whole(fields, "world_size"),
        local_rank=whole(fields, "local_rank"),
        pid=whole(fields, "pid") or pid,
        host=text(fields, "host"),
        restart=whole(fields, "restart") or 0,
        torch_version=text(fields, "torch_version"),
        backend=text(fields, "backend"),
        started_ns=whole(fields, "started_ns") or 0,
        local_world_size=whole(fields, "local_world_size"),
        is_command=fields.get("is_command") is True,
        variables=_variables(fields.get("variables")) or {},
        variables_at_init=_variables(fields.get("variables_at_init")),
        device=whole(fields, "device"),
    )


def _variables(value: object) -> dict[str, str] | None:
    if not isinstance(value, dict):
        return None
    return {str(name): given for name, given in list(value.items())[:MAX_VARIABLES] if isinstance(given, str)}


def _read_small_files(record: RankRecord, folder: Path) -> None:
    from unhang.read.page import read_page  # none of these is needed for a folder of dumps
    from unhang.read.stack_texts import read_faulthandler, read_pyspy

    def read(file: str, reader: Callable[[Path], T]) -> T | None:
        path = folder / file
        return record.attempt(file, lambda: reader(path)) if path.exists() else None

    record.groups = [g for f in read("groups.jsonl", read_object_lines) or () if (g := _group(f))]
    record.page = read("page.bin", read_page)
    if error := read("error.json", read_object):
        record.error, record.error_thread = raised_error(error, str(folder / "error.json")), text(error, "thread")
    handled = (read("handled.jsonl", read_object_lines) or [])[:MAX_HANDLED]
    record.handled = tuple(raised_error(f, str(folder / "handled.jsonl"), True) for f in handled)
    if held := read("held.json", read_object):
        record.held = raised_error(held, str(folder / "held.json"), True)
    record.exit_fields = read("exit.json", read_object) or {}
    record.proc_fields = read("proc.json", read_object) or {}
    record.stacks = read("pyspy.json", read_pyspy) or ()
    record.variables = read("variables.json", read_variables) or ()
    record.waits_fields = read("waits.json", read_object) or {}
    record.look_fields = read("look.json", read_object) or {}
    record.facts = tuple(_fact(f, record.rank) for f in (read("facts.jsonl", read_object_lines) or [])[:MAX_FACTS])
    record.reductions = read("reductions.json", read_reductions) or ()
    if native := read("native.json", read_object):
        record.native = frame_triples(native)
        below = itertools.takewhile(lambda frame: not frame.file.endswith(".py"), record.native)
        nameless = sorted({f.file.rpartition("/")[2] for f in below if f.function.startswith("0x")})
        if why := text(native, "missing") or (f"no symbols in {', '.join(nameless[:4])}" if nameless else ""):
            record.absent.append(Unavailable(f"C++ frames of rank {record.rank}", why))
    faults = folder / "faulthandler.txt"
    if faults.exists() and faults.stat().st_size:  # It is there, and empty, from the start.
        record.fault_dumps = read(faults.name, lambda path: read_faulthandler(path, record.main_thread_id)) or ()
    interrupted = folder / "interrupt.txt"
    if interrupted.exists() and interrupted.stat().st_size:
        record.at_interrupt = read(interrupted.name, lambda path: read_faulthandler(path, record.main_thread_id)) or ()
    for note in read("notes.jsonl", read_object_lines) or ():
        record.absent.append(
            Unavailable(f"{text(note, 'what', 'a facility')} of rank {record.rank}", text(note, "reason"))
        )


def _fact(fields: dict[str, object], rank: int) -> Reading:
    """Lists of numbers, sizes and strides, as text: `4 x 16`."""
    given = fields.get("fields")
    values = {str(n): v for n, v in given.items()} if isinstance(given, dict) else {}
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = " x ".join(str(n) for n in value[:MAX_HANDLED])
        elif not isinstance(value, (str, int, float, bool)):
            values[name] = None
    return Reading(
        f"program.{text(fields, 'kind')}", text(values, "op"), values, rank, at=frame_triple(fields.get("at"))
    )


def _group(fields: dict[str, object]) -> ProcessGroup | None:
    name, ranks = text(fields, "pg_name"), wholes(fields.get("ranks"))
    if not name or not ranks:
        return None
    desc, timeout_s, backend = text(fields, "pg_desc"), real(fields, "timeout_s"), text(fields, "backend")
    set_at, left_out = frame_triple(fields.get("timeout_set_at")), whole(fields, "left_out") or 0
    return ProcessGroup(name, desc, ranks, timeout_s, backend, set_at, left_out)


def _original(message: str) -> Traceback | None:
    if "Original Traceback" not in message:
        return None
    from unhang.read.stack_texts import original  # with it come the patterns of all stacks

    return original(message)


def raised_error(fields: Mapping[Any, Any], path: str, handled: bool = False) -> RaisedError:
    """An exception as the recorder writes it."""
    given = fields.get("file")
    file: dict[str, object] = given if isinstance(given, dict) else {}
    message, frames = text(fields, "message"), frame_triples(fields)
    first = _original(message)
    return RaisedError(
        type=(first.type if first else "") or text(fields, "type", "Exception"),
        message=first.text if first else message,
        time_ns=whole(fields, "time_ns") or 0,
        frames=(*reversed(first.frames), *frames) if first else frames,
        handled=handled,
        handler=frame_triple(fields.get("handler")),
        parameters=texts(fields, "parameters"),
        source=Source("recorder", path),
        file=text(file, "path"),
        file_bytes=whole(file, "bytes") or 0,
        file_written_ns=whole(file, "written_ns") or 0,
    )


def read_variables(path: Path) -> tuple[tuple[Frame, str, str], ...]:
    """variables.json: (frame, name, value) of numbers and iterator states of the main thread's user frames.

    Raises:
        UnreadableInput: it is no such list.
    """
    found = []
    for entry in read_list(path, "a list of frames with their variables"):
        if not isinstance(entry, list) or len(entry) != 4 or not isinstance(entry[3], dict):
            continue
        frame = frame_triple(entry[:3])
        for name, value in entry[3].items() if frame else ():
            if frame and isinstance(name, str) and isinstance(value, str):
                found.append((frame, encodable(name)[:LONGEST_VARIABLE], encodable(value)[:LONGEST_VARIABLE]))
    return tuple(found[:MAX_VARIABLES])


# What evidence there is, and which calls are missing and why, in words for the report.

NO_DUMP = "no readable flight-recorder dump of it was given"
NO_SIGN = "no process and no file of it was seen"
NO_RECORDER = "the job was started without unhang, and torch had no dump of them to give (gloo cannot be asked for it from outside)"
OUT_OF_SIGHT = (
    "not seen from here: it runs on another node, or under another 'unhang run', of which no report was given"
)


@dataclass(frozen=True, slots=True)
class RankCalls:
    """What the dumps of one rank gave."""

    count: int
    has_frames: bool
    backend: str


def _ranks(count: int) -> str:
    return f"{count} rank{'' if count == 1 else 's'}"


def present_evidence(
    calls: Mapping[int, RankCalls], ranks: Mapping[int, RankEvidence], log_lines: int
) -> tuple[str, ...]:
    """Short phrases: "calls of 4 ranks, with call paths"."""
    found = []
    if calls:
        framed, total = sum(c.has_frames for c in calls.values()), sum(c.count for c in calls.values())
        paths = "with call paths" if framed == len(calls) else f"{framed} with call paths"
        found.append(f"{total} calls of {_ranks(len(calls))}, {paths if framed else 'without call paths'}")
    readers = [e.stacks[0].source.reader for e in ranks.values() if e.stacks]
    found += [f"stacks of {_ranks(readers.count(reader))} ({reader})" for reader in sorted(set(readers))]
    for what, count in (
        ("exceptions of", sum(e.error is not None for e in ranks.values())),
        ("handled exceptions of", sum(bool(e.handled) for e in ranks.values())),
        ("ends of", sum(e.exit is not None for e in ranks.values())),
        ("progress of", sum(e.steps is not None for e in ranks.values())),
        ("process states of", sum(e.state is not None for e in ranks.values())),
    ):
        if count:
            found.append(f"{what} {_ranks(count)}")
    if log_lines:
        found.append(f"{log_lines} line{'s' if log_lines > 1 else ''} of output")
    return tuple(found)


def absent_calls(
    calls: Mapping[int, RankCalls], records: Mapping[int, RankRecord], ranks: Mapping[int, RankEvidence]
) -> list[Unavailable]:
    """One entry for each rank without a dump, with the likeliest reason; one for all that were looked at from outside."""
    if records and not calls and all(e.look is not None for e in ranks.values()):
        return [Unavailable("calls of all ranks", NO_RECORDER)]
    return [
        Unavailable(f"calls of rank {rank}", _why_no_dump(record, ranks[rank]))
        for rank, record in records.items()
        if rank not in calls
    ]


def _why_no_dump(record: RankRecord, evidence: RankEvidence) -> str:
    for note in record.absent:
        if "flight" in note.what.lower():
            return note.reason
    if record.at_interrupt:
        return "the signal had ended the process before its calls could be fetched"
    if evidence.initialized is False:
        return "it never left init_process_group, so there are no calls"
    if evidence.exit is not None:
        return f"the process had ended ({evidence.exit.text or evidence.exit.kind}) before its calls could be fetched"
    return NO_DUMP


_MOST, _MOST_AT_ONCE, _FOREVER = 1 << 16, 64, 1 << 63
_WITH_ROOT = ("broadcast", "reduce", "gather", "scatter")


class Reduction(NamedTuple):
    """One call of the program, from its begin to its end, with the operation and the root in the group; -1 where it has none.

    Of reductions.json: the flight recorder keeps neither. `awaited_ns`: since when the program waits for it, 0 where that is not known.
    """

    begin_ns: int
    end_ns: int
    group: str
    reduce_op: int
    root: int
    awaited_ns: int = 0


def read_reductions(path: Path) -> tuple[Reduction, ...]:
    """The calls by their begin. One that had not returned has no end.

    Raises:
        UnreadableInput: it is no such list.
    """
    found = []
    for row in read_list(path, "a list of calls")[-_MOST:]:
        if isinstance(row, list) and len(row) in (5, 6) and isinstance(row[2], str):
            (begin, end, _, op, root), awaited = row[:5], row[5] if len(row) > 5 else 0
            if all(type(n) is int and -1 <= n < _FOREVER for n in (begin, end, op, root, awaited)):
                op = op if op < len(REDUCE_OPS) else -1
                found.append(Reduction(begin, end or _FOREVER, row[2], op, root, max(0, awaited)))
    return tuple(sorted(found))


def name_reductions(calls: Sequence[RecordedCall], given: Sequence[Reduction]) -> None:
    """Gives calls that were recorded while just one call of the program was being made in their group what that one was given."""
    begins = [r.begin_ns for r in given]
    for call in calls if given else ():
        at = bisect_right(begins, call.created_ns)
        around = [
            r for r in given[max(0, at - _MOST_AT_ONCE) : at] if call.created_ns <= r.end_ns and r.group == call.group
        ]
        if len(around) != 1 or call.is_p2p:
            continue
        call.awaited_ns = around[0].awaited_ns
        if "reduce" in call.op:
            call.reduce_op = around[0].reduce_op
        if call.op in _WITH_ROOT:
            call.root_in_group = around[0].root
