"""What a rule is: a function that finds, and a card that speaks."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from unhang.analyze.situation import Situation
from unhang.model import Case, EvidenceLine, Finding, Fix, Frame, Gate, Location
from unhang.model.findings import limits_last
from unhang.rules.wording import in_tense

HEADINGS = {
    "detects": "What it detects",
    "hangs": "Why it hangs",
    "confirm": "How to confirm",
    "fix": "How to fix",
    "sources": "Sources",
}
AGAIN = "unhang run -- <the same command>"
CLEAN, PASSES = f"{AGAIN}: outcome clean", f"{AGAIN}: all ranks pass this call"
OTHERWISE = "else"  # the variant for what has no text of its own
_SECTION = re.compile(r"^(?=\[[\w-]+\]$)", re.MULTILINE)
_WORD = re.compile(r"\{(\w+)\}")
_OF_A_CARD = {"cause", "what", *HEADINGS, "silent", "lines", "from_log", "title", "because", "fixes"}
_OF_A_FIX = {"name", "title", "advice", "command", "setting", "verify", "undo", "does", "kind"}


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
        return tuple(with_words(fix, words) for fix in chosen)


def filled(text: str, words: Mapping[str, object]) -> str:
    """The text with its {words} put in; braces around anything else stay as they are."""
    return _WORD.sub(lambda m: str(words[m[1]]) if m[1] in words else m[0], text) if "{" in text else text


def with_words(fix: Fix, words: Mapping[str, object]) -> Fix:
    """The fix with the words put in."""
    parts = fix.title, fix.verify, fix.patch, fix.command, fix.setting, fix.undo, fix.advice, fix.does, fix.kind
    return Fix(*(filled(part, words) for part in parts))


def edit(title: str, advice: str, verify: str = PASSES, does: str = "", kind: str = "") -> Fix:
    """A change of the program, which is undone by taking it back. `verify`: how to see that it helps; `does`, `kind`: as of a `Fix`."""
    return Fix(title, verify, undo="revert the edit", advice=advice, does=does, kind=kind)


def sections_in(folder: Traversable) -> Iterator[tuple[str, str]]:
    """(name, text) of each `[name]` in the tables of a folder; to read all of them as TOML would take longer than most verdicts."""
    for table in sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name):
        for part in _SECTION.split(table.read_text(encoding="utf-8"))[1:]:
            yield part[1 : part.index("]")], part


@cache
def card_of(rule: str) -> Card:
    """The card of a rule. Raises: KeyError if there is none, ValueError if it is not whole."""
    return _card(rule, tomllib.loads(_texts()[rule])[rule])


def all_cards() -> dict[str, Card]:
    """Every card, by the id of its rule."""
    return {rule: card_of(rule) for rule in sorted(_texts())}


@cache
def _texts() -> dict[str, str]:
    """The text of each card."""
    return dict(sections_in(files("unhang.rules").joinpath("cards")))


def _card(rule: str, fields: Mapping[str, Any]) -> Card:
    unknown = [*(fields.keys() - _OF_A_CARD), *(n for fix in fields.get("fixes", ()) for n in fix.keys() - _OF_A_FIX)]
    if unknown:
        raise ValueError(f"the card {rule!r} has no field {unknown[0]!r}")
    named = {fix.get("name", str(i)): fix for i, fix in enumerate(fields.get("fixes", ()))}
    fixes = {name: Fix(**{n: v for n, v in fix.items() if n != "name"}) for name, fix in named.items()}
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


def _variants(text: str | Mapping[str, str]) -> Mapping[str, str]:
    return {OTHERWISE: text} if isinstance(text, str) else text


# What a rule may need, and how its absence is said.
NEEDS: Mapping[str, tuple[Callable[[Case], bool], str]] = {
    "calls": (lambda c: len(c.calls) > 0, "no collective calls were recorded"),
    "ranks": (lambda c: bool(c.ranks), "no rank registered"),
    "stacks": (lambda c: any(r.stacks for r in c.ranks.values()), "no stack could be taken"),
    "states": (lambda c: any(r.state for r in c.ranks.values()), "no process state was read"),
}


@dataclass(frozen=True)
class Found:
    """What a rule has found; its card puts it into words.

    `confidence`: 0..1. `say`: the variant of the card's title and reason, or `title/reason` where they differ; `words`: what is
    put in for {words}. `fixes`: the names of the card's fixes, in the order in which they are given, or whole fixes; None for all
    of the card. `victims`: None for all others, where somebody is accused. `cause`: where it is another one than the card's. The other
    fields are those of `Finding`.
    """

    confidence: float
    culprits: tuple[int, ...] = ()
    evidence: Iterable[EvidenceLine] = ()
    words: Mapping[str, object] = field(default_factory=dict)
    say: str = ""
    fixes: Iterable[str | Fix] | None = None
    victims: tuple[int, ...] | None = None
    location: Frame | Location | None = None
    group: Mapping[str, str] | None = None
    collective: Mapping[str, Any] | None = None
    cause: str = ""
    is_root: bool = False
    consequence_of: str | None = None
    condition: Gate | None = None

    def in_words_of(self, card: Card, s: Situation) -> Finding:
        """The finding in the words of a card."""
        given, (title, reason) = self.words, (self.say.partition("/")[0], self.say.rpartition("/")[2])
        fixes = card.fixes_for(None, given) if self.fixes is None else tuple(self._fixes(card))
        victims = (s.others(self.culprits) if self.culprits else ()) if self.victims is None else self.victims
        return Finding(
            rule=card.id,
            cause=self.cause or card.cause,
            title=filled(card.title.get(title, card.title.get(OTHERWISE, "")), given),
            confidence=self.confidence,
            culprit_ranks=self.culprits,
            because=filled(card.because.get(reason, card.because.get(OTHERWISE, "")), given),
            victim_ranks=victims,
            process_group=self.group,
            collective=self.collective,
            location=Location.of(self.location) if isinstance(self.location, Frame) else self.location,
            evidence=tuple(self.evidence),
            fixes=limits_last(fixes),
            is_root=self.is_root,
            consequence_of=self.consequence_of,
            condition=self.condition,
        )

    def _fixes(self, card: Card) -> Iterable[Fix]:
        for fix in self.fixes or ():
            yield from (fix,) if isinstance(fix, Fix) else card.fixes_for((fix,), self.words)


class Names(IntEnum):
    """What a rule can name. The lower is the better answer, and comes first whatever the confidence."""

    CAUSE = 0
    MESSAGE = 1  # what a message names as the cause; asked only where no finding has one
    FAILURE = 2  # who failed, or is missing, and how: why is not established
    NOTHING = 3  # what is known; asked only where no other rule has found anything
    REMARK = 4  # what is worth knowing of the program or its set-up: it accuses nobody, and stands among the notes


Find = Callable[[Situation], Found | Iterable[Found] | None]
Lacks = Callable[[Case], str]


@dataclass(frozen=True, eq=False)
class Rule:
    """One way in which a job goes wrong: a function that finds it, and the card of the same name that says it.

    `needs`: names in NEEDS; `reads`: kinds of readings without which it cannot judge, or `lacks`, which says what is missing.
    `names`: which findings it comes before; those of equal `names` are ordered by their confidence.
    """

    id: str
    find: Find
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    names: Names = Names.CAUSE
    lacks: Lacks | None = None

    @property
    def card(self) -> Card:
        """What it says."""
        return card_of(self.id)

    @property
    def cause(self) -> str:
        """The cause that it establishes."""
        return self.card.cause

    def applies(self, case: Case) -> bool:
        """Whether it judges cases of this sort: one on readings only where something was read, else it has no verdict."""
        return bool(case.readings) or not self.reads

    def missing(self, case: Case) -> str:
        """Why it cannot judge: the evidence that is not there, or could not be read; empty: it can."""
        if self.lacks is not None:
            return self.lacks(case)
        absent = [reason for need in self.needs for present, reason in [NEEDS[need]] if not present(case)]
        return "; ".join(absent) or unread(case, self.reads)

    def check(self, s: Situation) -> Iterable[Finding]:
        """What the function finds, in the words of the card."""
        found = self.find(s)
        for one in (found,) if isinstance(found, Found) else found or ():
            yield in_tense(one.in_words_of(self.card, s), s.is_over)


RULES: dict[str, Rule] = {}


def rule(
    name: str,
    *,
    needs: tuple[str, ...] = (),
    reads: tuple[str, ...] = (),
    names: Names = Names.CAUSE,
    lacks: Lacks | None = None,
) -> Callable[[Find], Find]:
    """Makes a function the rule `name`, see `Rule`.

    The confidence of what a rule on readings finds is also its weight: 0.9 and more will break or stall the job, 0.7 and more
    is a risk that should be looked at, less is a note.
    """

    def register(find: Find) -> Find:
        if name in RULES and RULES[name].find.__module__ != find.__module__:
            raise ValueError(f"there are two rules {name!r}")
        RULES[name] = Rule(name, find, needs, reads, names, lacks)
        return find

    return register


def unread(case: Case, kinds: Iterable[str]) -> str:
    """Which of these kinds were not read, and why; empty: all were."""
    present = {r.kind for r in case.readings}
    return "; ".join(dict.fromkeys(_reason(kind, case) for kind in kinds if kind not in present))


def _reason(kind: str, case: Case) -> str:
    """The reason that was given for this kind, or for its whole area."""
    area = kind.split(".", 1)[0]
    given = {a.what: a.reason for a in case.absent}
    if kind in given:
        return f"{kind}: {given[kind]}"
    if area in given:
        return f"{area}: {given[area]}"
    return f"{kind} was not read" if area in case.present else f"{area}: not asked for"
