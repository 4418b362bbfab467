"""A job's own output: whatever encoding, colours and progress bars, with or without a rank before each line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePath

from unhang.model import LogLine, RaisedError, Source, Unavailable
from unhang.read.launchers import RankExit, SummaryReader, by_rank
from unhang.read.logs.attempts import Part, judged_part, others_named, parts_of, weight_of
from unhang.read.logs.clock import FileClock, Stamp, read_stamp, resolve
from unhang.read.logs.decode import TROUBLE, Wrapped, joined, lines_of, numbered_lines, unwrap, without_advice
from unhang.read.logs.prefix import PrefixReader
from unhang.read.logs.whose import Head, RankBook, pass_on_columns, pass_on_processes, pass_on_tags
from unhang.read.stack_texts import START, Traceback, TracebackReader, is_part

__all__ = ["OutputLog", "lines_of", "parse_lines", "parse_output"]

MAX_LINES = 20_000
LAST_LINES = 200
MAX_LINE_CHARS = 4000
_SAMPLE = 2000

Where = Callable[[int], Source]
"""Where the line of a number stands."""

# Before a traceback: by torch's spawn, and by Ray Train's controller.
_SPAWN_RANK = re.compile(
    r"-- Process (\d{1,7}) terminated with the following error:|^\[Rank (\d{1,7})(?: Error Snippet)?\]:?\s*$"
)
_RAY_TASK = re.compile(r"RayTaskError(?:\([\w.]+\))?: .*\(pid=(\d{1,9})\b")


@dataclass(frozen=True)
class OutputLog:
    """What an output says. `errors`: tracebacks with the rank where a prefix tells it, in the order printed.

    `ends`: all ends of processes in the order printed, of which `exits` has the fullest of each rank.

    `clock`: how the times of its lines were made out; `host`: where most of its lines were printed, "" if not told. `others`: other jobs in the same
    file, which are not judged.
    """

    lines: tuple[LogLine, ...]
    errors: tuple[tuple[int | None, RaisedError], ...]
    exits: Mapping[int, RankExit]
    omitted_lines: int = 0
    clock: FileClock = field(default_factory=FileClock)
    host: str = ""
    others: tuple[Unavailable, ...] = ()
    ends: tuple[RankExit, ...] = ()

    def between(self, first: int, stop: int | None) -> OutputLog:
        """The lines of the numbers `first` to before `stop`, and what they say."""

        def is_in(line: int | None) -> bool:
            return (line or 0) >= first and (stop is None or (line or 0) < stop)

        lines = tuple(line for line in self.lines if is_in(line.source.line))
        errors = tuple((rank, error) for rank, error in self.errors if is_in(error.source.line))
        ends = tuple(seen for seen in self.ends if is_in(seen.line))
        return replace(self, lines=lines, errors=errors, exits=by_rank(ends), ends=ends)


def parse_output(
    data: bytes,
    path: str = "",
    rank: int | None = None,
    ranks_by_pid: Mapping[int, int] | None = None,
    modified_ns: int | None = None,
) -> OutputLog:
    """An output from its bytes. `modified_ns`: when the file was last written, for times without a year."""
    lines = list(numbered_lines(data))
    kept = without_advice(lines, path)
    log = parse_lines(kept, path, rank, ranks_by_pid, modified_ns)
    return replace(log, omitted_lines=log.omitted_lines + len(lines) - len(kept))


def parse_lines(
    lines: Sequence[tuple[int, str]],
    path: str = "",
    rank: int | None = None,
    ranks_by_pid: Mapping[int, int] | None = None,
    modified_ns: int | None = None,
    where: Where | None = None,
) -> OutputLog:
    """An output from its lines with their numbers, of which some may have been left out before.

    `where`: the file and the number in it of a line, where the log lies in several.
    """
    at = where or partial(Source, "output", path)
    heads = list(_ungrouped(_heads(list(joined(lines)))))
    pass_on_tags([head for _, head in heads])
    pass_on_columns([head for _, head in heads])
    book = RankBook([head for _, head in heads], rank, ranks_by_pid or {})
    pass_on_processes((head for _, head in heads), book)
    times, clock = resolve([head.stamps for _, head in heads], modified_ns)
    pieces: list[_Piece] = []
    parts = parts_of([head.body for _, head in heads], lambda i: (heads[i][1].host, heads[i][1].task))
    for part in parts:
        piece = _Piece(book)
        for (number, head), time_ns in zip(heads[part.first : part.stop], times[part.first : part.stop], strict=True):
            who, shown = book.rank(head), head.body[:MAX_LINE_CHARS]
            piece.marked.append(piece.parts.take(who, book.writer(head), head.body, number) or is_part(head.body))
            piece.lines.append(LogLine(shown, at(number), who, time_ns, head.host or head.nccl_host))
        pieces.append(piece)
    piece, others = _chosen(pieces, parts, at, path)
    chosen = _bounded(piece.lines, piece.marked)
    hosts = Counter(line.host for line in piece.lines if line.host).most_common(2)
    ends = piece.parts.summary.ends()
    return OutputLog(
        chosen,
        piece.parts.errors(at),
        by_rank(ends),
        len(piece.lines) - len(chosen),
        clock,
        hosts[0][0] if len(hosts) == 1 else "",
        others,
        ends,
    )


_GROUP, _GROUP_LINES = "Exception Group Traceback (most recent call last):", 400
_MARGIN = re.compile(r"\s*\| ?")


def _ungrouped(heads: Iterator[tuple[int, Head]]) -> Iterator[tuple[int, Head]]:
    """The lines; those of an exception group without its margin, so that the exceptions in it are read like any others."""
    left = 0
    for number, head in heads:
        left = _GROUP_LINES if _GROUP in head.body else left - 1
        if left > 0 and (margin := _MARGIN.match(head.body)):
            head.body = head.body[margin.end() :]
        yield number, head


class _Piece:
    """What one start of a launcher left in a log."""

    def __init__(self, book: RankBook) -> None:
        self.lines: list[LogLine] = []
        self.marked: list[bool] = []
        self.parts = _Parts(book)


def _chosen(
    pieces: Sequence[_Piece], parts: Sequence[Part], at: Where, path: str
) -> tuple[_Piece, tuple[Unavailable, ...]]:
    """The piece that is judged, and the others in words."""
    if len(pieces) == 1:
        return pieces[0], ()
    weights = [
        weight_of(
            _bounded(p.lines, p.marked),
            [error for _, error in p.parts.errors(at)],
            sum(bool(exit_.code) for exit_ in by_rank(p.parts.summary.ends()).values()),
        )
        for p in pieces
    ]
    judged = judged_part(weights, parts)
    spans = [(p.lines[0].source.line or 0, p.lines[-1].source.line or 0) for p in pieces]
    return pieces[judged], others_named(spans, weights, judged, PurePath(path).name or "the log")


def _heads(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, Head]]:
    """Every line without its prefixes; a message behind a progress bar is a line of its own."""
    reader = PrefixReader([line for _, line in _sample(lines)])
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


def _sample(lines: Sequence[tuple[int, str]]) -> Sequence[tuple[int, str]]:
    """The first lines and the last: what was added later may have other labels."""
    half = _SAMPLE // 2
    return lines if len(lines) <= _SAMPLE else [*lines[:half], *lines[-half:]]


def _inner_reader(lines: Sequence[tuple[int, str]], reader: PrefixReader) -> PrefixReader:
    """A reader for the lines inside JSON objects, which may have prefixes of their own."""
    found = (unwrap(reader.read(line).body) for _, line in _sample(lines) if "{" in line[:200])
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
    inner.task, is_labelled = head.task, inner.local_rank is not None
    if not is_labelled:
        inner.local_rank = head.local_rank
    if not inner.torch_ranks and not is_labelled:
        inner.rank, inner.pid, inner.torch_ranks = head.rank, head.pid or inner.pid, list(head.torch_ranks)
    inner.stamps[:0] = head.stamps
    head.body = bar
    yield head
    yield inner


_QUOTES = "traceback : "


class _Parts:
    """Picks tracebacks, one reader for each writer because ranks write at the same time, and the launcher's summary."""

    def __init__(self, book: RankBook) -> None:
        self.summary = SummaryReader()
        self._book = book
        self._tasks: set[Hashable] = set()  # the writers that told last what a task of Ray raised
        self._quoted = TracebackReader(many_lines=False)
        self._readers: dict[Hashable, TracebackReader] = {}

    def take(self, rank: int | None, writer: Hashable, line: str, number: int) -> bool:
        """Takes one line; returns whether it belongs to a traceback or to the summary."""
        if self.summary.take(line, number):
            self._take_quoted(line, number)
            return True
        reader = self._readers.get(writer)
        if reader is None:
            reader = self._readers[writer] = TracebackReader(many_lines=writer is not None, owner=rank)
        if spawned := _SPAWN_RANK.search(line):
            reader.owner = int(spawned[1] or spawned[2])
        elif rank is None and "RayTaskError" in line:  # what follows was raised in the process that it names
            asked = _RAY_TASK.search(line)
            reader.owner = self._book.rank_of_pid(int(asked[1])) if asked else None
            self._tasks.add(writer)
        elif writer in self._tasks and line.startswith(START):
            reader.owner = rank
            self._tasks.remove(writer)
        return reader.take(line, number)

    def _take_quoted(self, line: str, number: int) -> None:
        """A line of the summary, which quotes the traceback of a main function with `@record`, two columns to the right."""
        head, _, quoted = line.partition(_QUOTES)
        if quoted and not head.strip() and self.summary.exits:
            self._quoted.owner = self.summary.exits[-1].rank
        self._quoted.take(quoted or line.removeprefix("  "), number)

    def errors(self, at: Where) -> tuple[tuple[int | None, RaisedError], ...]:
        """All exceptions in the order printed, and the one that only the launcher's summary holds, if it calls it the first."""
        found = [tb for reader in self._readers.values() for tb in reader.found]
        printed = {(tb.type, tb.text.split("\n", 1)[0]) for tb in found}
        roots = {exit_.rank for exit_ in self.summary.exits if exit_.is_root}
        first = {(tb.type, tb.text) for tb in self._quoted.found if tb.owner in roots} - printed
        found += [tb for tb in self._quoted.found if (tb.type, tb.text) in first]
        found.sort(key=lambda tb: tb.first_line)
        inner = {i for i, tb in enumerate(found) if not tb.type.endswith("ExceptionGroup")}
        shown = [tb for i, tb in enumerate(found) if i in inner or i + 1 not in inner]  # a group is what stands in it
        return tuple((tb.owner, _raised(tb, at)) for tb in shown)


