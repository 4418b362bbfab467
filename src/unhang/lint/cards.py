"""What a rule of `unhang lint` says: one card a rule in `cards/*.toml`, in the form of the cards of the live verdicts."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from unhang.errors import WrongUsage
from unhang.lint.ir import Found

HEADINGS = {"detects": "What it detects", "hangs": "Why it hangs", "fix": "How to fix"}


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
