"""A job's own output: whatever encoding, colours and progress bars, with or without a rank before each line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from unhang.model import LogLine, RaisedError, Source
from unhang.read.logs.clock import FileClock, Stamp, read_stamp, resolve
from unhang.read.logs.decode import TROUBLE, Wrapped, lines_of, numbered_lines, unwrap
from unhang.read.logs.prefix import Head, PrefixReader, split_glued
from unhang.read.logs.whose import RankBook
from unhang.read.torchrun_summary import RankExit, SummaryReader
from unhang.read.traceback_text import Traceback, TracebackReader

__all__ = ["OutputLog", "lines_of", "parse_lines", "parse_output"]

MAX_LINES = 20_000
LAST_LINES = 200
MAX_LINE_CHARS = 4000
_SAMPLE = 2000

_SPAWN_RANK = re.compile(r"-- Process (\d{1,7}) terminated with the following error:")


@dataclass(frozen=True)
class OutputLog:
    """What an output says. `errors`: tracebacks with the rank where a prefix tells it, in the order printed.

    `clock`: how the times of its lines were made out; `host`: where most of its lines were printed, "" if not told.
    """

    lines: tuple[LogLine, ...]
    errors: tuple[tuple[int | None, RaisedError], ...]
    exits: Mapping[int, RankExit]
    omitted_lines: int = 0
    clock: FileClock = field(default_factory=FileClock)
    host: str = ""


def parse_output(
    data: bytes,
    path: str = "",
    rank: int | None = None,
    ranks_by_pid: Mapping[int, int] | None = None,
    modified_ns: int | None = None,
) -> OutputLog:
    """An output from its bytes. `modified_ns`: when the file was last written, for times without a year."""
    return parse_lines(list(numbered_lines(data)), path, rank, ranks_by_pid, modified_ns)


def parse_lines(
    lines: Sequence[tuple[int, str]],
    path: str = "",
    rank: int | None = None,
    ranks_by_pid: Mapping[int, int] | None = None,
    modified_ns: int | None = None,
) -> OutputLog:
    """An output from its lines with their numbers, of which some may have been left out before."""
    heads = list(_heads(lines))
    book = RankBook([head for _, head in heads], rank, ranks_by_pid or {})
    times, clock = resolve([head.stamps for _, head in heads], modified_ns)
    parts = _Parts()
    kept: list[LogLine] = []
    marked: list[bool] = []
    for (number, head), time_ns in zip(heads, times, strict=True):
        who, shown = book.rank(head), head.body[:MAX_LINE_CHARS]
        marked.append(parts.take(who, book.writer(head), head.body, number))
        kept.append(LogLine(shown, Source("output", path, number), who, time_ns, head.host or head.nccl_host))
    chosen = _bounded(kept, marked)
    hosts = Counter(line.host for line in kept if line.host).most_common(2)
    return OutputLog(
        chosen,
        parts.errors(path),
        parts.summary.by_rank(),
        len(kept) - len(chosen),
        clock,
        hosts[0][0] if len(hosts) == 1 else "",
    )


def _heads(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, Head]]:
    """Every line without its prefixes; a message behind a progress bar is a line of its own."""
    reader = PrefixReader([line for _, line in lines[:_SAMPLE]])
    inner = _inner_reader(lines, reader)
    pending: dict[str, str] = {}
    for number, line in lines:
        head = reader.read(line)
        wrapped = unwrap(head.body) if head.body[:1] == "{" else None
        if wrapped is None:
            yield from ((number, part) for part in _unglued(head, reader))
        elif wrapped.is_partial and len(pending.get(wrapped.stream, "")) < MAX_LINE_CHARS:
            pending[wrapped.stream] = pending.get(wrapped.stream, "") + wrapped.text
        else:
            text = pending.pop(wrapped.stream, "") + wrapped.text
            for shown in lines_of(text.encode(errors="replace")):
                yield from ((number, part) for part in _unwrapped(head, wrapped, shown, inner))
    for text in pending.values():
        yield lines[-1][0], inner.read(text)


def _inner_reader(lines: Sequence[tuple[int, str]], reader: PrefixReader) -> PrefixReader:
    """A reader for the lines inside JSON objects, which may have prefixes of their own."""
    found = (unwrap(reader.read(line).body) for _, line in lines[:_SAMPLE] if "{" in line[:200])
    return PrefixReader([text for wrapped in found if wrapped for text in wrapped.text.split("\n")])


def _unwrapped(outer: Head, wrapped: Wrapped, text: str, reader: PrefixReader) -> Iterator[Head]:
    stamp = read_stamp(wrapped.time)
    for head in _unglued(reader.read(text), reader):
        stamps: list[Stamp] = [*outer.stamps, *([stamp[0]] if stamp else [])]
        head.stamps[:0] = stamps
        head.host = outer.host or wrapped.host or head.host
        head.rank = wrapped.rank if head.rank is None else head.rank
        head.task = outer.task if head.task is None else head.task
        head.local_rank = outer.local_rank if head.local_rank is None else head.local_rank
        head.torch_ranks[:0] = outer.torch_ranks
        head.pid = wrapped.pid if head.pid is None else head.pid
        yield head


def _unglued(head: Head, reader: PrefixReader) -> Iterator[Head]:
    bar, message = split_glued(head.body)
    if not bar:
        yield head
        return
    inner = reader.read(message)
    inner.host = head.host or inner.host
    inner.task, inner.local_rank = head.task, head.local_rank
    if not inner.torch_ranks:
        inner.rank, inner.pid, inner.torch_ranks = head.rank, head.pid or inner.pid, list(head.torch_ranks)
    inner.stamps[:0] = head.stamps
    head.body = bar
    yield head
    yield inner


class _Parts:
    """Picks tracebacks, one reader for each writer because ranks write at the same time, and the launcher's summary."""

    def __init__(self) -> None:
        self.summary = SummaryReader()
        self._readers: dict[Hashable, TracebackReader] = {}

    def take(self, rank: int | None, writer: Hashable, line: str, number: int) -> bool:
        """Takes one line; returns whether it belongs to a traceback or to the summary."""
        if self.summary.take(line, number):
            return True
        reader = self._readers.get(writer)
        if reader is None:
            reader = self._readers[writer] = TracebackReader(many_lines=writer is not None, owner=rank)
        if spawned := _SPAWN_RANK.search(line):
            reader.owner = int(spawned[1])
        return reader.take(line, number)

    def errors(self, path: str) -> tuple[tuple[int | None, RaisedError], ...]:
        """All exceptions in the order printed."""
        found = [tb for reader in self._readers.values() for tb in reader.found]
        found.sort(key=lambda tb: tb.first_line)
        return tuple((tb.owner, _raised(tb, path)) for tb in found)


def _bounded(lines: list[LogLine], marked: list[bool]) -> tuple[LogLine, ...]:
    """All lines, or those that are marked or speak of trouble, and the last ones."""
    if len(lines) <= MAX_LINES:
        return tuple(lines)
    pairs = zip(lines[:-LAST_LINES], marked, strict=False)
    early = [line for line, is_marked in pairs if is_marked or TROUBLE.search(line.text)]
    return (*early[: MAX_LINES - LAST_LINES], *lines[-LAST_LINES:])


def _raised(tb: Traceback, path: str) -> RaisedError:
    return RaisedError(tb.type, tb.text, 0, tuple(reversed(tb.frames)), source=Source("output", path, tb.first_line))
