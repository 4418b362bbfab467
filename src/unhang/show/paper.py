"""Lines of plain or coloured text of a given width. No markup: what is written is what appears."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping

from unhang.show.printable import printable

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

    def __init__(self, color: bool, width: int) -> None:
        self._color = color
        self._width = max(40, width)
        self._lines: list[str] = []

    def line(self, *parts: str | tuple[str, str], indent: int = 0) -> None:
        """One line of parts; a part is a text, or a text with a style."""
        pairs = [(part, "") if isinstance(part, str) else part for part in parts]
        self._lines.append((" " * indent + "".join(self._styled(*pair) for pair in pairs)).rstrip())

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

    def verbatim(self, text: str, indent: int = 4, most: int = 60) -> None:
        """Lines as they are (a patch, a command); plus and minus lines in colour."""
        lines = printable(text, keep="\n\t", most=20_000).rstrip("\n").split("\n")
        for line in lines[:most]:
            self.line((line, {"+": "add", "-": "drop"}.get(line[:1], "")), indent=indent)
        if len(lines) > most:
            self.line((f"... {len(lines) - most} more lines", "dim"), indent=indent)

    def table(self, rows: Iterable[tuple[str, ...]], indent: int = 2) -> None:
        """Columns as wide as their widest cell; the last one is free."""
        shown = [tuple(printable(cell, most=300) for cell in row) for row in rows]
        widths = [min(40, max(len(row[i]) for row in shown)) for i in range(len(shown[0]) - 1)] if shown else []
        for row in shown:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            self.line("  ".join([*cells, row[-1]]), indent=indent)

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"
