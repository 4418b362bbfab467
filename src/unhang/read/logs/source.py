"""A log from a file: whole where it is small, else the lines that may matter."""

from __future__ import annotations

import codecs
import errno
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from unhang.errors import UnreadableInput
from unhang.model import Source
from unhang.read.dumps.archive import MAX_ARCHIVE_BYTES, compression, decompressing, is_broken, too_large
from unhang.read.files import regular_size, unreadable
from unhang.read.logs.decode import MAX_BYTES as MAX_DOCUMENT
from unhang.read.logs.decode import numbered_lines, without_advice
from unhang.read.logs.scan import Read, scan
from unhang.read.output_log import OutputLog, lines_of, parse_lines

WHOLE_BYTES = 4 << 20
MAX_UNPACKED_BYTES = MAX_ARCHIVE_BYTES
_SAMPLE = 4096
_ROTATED = re.compile(r"(?P<name>.+?)[.-](?:(?P<date>20\d{6})|(?P<number>\d{1,3}))(?:\.(?:gz|xz|bz2|zst|lz4))?")

OnProgress = Callable[[int, int], None]
"""Progress: bytes of the files done, bytes of all."""


def read_output(
    path: Path,
    rank: int | None = None,
    ranks_by_pid: Mapping[int, int] | None = None,
    on_progress: OnProgress | None = None,
    older: Sequence[Path] = (),
) -> OutputLog:
    """An output from a file, which may be compressed. `rank`: whose output it is, where it is one rank's alone.

    `older`: the files that hold what was written before, in this order, where a log was rotated.

    Raises:
        UnreadableInput: a file cannot be read.
    """
    size = sum(map(_size, older)) + regular_size(path)
    lines: list[tuple[int, str]] = []
    begins: list[tuple[int, str]] = []
    omitted = done = modified_ns = 0
    for part in (*older, path):

        def report(here: int, done: int = done) -> None:
            if on_progress is not None:
                on_progress(min(done + here, size), size)

        found, left_out, modified_ns = _numbered(part, report)
        before = lines[-1][0] if lines else 0
        begins.append((before, str(part)))
        lines += [(before + number, line) for number, line in found] if before else found
        omitted, done = omitted + left_out, done + _size(part)
    where = _Where(begins) if older else None
    log = parse_lines(lines, str(path), rank, ranks_by_pid, modified_ns, where)
    if on_progress is not None:
        on_progress(size, size)
    return replace(log, omitted_lines=log.omitted_lines + omitted)


class _Where:
    """The file and the number in it of a line that is counted through several. `begins`: the number before each file's first."""

    def __init__(self, begins: Sequence[tuple[int, str]]) -> None:
        self._begins = begins

    def __call__(self, number: int) -> Source:
        before, path = self._begins[max(0, bisect_left([begin for begin, _ in self._begins], number) - 1)]
        return Source("output", path, number - before)


def _numbered(path: Path, on_progress: Callable[[int], None]) -> tuple[list[tuple[int, str]], int, int]:
    """The lines of a file that may matter, how many there are besides, and when it was last written."""
    regular_size(path)
    try:
        modified_ns = path.stat().st_mtime_ns
        with path.open("rb", buffering=0) as source, _plain(source, str(path)) as read:
            return *_read(_Again(read), lambda _: on_progress(source.tell()), path.name), modified_ns
    except UnreadableInput:
        raise
    except Exception as error:
        if not is_broken(error):
            raise
        raise unreadable(str(path), getattr(error, "strerror", None) or str(error), "check its permissions") from error


def rotated(paths: Sequence[Path]) -> dict[Path, list[Path]]:
    """Of each log the files into which its older lines were moved, the oldest first: `job.log.2.gz`, `job.log.1`, `job.log-20260301`.

    Only beside a file with the name itself: `out.0` and `out.1` alone are those of two ranks.
    """
    names = set(paths)
    older: dict[Path, list[tuple[tuple[int, int], Path]]] = {}
    for path in paths:
        match = _ROTATED.fullmatch(path.name)
        if match is None or (newest := path.with_name(match["name"])) not in names or newest == path:
            continue
        key = (-1, int(match["date"])) if match["date"] else (0, -int(match["number"]))
        older.setdefault(newest, []).append((key, path))
    return {newest: [path for _, path in sorted(found)] for newest, found in older.items()}


