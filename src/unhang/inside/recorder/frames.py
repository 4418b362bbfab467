"""The user's own frames: those that are not torch's, a library's, the standard library's, or ours; the variables in them, and the file that they could not read."""

from __future__ import annotations

import json
import math
import os
import stat
import sys
import threading
from collections.abc import Iterator
from traceback import walk_tb
from types import CodeType, FrameType, GeneratorType, TracebackType
from typing import Any

from .recording import Recording, write_whole

Place = tuple[str, int, str]
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STDLIB = tuple(
    {os.path.dirname(os.path.abspath(os.__file__)) + os.sep, os.path.dirname(os.path.realpath(os.__file__)) + os.sep}
)
_LIBRARIES = ("/site-packages/", "/dist-packages/")
_TEXT_BYTES = 192
_MOST_DETAIL = 72
_MOST_CACHED = 4096
_MOST_FRAMES = 6
_SAME_FOLDER = "\x1e"
# A frame costs about 60 ns; nobody looks for the caller of a send below a hundred frames of libraries.
_DEEPEST = 100
_is_user_file: dict[str, bool] = {}
# Both keep the code objects alive whose ids are in their keys, so that an id never comes to mean another one.
_codes: dict[int, tuple[CodeType, bool]] = {}
_texts: dict[tuple[str | int, ...], tuple[bytes, list[CodeType]]] = {}
_MOST_VARIABLE_FRAMES = 24
_MOST_NAMES = 64
_LARGEST = 10**18
_WITH_ROOT = ("broadcast", "reduce", "gather", "scatter")


def is_user(file: str) -> bool:
    """Whether code of this file is the user's."""
    known = _is_user_file.get(file)
    if known is None:
        foreign = file.startswith(("<", _OWN, *_STDLIB)) or any(mark in file for mark in _LIBRARIES)
        known = _is_user_file[file] = not foreign and ("/" in file or file.endswith(".py"))
    return known


def user_places(limit: int = _MOST_FRAMES) -> tuple[Place, ...]:
    """The user's frames of the calling thread, innermost first."""
    found: list[Place] = []
    at: FrameType | None = sys._getframe(1)
    known, depth = _is_user_file, _DEEPEST
    while at is not None and depth:
        code = at.f_code
        file = code.co_filename
        if known[file] if file in known else is_user(file):
            found.append((file, at.f_lineno, code.co_name))
            if len(found) == limit:
                break
        at = at.f_back
        depth -= 1
    return tuple(found)


def chain(frame: FrameType | None, most: int) -> Iterator[FrameType]:
    """A frame and those that called it, innermost first."""
    while frame is not None and most:
        yield frame
        frame, most = frame.f_back, most - 1


def caller_of_torch() -> Place | None:
    """Who called torch, the user or a library: the innermost frame that is neither torch's nor ours nor an import's."""
    for at in chain(sys._getframe(1), _DEEPEST):
        file = at.f_code.co_filename
        if not file.startswith(("<", _OWN)) and "/torch/" not in file:
            return file, at.f_lineno, at.f_code.co_name
    return None


def record_text(group: str, detail: str) -> bytes:
    """The text of a ring record for a call that the user makes now: `encode` with a memory of where calls come from.

    Called for each send and receive. The place in the code (`f_lasti`) is free, a line number costs 300 ns.
    """
    at: FrameType | None = sys._getframe(1)
    key: list[str | int] = [group, detail]
    frames: list[FrameType] = []
    codes, depth = _codes, _DEEPEST
    while at is not None and depth:
        code = at.f_code
        known = codes.get(id(code)) or _learn(code)
        if known[1]:
            key += (id(code), at.f_lasti)
            frames.append(at)
            if len(frames) == _MOST_FRAMES:
                break
        at = at.f_back
        depth -= 1
    text = _texts.get(tuple(key))
    if text is None:
        if len(_texts) >= _MOST_CACHED:
            _texts.clear()
        places = tuple((f.f_code.co_filename, f.f_lineno, f.f_code.co_name) for f in frames)
        text = _texts[tuple(key)] = (encode(group, detail, places), [f.f_code for f in frames])
    return text[0]


