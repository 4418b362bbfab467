"""Advice that goes around and options that people try, and what is true of each: `advice.toml`."""

from __future__ import annotations

import math
import re
import textwrap
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from unhang.model import CAUSES
from unhang.rules.base import HEADINGS
from unhang.rules.decision_tree import QUESTIONS, explanation, rules_by_id
from unhang.show.paper import room


@dataclass(frozen=True, slots=True)
class Advice:
    """`heard`: what people are told. `truth`: what it does. `instead`: what to do. `experiment`: a program that shows it.

    `names`: other ways in. `is_option`: it is on an option or a warning, more than on what people are told.
    """

    id: str
    heard: str
    truth: str
    instead: str
    experiment: str = ""
    names: tuple[str, ...] = ()
    is_option: bool = False


def _read() -> dict[str, Advice]:
    tables = tomllib.loads(files("unhang.skill").joinpath("advice.toml").read_text(encoding="utf-8"))
    return {name: Advice(name, **{**about, "names": tuple(about.get("names", ()))}) for name, about in tables.items()}


ADVICE: Mapping[str, Advice] = _read()
_RATE = re.compile(
    r"[\d.,]+\s*(?:s|sec|seconds)\s*/\s*(?:it|iter|iteration|step|batch)|[\d.,]+\s*(?:it|steps?)/s", re.IGNORECASE
)


def _plain(word: str) -> str:
    return re.sub(r"[\s_-]+", "-", word.strip().lower().removesuffix("()"))


@cache
def _by_name() -> Mapping[str, Advice]:
    return {_plain(name): advice for advice in ADVICE.values() for name in (advice.id, *advice.names)}


def advice_on(word: str) -> Advice | None:
    """The advice that has this name, also with a value (`bucket_cap_mb=50`, `DDP(static_graph=True)`), or that a progress bar's rate stands for."""
    if _RATE.fullmatch(word.strip()):
        return ADVICE["slow-rate"]
    call = re.fullmatch(r"(?:[\w.]*\.)?(\w+)\((.*)\)", word.strip())
    for name in (word, *(reversed(call.groups()) if call else ()), word.rpartition(".")[2]):
        if (found := _by_name().get(_plain(name)) or _by_name().get(_plain(name.partition("=")[0]))) is not None:
            return found
    return None


# Names that are no advice by themselves where they stand in a text.
_ONLY_ASKED = frozenset({"batch-size", "destroy-process-group", "utilization", "workers", "synchronize", "timeout"})


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], Advice], ...]:
    """How each piece of advice is named in a text: by an option's name, a phrase, or a plain word that is called."""
    found = []
    for name, advice in _by_name().items():
        if name in _ONLY_ASKED:
            continue
        is_variable = name.startswith(("nccl-", "torch-")) and "." not in name  # "an NCCL timeout" is not NCCL_TIMEOUT
        words = re.sub(r"-+", "_" if is_variable else r"[\\s_-]+", re.escape(name).replace(r"\-", "-"))
        is_plain = re.fullmatch(r"[a-z]+", name) is not None
        found.append(
            (re.compile(rf"(?<![\w.-]){words}" + (r"(?=\(| -)" if is_plain else r"(?!\w)"), re.IGNORECASE), advice)
        )
    return tuple(found)


def advice_in(lines: Sequence[str]) -> Mapping[str, list[int]]:
    """The advice and options that a text names, in the order of their first lines, with the numbers of all lines."""
    found: dict[str, list[int]] = {}
    for number, line in enumerate(lines, 1):
        plain = line[:2000].replace(".", " ")
        for pattern, advice in _patterns():
            if pattern.search(plain) and found.setdefault(advice.id, [])[-1:] != [number]:
                found[advice.id].append(number)
    return found


def in_short(advice: Advice) -> str:
    """The first sentence of the truth; one more where it says little."""
    sentences = re.split(r"(?<=\.) (?=[A-Z])", advice.truth)
    return sentences[0] if len(sentences[0]) > 45 else " ".join(sentences[:2])


def advice_text(advice: Advice) -> str:
    """One piece of advice and its truth."""
    truth, instead = (textwrap.indent(textwrap.fill(text, room() - 2), "  ") for text in (advice.truth, advice.instead))
    out = [f"{advice.id}: {advice.heard}", "", "What is true", truth, "", "Instead", instead]
    if advice.experiment:
        out += ["", "See for yourself", *(f"  {line}" for line in advice.experiment.splitlines())]
    return "\n".join(out) + "\n"


def advice_json(advice: Advice) -> dict[str, str]:
    """The same for programs."""
    return {"advice": advice.id, **{n: getattr(advice, n) for n in ("heard", "truth", "instead", "experiment")}}


def advice_short() -> str:
    """The advice that goes around as a list, a line for each, and the names of what else there is."""
    lines = [
        f'- "{a.heard}" → {a.truth.split(". ")[0].rstrip(".")}. (`{a.id}`)' for a in ADVICE.values() if not a.is_option
    ]
    options = ", ".join(f"`{a.id}`" for a in ADVICE.values() if a.is_option)
    return "\n".join([*lines, f"- On options and warnings: {options}."])


def advice_page() -> str:
    """All advice as a page."""
    out = ["# Advice that goes around", "", "What people are told, what is true of it, and what to do instead."]
    for a in ADVICE.values():
        out += ["", f"## {a.id}", "", f"- Heard: {a.heard}", f"- True: {a.truth}", f"- Instead: {a.instead}"]
        out += ["", "```", a.experiment, "```"] if a.experiment else []
    return "\n".join(out) + "\n"


# From a symptom in a user's own words to what is explained: rules, causes and advice that speak of it, by their words alone.

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
        named = [(rule.id, 3), (docs.summary, 2), (CAUSES[docs.cause], 1)]
        found[Topic(rule.id, "rule", docs.summary)] = [*named, *body, *seen]
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