def read_outputs(
    files: Sequence[tuple[Path, int | None]],
    ranks_by_pid: Mapping[int, int] | None = None,
    on_progress: OnProgress | None = None,
) -> Iterator[tuple[Path, OutputLog | UnreadableInput]]:
    """Many files, each with the rank whose output it is; for one that cannot be read the error. Rotated ones are one log."""
    older = rotated([path for path, _ in files])
    parts = {part for found in older.values() for part in found}
    total, before = sum(_size(path) for path, _ in files), 0
    for path, rank in files:
        if path in parts:
            continue

        def report(done: int, _of: int, before: int = before) -> None:
            if on_progress is not None:
                on_progress(before + done, total)

        try:
            yield path, read_output(path, rank, ranks_by_pid, report, older.get(path, ()))
        except UnreadableInput as error:
            yield path, error
        before += sum(map(_size, (path, *older.get(path, ()))))


def _size(path: Path) -> int:
    try:
        return regular_size(path)
    except UnreadableInput:
        return 0


def _read(stream: _Again, report: Callable[[int], None], name: str = "") -> tuple[list[tuple[int, str]], int]:
    start = stream.peek(WHOLE_BYTES + 1)
    if len(start) <= WHOLE_BYTES:
        lines = list(numbered_lines(start))
        kept = list(without_advice(lines, name)) if len(start) <= MAX_DOCUMENT else lines
        return kept, len(lines) - len(kept)
    encoding = wide_encoding(start)
    scanned = scan(_Recoded(stream.read, encoding).read if encoding else stream.read, on_progress=report)
    return [(number, line) for number, text in scanned.lines for line in lines_of(text + b"\n")], scanned.omitted_lines


def wide_encoding(start: bytes) -> str:
    """The encoding of a log in UTF-16, told by its mark or its zeros; "" for all others."""
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    sample = start[:_SAMPLE]
    for encoding, at in (("utf-16-le", 1), ("utf-16-be", 0)):
        zeros, others = sample[at::2].count(0), sample[1 - at :: 2].count(0)
        if len(sample) >= 8 and zeros > 0.4 * len(sample) and not others:
            return encoding
    return ""


@contextmanager
def _plain(source: IO[bytes], name: str) -> Iterator[Read]:
    """The content, unpacked. A compressed file that is cut, as a job that was killed leaves it, ends where it is cut."""
    head = source.read(8)
    source.seek(0)
    if not compression(head):
        yield partial(_past_holes, source)
        return
    with decompressing(source, head, name) as plain:
        some: Any = plain
        done = 0

        def read(size: int) -> bytes:
            nonlocal done
            try:
                part: bytes = some.read1(size)
            except EOFError:
                if not done:
                    raise
                return b""
            done += len(part)
            if done > MAX_UNPACKED_BYTES:
                raise too_large(name, MAX_UNPACKED_BYTES)
            return part

        yield read


def _past_holes(source: IO[bytes], size: int) -> bytes:
    """The next bytes. A log that was emptied under its writer begins with a hole of zeros, which may be of any size."""
    part = source.read(size)
    if part[:1] == b"\0" and not part.strip(b"\0"):
        try:
            source.seek(source.tell(), os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but the hole
                source.seek(0, os.SEEK_END)
    return part


class _Again:
    """A stream whose beginning can be looked at before it is read."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._start = b""

    def peek(self, size: int) -> bytes:
        """The first bytes."""
        parts = [self._start]
        missing = size - len(self._start)
        while missing > 0 and (part := self._read(missing)):
            parts.append(part)
            missing -= len(part)
        self._start = b"".join(parts)
        return self._start

    def read(self, size: int) -> bytes:
        """The next bytes."""
        if self._start:
            part, self._start = self._start[:size], self._start[size:]
            return part
        return self._read(size)


class _Recoded:
    """A wide encoding as UTF-8."""

    def __init__(self, read: Read, encoding: str) -> None:
        self._read = read
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._ready = b""
        self._is_over = False

    def read(self, size: int) -> bytes:
        """The next bytes."""
        while not self._ready and not self._is_over:
            part = self._read(size)
            self._is_over = not part
            self._ready = self._decoder.decode(part, not part).encode("utf-8", "replace")
        part, self._ready = self._ready[:size], self._ready[size:]
        return part
