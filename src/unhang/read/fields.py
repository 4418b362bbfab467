"""Typed access to the fields of a decoded object whose writer is not trusted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from unhang.model import Frame

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
