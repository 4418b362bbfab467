"""Stacks in a log: of py-spy, faulthandler and gdb where somebody pasted them, and those that ranks printed themselves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from unhang.model import Frame, LogEvent, LogLine, RankIdentity, Source, Unavailable, grouped
from unhang.read.logs import events_of
from unhang.read.output_log import OutputLog
from unhang.read.rank_folder import RankRecord
from unhang.read.sniff import rank_of_stacks
from unhang.read.stack_texts import FaultDump, is_faulthandler, is_header, parse_faulthandler

MAX_STACKS, MOST_OTHERS = 4096, 16
_FAULT_NAMES = {"Current thread": "MainThread", "Stack": "MainThread", "Thread": "of faulthandler"}
_FATAL = "Fatal Python error: "
# By `faulthandler.dump_traceback_later`: the program itself found that it took too long.
_TIMER = re.compile(r"^Timeout \(\d{1,4}:\d\d:\d\d(?:\.\d+)?\)!$")
BY_WATCHDOG = "Aborted"  # so it ends a process whose collective timed out
_BY_OTHERS = ("", BY_WATCHDOG, "Terminated")
_STILL_PRINTED = 2
MAX_FRAMES = 400
_RANKS = r"(?P<first>\d{1,7})(?:\s?(?:-|to|\.\.)\s?(?P<last>\d{1,7}))?(?P<more>(?:,\s?\d{1,7})+)?"
_HEADING = re.compile(
    rf"^[#=*\s\-\[(]*(?:(?:global |local )?ranks?|TP|DP|PP|EP|GPU|worker|trainer|cuda:)[ _:=#]*{_RANKS}\b(?P<rest>.*)$",
    re.IGNORECASE,
)
# The command that somebody ran for a rank, with its name behind.
_COMMAND = re.compile(
    r"^(?:[\[(]?[\w.@:~/-]{1,80}(?: [\w~/.-]{1,80})?[\])]?[$#>] |[#=*\s\-\[(+$>]*(?:\S+ )?)(?P<tool>py-spy|gdb|pstack|eu-stack)\b.{0,120}\brank[ _:=#]*(?P<rank>\d{1,7})\b",
    re.IGNORECASE,
)
_PROCESS = re.compile(r"^\s*Process (?P<pid>\d+): (?P<command>.+)$")
_COMMAND_RANK = re.compile(r"(?:--local[_-]rank[= ]|\bRANK=|--rank[= ]|_?TP)(\d{1,7})\b")
_THREAD = re.compile(r'^\s*Thread (?:0x)?[0-9A-Fa-f]* ?\((?:active|idle)[^)]*\)(?:: "?(?P<name>[^"]*)"?)?\s*$')
_FAULT_THREAD = re.compile(
    r"^\s*(?P<current>Current thread(?= 0x)|Thread(?= 0x)|Stack(?= \()) ?(?:0x[0-9a-fA-F]+ .*)?\(most recent call first\):"
)
_FAULT_FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>\S+)')
_GDB_FRAME = re.compile(
    r"^#\d+\s+(?:0x[0-9a-f]+ in )?(?P<function>[\w:~<>@.]+|[\w:~<>@., *&]+?(?:\(anonymous namespace\)[\w:~]+)?) ?\("
    r".*?(?:at (?P<file>\S+?):(?P<line>\d+)|from (?P<library>\S+))?\s*$"
)
# Where each rank issued the call that its watchdog gave up.
_OF_COLLECTIVE = "Stack trace of the failed collective:"
_COLLECTIVE_FRAME = re.compile(r"^#\d+ (?P<function>\S+) from (?P<file>\S+):(?P<line>\d+)\s*$")
_LAUNCHER = re.compile(r"torch/distributed/(?:elastic/agent/|launcher/|run\.py)")
# An actor of Ray whose main thread only serves calls, so that another one trains.
_SERVES = ("ray/_private/worker.py", "main_loop")
_SPY_FRAME = re.compile(r"^\s*(?P<function>[\w<>.:]+(?: \[\w+\])?) \((?P<file>[^()\s]+?)(?::(?P<line>\d+))?\)\s*$")

# One of native code, as `py-spy dump --native` prints it: C++ names have arguments and templates, and a library without symbols has none.
_NATIVE_FRAME = re.compile(r"^\s+(?P<function>\?{3}|[A-Za-z_~].{0,300}?) \((?P<file>[^()\s]{1,200}\.so[.\d]*)\)\s*$")


@dataclass(frozen=True, slots=True)
class PastedStack:
    """What the main thread under one heading was doing. `frames` are innermost first.

    `label`: the heading, empty where there is none. `ranks`: those that it names; () where it names none. `order`: the place
    of `line` among all. `is_printed`: the process itself wrote it, by faulthandler; `fatal`: at this error of Python.
    `is_call`: it is that of a call whose limit ran out, as it was issued. `by_timer`: a timer of the program printed it.
    `others`: the stacks of its other threads, some at most.
    """

    label: str
    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]
    line: LogLine
    order: int = 0
    is_printed: bool = False
    fatal: str = ""
    is_call: bool = False
    by_timer: bool = False
    others: tuple[tuple[Frame, ...], ...] = ()


@dataclass
class _Open:
    label: str = ""
    ranks: tuple[int, ...] = ()
    fatal: str = ""
    is_printed: bool = False
    is_call: bool = False
    by_timer: bool = False
    is_spy: bool = False  # its threads have a line each
    is_command: bool = False  # somebody ran it for a rank
    threads: list[tuple[str, list[Frame], LogLine, int]] = field(default_factory=list)


def pasted_stacks(lines: Sequence[LogLine]) -> tuple[PastedStack, ...]:
    """The stacks in a log, in the order given; a heading without frames under it is none."""
    found: list[PastedStack] = []
    opened: dict[int | None, _Open] = {}  # ranks whose lines bear their names may write at the same time
    of_collective: int | None = None  # the rank whose message of many lines goes on without its name
    for order, line in enumerate(lines):
        text, who = line.text, line.rank
        if who is None and of_collective is not None and _COLLECTIVE_FRAME.match(text):
            who = of_collective
        current = opened.setdefault(who, _Open())
        if heading := _heading(line) or _by_faulthandler(line):
            _finish(current, found)
            opened[who] = _named_before(heading, current)
            of_collective = line.rank if text.rstrip().endswith(_OF_COLLECTIVE) else None
        elif thread := _THREAD.match(text) or _FAULT_THREAD.match(text):
            named = thread.groupdict()
            name = _FAULT_NAMES.get(named.get("current") or "", named.get("name") or "")
            if line.rank is not None and current.ranks != (line.rank,):
                _finish(current, found)
                current = opened[who] = _Open(f"rank {line.rank}", (line.rank,))
            current.is_printed = thread.re is _FAULT_THREAD
            if current.is_printed and name == "MainThread":
                _finish_earlier(current, found)
            current.threads.append((name, [], line, order))
        elif frame := _frame(text, bool(current.threads or current.label)):
            if current.is_spy and not current.threads:
                continue
            if not current.threads or (text.startswith("#0 ") and current.threads[-1][1]):
                current.threads.append(("", [], line, order))
            if len(current.threads[-1][1]) < MAX_FRAMES:
                current.threads[-1][1].append(frame)
        elif text.strip() and not _is_part(text) and current.threads and current.threads[-1][1]:
            _finish(current, found)
            opened[who] = _Open()
        if len(found) >= MAX_STACKS:
            break
    for current in opened.values():
        _finish(current, found)
    return tuple(sorted(found, key=lambda stack: stack.order))


def of_the_wait(
    stacks: Sequence[PastedStack], lines: Sequence[LogLine], events: Iterable[LogEvent], is_hang: bool
) -> list[PastedStack]:
    """The stacks that tell where a rank waits.

    What a person pasted does. A stack that the process printed, as a healthy one does that dumps itself every few minutes,
    does where the job hung, if it is the rank's last and nothing moved after it; or if it is all that there is. Where the
    job is not seen to hang, one by its own timer does so too, unless the timer also printed while the job moved.
    """
    last = {(s.line.source.path, s.ranks) if s.is_printed and s.ranks else s.order: s for s in stacks}
    moves, alone = [e for e in events if e.is_progress], _alone(stacks, lines)
    is_beat = any(s.by_timer and went_on(moves, s.order, s.line.source.path) for s in stacks)
    return [
        stack
        for stack in last.values()
        if not stack.is_printed
        or (stack in alone and not moves and not stack.fatal)
        or (
            (is_hang or (stack.by_timer and not is_beat))
            and stack.fatal in _BY_OTHERS
            and not went_on(moves, stack.order, stack.line.source.path)
        )
    ]


def went_on(events: Iterable[LogEvent], order: int, path: str) -> bool:
    """Whether the job moved after a line of a log, by more than what its ranks had still to print."""
    return sum(e.is_progress and e.order > order and e.source.path == path for e in events) > _STILL_PRINTED


def _alone(stacks: Sequence[PastedStack], lines: Sequence[LogLine]) -> list[PastedStack]:
    """The printed stacks that are all that their files hold."""
    texts = grouped((line.source.path, line.text) for line in (lines if any(s.is_printed for s in stacks) else ()))
    counts = Counter(s.line.source.path for s in stacks)
    return [s for s in stacks if counts[s.line.source.path] == 1 and is_faulthandler(texts.get(s.line.source.path, ()))]


def _by_faulthandler(line: LogLine) -> _Open | None:
    """What faulthandler says before its stacks: an error of Python, or that a timer ran out."""
    is_fatal, by_timer = line.text.startswith(_FATAL), _TIMER.match(line.text.strip()) is not None
    if not (is_fatal or by_timer):
        return None
    ranks = () if line.rank is None else (line.rank,)
    fatal = line.text.removeprefix(_FATAL).strip() if is_fatal else ""
    return _Open(f"rank {line.rank}" if ranks else "", ranks, fatal, by_timer=by_timer)


def _heading(line: LogLine) -> _Open | None:
    if process := _PROCESS.match(line.text):
        rank = _COMMAND_RANK.search(process["command"])
        ranks = (int(rank[1]),) if rank else () if line.rank is None else (line.rank,)
        return _Open(f"process {process['pid']}", ranks)
    text = line.text.strip()
    if line.rank is not None and text.endswith(_OF_COLLECTIVE):
        return _Open(f"rank {line.rank}", (line.rank,), is_printed=True, is_call=True)
    if command := _COMMAND.match(text):
        return _Open(
            f"rank {command['rank']}", (int(command["rank"]),), is_spy=command["tool"] == "py-spy", is_command=True
        )
    match = _HEADING.match(text)
    if match is None or len(text) > 80 or not (text.endswith(":") or len(text) < 24) or _SPY_FRAME.match(text):
        return None
    first, last = int(match["first"]), int(match["last"] or match["first"])
    more = [int(n) for n in re.findall(r"\d+", match["more"] or "")]
    return _Open(text.strip("#=*- []():"), tuple(sorted({*range(first, min(last, first + 4096) + 1), *more})))


def _named_before(heading: _Open, before: _Open) -> _Open:
    """What a tool prints of its process, with the rank that the command for it had named."""
    is_its_head = before.is_command and not before.threads and not heading.ranks and not heading.fatal
    return replace(heading, label=before.label, ranks=before.ranks) if is_its_head else heading


def _frame(text: str, in_stack: bool) -> Frame | None:
    """A frame; a line that merely looks like py-spy's, or like gdb's from the middle on as in C++'s traces, counts only in a stack."""
    match = _FAULT_FRAME.match(text) or (_GDB_FRAME.match(text) if in_stack or text.startswith("#0 ") else None)
    if match is None and in_stack:
        match = _SPY_FRAME.match(text) or _NATIVE_FRAME.match(text) or _COLLECTIVE_FRAME.match(text)
    if match is None:
        return None
    parts = match.groupdict()
    file = parts.get("file") or parts.get("library") or ""
    return Frame(file, int((parts.get("line") or "0")[:9]), parts["function"])


