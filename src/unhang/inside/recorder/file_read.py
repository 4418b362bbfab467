"""The file that a rank could not understand, and when it was written: another rank may have been at it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from types import TracebackType
from typing import Any

# What reading a file raises that holds less, or other bytes, than its reader expects.
_TYPES = {
    "JSONDecodeError", "EOFError", "UnpicklingError", "BadZipFile", "BadGzipFile", "ReadError", "UnicodeDecodeError", "SafetensorError",
    "ParserError", "EmptyDataError", "ArrowInvalid", "YAMLError", "ScannerError", "zlib.error", "LZMAError", "BadLZ4File",
}  # fmt: skip
_TEXTS = (
    "PytorchStreamReader failed",
    "unexpected EOF",
    "file is truncated",
    "invalid load key",
    "not a zip file",
    "Cannot load file",
)
_MOST_VALUES = 64
_MOST_PATH = 4096


def file_of(error: BaseException, message: str) -> dict[str, Any] | None:
    """The innermost file that the frames of such an exception know: its path, size in bytes, and when it was written; else None."""
    if type(error).__name__ not in _TYPES and not any(text in message for text in _TEXTS):
        return None
    for value in _values(error.__traceback__):
        path = value if isinstance(value, (str, os.PathLike)) else getattr(value, "name", None)
        try:
            if isinstance(path, (str, os.PathLike)) and 0 < len(os.fspath(path)) < _MOST_PATH:
                found = os.stat(path)
                if stat.S_ISREG(found.st_mode):
                    return {
                        "path": os.path.abspath(os.fspath(path)),
                        "bytes": found.st_size,
                        "written_ns": found.st_mtime_ns,
                    }
        except (OSError, ValueError, TypeError):
            continue
    return None


def _values(trace: TracebackType | None) -> Iterator[Any]:
    """The local variables of an exception's frames, those of the innermost first."""
    frames = []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in reversed(frames):
        yield from [v for v in frame.f_locals.values() if _may_name_a_file(v)][:_MOST_VALUES]


def _may_name_a_file(value: Any) -> bool:
    kind = type(value)
    return (
        kind is str
        or isinstance(value, os.PathLike)
        or kind.__module__ in ("_io", "io", "tempfile", "gzip", "zipfile", "tarfile")
    )
