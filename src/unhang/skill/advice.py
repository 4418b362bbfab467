"""Advice that goes around and options that people try, and what is true of each: `advice.toml`."""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


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


def advice_text(advice: Advice) -> str:
    """One piece of advice and its truth."""
    truth, instead = (textwrap.indent(textwrap.fill(text, 110), "  ") for text in (advice.truth, advice.instead))
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
