"""A log from a file: whole where it is small, else the lines that may matter."""

from __future__ import annotations

import codecs
import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from unhang.errors import UnreadableInput
from unhang.read.dumps.archive import MAX_ARCHIVE_BYTES, compression, decompressing, is_broken, too_large
from unhang.read.files import regular_size, unreadable
from unhang.read.logs.scan import Read, scan
from unhang.read.output_log import OutputLog, lines_of, parse_lines, parse_output

WHOLE_BYTES = 4 << 20
MAX_UNPACKED_BYTES = MAX_ARCHIVE_BYTES
_SAMPLE = 4096

Tell = Callable[[int, int], None]
"""Progress: bytes of the files done, bytes of all."""


def read_output(
    path: Path,
    rank: int | None = None,
    ranks_by_pid: Mapping[int, int] | None = None,
    tell: Tell | None = None,
) -> OutputLog:
    """An output from a file, which may be compressed. `rank`: whose output it is, where it is one rank's alone.

    Raises:
        UnreadableInput: the file cannot be read.
    """
    size = regular_size(path)
    try:
        modified_ns = path.stat().st_mtime_ns
        with path.open("rb", buffering=0) as source, _plain(source, str(path)) as read:

            def told(_done: int) -> None:
                if tell is not None:
                    tell(min(source.tell(), size), size)

            log = _read(_Again(read), told, (str(path), rank, ranks_by_pid, modified_ns))
    except UnreadableInput:
        raise
    except Exception as error:
        if not is_broken(error):
            raise
        raise unreadable(str(path), getattr(error, "strerror", None) or str(error), "check its permissions") from error
    if tell is not None:
        tell(size, size)
    return log


def read_outputs(
    files: Sequence[tuple[Path, int | None]], ranks_by_pid: Mapping[int, int] | None = None, tell: Tell | None = None
) -> Iterator[tuple[Path, OutputLog | UnreadableInput]]:
    """Many files, each with the rank whose output it is; for one that cannot be read the error."""
    sizes = [_size(path) for path, _ in files]
    total, before = sum(sizes), 0
    for (path, rank), size in zip(files, sizes, strict=True):

        def told(done: int, _of: int, before: int = before) -> None:
            if tell is not None:
                tell(before + done, total)

        try:
            yield path, read_output(path, rank, ranks_by_pid, told)
        except UnreadableInput as error:
            yield path, error
        before += size


def _size(path: Path) -> int:
    try:
        return regular_size(path)
    except UnreadableInput:
        return 0


def _read(
    stream: _Again, told: Callable[[int], None], whose: tuple[str, int | None, Mapping[int, int] | None, int]
) -> OutputLog:
    start = stream.peek(WHOLE_BYTES + 1)
    if len(start) <= WHOLE_BYTES:
        return parse_output(start, *whose)
    encoding = wide_encoding(start)
    scanned = scan(_Recoded(stream.read, encoding).read if encoding else stream.read, tell=told)
    lines = [(number, line) for number, text in scanned.lines for line in lines_of(text + b"\n")]
    log = parse_lines(lines, *whose)
    return replace(log, omitted_lines=log.omitted_lines + scanned.omitted_lines)


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