def _learn(code: CodeType) -> tuple[CodeType, bool]:
    if len(_codes) >= _MOST_CACHED:
        _codes.clear()
    known = _codes[id(code)] = (code, is_user(code.co_filename))
    return known


def traceback_places(trace: TracebackType | None) -> list[list[object]]:
    """The frames of a traceback, innermost first; at most 64."""
    found: list[list[object]] = [
        [frame.f_code.co_filename, line, frame.f_code.co_name] for frame, line in walk_tb(trace)
    ]
    return found[::-1][:64]


def encode(group: str, detail: str, places: tuple[Place, ...]) -> bytes:
    """The text of a ring record, at most 192 bytes. Whole frames only: half a line number would be a wrong one.

    A frame in the file of the one before has no name of a file; in its folder, only the file's own name, behind a mark.
    """
    head = f"{group[:48]}\x1f{_shorten(detail, _MOST_DETAIL)}\x1f".encode("utf-8", "replace")
    room = _TEXT_BYTES - len(head)
    frames: list[bytes] = []
    before = ""
    for file, line, function in places:
        folder, slash, name = file.rpartition("/")
        shared = slash and before.rpartition("/")[0] == folder
        short = "" if file == before else f"{_SAME_FOLDER}{name}" if shared else file
        frame = f"{short}:{line}:{function}".encode("utf-8", "replace")
        before = file
        if not frames and len(frame) > room:
            # The end of a path says more than its beginning.
            frame = frame[-room:].decode("utf-8", "ignore").encode()
        if len(frame) > room:
            break
        frames.append(frame)
        room -= len(frame) + 1
    return (head + b"|".join(frames))[:_TEXT_BYTES]


def _shorten(text: str, size_bytes: int) -> str:
    return (
        text.encode("utf-8", "replace")[:size_bytes].decode("utf-8", "ignore").replace("\x1f", " ").replace("\0", " ")
    )


def describe_variable(value: Any) -> str | None:
    """A number, boolean or None as text; an iterator's state; None for anything else, which may be secret or large."""
    kind = type(value)
    if value is None or kind is bool:
        return str(value)
    if kind is int:
        return str(value) if -_LARGEST < value < _LARGEST else None
    if kind is float:
        return f"{value:.10g}" if math.isfinite(value) else str(value)
    if kind is GeneratorType:
        return "exhausted generator" if value.gi_frame is None else "generator"
    yielded = getattr(value, "_num_yielded", None) if "DataLoaderIter" in kind.__name__ else None
    return f"loader iterator after {yielded} batches" if isinstance(yielded, int) else None


def _of_frame(frame: FrameType) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in list(frame.f_locals.items())[:_MOST_NAMES]:
        text = describe_variable(value)
        if text is not None and not name.startswith("__"):
            found[name] = text
    return found


def write_variables(recording: Recording) -> None:
    """Write variables.json: `[[file, line, function, {name: text}], ...]`, innermost first, functions only."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    found: list[Any] = []
    while frame is not None and len(found) < _MOST_VARIABLE_FRAMES:
        code = frame.f_code
        has_root = code.co_name in _WITH_ROOT and "torch/distributed/" in code.co_filename
        if code.co_name != "<module>" and (has_root or is_user(code.co_filename)):
            found.append([code.co_filename, frame.f_lineno, code.co_name, _of_frame(frame)])
        frame = frame.f_back
    write_whole(recording.path("variables.json"), json.dumps(found).encode())


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
                    path = os.path.abspath(os.fspath(path))
                    return {"path": path, "bytes": found.st_size, "written_ns": found.st_mtime_ns}
        except (OSError, ValueError, TypeError):
            continue
    return None


def _values(trace: TracebackType | None) -> Iterator[Any]:
    """The local variables of an exception's frames, those of the innermost first."""
    for frame, _ in reversed(list(walk_tb(trace))):
        yield from [v for v in frame.f_locals.values() if _may_name_a_file(v)][:_MOST_VALUES]


def _may_name_a_file(value: Any) -> bool:
    kind = type(value)
    return (
        kind is str
        or isinstance(value, os.PathLike)
        or kind.__module__ in ("_io", "io", "tempfile", "gzip", "zipfile", "tarfile")
    )
