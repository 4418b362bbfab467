"""The rules of `unhang lint`, and which are asked for: one card a rule in `cards/*.toml`, and `[tool.unhang.lint]` in pyproject.toml with what the command line adds."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from unhang.errors import WrongUsage
from unhang.lint.ir import Found
from unhang.read.files import nearest_table

HEADINGS = {"detects": "What it detects", "hangs": "Why it hangs", "fix": "How to fix"}
_KEYS = {"select", "extend-select", "ignore", "per-file-ignores", "exclude", "depth"}
DEPTH = 3  # of those that are further away one in six was right, in code that the rules had not seen


@dataclass(frozen=True)
class LintCard:
    """The words of one rule. `is_default`: it speaks unless it is ignored. `title`: variant -> text with {words}; `todo`: such a text."""

    code: str
    name: str
    cause: str
    what: str
    sections: Mapping[str, str]
    silent: tuple[str, ...]
    title: Mapping[str, str]
    todo: str
    is_default: bool

    def title_of(self, found: Found) -> str:
        """What is wrong, in one line."""
        return _filled(self.title.get(found.variant, self.title[""]), found.words)

    def todo_of(self, found: Found) -> str:
        """What to do, in one line."""
        return _filled(self.todo, found.words)


class _Words(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "{" + key + "}"


def _filled(text: str, words: Mapping[str, str]) -> str:
    return text.format_map(_Words(words))


@cache
def all_cards() -> Mapping[str, LintCard]:
    """Every card, by its code."""
    found: dict[str, LintCard] = {}
    for file in sorted(files("unhang.lint").joinpath("cards").iterdir(), key=lambda f: f.name):
        found |= {code: _card(code, fields) for code, fields in tomllib.loads(file.read_text(encoding="utf-8")).items()}
    return dict(sorted(found.items()))


def _card(code: str, f: dict[str, Any]) -> LintCard:
    sections = {heading: f[key].strip() for key, heading in HEADINGS.items()}
    title = {"": f["title"]} if isinstance(f["title"], str) else {"": f["title"]["else"], **f["title"]}
    return LintCard(
        code, f["name"], f["cause"], f["what"], sections, tuple(f["silent"]), title, f["todo"], not f.get("off", False)
    )  # fmt: skip


def chosen(select: Iterable[str], extend: Iterable[str], ignore: Iterable[str]) -> frozenset[str]:
    """The codes that are on. A word is a code, its beginning (LNT1), the name of a rule, or ALL.

    Raises:
        WrongUsage: a word is none of these.
    """
    select = list(select)
    on = _codes(select) if select else {code for code, card in all_cards().items() if card.is_default}
    return frozenset((on | _codes(extend)) - _codes(ignore))


def code_of(word: str) -> str | None:
    """The code of a rule, by its code or its name; None: it is neither."""
    plain = word.strip().lower().replace("_", "-").replace(" ", "-")
    return next((c for c, card in all_cards().items() if plain in (c.lower(), card.name)), None)


def _codes(words: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for word in words:
        plain = word.strip().upper()
        codes = {
            c for c, card in all_cards().items() if plain == "ALL" or c.startswith(plain) or card.name == plain.lower()
        }
        if not plain or not codes:
            raise WrongUsage(f"there is no lint rule {word!r}; 'unhang lint --list' shows them")
        found |= codes
    return found


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
