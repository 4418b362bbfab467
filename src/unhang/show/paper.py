"""Lines of plain or coloured text of a given width. No markup: what is written is what appears, and foreign text is harmless."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0 and C1 control characters, ESC among them
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # invisible and bidirectional format characters
    "\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def printable(text: str, keep: str = "", most: int = 4000) -> str:
    r"""The text with control and direction characters spelled out (`\x1b`), at most `most` characters of it.

    Args:
        text: Anything that a job wrote.
        keep: Characters that are wanted, such as a newline in a patch.
        most: What is longer is cut, and the cut is stated.
    """
    cut = text if len(text) <= most else f"{text[:most]} [... {len(text) - most} more characters]"
    return _UNSAFE.sub(lambda match: match[0] if match[0] in keep else _escape(match[0]), cut)


def terminal_width() -> int:
    """Columns of the terminal that is written to, 0 where there is none; what is wider than 140 is hard to read."""
    is_terminal = any(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr))
    return max(60, min(140, shutil.get_terminal_size((100, 24)).columns)) if is_terminal else 0


def text_width() -> int:
    """Columns of the terminal that stdout is, else 100."""
    return terminal_width() if sys.stdout.isatty() else 100


def room(most: int = 110) -> int:
    """Columns for prose: `most`, or what the terminal has."""
    return min(most, terminal_width() or most)


def fitted(text: str) -> str:
    """Lines, wrapped on a terminal that is too narrow for them; what follows stands under their text, not under their mark."""
    width = terminal_width() if sys.stdout.isatty() else 0
    return "\n".join(part for line in text.split("\n") for part in _fitted(line, width or len(line)))


def _fitted(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip(" -")) or 2)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def duration(seconds: float) -> str:
    """A duration as a person says it: 12 ms, 4.2 s, 31 min 5 s, 2 h 3 min."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


_MOST_VERBATIM = 60
STYLES: Mapping[str, str] = {
    "bad": "1;31",
    "good": "1;32",
    "warn": "1;33",
    "heading": "1;36",
    "strong": "1",
    "user": "1;33",
    "dim": "2",
    "add": "32",
    "drop": "31",
}


class Paper:
    """Collects lines. Every text is made printable here, so no caller can forget it."""

    def __init__(self, color: bool, width: int, is_terminal: bool = False) -> None:
        self._color = color
        self._is_terminal = is_terminal  # elsewhere a row stays a line, which can be searched
        self._width = max(40, width)
        self._lines: list[str] = []

    def line(self, *parts: str | tuple[str, str], indent: int = 0) -> None:
        """One line of parts; a part is a text, or a text with a style."""
        pairs = [(part, "") if isinstance(part, str) else part for part in parts]
        self._lines.append((" " * indent + "".join(self._styled(*pair) for pair in pairs)).rstrip())

    def folded(self, parts: Sequence[str | tuple[str, str]], hang: int) -> None:
        """A line; on a terminal that is too narrow several, all but the first `hang` columns to the right."""
        pairs = [(part, "") if isinstance(part, str) else part for part in parts]
        if not self._is_terminal:
            return self.line(*pairs)
        row: list[tuple[str, str]] = []
        used = 0
        for text, style in pairs:
            for word in re.findall(r"\s*\S+|\s+$", printable(text)):
                if used and used + len(word) > self._width and word.strip():
                    self.line(*row)
                    row, used, word = [(" " * hang, "")], hang, word.lstrip()
                if row and row[-1][1] == style:
                    row[-1] = (row[-1][0] + word, style)
                else:
                    row.append((word, style))
                used += len(word)
        return self.line(*row)

    def _styled(self, text: str, style: str) -> str:
        shown = printable(text)
        return f"\x1b[{STYLES[style]}m{shown}\x1b[0m" if self._color and style and shown else shown

    def heading(self, text: str) -> None:
        """A heading with an empty line before it."""
        self._lines.append("")
        self.line((text.upper(), "heading"))

    def prose(self, text: str, indent: int = 2, style: str = "", hang: int = 0, lead: str = "") -> None:
        """Wrapped text. `hang` indents the lines after the first; `lead` stands before the first one."""
        head = " " * indent + lead
        tail = " " * (indent + (hang or len(lead)))
        wrapped = textwrap.wrap(
            printable(text), self._width, initial_indent=head, subsequent_indent=tail, break_on_hyphens=False,
            break_long_words=False,
        )  # fmt: skip
        for number, line in enumerate(wrapped or [head]):
            start = head if number == 0 else tail
            self.line(start, (line[len(start) :], style))

    def more(self, count: int, what: str = "", indent: int = 2) -> None:
        """How many are not shown, where there are any."""
        if count > 0:
            self.line((f"... and {count} more {what}".rstrip(), "dim"), indent=indent)

    def verbatim(self, text: str, indent: int) -> None:
        """Lines as they are (a patch, a command), no more than a few dozen; plus and minus lines in colour."""
        lines = printable(text, keep="\n\t", most=20_000).rstrip("\n").split("\n")
        for line in lines[:_MOST_VERBATIM]:
            self.line((line, {"+": "add", "-": "drop"}.get(line[:1], "")), indent=indent)
        if len(lines) > _MOST_VERBATIM:
            self.line((f"... {len(lines) - _MOST_VERBATIM} more lines", "dim"), indent=indent)

    def table(self, rows: Iterable[tuple[str, ...]], indent: int = 2) -> None:
        """Columns as wide as their widest cell; the last one is free."""
        shown = [tuple(printable(cell, most=300) for cell in row) for row in rows]
        widths = [min(40, max(len(row[i]) for row in shown)) for i in range(len(shown[0]) - 1)] if shown else []
        for row in shown:
            head = " " * indent + "".join(f"{c.ljust(width)}  " for c, width in zip(row, widths, strict=False))
            room = max(30, self._width - len(head)) if self._is_terminal else sys.maxsize
            for number, part in enumerate(
                textwrap.wrap(row[-1], room, break_on_hyphens=False, break_long_words=False) or [""]
            ):
                self.line((head if number == 0 else " " * len(head)) + part)

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"


def columns(rows: Sequence[Sequence[str]], most: int = 300) -> str:
    """Rows as text, each column as wide as its widest cell, of which at most `most` characters are shown."""
    shown = [[printable(cell, most=most) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in shown)