def _is_part(text: str) -> bool:
    """Lines between frames that do not end a stack: py-spy's head, local variables, dots."""
    bare = text.strip()
    return bare.startswith(("Python v", "Arguments:", "Locals:", "...", "[")) or text.startswith("        ")


def _finish_earlier(current: _Open, found: list[PastedStack]) -> None:
    """Of processes that print their stacks one behind the other without a line between, each has one current thread, mostly its last."""
    ends = [i for i, (name, *_) in enumerate(current.threads) if name == "MainThread"]
    if ends:
        _finish(replace(current, threads=current.threads[: ends[0] + 1]), found)
        current.threads = current.threads[ends[0] + 1 :]
        current.fatal = ""


def _finish(current: _Open, found: list[PastedStack]) -> None:
    """Adds the main thread of what is open: by name; faulthandler prints it last, py-spy and gdb first. A launcher is no rank.

    Where that only serves the calls of an actor, the one that is deepest in its work.
    """
    threads = [t for t in current.threads if t[1]]
    if not threads:
        return
    other = threads[-1] if all(t[0] == "of faulthandler" for t in threads) else threads[0]
    if any(_LAUNCHER.search(frame.file) for thread in threads for frame in thread[1]):
        return
    chosen = next((t for t in threads if t[0] == "MainThread"), other)
    if any(f.file.endswith(_SERVES[0]) and f.function == _SERVES[1] for f in chosen[1]):
        chosen = max(threads, key=lambda t: len(t[1]))
    _, frames, line, order = chosen
    where = (line, order, current.is_printed, current.fatal, current.is_call, current.by_timer)
    others = tuple(tuple(t[1]) for t in threads if t is not chosen)[:MOST_OTHERS]
    found.append(PastedStack(current.label, current.ranks, tuple(frames), *where, others))


