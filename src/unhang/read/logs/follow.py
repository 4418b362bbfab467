"""A log that is still being written: its new lines, and whether they say something that calls for a new judgement."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import IO

from unhang.read.files import unreadable
from unhang.read.logs import matches
from unhang.read.logs.decode import lines_of
from unhang.read.logs.scan import Read, Scanner, blocks
from unhang.read.logs.scan_engines import Make
from unhang.read.output_log import OutputLog, parse_lines
from unhang.read.stack_texts import START

POLL_S = 0.5
BATCH_BYTES = 1 << 20
MAX_PARTIAL_BYTES = 1 << 20
MAX_EARLIER_LINES = 4000
MAX_LOOKED_AT = 2000

Lines = Sequence[tuple[int, str]]


def follow(
    path: Path, stop: Callable[[], bool], poll_s: float = POLL_S, pause: Callable[[float], None] = time.sleep
) -> Iterator[list[tuple[int, str]]]:
    """The lines of a file from its beginning, and then those that are added, with their numbers.

    The encoding is UTF-8. As with `tail -F`, a file that is replaced or cut is read from its beginning, with numbers from 1 again, and one that is
    missing is waited for. A line is given when it ends; the last one when `stop()` is true, which ends it all. An empty list
    is given after each `poll_s` without anything new.

    Raises:
        UnreadableInput: it is not a plain file, or may not be read.

    Blocks: until `stop()` is true, which is asked after each `poll_s` and each batch.
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
            pause(poll_s)
    finally:
        growing.close()


class _Growing:
    """The file as it is now, and how far it has been read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._identity = (0, 0)
        self._number = 0
        self._partial = b""
        self.read_bytes = 0

    def left_bytes(self) -> int:
        """`read_bytes` when everything will have been read that is there now."""
        if self._file is None and not self._opens():
            return self.read_bytes
        assert self._file is not None
        return self.read_bytes + max(0, os.fstat(self._file.fileno()).st_size - self._file.tell())

    def more(self) -> list[tuple[int, str]]:
        """The next lines that have ended; none if there are none now."""
        if self._file is None and not self._opens():
            return []
        assert self._file is not None
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            last = self.unfinished()
            self._file.seek(0)
            self._number = 0
            if last:
                return last
        data = self._file.read(BATCH_BYTES)
        self.read_bytes += len(data)
        if data:
            return self._lines(self._partial + data) or self.more()
        if self._is_replaced():
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

    def _opens(self) -> bool:
        try:
            status = self._path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise unreadable(str(self._path), "it is not a plain file", "give the file that the job writes to")
            self._file = self._path.open("rb", buffering=0)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise unreadable(str(self._path), error.strerror or str(error), "check its permissions") from error
        opened = os.fstat(self._file.fileno())
        self._identity = opened.st_dev, opened.st_ino
        self._number, self._partial = 0, b""
        return True

    def _is_replaced(self) -> bool:
        try:
            status = self._path.stat()
        except OSError:
            return False  # moved away, and no new one yet: the writer may still have the old one
        return (status.st_dev, status.st_ino) != self._identity

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
            data = b"\n".join(_whole_lines(part)) + b"\n"
            taken = [piece for block, end in blocks(_reading(data)) for piece in self._scanner.take(block, end)]
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


def _whole_lines(lines: Lines) -> Iterator[bytes]:
    """The messages that had been written over one another on one line are put together again."""
    for _, same in groupby(lines, key=lambda line: line[0]):
        yield "\r".join(text for _, text in same).encode("utf-8", "replace")


def _reading(data: bytes) -> Read:
    done = 0

    def read(size: int) -> bytes:
        nonlocal done
        part = data[done : done + size]
        done += len(part)
        return part

    return read
