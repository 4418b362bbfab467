"""A log from a file: whole where it is small, else the lines that may matter; and one that is still being written, line by line."""

from __future__ import annotations

import codecs
import errno
import io
import os
import re
import stat
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from unhang.errors import UnreadableInput
from unhang.model import Source
from unhang.read.dumps.archive import MAX_ARCHIVE_BYTES, compression, decompressing, is_broken, too_large
from unhang.read.files import regular_size, unreadable
from unhang.read.logs import matches
from unhang.read.logs.decode import MAX_BYTES as MAX_DOCUMENT
from unhang.read.logs.decode import Lines, lines_of, numbered_lines, wide_encoding, without_advice
from unhang.read.logs.scan import Read, Scanner, blocks, scan
from unhang.read.logs.scan_engines import Make
from unhang.read.output_log import OutputLog, parse_lines
from unhang.read.stack_texts import START

WHOLE_BYTES = 4 << 20
MAX_UNPACKED_BYTES = MAX_ARCHIVE_BYTES
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
    tell: OnProgress = on_progress or (lambda _done, _of: None)
    lines: list[tuple[int, str]] = []
    begins: list[tuple[int, str]] = []
    omitted = done = modified_ns = 0
    for part in (*older, path):

        def report(here: int, done: int = done) -> None:
            tell(min(done + here, size), size)

        found, left_out, modified_ns = _numbered(part, report)
        before = lines[-1][0] if lines else 0
        begins.append((before, str(part)))
        lines += [(before + number, line) for number, line in found] if before else found
        omitted, done = omitted + left_out, done + _size(part)
    where = partial(_where, begins) if older else None
    log = parse_lines(lines, str(path), rank, ranks_by_pid, modified_ns, where)
    tell(size, size)
    return replace(log, omitted_lines=log.omitted_lines + omitted)


def _where(begins: Sequence[tuple[int, str]], number: int) -> Source:
    """The file and the number in it of a line that is counted through several. `begins`: the number before each file's first."""
    before, path = begins[max(0, bisect_left([begin for begin, _ in begins], number) - 1)]
    return Source("output", path, number - before)


def _numbered(path: Path, on_progress: Callable[[int], None]) -> tuple[list[tuple[int, str]], int, int]:
    """The lines of a file that may matter, how many there are besides, and when it was last written."""
    regular_size(path)
    try:
        modified_ns = path.stat().st_mtime_ns
        with path.open("rb", buffering=0) as source, _plain(source, str(path)) as read:
            return *_read(read, lambda _: on_progress(source.tell()), path.name), modified_ns
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


def _read(read: Read, report: Callable[[int], None], name: str) -> tuple[list[tuple[int, str]], int]:
    parts, missing = list[bytes](), WHOLE_BYTES + 1
    while missing > 0 and (part := read(missing)):
        parts.append(part)
        missing -= len(part)
    start = b"".join(parts)
    if missing:
        lines = list(numbered_lines(start))
        kept = list(without_advice(lines, name)) if len(start) <= MAX_DOCUMENT else lines
        return kept, len(lines) - len(kept)
    begun = io.BytesIO(start)

    def again(size: int) -> bytes:
        return begun.read(size) or read(size)

    encoding = wide_encoding(start)
    scanned = scan(_Recoded(again, encoding).read if encoding else again, on_progress=report)
    return [(number, line) for number, text in scanned.lines for line in lines_of(text + b"\n")], scanned.omitted_lines


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


POLL_S = 0.5
BATCH_BYTES = MAX_PARTIAL_BYTES = 1 << 20
MAX_EARLIER_LINES = 4000
MAX_LOOKED_AT = 2000


def follow(
    path: Path, stop: Callable[[], bool], pause: Callable[[float], None] = time.sleep
) -> Iterator[list[tuple[int, str]]]:
    """The lines of a file from its beginning, and then those that are added, with their numbers.

    The encoding is UTF-8. As with `tail -F`, a file that is replaced or cut is read from its beginning, with numbers from 1 again, and one that is
    missing is waited for. A line is given when it ends; the last one when `stop()` is true, which ends it all. An empty list
    is given after each POLL_S without anything new.

    Raises:
        UnreadableInput: it is not a plain file, or may not be read.

    Blocks: until `stop()` is true, which is asked after each POLL_S and each batch.
    """
    growing = _Growing(path)
    try:
        while True:
            is_last = stop()
            left = growing.left_bytes() if is_last else -1
            while found := growing.more():
                yield found
                if not is_last and stop():
                    is_last, left = True, growing.left_bytes()
                elif is_last and growing.read_bytes >= left:
                    break  # a writer that never pauses does not keep us
            if is_last:
                if last := growing.unfinished():
                    yield last
                return
            yield []
            pause(POLL_S)
    finally:
        growing.close()


