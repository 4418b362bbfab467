"""What is asked for: `[tool.unhang.lint]` in pyproject.toml, and what the command line adds."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from unhang.errors import WrongUsage
from unhang.lint.cards import chosen
from unhang.read.files import nearest_table

_KEYS = {"select", "extend-select", "ignore", "per-file-ignores", "exclude", "depth"}
DEPTH = 3  # of those that are further away one in six was right, in code that the rules had not seen


@dataclass(frozen=True)
class LintSettings:
    """`on`: the codes that are on; `per_file`: pattern -> codes that are off there; `root`: where patterns begin.

    `depth`: how many calls may lead to the collective where conditions stand on the way: which of them hold grows doubtful with each call. Other doubts count as calls.
    """

    on: frozenset[str] = field(default_factory=lambda: chosen((), (), ()))
    per_file: tuple[tuple[str, frozenset[str]], ...] = ()
    exclude: tuple[str, ...] = ()
    root: str = ""
    depth: int = DEPTH

    def wants(self, path: str, code: str) -> bool:
        """Whether a finding of this code in this file is to be shown."""
        return code in self.on and not any(
            code in codes and self._fits(path, pattern) for pattern, codes in self.per_file
        )

    def excludes(self, path: str) -> bool:
        """Whether a file or folder is left out."""
        return any(self._fits(path, pattern) for pattern in self.exclude)

    def _fits(self, path: str, pattern: str) -> bool:
        relative = os.path.relpath(os.path.abspath(path), self.root or os.getcwd())
        plain = pattern.rstrip("/")
        return (
            fnmatch(relative, plain)
            or fnmatch(os.path.basename(path), plain)
            or f"/{relative}/".startswith(f"/{plain}/")
        )


def read_settings(
    start: Path, select: tuple[str, ...] = (), extend: tuple[str, ...] = (), ignore: tuple[str, ...] = (),
    depth: int | None = None,
) -> LintSettings:  # fmt: skip
    """The settings for files below `start`. `select` of the command line takes the place of the file's select and ignore; the others add.

    Raises:
        WrongUsage: a key or a code is unknown, or the file is no TOML.
    """
    path, tables = nearest_table(start, lambda tables: isinstance(tables.get("lint"), dict))
    table = tables.get("lint", {})
    unknown = table.keys() - _KEYS
    if unknown:
        raise WrongUsage(f"{path}: [tool.unhang.lint] has no key {sorted(unknown)[0]!r}")
    on = chosen(
        select or _texts(path, table, "select"),
        (*_texts(path, table, "extend-select"), *extend),
        ignore if select else (*_texts(path, table, "ignore"), *ignore),
    )
    per_file = table.get("per-file-ignores", {})
    if not isinstance(per_file, dict):
        raise WrongUsage(f"{path}: per-file-ignores of [tool.unhang.lint] must be a table")
    ignored = tuple((p, chosen(_texts(path, per_file, p), (), ())) for p in per_file)
    far = table.get("depth", DEPTH) if depth is None else depth
    if not isinstance(far, int) or far < 1:
        raise WrongUsage(f"{path}: 'depth' of [tool.unhang.lint] must be a number of calls")
    return LintSettings(on, ignored, _texts(path, table, "exclude"), str(path.parent) if path else "", far)


def _texts(path: Path | None, table: dict[str, Any], key: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise WrongUsage(f"{path}: {key!r} of [tool.unhang.lint] must be a list of strings")
    return tuple(value)
