"""Local variables of the main thread's user frames, when the agent asks: numbers, and how far iterators have come.

A generator that has ended, or a loader that has given its last batch, is the proof that a rank ran out of data. Of
torch's own frames those of the collectives with a root are kept: no flight recorder tells which root a rank named.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from types import CodeType, FrameType, GeneratorType
from typing import Any

from .frames import is_user
from .recording import Recording
from .writing import write_whole

_MOST_FRAMES = 24
_MOST_NAMES = 64
_LARGEST = 10**18
_WITH_ROOT = ("broadcast", "reduce", "gather", "scatter")


def describe(value: Any) -> str | None:
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
        text = describe(value)
        if text is not None and not name.startswith("__"):
            found[name] = text
    return found


def _has_root(code: CodeType) -> bool:
    return code.co_name in _WITH_ROOT and "torch/distributed/" in code.co_filename


def write(recording: Recording) -> None:
    """Write variables.json: `[[file, line, function, {name: text}], ...]`, innermost first, functions only."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    found: list[Any] = []
    while frame is not None and len(found) < _MOST_FRAMES:
        code = frame.f_code
        if code.co_name != "<module>" and (is_user(code.co_filename) or _has_root(code)):
            found.append([code.co_filename, frame.f_lineno, code.co_name, _of_frame(frame)])
        frame = frame.f_back
    write_whole(recording.path("variables.json"), json.dumps(found).encode())
