"""Remarks on lines of code, as CI systems want them: GitHub's commands, GitLab's code quality, SARIF. `lint` and `diagnose` make them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

FORMATS = ("github", "gitlab", "sarif")


@dataclass(frozen=True)
class Place:
    """A line of a file. `file`: relative to the repository, with /; `what`: what is there, for a place on the way to another."""

    file: str
    line: int
    column: int | None = None
    what: str = ""


@dataclass(frozen=True)
class Remark:
    """What is said: `code` names the rule, `title` is one line, `todo` what to do. `way`: other places that it rests on."""

    code: str
    title: str
    todo: str
    place: Place | None
    level: Literal["error", "warning"] = "warning"
    way: tuple[Place, ...] = ()


def github(remarks: Iterable[Remark]) -> str:
    """A workflow command for each: GitHub shows it at its line, where there is one."""
    return "".join(_command(remark) + "\n" for remark in remarks)


def _command(remark: Remark) -> str:
    fields = {"title": f"unhang ({remark.code})"}
    if place := remark.place:
        fields |= {"file": place.file, "line": str(place.line)}
        fields |= {} if place.column is None else {"col": str(place.column)}
    properties = ",".join(f"{k}={_escaped(v).replace(':', '%3A').replace(',', '%2C')}" for k, v in fields.items())
    return f"::{remark.level} {properties}::{_escaped(_text(remark, chr(10)))}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _text(remark: Remark, between: str) -> str:
    return between.join(filter(None, (remark.title, remark.todo)))


def gitlab(remarks: Iterable[Remark]) -> str:
    """A code quality report. GitLab wants a place for each: without one it is the first line of the repository's README.md."""
    issues, seen = [], Counter[str]()
    for remark in remarks:
        place = remark.place or Place("README.md", 1)
        mark = f"{place.file} {remark.code} {remark.title}"
        seen[mark] += 1
        issues.append({
            "check_name": remark.code, "description": remark.title, "severity": "major" if remark.level == "warning" else "critical",
            "fingerprint": blake2b(f"{mark} {seen[mark]}".encode(), digest_size=16).hexdigest(),
            "location": {"path": place.file, "lines": {"begin": place.line}},
        })  # fmt: skip
    return json.dumps(issues, indent=2) + "\n"


def sarif(remarks: Sequence[Remark], tool: str, version: str, rules: Mapping[str, Mapping[str, Any]]) -> str:
    """SARIF 2.1.0. `rules`: what is known of each code."""
    used = sorted({remark.code for remark in remarks})
    results = [
        {
            "ruleId": r.code, "ruleIndex": used.index(r.code), "level": r.level,
            "message": {"text": _text(r, ". ")},
            "locations": [_location(r.place)] if r.place else [],
            "relatedLocations": [{**_location(place), "message": {"text": place.what}} for place in r.way],
        }
        for r in remarks
    ]  # fmt: skip
    driver = {"name": tool, "version": version, "rules": [{"id": code, **rules[code]} for code in used]}
    whole = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "utf16CodeUnits", "results": results}],
    }  # fmt: skip
    return json.dumps(whole, indent=2) + "\n"


def _location(place: Place) -> dict[str, Any]:
    region = {"startLine": place.line, "startColumn": place.column or 1}
    return {"physicalLocation": {"artifactLocation": {"uri": place.file}, "region": region}}
