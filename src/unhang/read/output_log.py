"""A job's own output: whatever encoding, colours and progress bars, with or without a rank before each line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from unhang.model import LogLine, RaisedError, Source
from unhang.read.torchrun_summary import RankExit, SummaryReader
from unhang.read.traceback_text import Traceback, TracebackReader

MAX_LINES = 20_000
LAST_LINES = 200
MAX_LINE_CHARS = 4000

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_TORCH_RANK = re.compile(r"\[rank(\d{1,7})\]: ?")
_TORCHRUN_RANK = re.compile(r"\[(?:default|trainer|worker)(\d{1,7})\]:")
_MPIRUN_RANK = re.compile(r"\[\d+,(\d{1,7})\]<std(?:out|err)>: ?")
_SRUN_RANK = re.compile(r" {0,6}(\d{1,7}): ")
_RAY_PID = re.compile(r"\((?:[\w.<>]+ )?pid=(\d{1,9})(?:, ip=[\w.:]+)?\) ?")
_SPAWN_RANK = re.compile(r"-- Process (\d{1,7}) terminated with the following error:")
_INTERESTING = re.compile(
    r"error|exception|traceback|warn|fail|fatal|abort|killed|signal|timeout|timed out|watchdog|terminat|exit ?code"
    r"|refused|in use|unreachable|no space|out of memory|oom|nccl|gloo|xid|hang|stuck|rendezvous|store",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class OutputLog:
    """What an output says. `errors`: tracebacks with the rank where a prefix tells it, in the order printed."""

    lines: tuple[LogLine, ...]
    errors: tuple[tuple[int | None, RaisedError], ...]
    exits: Mapping[int, RankExit]
    omitted_lines: int = 0


def parse_output(
    data: bytes, path: str = "", rank: int | None = None, ranks_by_pid: Mapping[int, int] | None = None
) -> OutputLog:
    """An output from its bytes."""
    return parse_lines(list(enumerate(lines_of(data), 1)), path, rank, ranks_by_pid)


def parse_lines(
    lines: Sequence[tuple[int, str]],
    path: str = "",
    rank: int | None = None,
    ranks_by_pid: Mapping[int, int] | None = None,
) -> OutputLog:
    """An output from its lines with their numbers, of which some may have been left out before."""
    prefixes = _Prefixes([line for _, line in lines[:2000]], rank, ranks_by_pid or {})
    parts = _Parts()
    kept: list[LogLine] = []
    marked: list[bool] = []
    for number, line in lines:
        who, body = prefixes.split(line)
        shown = body[:MAX_LINE_CHARS]
        marked.append(parts.take(who, body, number) or _INTERESTING.search(shown) is not None)
        kept.append(LogLine(shown, Source("output", path, number), who))
    chosen = _bounded(kept, marked)
    return OutputLog(chosen, parts.errors(path), parts.summary.by_rank(), len(kept) - len(chosen))


class _Parts:
    """Picks tracebacks, one reader per rank because ranks write at the same time, and the launcher's summary."""

    def __init__(self) -> None:
        self.summary = SummaryReader()
        self._readers: dict[int | None, TracebackReader] = {}

    def take(self, rank: int | None, line: str, number: int) -> bool:
        """Takes one line; returns whether it belongs to a traceback or to the summary."""
        if self.summary.take(line, number):
            return True
        reader = self._readers.get(rank)
        if reader is None:
            reader = self._readers[rank] = TracebackReader(many_lines=rank is not None, owner=rank)
        if spawned := _SPAWN_RANK.search(line):
            reader.owner = int(spawned[1])
        return reader.take(line, number)

    def errors(self, path: str) -> tuple[tuple[int | None, RaisedError], ...]:
        """All exceptions in the order printed."""
        found = [tb for reader in self._readers.values() for tb in reader.found]
        found.sort(key=lambda tb: tb.first_line)
        return tuple((tb.owner, _raised(tb, path)) for tb in found)


def lines_of(data: bytes) -> Iterator[str]:
    """Lines as a terminal would leave them: of a progress bar only its last state."""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    content = data.decode(encoding, "replace").replace("\0", "").replace("\r\n", "\n")
    for line in content.removesuffix("\n").split("\n") if content else ():
        if "\x1b" in line:
            line = _ANSI.sub("", line)
        if "\r" in line:
            line = next((part for part in reversed(line.split("\r")) if part.strip()), "")
        yield line


class _Prefixes:
    """Takes the rank off a line. srun's bare `3: ` counts only where nearly every line has one."""

    def __init__(self, lines: list[str], rank: int | None, ranks_by_pid: Mapping[int, int]) -> None:
        self._default = rank
        self._ranks_by_pid = ranks_by_pid
        sample = [line for line in lines if line.strip()]
        self._srun = len(sample) > 1 and sum(map(bool, map(_SRUN_RANK.match, sample))) >= 0.9 * len(sample)

    def split(self, line: str) -> tuple[int | None, str]:
        """The rank and the rest of the line; launchers may stack their prefixes."""
        rank = self._default
        patterns = (_MPIRUN_RANK, _SRUN_RANK if self._srun else None, _TORCHRUN_RANK, _TORCH_RANK)
        for pattern in patterns:
            if pattern is not None and (match := pattern.match(line)):
                rank, line = int(match[1]), line[match.end() :]
        if (match := _RAY_PID.match(line)) and rank is self._default:
            rank, line = self._ranks_by_pid.get(int(match[1]), rank), line[match.end() :]
            if inner := _TORCH_RANK.match(line):
                rank, line = int(inner[1]), line[inner.end() :]
        return rank, line


def _bounded(lines: list[LogLine], marked: list[bool]) -> tuple[LogLine, ...]:
    if len(lines) <= MAX_LINES:
        return tuple(lines)
    early = [line for line, is_marked in zip(lines[:-LAST_LINES], marked, strict=False) if is_marked]
    return (*early[: MAX_LINES - LAST_LINES], *lines[-LAST_LINES:])


def _raised(tb: Traceback, path: str) -> RaisedError:
    return RaisedError(tb.type, tb.text, 0, tuple(reversed(tb.frames)), source=Source("output", path, tb.first_line))