Logs = Sequence[tuple[Path, OutputLog]]
Dumps = tuple[FaultDump, ...]


def take_stacks(records: dict[int, RankRecord], logs: Logs, has_calls: bool) -> tuple[Logs, list[Unavailable]]:
    """Completes the records of ranks without stacks by those in logs.

    Of a log with other lines the last dump of a rank counts, unless the job moved on after it; where there are only logs, it
    counts if the rank crashed.

    Args:
        records: by rank, of the ranks of which there is more than logs.
        logs: with their paths.
        has_calls: whether the calls of the ranks tell who waited.

    Returns:
        The logs that are more than one dump of one rank, and notes on stacks of which nobody knows whose they are.
    """
    with_stacks = [pair for pair in logs if any(is_header(line.text) for line in pair[1].lines)]
    if not with_stacks:
        return logs, []
    events = {id(log): events_of(log.lines) for _, log in logs}
    waited = has_calls or any(e.says == "hang" for events in events.values() for e in events)
    is_mixture = bool(records) or has_calls
    taken: set[int] = set()
    nobodys: list[Unavailable] = []
    for path, log in with_stacks:
        is_bare = len({line.rank for line in log.lines}) == 1 and is_faulthandler(line.text for line in log.lines)
        if not is_bare:
            for rank, dumps in _last_dumps(log, events[id(log)]).items():
                _add(records, rank, _judged(dumps, waited), is_mixture)
        elif (owner := rank_of_stacks(path) if log.lines[0].rank is None else log.lines[0].rank) is None:
            reason = "neither the file's name nor its lines say so; name the file like rank_3_stacks.txt"
            nobodys.append(Unavailable(f"whose stacks are in {path.name}", reason))
        else:
            dumps = _dumps(log.lines)
            _add(records, owner, _judged(dumps, waited), is_wanted=True)
            if len(dumps) == 1:  # of several it matters when they were printed, as of what lies between other lines
                taken.add(id(log))
    return [pair for pair in logs if id(pair[1]) not in taken], nobodys


def _last_dumps(log: OutputLog, events: Sequence[LogEvent]) -> dict[int, Dumps]:
    last = {line.rank: i for i, line in enumerate(log.lines) if line.rank is not None and is_header(line.text)}
    return {
        rank: _dumps([line for line in log.lines if line.rank == rank])
        for rank, order in last.items()
        if rank is not None and not went_on(events, order, log.lines[order].source.path)
    }


def _dumps(lines: Sequence[LogLine]) -> Dumps:
    text = "\n".join(line.text for line in lines)
    return parse_faulthandler(text, source=Source("faulthandler", lines[0].source.path))


def _judged(dumps: Dumps, waited: bool) -> Dumps:
    """Where ranks waited, one that was aborted is no failure of its own: so a watchdog ends a wait."""
    return tuple(replace(d, reason=None) if waited and d.reason == BY_WATCHDOG else d for d in dumps)


def _add(records: dict[int, RankRecord], rank: int, dumps: Dumps, is_wanted: bool) -> None:
    if is_wanted or dumps[-1].reason is not None:
        record = records.setdefault(rank, RankRecord(RankIdentity(rank)))
        if not record.stacks and not record.fault_dumps:
            record.fault_dumps = dumps
