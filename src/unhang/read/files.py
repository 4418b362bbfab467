"""Reads a file whole, within limits, and the fields of what it decodes to, whose writer is not trusted. Only regular files: a pipe could block."""

from __future__ import annotations

import json
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from unhang.errors import UnreadableInput, WrongUsage
from unhang.model import Frame

MAX_BYTES = 256 << 20


def unreadable(name: str, reason: str, advice: str = UnreadableInput.help_text) -> UnreadableInput:
    """One line: which file, what is wrong with it, what to do."""
    line = f"{name}: {' '.join(reason.split())}"
    return UnreadableInput(f"{line[:400]}; {advice}")


def regular_size(path: Path) -> int:
    """Size of a regular file in bytes.

    Raises:
        UnreadableInput: it is missing, or not a plain file.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise unreadable(str(path), getattr(error, "strerror", None) or str(error), "check the path") from error
    if stat.S_ISDIR(status.st_mode):
        raise unreadable(str(path), "it is a folder", "give the files in it")
    if not stat.S_ISREG(status.st_mode):
        raise unreadable(str(path), "it is not a plain file", "leave it out")
    return status.st_size


def read_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The whole file.

    Raises:
        UnreadableInput: it is missing, not a plain file, empty or larger than `max_bytes`.
    """
    size = regular_size(path)
    if size > max_bytes:
        raise unreadable(str(path), f"it is larger than {max_bytes >> 20} MiB", "leave it out")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(str(path), error.strerror or str(error), "check its permissions") from error
    if not data:
        raise unreadable(str(path), "it is empty")
    return data


def decode_json(data: bytes, name: str) -> object:
    """JSON text as plain objects.

    Raises:
        UnreadableInput: it is not JSON, or cut.
    """
    import msgspec  # costs more than reading a log that needs none of it

    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        pass
    try:  # Slower, but takes large numbers, NaN and broken UTF-8.
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise unreadable(name, f"not valid JSON ({error})") from error


def read_json(path: Path) -> object:
    """One JSON value from a file.

    Raises:
        UnreadableInput: see `read_bytes` and `decode_json`.
    """
    return decode_json(read_bytes(path), str(path))


def read_object(path: Path) -> dict[str, object]:
    """One JSON object from a file.

    Raises:
        UnreadableInput: it is unreadable, or something else than an object.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise unreadable(str(path), "a JSON object is expected")
    return value


def read_list(path: Path, what: str) -> list[object]:
    """One JSON list from a file. `what`: the list that is meant, in words.

    Raises:
        UnreadableInput: it is unreadable, or something else than a list.
    """
    value = read_json(path)
    if not isinstance(value, list):
        raise unreadable(str(path), f"{what} is expected", "leave the file out")
    return value


def read_object_lines(path: Path) -> list[dict[str, object]]:
    """One JSON object per line; a line that is cut or no object is left out.

    Raises:
        UnreadableInput: the file cannot be read at all.
    """
    if regular_size(path) == 0:
        return []
    found = []
    for line in read_bytes(path).splitlines():
        try:
            value = decode_json(line, str(path))
        except UnreadableInput:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


# `[tool.unhang]` of a user's pyproject.toml.


def nearest_table(
    start: Path, is_wanted: Callable[[Mapping[str, Any]], bool] = bool
) -> tuple[Path | None, Mapping[str, Any]]:
    """The nearest pyproject.toml with a wanted table of ours, from a file or folder upwards, and that table.

    Raises:
        WrongUsage: a file that speaks of unhang is no TOML.
    """
    folder = start.absolute()
    for one in (folder, *folder.parents):
        path = one / "pyproject.toml"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if "unhang" not in text:
            continue
        try:
            table = tomllib.loads(text).get("tool", {}).get("unhang", {})
        except (tomllib.TOMLDecodeError, AttributeError) as error:
            raise WrongUsage(f"{path}: {error}") from error
        if isinstance(table, dict) and is_wanted(table):
            return path, table
    return None, {}


INT64_MAX = (1 << 63) - 1
RECORDER = ("/unhang/inside/recorder/", "/unhang/recorder/")  # the second one in older runs
_WRAPS_WAITS = ("/calls.py", "/waiting.py")  # the second one in older runs
WAIT_IN_TORCH = "site-packages/torch/distributed/c10d.so"


def encodable(value: str) -> str:
    """The string without lone surrogates, which both formats can carry and no terminal or file can take."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def text(fields: Mapping[Any, Any], key: str, default: str = "") -> str:
    """The string under `key`; `default` where it is missing or something else."""
    value = fields.get(key)
    return encodable(value) if isinstance(value, str) else default


def whole(fields: Mapping[Any, Any], key: str) -> int | None:
    """The integer under `key`, also where it is written as a string; None where it is missing or too large."""
    value = fields.get(key)
    if isinstance(value, str) and len(value) < 20:
        try:
            value = int(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > INT64_MAX:
        return None
    return value


def real(fields: Mapping[Any, Any], key: str) -> float | None:
    """The number under `key`; None where it is missing."""
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > INT64_MAX:
        return None
    return float(value)


def texts(fields: Mapping[Any, Any], key: str) -> tuple[str, ...]:
    """The strings of the list under `key`."""
    value = fields.get(key)
    return tuple(encodable(v) for v in value if isinstance(v, str)) if isinstance(value, list) else ()


def wholes(value: object) -> tuple[int, ...]:
    """The non-negative integers of a list; empty if any member is something else."""
    if not isinstance(value, (list, tuple)):
        return ()
    good = all(type(v) is int and 0 <= v < 1 << 31 for v in value)
    return tuple(value) if good else ()


def frame_triple(value: object) -> Frame | None:
    """`[file, line, function]` as a frame."""
    if not isinstance(value, list) or len(value) != 3:
        return None
    file, line, function = value
    if not isinstance(file, str) or not isinstance(function, str):
        return None
    good_line = line if type(line) is int and 0 <= line <= INT64_MAX else 0
    return Frame(encodable(file), good_line, encodable(function))


def frame_triples(fields: Mapping[Any, Any]) -> tuple[Frame, ...]:
    """The list of `[file, line, function]` under "frames"."""
    value = fields.get("frames")
    return without_recorder(f for f in map(frame_triple, value) if f) if isinstance(value, list) else ()


def without_recorder(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """The frames without the recorder's own; where it wraps a wait, the wait stays, under torch's name."""
    kept = []
    for frame in frames:
        is_wait = frame.file.endswith(_WRAPS_WAITS) and frame.function in ("wait", "get", "store_wait")
        if not any(mark in frame.file for mark in RECORDER):
            kept.append(frame)
        elif is_wait:
            kept.append(Frame(WAIT_IN_TORCH, 0, "store_wait" if frame.function == "get" else frame.function))
    return tuple(kept)
