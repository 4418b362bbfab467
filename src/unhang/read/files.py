"""Reads a file whole, within limits. Only regular files: opening a pipe could wait for ever."""

from __future__ import annotations

import json
import stat
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unhang.errors import UnreadableInput, WrongUsage

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
