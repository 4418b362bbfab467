"""Python tracebacks in text, line by line, so that those of several ranks may be interleaved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from unhang.model import Frame
from unhang.model.lazy_pattern import lazy_pattern

START = "Traceback (most recent call last):"
CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
# Of an interpreter that goes, and of a logger that could not write: nothing ends by it.
SWALLOWED = ("Exception ignored in", "Error in atexit._run_exitfuncs:", "--- Logging error ---")
MAX_MESSAGE_LINES = 20
MAX_CHAINED = 8
_FRAME = lazy_pattern(r'\s*File "(.+)", line (\d+)(?:, in (.*))?$')
_FRAME_ALONE = lazy_pattern(r' {0,4}File "(.+\.py)", line (\d+), in (\S.*)$')
_ERROR = lazy_pattern(r"([A-Za-z_][\w.]*)(?:: ?(.*))?$")
# Where the head of the traceback is missing, only what is certainly an exception ends it.
_CERTAIN_ERROR = lazy_pattern(
    r"((?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout|Empty|Expired))(?:: ?(.*))?$"
)
_NO_ERROR = frozenset({"INFO", "WARNING", "ERROR", "DEBUG", "WARN", "CRITICAL", "NOTE", "FATAL", "TRACE"})
# Tracebacks drawn as a box: its corner, its frames (the path may be cut), its floor.
_BOX_START = lazy_pattern(r"^[╭┌+][─━-]+ ?Traceback \(most recent call last\)")
_BOX_FRAME = lazy_pattern(r"^[│|] (\S+\.py):(\d+) in (\S+)")
_BOX_LINE = lazy_pattern(r"^[│|╰└+]")


@dataclass
class Traceback:
    """One exception. `frames` are outermost first, as in the text. `owner`: the rank that raised it, where known.

    `before`: those that it followed in a chain, the first ones. `has_head`: the text began with the line that every traceback begins with. `is_ignored`: Python printed it for an
    exception that it could not raise.
    """

    type: str = ""
    message: list[str] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    first_line: int = 0
    owner: int | None = None
    before: list[Traceback] = field(default_factory=list)
    has_head: bool = True
    is_ignored: bool = False
    in_box: bool = False

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
        in_box = _BOX_START.match(bare) is not None
        if bare == START or in_box:
            self._open = Traceback(first_line=number, owner=self.owner, is_ignored=self._ignored, in_box=in_box)
            return True
        if bare in CHAINED:
            self._open, self._chained = None, bool(self.found)
            return True
        self._ignored = bare.startswith(SWALLOWED)
        if self._open is not None:
            return self._message(line) if self._open.type else self._inside(line)
        if _FRAME_ALONE.match(line):
            self._open = Traceback(first_line=number, owner=self.owner, has_head=False)
            return self._inside(line)
        return False

    def _inside(self, line: str) -> bool:
        current = self._open
        assert current is not None
        frame = _BOX_FRAME.match(line) if current.in_box else _FRAME.match(line)
        if frame is not None:
            current.frames.append(Frame(frame[1], int(frame[2][:9]), (frame[3] or "<module>").strip()))
            return True
        if not line.strip() or line[0].isspace() or (current.in_box and _BOX_LINE.match(line)):
            return True
        error = (_ERROR if current.has_head else _CERTAIN_ERROR).match(line)
        if error is None or error[1] in _NO_ERROR:
            self._open = None
            return False
        self._close(current, error[1], error[2] or "")
        return True

    def _close(self, current: Traceback, kind: str, message: str) -> None:
        current.type, current.message = kind, [message]
        if current.is_ignored:
            return
        if self._chained:
            last = self.found.pop()
            current.before = [*last.before, last][:MAX_CHAINED]
        self._chained = False
        self.found.append(current)

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
