"""Stacks that somebody pasted into a log: of py-spy, faulthandler and gdb, one rank or several under each heading."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from unhang.model import Frame, LogLine

MAX_STACKS = 4096
_FAULT_NAMES = {"Current thread": "MainThread", "Thread": "of faulthandler"}
MAX_FRAMES = 400
_RANKS = r"(?P<first>\d{1,7})(?:\s?(?:-|to|\.\.)\s?(?P<last>\d{1,7}))?(?P<more>(?:,\s?\d{1,7})+)?"
_HEADING = re.compile(
    rf"^[#=*\s\-\[(]*(?:(?:global |local )?ranks?|TP|DP|PP|EP|GPU|worker|trainer|cuda:)[ _:=#]*{_RANKS}\b(?P<rest>.*)$",
    re.IGNORECASE,
)
_PROCESS = re.compile(r"^\s*Process (?P<pid>\d+): (?P<command>.+)$")
_COMMAND_RANK = re.compile(r"(?:--local[_-]rank[= ]|\bRANK=|--rank[= ]|_?TP)(\d{1,7})\b")
_THREAD = re.compile(r'^\s*Thread (?:0x)?[0-9A-Fa-f]* ?\((?:active|idle)[^)]*\)(?:: "?(?P<name>[^"]*)"?)?\s*$')
_FAULT_THREAD = re.compile(r"^\s*(?P<current>Current thread|Thread) 0x[0-9a-fA-F]+ .*\(most recent call first\):")
_FAULT_FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>\S+)')
_GDB_FRAME = re.compile(
    r"^#\d+\s+(?:0x[0-9a-f]+ in )?(?P<function>[\w:~<>@.]+) ?\(.*?(?:at (?P<file>\S+?):(?P<line>\d+)|from (?P<library>\S+))?\s*$"
)
_SPY_FRAME = re.compile(r"^\s*(?P<function>[\w<>.:]+(?: \[\w+\])?) \((?P<file>[^()\s]+?)(?::(?P<line>\d+))?\)\s*$")


@dataclass(frozen=True, slots=True)
class PastedStack:
    """What the main thread under one heading was doing. `frames` are innermost first.

    `label`: the heading, empty where there is none. `ranks`: those that it names; () where it names none.
    """

    label: str
    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]
    line: LogLine


@dataclass
class _Open:
    label: str = ""
    ranks: tuple[int, ...] = ()
    threads: list[tuple[str, list[Frame], LogLine]] = field(default_factory=list)


def pasted_stacks(lines: Sequence[LogLine]) -> tuple[PastedStack, ...]:
    """The stacks in a log, in the order given; a heading without frames under it is none."""
    found: list[PastedStack] = []
    current = _Open()
    for line in lines:
        text = line.text
        if heading := _heading(line):
            _finish(current, found)
            current = heading
        elif thread := _THREAD.match(text) or _FAULT_THREAD.match(text):
            named = thread.groupdict()
            name = _FAULT_NAMES.get(named.get("current") or "", named.get("name") or "")
            if line.rank is not None and current.ranks != (line.rank,):
                _finish(current, found)
                current = _Open(f"rank {line.rank}", (line.rank,))
            current.threads.append((name, [], line))
        elif frame := _frame(text, bool(current.threads or current.label)):
            if not current.threads or (text.startswith("#0 ") and current.threads[-1][1]):
                current.threads.append(("", [], line))
            if len(current.threads[-1][1]) < MAX_FRAMES:
                current.threads[-1][1].append(frame)
        elif text.strip() and not _is_part(text) and current.threads and current.threads[-1][1]:
            _finish(current, found)
            current = _Open()
        if len(found) >= MAX_STACKS:
            break
    _finish(current, found)
    return tuple(found)


def _heading(line: LogLine) -> _Open | None:
    if process := _PROCESS.match(line.text):
        rank = _COMMAND_RANK.search(process["command"])
        ranks = (int(rank[1]),) if rank else () if line.rank is None else (line.rank,)
        return _Open(f"process {process['pid']}", ranks)
    text = line.text.strip()
    match = _HEADING.match(text)
    if match is None or len(text) > 80 or not (text.endswith(":") or len(text) < 24) or _SPY_FRAME.match(text):
        return None
    first, last = int(match["first"]), int(match["last"] or match["first"])
    more = [int(n) for n in re.findall(r"\d+", match["more"] or "")]
    return _Open(text.strip("#=*- []():"), tuple(sorted({*range(first, min(last, first + 4096) + 1), *more})))


def _frame(text: str, in_stack: bool) -> Frame | None:
    """A frame; a line that merely looks like py-spy's counts only below a heading or a thread."""
    match = _FAULT_FRAME.match(text) or _GDB_FRAME.match(text)
    if match is None and in_stack:
        match = _SPY_FRAME.match(text)
    if match is None:
        return None
    parts = match.groupdict()
    file = parts.get("file") or parts.get("library") or ""
    return Frame(file, int((parts.get("line") or "0")[:9]), parts["function"])


def _is_part(text: str) -> bool:
    """Lines between frames that do not end a stack: py-spy's head, local variables, dots."""
    bare = text.strip()
    return bare.startswith(("Python v", "Arguments:", "Locals:", "...", "[")) or text.startswith("        ")


def _finish(current: _Open, found: list[PastedStack]) -> None:
    """Adds the main thread of what is open: by name; faulthandler prints it last, py-spy and gdb first."""
    threads = [t for t in current.threads if t[1]]
    if not threads:
        return
    other = threads[-1] if all(t[0] == "of faulthandler" for t in threads) else threads[0]
    _, frames, line = next((t for t in threads if t[0] == "MainThread"), other)
    found.append(PastedStack(current.label, current.ranks, tuple(frames), line))
