"""What a rule says: one card a rule in `cards/*.toml`, read when the rule fires, by `explain`, by the docs and by the skill."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from unhang.model import Fix

HEADINGS = {
    "detects": "What it detects",
    "hangs": "Why it hangs",
    "confirm": "How to confirm",
    "fix": "How to fix",
    "sources": "Sources",
}
OTHERWISE = "else"  # the variant for what has no text of its own
_CARD = re.compile(r"^(?=\[[\w-]+\]$)", re.MULTILINE)
_WORD = re.compile(r"\{(\w+)\}")
_OF_A_CARD = {"cause", "what", *HEADINGS, "silent", "lines", "from_log", "title", "because", "fixes"}
_OF_A_FIX = {"name", "title", "patch", "command", "setting", "verify", "undo"}


@dataclass(frozen=True, slots=True)
class Card:
    """The words of one rule.

    `what`: one sentence; `sections`: heading -> text; `silent`: the look-alikes on which it says nothing; `lines`: the kinds of
    log lines that it weighs; `from_log`: whether a log is enough for it. `title` and `because`: name of the variant -> text with {words}. `fixes`: name -> fix with {words}.
    """

    id: str
    cause: str
    what: str
    sections: Mapping[str, str]
    silent: tuple[str, ...]
    lines: tuple[str, ...]
    from_log: bool
    title: Mapping[str, str]
    because: Mapping[str, str]
    fixes: Mapping[str, Fix]

    def fixes_for(self, names: Sequence[str] | None, words: Mapping[str, object]) -> tuple[Fix, ...]:
        """The fixes of these names in this order, all for None, with the words put in."""
        chosen = [self.fixes[name] for name in (self.fixes if names is None else names)]
        return tuple(Fix(*(filled(part, words) for part in _parts(fix))) for fix in chosen)


def filled(text: str, words: Mapping[str, object]) -> str:
    """The text with its {words} put in; braces around anything else stay as they are."""
    return _WORD.sub(lambda m: str(words[m[1]]) if m[1] in words else m[0], text) if "{" in text else text


@cache
def card_of(rule: str) -> Card:
    """The card of a rule. Raises: KeyError if there is none, ValueError if it is not whole."""
    return _card(rule, tomllib.loads(_texts()[rule])[rule])


def all_cards() -> dict[str, Card]:
    """Every card, by the id of its rule."""
    return {rule: card_of(rule) for rule in sorted(_texts())}


@cache
def _texts() -> dict[str, str]:
    """The text of each card; to read all of them as TOML would take longer than most verdicts."""
    found = {}
    for file in files("unhang.rules").joinpath("cards").iterdir():
        for part in _CARD.split(file.read_text(encoding="utf-8"))[1:]:
            found[part[1 : part.index("]")]] = part
    return found


def _card(rule: str, fields: Mapping[str, Any]) -> Card:
    unknown = [*(fields.keys() - _OF_A_CARD), *(n for fix in fields.get("fixes", ()) for n in fix.keys() - _OF_A_FIX)]
    if unknown:
        raise ValueError(f"the card {rule!r} has no field {unknown[0]!r}")
    fixes = {fix.get("name", str(i)): _fix(fix) for i, fix in enumerate(fields.get("fixes", ()))}
    return Card(
        rule,
        fields["cause"],
        fields["what"],
        {heading: fields[key] for key, heading in HEADINGS.items() if key in fields},
        tuple(fields.get("silent", ())),
        tuple(fields.get("lines", ())),
        bool(fields.get("from_log", fields.get("lines"))),
        _variants(fields.get("title", "")),
        _variants(fields.get("because", "")),
        fixes,
    )


def _fix(fields: Mapping[str, str]) -> Fix:
    return Fix(**{name: value for name, value in fields.items() if name != "name"})


def _parts(fix: Fix) -> tuple[str, ...]:
    return fix.title, fix.verify, fix.patch, fix.command, fix.setting, fix.undo


def _variants(text: str | Mapping[str, str]) -> Mapping[str, str]:
    return {OTHERWISE: text} if isinstance(text, str) else text
