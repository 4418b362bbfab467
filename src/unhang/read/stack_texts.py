"""Stacks as programs print them: Python's tracebacks, faulthandler's dumps, and py-spy's JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unhang.model import Frame, Source, ThreadStack
from unhang.model.lazy_pattern import lazy_pattern
from unhang.read.files import RECORDER, read_bytes, read_json, text, unreadable, whole, without_recorder

START = "Traceback (most recent call last):"
CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
# Raised anew where it was caught, in a worker or a thread of the loader, or on a replica: what it was stands below.
ORIGINAL, _RAISED_ANEW = "Original Traceback (most recent call last):", "Caught "
# Of an interpreter that goes, and of a logger that could not write: nothing ends by it.
SWALLOWED = ("Exception ignored in", "Error in atexit._run_exitfuncs:", "--- Logging error ---")
MAX_MESSAGE_LINES = 20
MAX_CHAINED = 8
_HEAD_OF_A_TASK = 40  # characters
_FRAME = lazy_pattern(r'\s*File "(.+)", line (\d+)(?:, in (.*))?$')
_FRAME_ALONE = lazy_pattern(r' {0,4}File "(.+\.py)", line (\d+), in (\S.*)$')
_ERROR = lazy_pattern(r"([A-Za-z_][\w.]*)(?:: ?(.*))?$")
# Where the head of the traceback is missing, only what is certainly an exception ends it.
_CERTAIN_ERROR = lazy_pattern(
    r"((?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout|Empty|Expired)|(?:\w+\.)+(?:exceptions|errors)\.[A-Z]\w*)(?:: ?(.*))?$"
)
# Above the frames of a task of Ray, in place of the line with which a traceback begins.
_TASK = lazy_pattern(r"(?:\w+\.)*RayTaskError(?:\([\w.]{1,200}\))?: |ray::\S.{0,300}\(pid=\d")
# Where an exception came from in C++ says no more of what it was, and may be another one's.
_BACKTRACE = ("Exception raised from ", "C++ CapturedTraceback:", "frame #")
# How glog, and Python's logging with a date, begin a line of their own: no message of an exception goes on there.
_LOGGED = re.compile(r"\[?[EFIW]\d{3,4} \d\d:\d\d:\d\d|\[[EFIW] [\w.]+:\d+\]|\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d")
# Processes that write at the same moment: each word as often as there are of them.
_WRITTEN_AT_ONCE = lazy_pattern(r"((?:\w+\.)*[A-Z]\w*?(?:Error|Exception))\1+")
_NO_ERROR = frozenset({"INFO", "WARNING", "ERROR", "DEBUG", "WARN", "CRITICAL", "NOTE", "FATAL", "TRACE"})
# Tracebacks drawn as a box: its corner, its frames (the path may be cut), its floor.
_BOX_START = lazy_pattern(r"^[╭┌+][─━-]+ ?Traceback \(most recent call last\)")
_BOX_FRAME = lazy_pattern(r"^[│|] (\S+\.py):(\d+) in (\S+)")
_BOX_LINE = lazy_pattern(r"^[│|╰└+]")


@dataclass
class Traceback:
    """One exception. `frames` are outermost first, as in the text. `owner`: the rank that raised it, where known.

    `before`: those that it followed in a chain, the first ones. `is_cause`: the next one was raised from it. `has_head`: the text began with the
    line that every traceback begins with, or with that of a task of Ray (`is_task`) and a frame. `is_ignored`: Python printed it for an exception
    that it could not raise. `raised_anew`: what stands above it, and is the same, as another process or thread raised it.
    """

    type: str = ""
    message: list[str] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    first_line: int = 0
    owner: int | None = None
    before: list[Traceback] = field(default_factory=list)
    is_cause: bool = False
    has_head: bool = True
    is_ignored: bool = False
    in_box: bool = False
    is_task: bool = False
    raised_anew: Traceback | None = None

    @property
    def text(self) -> str:
        """The message."""
        return "\n".join(self.message).strip()


class TracebackReader:
    """Takes the lines of one stream, without prefix. `found` holds, of each chain of exceptions, the last."""

    def __init__(self, many_lines: bool = True, owner: int | None = None) -> None:
        """`many_lines`: the lines after the exception belong to its message (no other writer shares the stream); else what a colon announces does."""
        self.owner = owner
        self.found: list[Traceback] = []
        self._open: Traceback | None = None
        self._chained = False
        self._ignored = False
        self._many_lines = many_lines

    def take(self, line: str, number: int = 0) -> bool:
        """Takes one line; returns whether it belongs to a traceback."""
        bare = line.strip()
        in_box = _BOX_START.match(bare) is not None
        if bare == START or in_box:
            self._open = Traceback(first_line=number, owner=self.owner, is_ignored=self._ignored, in_box=in_box)
            return True
        if bare == ORIGINAL and self.found and self.found[-1].text.startswith(_RAISED_ANEW):
            outer = self.found[-1]
            frames, before = [*outer.frames], [*outer.before]
            self._open = Traceback("", [], frames, outer.first_line, self.owner, before, raised_anew=outer)
            return True
        if bare in CHAINED:
            self._open, self._chained = None, bool(self.found)
            if self.found:
                self.found[-1].is_cause = bare == CHAINED[0]
            return True
        self._ignored = bare.startswith(SWALLOWED)
        if "ray" in line[:_HEAD_OF_A_TASK] and _TASK.match(line):
            self._open = Traceback(first_line=number, owner=self.owner, has_head=False, is_task=True)
            return True
        if self._open is not None:
            return self._message(line) if self._open.type else self._inside(line)
        if _FRAME_ALONE.match(line):
            self._open = Traceback(first_line=number, owner=self.owner, has_head=False)
            return self._inside(line)
        return False

    def _inside(self, line: str) -> bool:
        current = self._open
        assert current is not None
        frame = _BOX_FRAME.match(line) if current.in_box else _FRAME.match(line)
        if frame is not None:
            current.frames.append(Frame(frame[1], int(frame[2][:9]), (frame[3] or "<module>").strip()))
            current.has_head |= current.is_task
            return True
        if not line.strip() or line[0].isspace() or (current.in_box and _BOX_LINE.match(line)):
            return True
        error = (_ERROR if current.has_head else _CERTAIN_ERROR).match(line)
        if error is None or error[1] in _NO_ERROR:
            self._open = None
            return False
        self._close(current, error[1], error[2] or "")
        return True

    def _close(self, current: Traceback, kind: str, message: str) -> None:
        if several := _WRITTEN_AT_ONCE.fullmatch(kind):
            kind, message = several[1], message.lstrip(": ")
        current.type, current.message = kind, [message]
        if current.is_ignored:
            return
        if self._chained:
            last = self.found.pop()
            current.before = [*last.before, last][:MAX_CHAINED]
        if current.raised_anew is not None:
            self.found.remove(current.raised_anew)
        self._chained = False
        self.found.append(current)

    def _message(self, line: str) -> bool:
        current = self._open
        assert current is not None
        is_other = line.startswith(_BACKTRACE) or _LOGGED.match(line) is not None
        is_over = not line.strip() or is_other or len(current.message) >= MAX_MESSAGE_LINES
        if is_over or not (self._many_lines or current.message[-1].endswith(":")):
            self._open = None
            return False
        current.message.append(line)
        return True


def last_traceback(lines: Iterable[str]) -> Traceback | None:
    """The last exception of a text that holds nothing but one chain of tracebacks."""
    reader = TracebackReader()
    for line in lines:
        reader.take(line)
    return reader.found[-1] if reader.found else None


def original(message: str) -> Traceback | None:
    """What another process or thread raised, of a message that has its traceback: a loader's worker, a replica; None for any other."""
    head, is_anew, below = message.partition(ORIGINAL)
    return last_traceback([START, *below.splitlines()]) if is_anew and head.startswith(_RAISED_ANEW) else None


