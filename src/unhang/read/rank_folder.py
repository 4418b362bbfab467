"""What is known of one process: all files of its folder, `ranks/r<rank>-<pid>/`, and what several witnesses say of its end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from unhang.errors import UnreadableInput
from unhang.model import (
    Frame,
    ProcessExit,
    ProcessGroup,
    ProcessState,
    RaisedError,
    RankEvidence,
    RankIdentity,
    Source,
    ThreadStack,
    Unavailable,
)
from unhang.model.evidence import SEEN_BY_LAUNCHER, KernelWait, ThreadWait, WaitingTask
from unhang.read.fields import encodable, frame_triple, frame_triples, real, text, texts, whole, wholes
from unhang.read.files import read_json, read_object, read_object_lines, unreadable
from unhang.read.launchers import RankExit

if TYPE_CHECKING:
    from unhang.read.page import Page
    from unhang.read.stack_texts import FaultDump

FOLDER_NAME = re.compile(r"r(\d{1,9})-(\d{1,9})$")
# The moments at which they are taken, as far as that is fixed: at a suspicion, a moment later, at the end.
DUMP_AT_EXIT = "flight_exit.pickle"
FLIGHT_FILES = ("flight.json", "flight.pickle", DUMP_AT_EXIT)
MAX_HANDLED = 64
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


def _group(fields: dict[str, object]) -> ProcessGroup | None:
    name, ranks = text(fields, "pg_name"), wholes(fields.get("ranks"))
    if not name or not ranks:
        return None
    desc, timeout_s, backend = text(fields, "pg_desc"), real(fields, "timeout_s"), text(fields, "backend")
    return ProcessGroup(name, desc, ranks, timeout_s, backend, frame_triple(fields.get("timeout_set_at")))


def raised_error(fields: dict[str, object], path: str, handled: bool = False) -> RaisedError:
    """An exception as the recorder writes it."""
    given = fields.get("file")
    file: dict[str, object] = given if isinstance(given, dict) else {}
    return RaisedError(
        type=text(fields, "type", "Exception"),
        message=text(fields, "message"),
        time_ns=whole(fields, "time_ns") or 0,
        frames=frame_triples(fields),
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
    entries = read_json(path)
    if not isinstance(entries, list):
        raise unreadable(str(path), "a list of frames with their variables is expected", "leave the file out")
    found = []
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 4 or not isinstance(entry[3], dict):
            continue
        frame = frame_triple(entry[:3])
        for name, value in entry[3].items() if frame else ():
            if frame and isinstance(name, str) and isinstance(value, str):
                found.append((frame, encodable(name)[:LONGEST_VARIABLE], encodable(value)[:LONGEST_VARIABLE]))
    return tuple(found[:MAX_VARIABLES])


_MOST_WAITS = 64


def evidence_of(
    record: RankRecord, summary: RankExit | None = None, logged: Sequence[RaisedError] = (), now_ns: int = 0
) -> RankEvidence:
    """The evidence on one rank.

    Args:
        record: its files.
        summary: how the launcher saw it end.
        logged: exceptions that the output shows under this rank, in the order printed.
        now_ns: the moment of capture, wall clock, where the rank's own files do not tell it.
    """
    page, proc = record.page, record.proc_fields
    error, handled = record.error, record.handled
    if error is None and logged:
        error = logged[-1]
        handled = (*handled, *(replace(e, handled=True) for e in logged[:-1]))
    end = exit_of(record, summary)
    if error is not None and record.error_thread not in ("", "MainThread") and end is not None and end.code == 0:
        handled = (*handled, replace(error, handled=True))  # one thread ended by it, the program did not
        error = None
    taken_ns = whole(proc, "taken_ns") or now_ns
    monotonic_ns = whole(proc, "taken_monotonic_ns")
    return RankEvidence(
        identity=record.identity,
        stacks=stacks_of(record),
        state=_state(proc),
        error=error,
        handled=handled,
        held=record.held,
        twins=record.twins,
        exit=end,
        pending=page.pending if page else (),
        steps=page.steps if page else None,
        skipped_steps=page.skipped_steps if page else 0,
        thread_waits=tuple(_thread_waits(record.waits_fields)),
        tasks=tuple(_tasks(record.waits_fields)),
        in_handler=text(record.waits_fields, "in_handler"),
        phase=page.phase if page else "",
        phase_s=_age_s(taken_ns, page.phase_since_ns) if page and page.phase else None,
        initialized=page.initialized if page else None,
        heartbeat_age_s=_age_s(monotonic_ns, page.heartbeat_ns) if page else None,
        quiet_s=real(proc, "quiet_s"),
        usual_quiet_s=real(proc, "usual_quiet_s") or 0.0,
        unavailable=tuple(record.absent),
    )


def stacks_of(record: RankRecord) -> tuple[ThreadStack, ...]:
    """The stacks at the fatal signal, else py-spy's, else those at the signal that ended the job, or asked for last."""
    at_signal = record.fatal.threads if record.fatal is not None else ()
    others = (*record.at_interrupt[:1], *reversed(record.fault_dumps))
    whole = (
        d.threads for d in others if any(t.is_main and t.frames for t in d.threads)
    )  # the last may be half written
    found = at_signal or record.stacks or next(whole, others[0].threads if others else ())
    kernel = record.proc_fields.get("threads")
    waits = kernel if isinstance(kernel, dict) else {}
    return tuple(_complete(s, record, waits) for s in found)


