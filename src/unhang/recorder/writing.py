"""Writes small files so that a reader never sees half of one, and a full disk never reaches the training."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from typing import Any

# A rank that ran out of descriptors is one that we must be able to tell of: two are kept back for that.
_spare: list[int] = []


def reserve_descriptors() -> None:
    """Keep two descriptors for the day when there are none left."""
    while len(_spare) < 2:
        _spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE) or not _spare:
            raise
        os.close(_spare.pop())
        return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _write(path: str, flags: int, data: bytes) -> bool:
    try:
        fd = _open(path, flags)
        try:
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)
    except OSError:
        return False
    return True


def write_whole(path: str, data: bytes) -> bool:
    """Write and rename. Returns whether the file is there; a full or read-only disk is not an error of the training."""
    temporary = f"{path}.tmp"
    if not _write(temporary, os.O_WRONLY | os.O_TRUNC, data):
        return False
    try:
        os.replace(temporary, path)
    except OSError:
        return False
    return True


def write_json(path: str, value: Mapping[str, Any]) -> bool:
    """Write one JSON object as a whole file."""
    return write_whole(path, json.dumps(value, default=str).encode("utf-8", "replace"))


def append_json(path: str, value: Mapping[str, Any]) -> bool:
    """Append one line. O_APPEND and a single write keep lines of several threads apart."""
    return _write(path, os.O_WRONLY | os.O_APPEND, json.dumps(value, default=str).encode("utf-8", "replace") + b"\n")