_FATAL = re.compile(r"Fatal Python error: (.*)")
_THREAD = re.compile(r"(Current thread|Thread) 0x([0-9a-fA-F]+) ?(?:\[(.*)\] )?\(most recent call first\):")
_BARE = re.compile(r"Stack \(most recent call first\):")
_DUMPED_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_BEGINNINGS = ('  File "', "Current thread 0x", "Thread 0x", "Stack (")
_WRITTEN = re.compile(
    r"\s*$|Fatal Python error: |Windows fatal exception: |Python runtime state: |Timeout \(\d|(?:Current thread|Thread) 0x|"
    r"Stack \(most|Current thread's C stack|  (?:Binary f|F)ile \"|  <|  Garbage-collecting|(?:  )?\.\.\.$|<Cannot show|Extension modules: "
)

SIGNALS = {
    "Aborted": 6,
    "Segmentation fault": 11,
    "Bus error": 7,
    "Illegal instruction": 4,
    "Floating point exception": 8,
}


@dataclass(frozen=True, slots=True)
class FaultDump:
    """One dump. `reason`: the fatal signal's name, None where the stacks were only asked for."""

    reason: str | None
    threads: tuple[ThreadStack, ...]
    current: ThreadStack | None = None

    @property
    def signal_number(self) -> int | None:
        """The number of the fatal signal, where the reason names one."""
        return SIGNALS.get(self.reason or "")


@dataclass
class _Thread:
    ident: int
    name: str
    is_current: bool
    frames: list[Frame]


@dataclass
class _Dump:
    reason: str | None
    threads: list[_Thread]


def read_faulthandler(path: Path, main_thread_id: int | None = None) -> tuple[FaultDump, ...]:
    """All dumps of a file, oldest first. `main_thread_id`: the pthread id of the main thread.

    Raises:
        UnreadableInput: the file cannot be read, or is empty.
    """
    data = read_bytes(path, 64 << 20)
    return parse_faulthandler(data.decode("utf-8", "replace"), main_thread_id, Source("faulthandler", str(path)))


