"""Advice that goes around and options that people try, and what is true of each: `advice.toml`."""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

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
    return {
        name: Advice(name, **{**fields, "names": tuple(fields.get("names", ()))}) for name, fields in tables.items()
    }


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
    return {
        "advice": advice.id,
        "heard": advice.heard,
        "truth": advice.truth,
        "instead": advice.instead,
        "experiment": advice.experiment,
    }


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
