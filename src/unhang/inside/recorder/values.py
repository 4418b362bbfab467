"""What the variables in the user's frames hold, as far as it can be compared between ranks: numbers, sizes, shapes; of texts only whether they are the same."""

from __future__ import annotations

import json
import math
import sys
import threading
import zlib
from collections import OrderedDict, deque
from collections.abc import Iterator
from types import FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any

from .frames import is_user
from .recording import Recording, write_whole

_MOST_FRAMES = 24
_MOST_NAMES = 64
_MOST_ITEMS = 256
_LONGEST_TEXT = 4096
_LARGEST = 10**18
_WITH_ROOT = ("broadcast", "reduce", "gather", "scatter")
_SIZED = (list, tuple, dict, set, frozenset, deque, OrderedDict, bytes, bytearray, range)
_WITH_SHAPE = {("torch", "Tensor"), ("torch", "Parameter"), ("numpy", "ndarray")}
_PLAIN = (int, bool, str, type(None))
_NO_OWNERS = (ModuleType, FunctionType, type)
# What a loader is asked for, whatever its user's function asks of it.
_OF_LOADERS = frozenset(("dataset", "sampler", "num_samples", "indices"))
_MOST_PARTS = 8


def describe_variable(value: Any) -> str | None:
    """A number, boolean or None as text; an iterator's state; of a text, which may be secret, a mark that equal ones share; None for anything else."""
    kind = type(value)
    if value is None or kind is bool:
        return str(value)
    if kind is int:
        return str(value) if -_LARGEST < value < _LARGEST else None
    if kind is float:
        return f"{value:.10g}" if math.isfinite(value) else str(value)
    if kind is str:
        return f"a text (#{_mark(value)})" if len(value) <= _LONGEST_TEXT else None
    if kind is GeneratorType:
        return "exhausted generator" if value.gi_frame is None else "generator"
    yielded = getattr(value, "_num_yielded", None) if "DataLoaderIter" in kind.__name__ else None
    return f"loader iterator after {yielded} batches" if isinstance(yielded, int) else None


def _mark(value: object) -> str:
    """Sixteen bits of it: enough to tell two ranks apart, too few to tell what it is."""
    return f"{zlib.crc32(repr(value).encode('utf-8', 'replace')) & 0xFFFF:04x}"


def _described(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """(expression, text) of what is known of a value: of itself, of its length, of its items, of its shape."""
    text = describe_variable(value)
    if text is not None:
        yield name, text
    elif type(value) in _SIZED:
        yield f"len({name})", str(len(value))
        if type(value) in (list, tuple) and 0 < len(value) <= _MOST_ITEMS and all(type(x) in _PLAIN for x in value):
            yield f"items of {name}", f"#{_mark(tuple(value))}"
    elif _has_shape(value):
        yield f"{name}.shape", str(list(value.shape))


def _has_shape(value: Any) -> bool:
    kind = type(value)
    return (kind.__module__.partition(".")[0], kind.__name__) in _WITH_SHAPE


def _owned(value: Any, used: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """The attributes of an object that the function uses, and in which it keeps items; without asking code of the user."""
    if issubclass(type(value), _NO_OWNERS):
        return
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return
    if type(own) is not dict:
        return
    yield from [(name, own[name]) for name in used | _OF_LOADERS if name in own]
    if hasattr(type(value), "__getitem__") or hasattr(type(value), "__iter__"):  # what a data set has its items in
        sized = [(n, v) for n, v in own.items() if n not in used and (type(v) in _SIZED or _has_shape(v))]
        yield from sized[:_MOST_PARTS]


def values_of(frame: FrameType) -> dict[str, str]:
    """What the variables of a frame hold, and the attributes of two levels (`self.config.steps`) that its function uses: by the expression."""
    found: dict[str, str] = {}
    used = frozenset(frame.f_code.co_names)
    own = frame.f_locals if frame.f_code.co_name != "<module>" else _of_module(frame, used)
    level = [(name, value) for name, value in list(own.items()) if not name.startswith("__")]
    for depth in range(3):
        level = level[: _MOST_NAMES * 4]
        for name, value in level:
            for text, described in _described(name, value):
                if len(found) < _MOST_NAMES * (depth + 1):
                    found[text] = described
        level = [
            (f"{name}.{attr}", inner) for name, value in level for attr, inner in sorted(_owned(value, used), key=_name)
        ]
    return found


def _name(item: tuple[str, Any]) -> str:
    return item[0]


def _of_module(frame: FrameType, used: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in list(frame.f_locals.items()) if name in used}


def write_variables(rec: Recording) -> None:
    """Write variables.json: `[[file, line, function, {expression: text}], ...]` of the main thread, innermost first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    found: list[Any] = []
    while frame is not None and len(found) < _MOST_FRAMES:
        code = frame.f_code
        has_root = code.co_name in _WITH_ROOT and "torch/distributed/" in code.co_filename
        if has_root or is_user(code.co_filename):
            found.append([code.co_filename, frame.f_lineno, code.co_name, values_of(frame)])
        frame = frame.f_back
    write_whole(rec.path("variables.json"), json.dumps(found).encode())