def parse_faulthandler(
    content: str, main_thread_id: int | None = None, source: Source | None = None
) -> tuple[FaultDump, ...]:
    """All dumps of a text, oldest first; what is no part of a dump is passed over."""
    dumps: list[_Dump] = []
    after_blank = True
    for line in content.splitlines():
        if fatal := _FATAL.match(line):
            dumps.append(_Dump(fatal[1].strip(), []))
        elif thread := _thread_header(line):
            if not dumps or _starts_anew(dumps[-1], thread, after_blank):
                dumps.append(_Dump(None, []))
            dumps[-1].threads.append(thread)
        elif (frame := _DUMPED_FRAME.match(line)) and dumps and dumps[-1].threads:
            number = int(frame[2][:9]) if frame[2] != "???" else 0
            dumps[-1].threads[-1].frames.append(Frame(frame[1], number, frame[3]))
        after_blank = not line.strip()
    return tuple(_frozen(dump, main_thread_id, source or Source("faulthandler")) for dump in dumps)


def is_faulthandler(lines: Iterable[str]) -> bool:
    """Whether a text is nothing but what faulthandler writes."""
    has_stack = False
    for line in lines:
        if not _WRITTEN.match(line):
            return False
        has_stack = has_stack or is_header(line)
    return has_stack


def is_header(line: str) -> bool:
    """Whether the stack of a thread begins with a line."""
    return line.startswith(_BEGINNINGS[1:]) and _thread_header(line) is not None


def is_part(line: str) -> bool:
    """Whether a line is a frame, or begins the stack of a thread."""
    return line.startswith(_BEGINNINGS) and (_DUMPED_FRAME.match(line) is not None or is_header(line))


def _thread_header(line: str) -> _Thread | None:
    if match := _THREAD.match(line):
        return _Thread(int(match[2], 16), (match[3] or "").strip(), match[1] == "Current thread", [])
    return _Thread(0, "", True, []) if _BARE.match(line) else None


def _starts_anew(dump: _Dump, thread: _Thread, after_blank: bool) -> bool:
    """Within a dump a blank line parts the threads, and no thread comes twice."""
    if not dump.threads:
        return False
    return not after_blank or any(t.ident == thread.ident for t in dump.threads)


def _frozen(dump: _Dump, main_thread_id: int | None, source: Source) -> FaultDump:
    # Newest thread first: without an id, the last one is the main thread.
    main = main_thread_id if any(t.ident == main_thread_id for t in dump.threads) else None
    if main is None and dump.threads:
        main = dump.threads[-1].ident
    stacks = tuple(
        ThreadStack(
            name=t.name or ("MainThread" if t.ident == main else f"thread {t.ident:#x}"),
            frames=without_recorder(t.frames),
            is_main=t.ident == main,
            ident=t.ident or None,
            source=source,
        )
        for t in dump.threads
    )
    ours = tuple(mark + "control.py" for mark in RECORDER)  # the recorder's own thread
    shown = tuple(
        s for s, t in zip(stacks, dump.threads, strict=True) if not any(f.file.endswith(ours) for f in t.frames)
    )
    current = next((s for s, t in zip(stacks, dump.threads, strict=True) if t.is_current), None)
    return FaultDump(dump.reason, shown, current)


CONTROL_THREAD = "unhang-control"


def read_pyspy(path: Path) -> tuple[ThreadStack, ...]:
    """The stacks of one process.

    Raises:
        UnreadableInput: it is no output of py-spy.
    """
    threads = read_json(path)
    if not isinstance(threads, list) or not all(isinstance(t, dict) for t in threads):
        raise unreadable(str(path), "py-spy's list of threads is expected", "write it with 'py-spy dump --json'")
    return read_threads(threads, str(path))


def read_threads(threads: Sequence[Mapping[str, object]], path: str = "") -> tuple[ThreadStack, ...]:
    """The stacks in a list of py-spy's threads."""
    return tuple(_thread(t, path) for t in threads if t.get("thread_name") != CONTROL_THREAD)


def _thread(thread: Mapping[str, object], path: str) -> ThreadStack:
    name, os_id, pid = text(thread, "thread_name"), whole(thread, "os_thread_id"), whole(thread, "pid")
    active, owns_gil = thread.get("active"), thread.get("owns_gil")
    frames = thread.get("frames")
    return ThreadStack(
        name=name or (f"thread {os_id}" if os_id is not None else "thread"),
        frames=without_recorder(map(_frame, frames)) if isinstance(frames, list) else (),
        is_main=os_id == pid if os_id is not None and pid is not None else name == "MainThread",
        is_active=active if isinstance(active, bool) else None,
        owns_gil=owns_gil if isinstance(owns_gil, bool) else None,
        os_thread_id=os_id,
        process_id=pid,
        ident=whole(thread, "thread_id"),
        source=Source("py-spy", path),
    )


def _frame(frame: object) -> Frame:
    """py-spy writes qualified names (`Learner.train`), everything else bare ones: bare it is."""
    fields = frame if isinstance(frame, dict) else {}
    qualified = text(fields, "name", "?")
    name = "store_wait" if qualified.startswith("_watched_") else qualified.rsplit(".", 1)[-1]
    return Frame(text(fields, "filename"), max(0, whole(fields, "line") or 0), name)
