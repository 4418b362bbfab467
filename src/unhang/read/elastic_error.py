"""The error file that torch's `@record` writes for a failed rank (TORCHELASTIC_ERROR_FILE)."""

from __future__ import annotations

from pathlib import Path

from unhang.model import RaisedError, Source
from unhang.read.fields import text, whole
from unhang.read.files import read_object, unreadable
from unhang.read.traceback_text import last_traceback


def read_elastic_error(path: Path) -> RaisedError:
    """The exception of one rank.

    Raises:
        UnreadableInput: it is no error file of torch.
    """
    message = read_object(path).get("message")
    source = Source("torchelastic error file", str(path))
    if isinstance(message, str):
        return _error(message, "", 0, source)
    if not isinstance(message, dict):
        raise unreadable(str(path), "no 'message' in torch's error file", "leave it out")
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    time_ns = (whole(extra, "timestamp") or 0) * 1_000_000_000
    return _error(text(message, "message"), text(extra, "py_callstack"), time_ns, source)


def _error(message: str, callstack: str, time_ns: int, source: Source) -> RaisedError:
    found = last_traceback(callstack.splitlines())
    if found is not None:
        return RaisedError(found.type, found.text, time_ns, tuple(reversed(found.frames)), source=source)
    kind, colon, rest = message.partition(": ")
    known = bool(colon) and kind.replace(".", "").replace("_", "").isalnum()
    return RaisedError(kind if known else "Error", rest if known else message, time_ns, (), source=source)
