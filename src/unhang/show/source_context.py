"""Lines of the user's program around a place, as the file is now on this machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

_MOST_BYTES = 1_000_000
_KINDS = (".py", ".pyx", ".pyi")


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line with its number; `is_it` marks the line that was asked for."""

    number: int
    text: str
    is_it: bool


def _read(path: str) -> Sequence[str]:
    """The lines of a small regular Python file.

    Paths come from dumps that others made: nothing but Python source is ever copied into a report, and never from
    a device or a kernel file system.
    """
    real = os.path.realpath(path)
    if not path.endswith(_KINDS) or not real.endswith(_KINDS) or not os.path.isabs(path):
        return ()
    if real.startswith(("/proc/", "/sys/", "/dev/")):
        return ()
    try:
        status = os.stat(real)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
            return ()
        with open(real, "rb") as file:
            data = file.read(_MOST_BYTES)
    except (OSError, ValueError):
        return ()
    return () if b"\0" in data else data.decode("utf-8", "replace").splitlines()


def source_around(path: str, line: int, around: int = 4) -> tuple[SourceLine, ...]:
    """The line with its neighbours, or nothing where the file is not readable here.

    Blocks: for the time of one read of at most 1 MB.
    """
    lines = _read(path) if line > 0 and "\0" not in path else ()
    if not 0 < line <= len(lines):
        return ()
    first, last = max(1, line - around), min(len(lines), line + around)
    return tuple(SourceLine(n, lines[n - 1][:300], n == line) for n in range(first, last + 1))