class _Growing:
    """The file as it is now, and how far it has been read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._partial = b""
        self._number = self.read_bytes = 0

    def left_bytes(self) -> int:
        """`read_bytes` when everything will have been read that is there now."""
        file = self._opened()
        return self.read_bytes + (max(0, os.fstat(file.fileno()).st_size - file.tell()) if file else 0)

    def more(self) -> list[tuple[int, str]]:
        """The next lines that have ended; none if there are none now."""
        file = self._opened()
        if file is None:
            return []
        if os.fstat(file.fileno()).st_size < file.tell():
            last = self.unfinished()
            file.seek(0)
            self._number = 0
            if last:
                return last
        data = file.read(BATCH_BYTES)
        self.read_bytes += len(data)
        if data:
            return self._lines(self._partial + data) or self.more()
        if self._is_replaced(file):
            last = self.unfinished()
            self.close()
            return last or self.more()
        return []

    def unfinished(self) -> list[tuple[int, str]]:
        """What there is of a last line without an end."""
        data, self._partial = self._partial, b""
        return self._numbered(data) if data else []

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> IO[bytes] | None:
        """The file; None where there is none now."""
        if self._file is not None:
            return self._file
        try:
            if not stat.S_ISREG(self._path.stat().st_mode):
                raise unreadable(str(self._path), "it is not a plain file", "give the file that the job writes to")
            self._file = self._path.open("rb", buffering=0)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(str(self._path), error.strerror or str(error), "check its permissions") from error
        self._number, self._partial = 0, b""
        return self._file

    def _is_replaced(self, file: IO[bytes]) -> bool:
        try:
            return not os.path.samefile(self._path, file.fileno())
        except OSError:
            return False  # moved away, and no new one yet: the writer may still have the old one

    def _lines(self, data: bytes) -> list[tuple[int, str]]:
        end = data.rfind(b"\n") + 1
        if not end and len(data) > MAX_PARTIAL_BYTES:  # a progress bar that never ends its line
            end = data.rfind(b"\r") + 1 or len(data)
            self._partial = data[end:]
            found = self._numbered(data[:end])
            self._number -= 1
            return found
        self._partial = data[end:]
        return self._numbered(data[:end]) if end else []

    def _numbered(self, data: bytes) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        for text in data.removesuffix(b"\n").split(b"\n"):
            self._number += 1
            found.extend((self._number, line) for line in lines_of(text + b"\n"))
        return found


class FollowedLog:
    """Of a growing log the lines that matter, within the same bounds as `scan`."""

    def __init__(self, path: str = "", make: Make | None = None) -> None:
        self._path, self._make = path, make
        self._scanner = Scanner(make)
        self._last = 0
        self._earlier: list[tuple[int, bytes]] = []
        self._known: set[str] = set()

    def take(self, lines: Lines) -> tuple[str, ...]:
        """Takes new lines. Returns the kinds of events among them that are of weight: a hang, a crash, or a new kind."""
        weighty: dict[str, None] = {}
        for part in self._attempts(lines):
            self._scanner.number_from(part[0][0])
            # Messages that had been written over one another on one line are put together again.
            whole = ("\r".join(text for _, text in same) for _, same in groupby(part, key=lambda line: line[0]))
            data = "\n".join([*whole, ""]).encode("utf-8", "replace")
            taken = [piece for block, end in blocks(io.BytesIO(data).read) for piece in self._scanner.take(block, end)]
            for _, _, text in taken[:MAX_LOOKED_AT]:
                weighty.update(dict.fromkeys(self._weighty(text.decode("utf-8", "replace"))))
            self._last = part[-1][0]
        return tuple(weighty)

    def output(self) -> OutputLog:
        """What the log says so far, for `case_of_outputs`."""
        scanned = self._scanner.result()
        found = [*self._earlier, *scanned.lines]
        lines = [(number, line) for number, text in found for line in lines_of(text + b"\n")]
        log = parse_lines(lines, self._path)
        return replace(log, omitted_lines=log.omitted_lines + scanned.omitted_lines)

    def _attempts(self, lines: Lines) -> Iterator[Lines]:
        """The lines in parts, of which each but the first begins a new file."""
        begin = 0
        for i, (number, _) in enumerate(lines):
            before = lines[i - 1][0] if i else self._last
            if number < before:
                if i > begin:
                    yield lines[begin:i]
                begin = i
                self._earlier = [*self._earlier, *self._scanner.result().lines][-MAX_EARLIER_LINES:]
                self._scanner = Scanner(self._make)
        if lines[begin:]:
            yield lines[begin:]

    def _weighty(self, line: str) -> Iterator[str]:
        if START in line:
            yield "traceback"
        for pattern, _ in matches(line):
            if not pattern.is_background and (pattern.says or pattern.kind not in self._known):
                self._known.add(pattern.kind)
                yield pattern.kind