def _bounded(lines: list[LogLine], marked: list[bool]) -> tuple[LogLine, ...]:
    """All lines, or those that are marked or speak of trouble, and the last ones."""
    if len(lines) <= MAX_LINES:
        return tuple(lines)
    pairs = zip(lines[:-LAST_LINES], marked, strict=False)
    early = [line for line, is_marked in pairs if is_marked or TROUBLE.search(line.text)]
    return (*early[: MAX_LINES - LAST_LINES], *lines[-LAST_LINES:])


def _raised(tb: Traceback, at: Where) -> RaisedError:
    before = tuple(_raised(earlier, at) for earlier in tb.before)
    frames, source = tuple(reversed(tb.frames)), at(tb.first_line)
    return RaisedError(tb.type, tb.text, 0, frames, source=source, before=before, is_cause=tb.is_cause)


MAX_BAR_CHARS = 400

_GLUED = re.compile(
    r"\[rank\d{1,7}\]:(?=\[[DIWEFC][ \d]| )|\[[DIWEFC](?:\d{3,4} [\d:.]+)? \w+\.(?:cpp|cc|cu|h|hpp):\d+\]"
)
_RAN_INTO = re.compile(  # behind a word, or a debugger's prompt
    r"(?:(?<=[^\s(\[{<\"'=,:])|(?<=^\(Pdb\) )|(?<=^ipdb> ))(?:\[rank\d{1,7}\]: |\[rank\d{1,7}\]:(?=\[[DIWEFC][ \d])|\[default\d{1,5}\]:)"
)
_BAR = re.compile(r"\d%\||\d(?:it|ex|examples)? ?\[\d|(?:it/s|s/it|/s)\]?$|\?\]$")


def split_glued(body: str) -> tuple[str, str]:
    """A progress bar, or what another process wrote, and the message that a rank wrote behind it on the same line; else ("", the line)."""
    if "]:" in body and (match := _RAN_INTO.search(body)):
        return body[: match.start()].rstrip(), body[match.start() :]
    if "%|" not in body and "it/s" not in body and "s/it" not in body and "/s]" not in body:
        return "", body
    for match in _GLUED.finditer(body):
        start = match.start()
        if start and _BAR.search(body, max(0, start - MAX_BAR_CHARS), start):
            return body[:start].rstrip(), body[start:]
    return "", body