def _complete(stack: ThreadStack, record: RankRecord, kernel: Mapping[object, object]) -> ThreadStack:
    """A stack with what other files say of its thread."""
    number = record.identity.pid if stack.is_main else stack.os_thread_id
    fields = kernel.get(str(number))
    wait = KernelWait(text(fields, "call"), text(fields, "file")) if isinstance(fields, dict) else None
    ident = stack.ident or (record.main_thread_id if stack.is_main else None)
    work = next((g for g in _objects(record.waits_fields, "given") if whole(g, "thread") == ident), {})
    # A fork's threads have the same numbers.
    is_own = ident is not None and stack.process_id in (None, record.identity.pid)
    given = frame_triples(work) if is_own else ()
    return replace(stack, ident=ident, kernel=wait, given=given, variables=record.variables if stack.is_main else ())


def _objects(fields: Mapping[str, object], key: str) -> list[dict[object, object]]:
    value = fields.get(key)
    return [v for v in value[:_MOST_WAITS] if isinstance(v, dict)] if isinstance(value, list) else []


def _thread_waits(fields: Mapping[str, object]) -> Iterator[ThreadWait]:
    for wait in _objects(fields, "waits"):
        if (thread := whole(wait, "thread")) is not None:
            yield ThreadWait(thread, text(wait, "kind"), _idents(wait.get("by")), text(wait, "name"))


def _idents(value: object) -> tuple[int, ...]:
    return tuple(v for v in value if type(v) is int) if isinstance(value, list) else ()


def _tasks(fields: Mapping[str, object]) -> Iterator[WaitingTask]:
    for task in _objects(fields, "tasks"):
        yield WaitingTask(text(task, "name"), frame_triples(task), texts(task, "awaits"))


def _age_s(now_ns: int | None, then_ns: int) -> float | None:
    return max(0.0, (now_ns - then_ns) / 1e9) if now_ns and then_ns else None


def _state(proc: dict[str, object]) -> ProcessState | None:
    if not proc:
        return None
    died = whole(proc, "died_ns") is not None
    return ProcessState(
        state="gone" if died else text(proc, "state"),
        cpu_share=real(proc, "cpu_share"),
        children_share=real(proc, "children_share"),
        wchan=text(proc, "wchan"),
        open_fds=whole(proc, "open_fds"),
        fd_limit=whole(proc, "fd_limit"),
        rss_bytes=whole(proc, "rss_bytes"),
        oom_kills=whole(proc, "oom_kills"),
    )


def exit_of(record: RankRecord, summary: RankExit | None = None) -> ProcessExit | None:
    """The end of a process; None while nothing says that it ended.

    The more direct witness wins: a signal, the record of os._exit, the launcher's summary, the end of the program, and
    last that the process was simply gone.
    """
    own = text(record.exit_fields, "kind")
    return (
        _by_signal(record, summary)
        or (_recorded(record, "os._exit") if own == "os._exit" else None)
        or _by_code(record, summary)
        or (_recorded(record, "exit") if own else None)
        or _without_witness(record)
    )


def _died_ns(record: RankRecord) -> int:
    return whole(record.proc_fields, "died_ns") or 0


def _by_signal(record: RankRecord, summary: RankExit | None) -> ProcessExit | None:
    code, fatal = whole(record.proc_fields, "exit_code"), record.fatal
    if fatal is not None:
        number = fatal.signal_number
        current = fatal.current or next((t for t in fatal.threads if t.is_main), None)
        frames = current.frames if current else ()
        known = -number if number else (code if code is not None and code < 0 else None)
        return ProcessExit("signal", known, _died_ns(record), frames, fatal.reason or "")
    if code is not None and code < 0:
        return ProcessExit("signal", code, _died_ns(record))
    if code is None and summary is not None and summary.code is not None and summary.code < 0:
        return ProcessExit("signal", summary.code, _died_ns(record) or summary.time_ns, text=SEEN_BY_LAUNCHER)
    return None


def _by_code(record: RankRecord, summary: RankExit | None) -> ProcessExit | None:
    """An exit with a code that the agent or the launcher saw, with the stack of sys.exit where it was recorded."""
    code = whole(record.proc_fields, "exit_code")
    time_ns = _died_ns(record)
    if code is None and summary is not None:
        code, time_ns = summary.code, time_ns or summary.time_ns
    if code is None:
        return None
    own = _recorded(record, "exit") if record.exit_fields else None
    return ProcessExit("exit", code, own.time_ns or time_ns if own else time_ns, own.frames if own else ())


def _recorded(record: RankRecord, kind: str) -> ProcessExit:
    """What the process itself wrote; an uncaught exception in the main thread means exit code 1."""
    fields = record.exit_fields
    code = whole(fields, "code")
    if code is None and kind == "exit" and record.error is not None and record.error_thread == "MainThread":
        code = 1
    return ProcessExit(kind, code, whole(fields, "time_ns") or _died_ns(record), frame_triples(fields))


def _without_witness(record: RankRecord) -> ProcessExit | None:
    if record.page is not None and record.page.ended:
        return ProcessExit("exit", None, _died_ns(record))
    if _died_ns(record) or text(record.proc_fields, "state") in ("gone", "Z", "X"):
        return ProcessExit("vanished", None, _died_ns(record))
    return None
