"""From a symptom in a user's own words to what is explained: rules, causes and advice that speak of it, by their words alone."""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from unhang.model import CAUSES
from unhang.rules.base import HEADINGS
from unhang.rules.decision_tree import QUESTIONS, explanation, rules_by_id
from unhang.skill.advice import ADVICE

MOST_TOPICS = 5
_WORD = re.compile(r"[a-z][a-z0-9]+|\d+(?=%)")
_CALL = re.compile(r"(?<=[a-z])_(?=[a-z])")
_QUESTION = re.compile(r"[\w%?!,.'() -]{3,200}")  # a line of a log has other signs
_LEAST_SHARE = 0.5  # of what the words of the question weigh, a topic must hold so much
_MOST_BEHIND = 0.6  # of what the best topic reaches
_WORDS = tomllib.loads(files("unhang.skill").joinpath("topics.toml").read_text(encoding="utf-8"))
_COMMON = frozenset(_WORDS["common"].split())
_SAME: Mapping[str, str] = {said: word for word, several in _WORDS["same"].items() for said in several.split()}
_SEEN_AS: Mapping[str, str] = _WORDS["seen_as"]


@dataclass(frozen=True, slots=True)
class Topic:
    """What `unhang explain NAME` explains. `kind`: rule, cause or advice."""

    name: str
    kind: str
    summary: str


def topics_on(question: str) -> tuple[Topic, ...]:
    """The topics that speak of most of what is asked, the closest first; none where they speak of less than half of it."""
    wanted = set(_stems(question)) if _QUESTION.fullmatch(question) else ()
    if not wanted:
        return ()
    texts = _texts()
    weight = {w: math.log(1 + len(texts) / (1 + sum(w in words for words in texts.values()))) for w in wanted}
    whole = sum(weight.values())

    def reached(words: Mapping[str, float]) -> float:
        return sum(weight[w] * min(1.0, 0.4 + 0.2 * words[w]) for w in wanted if w in words)

    best = sorted(((reached(words), topic) for topic, words in texts.items()), key=lambda x: (-x[0], x[1].name))
    least = max(_LEAST_SHARE * whole, _MOST_BEHIND * best[0][0])
    return tuple(topic for score, topic in best[:MOST_TOPICS] if score >= least)


@cache
def _texts() -> Mapping[Topic, Counter[str]]:
    """The words of each topic, with how often they count: those of names and titles more than once."""
    found: dict[Topic, list[tuple[str, int]]] = {}
    for rule in rules_by_id().values():
        docs = explanation(rule)
        body = [(docs.sections[h], 1) for h in HEADINGS.values() if h in docs.sections]
        seen = _seen_as(docs.id) if docs.id in CAUSES else []
        found[Topic(rule.id, "rule", docs.summary)] = [
            (rule.id, 3),
            (docs.summary, 2),
            (CAUSES[docs.cause], 1),
            *body,
            *seen,
        ]
    for cause, meaning in CAUSES.items():
        if cause not in rules_by_id():
            found[Topic(cause, "cause", meaning)] = [(cause, 3), (meaning, 2), *_seen_as(cause)]
    for advice in ADVICE.values():
        named = [(name, 2) for name in (advice.id, *advice.names)]
        found[Topic(advice.id, "advice", advice.heard)] = [*named, (advice.heard, 2), (advice.truth, 1)]
    return {topic: _counted(parts) for topic, parts in found.items()}


def _seen_as(cause: str) -> list[tuple[str, int]]:
    answers = [(a.text, 2) for q in QUESTIONS.values() for a in q.answers if cause in a.causes]
    return [(_SEEN_AS.get(cause, ""), 3), *answers]


def _counted(parts: list[tuple[str, int]]) -> Counter[str]:
    words: Counter[str] = Counter()
    for text, times in parts:
        for stem in set(_stems(text)):
            words[stem] += times
    return words


def _stems(text: str) -> list[str]:
    words = _WORD.findall(_CALL.sub(" ", text.lower().replace("-", " ")))
    return [_stem(word) for word in words if word not in _COMMON]


def _stem(word: str) -> str:
    if word in _SAME:
        return _SAME[word]
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) > 2:
            bare = word.removesuffix(ending)
            return _SAME.get(bare, bare.removesuffix("e"))
    return word.removesuffix("e")


def topics_text(topics: tuple[Topic, ...]) -> str:
    """The topics, and how to find out which of them it is."""
    out = ["No message is known that contains this. What comes closest:", ""]
    out += [f"  {t.name}: {t.summary}" for t in topics]
    out += ["", "More of one: unhang explain NAME. Which of them it is:"]
    out += ["  'unhang attach' looks at a job that hangs now,", "  'unhang run -- COMMAND' watches the next one,"]
    out += ["  'unhang diagnose PATH...' reads what is left of the last."]
    return "\n".join(out) + "\n"


def topics_json(topics: tuple[Topic, ...]) -> dict[str, list[dict[str, str]]]:
    """The same for programs."""
    return {"topics": [{"name": t.name, "kind": t.kind, "summary": t.summary} for t in topics]}
