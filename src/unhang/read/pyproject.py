"""`[tool.unhang]` of a user's pyproject.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unhang.errors import WrongUsage


def nearest_table(
    start: Path, is_wanted: Callable[[Mapping[str, Any]], bool] = bool
) -> tuple[Path | None, Mapping[str, Any]]:
    """The nearest pyproject.toml with a wanted table of ours, from a file or folder upwards, and that table.

    Raises:
        WrongUsage: a file that speaks of unhang is no TOML.
    """
    folder = start.absolute()
    for one in (folder, *folder.parents):
        path = one / "pyproject.toml"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if "unhang" not in text:
            continue
        try:
            table = tomllib.loads(text).get("tool", {}).get("unhang", {})
        except (tomllib.TOMLDecodeError, AttributeError) as error:
            raise WrongUsage(f"{path}: {error}") from error
        if isinstance(table, dict) and is_wanted(table):
            return path, table
    return None, {}
