"""Python tracebacks in text, line by line, so that those of several ranks may be interleaved."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from unhang.model import Frame

START = "Traceback (most recent call last):"
CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
MAX_MESSAGE_LINES = 20
_FRAME = re.compile(r'\s*File "(.+)", line (\d+)(?:, in (.*))?$')
_ERROR = re.compile(r"([A-Za-z_][\w.]*)(?:: ?(.*))?$")


@dataclass
class Traceback:
    """One exception. `frames` are outermost first, as in the text. `owner`: the rank that raised it, where known."""

    type: str = ""
    message: list[str] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    first_line: int = 0
    owner: int | None = None

    @property
    def text(self) -> str:
        """The message."""
        return "\n".join(self.message).strip()


class TracebackReader:
    """Takes the lines of one stream, without prefix. `found` holds, of each chain of exceptions, the last."""

    def __init__(self, many_lines: bool = True, owner: int | None = None) -> None:
        """`many_lines`: the lines after the exception belong to its message (no other writer shares the stream)."""
        self.owner = owner
        self.found: list[Traceback] = []
        self._open: Traceback | None = None
        self._chained = False
        self._ignored = False
        self._many_lines = many_lines

    def take(self, line: str, number: int = 0) -> bool:
        """Takes one line; returns whether it belongs to a traceback."""
        bare = line.strip()
        if bare == START:
            self._open = None if self._ignored else Traceback(first_line=number, owner=self.owner)
            return True
        if bare in CHAINED:
            self._open, self._chained = None, bool(self.found)
            return True
        self._ignored = bare.startswith("Exception ignored in")
        if self._open is None:
            return False
        return self._message(line) if self._open.type else self._inside(line)

    def _inside(self, line: str) -> bool:
        current = self._open
        assert current is not None
        if frame := _FRAME.match(line):
            current.frames.append(Frame(frame[1], int(frame[2][:9]), (frame[3] or "<module>").strip()))
            return True
        if not line.strip() or line[0].isspace():
            return True
        error = _ERROR.match(line)
        if error is None:
            self._open = None
            return False
        current.type, current.message = error[1], [error[2] or ""]
        if self._chained:
            self.found.pop()
        self._chained = False
        self.found.append(current)
        return True

    def _message(self, line: str) -> bool:
        current = self._open
        assert current is not None
        if not self._many_lines or not line.strip() or len(current.message) >= MAX_MESSAGE_LINES:
            self._open = None
            return False
        current.message.append(line)
        return True


def last_traceback(lines: Iterable[str]) -> Traceback | None:
    """The last exception of a text that holds nothing but one chain of tracebacks."""
    reader = TracebackReader()
    for line in lines:
        reader.take(line)
    return reader.found[-1] if reader.found else None
