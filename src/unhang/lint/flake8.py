"""The plugin of flake8: the findings of one file, without the calls into others."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from unhang.lint.cards import all_cards, read_settings
from unhang.lint.checking import lint_text


class Flake8Plugin:
    """What flake8 makes for each file, and asks for its findings."""

    name = "unhang"
    version = "1"

    def __init__(self, tree: ast.AST, filename: str, lines: Sequence[str]) -> None:
        self._filename, self._text = filename, "".join(lines)

    def run(self) -> Iterator[tuple[int, int, str, type]]:
        """Line, column from 0, text and owner of each finding."""
        settings = read_settings(Path(self._filename).parent)
        for _, found in lint_text(self._filename, self._text.encode("utf-8", "replace"), settings).found:
            card = all_cards()[found.code]
            text = f"{found.code} {card.title_of(found)}; {card.todo_of(found)}"
            yield found.line, found.column - 1, text, type(self)
