"""Text of faulthandler: stacks asked for by a signal, and the stacks at a fatal one, several dumps in a row."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from unhang.model import Frame, Source, ThreadStack
from unhang.read.fields import RECORDER, without_recorder
from unhang.read.files import read_bytes

_FATAL = re.compile(r"Fatal Python error: (.*)")
_THREAD = re.compile(r"(Current thread|Thread) 0x([0-9a-fA-F]+) ?(?:\[(.*)\] )?\(most recent call first\):")
_BARE = re.compile(r"Stack \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
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
        elif (frame := _FRAME.match(line)) and dumps and dumps[-1].threads:
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
    return line.startswith(_BEGINNINGS) and (_FRAME.match(line) is not None or is_header(line))


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
    shown = tuple(s for s, t in zip(stacks, dump.threads, strict=True) if not _is_ours(t))
    current = next((s for s, t in zip(stacks, dump.threads, strict=True) if t.is_current), None)
    return FaultDump(dump.reason, shown, current)


def _is_ours(thread: _Thread) -> bool:
    """Whether it is the recorder's own thread."""
    return any(f.file.endswith(tuple(mark + "control.py" for mark in RECORDER)) for f in thread.frames)
