"""variables.json: numbers and iterator states of the main thread's user frames, written by the recorder."""

from __future__ import annotations

from pathlib import Path

from unhang.model import Frame
from unhang.read.fields import encodable, frame_triple
from unhang.read.files import read_json, unreadable

_MOST = 2048
_LONGEST = 80


def read_variables(path: Path) -> tuple[tuple[Frame, str, str], ...]:
    """(frame, name, value) of every variable.

    Raises:
        UnreadableInput: it is no such list.
    """
    entries = read_json(path)
    if not isinstance(entries, list):
        raise unreadable(str(path), "a list of frames with their variables is expected", "leave the file out")
    found = []
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 4 or not isinstance(entry[3], dict):
            continue
        frame = frame_triple(entry[:3])
        for name, value in entry[3].items() if frame else ():
            if frame and isinstance(name, str) and isinstance(value, str):
                found.append((frame, encodable(name)[:_LONGEST], encodable(value)[:_LONGEST]))
    return tuple(found[:_MOST])
