"""What a command said in JSON, in the few words that an agent needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from unhang.model.findings import Fix
from unhang.model.rank_sets import name_ranks

Fields = Mapping[str, Any]


class Size(NamedTuple):
    """Most characters of a text, most entries of a list."""

    text: int
    entries: int


_SIZES = (Size(600, 20), Size(400, 8), Size(250, 4), Size(150, 2), Size(80, 1))


def fitted(fields: Fields, choose: Callable[[Fields], Fields], most_characters: int) -> dict[str, Any]:
    """The chosen fields, without empty ones, shortened until they fit."""
    chosen = choose(fields)
    for size in _SIZES:
        found: dict[str, Any] = shortened(chosen, size)
        if len(json.dumps(found, ensure_ascii=False)) <= most_characters:
            break
    return found


def shortened(value: Any, size: Size) -> Any:
    """The value with short texts and lists; the end of a list says how many are left out."""
    if isinstance(value, str):
        return (
            value if len(value) <= size.text else f"{value[: size.text]} ... ({len(value) - size.text} more characters)"
        )
    if isinstance(value, Mapping):
        return {k: shortened(v, size) for k, v in value.items() if v not in (None, "", [], {}, ())}
    if isinstance(value, list | tuple):
        more = len(value) - size.entries
        return [shortened(v, size) for v in value[: size.entries]] + ([f"... {more} more"] if more > 0 else [])
    return value


def of_report(report: Fields) -> Fields:
    """A report: cause, ranks, place, why, evidence, fix; what is missing where no cause is named."""
    findings = report.get("findings", [])
    missing = [f"{a.get('what')}: {a.get('reason')}" for a in report.get("inventory", {}).get("absent", ())]
    return {
        "outcome": report.get("outcome"),
        "verdict": report.get("verdict"),
        "hang": (report.get("hang") or {}).get("kind"),
        "ranks_in_job": report.get("job", {}).get("world_size"),
        "findings": [_finding(f) for f in findings if not f.get("consequence_of")],
        "consequences": [f.get("title") for f in findings if f.get("consequence_of")],
        "next_steps": [
            {"do": s.get("do"), "outcomes": [" -> ".join(map(str, o)) for o in s.get("outcomes", ())], "undo": s.get("undo")}
            for s in report.get("next_steps", ())
        ],
        "notes": report.get("notes"),
        "missing_evidence": missing if not findings else [],
    }  # fmt: skip


def _finding(f: Fields) -> Fields:
    place, fixes = (
        f.get("location") or {},
        [x for x in f.get("fixes", ()) if Fix.of(x).helps],
    )
    return {
        "title": f.get("title"),
        "cause": f.get("cause"),
        "rule": f.get("rule"),
        "confidence": f.get("confidence"),
        "culprits": name_ranks(f.get("culprit_ranks") or ()) if f.get("culprit_ranks") else "not established",
        "victims": name_ranks(f.get("victim_ranks") or ()) if f.get("victim_ranks") else "",
        "place": f"{place['file']}:{place['line']} in {place['function']}" if place else "",
        "why": f.get("because"),
        "evidence": [f"{e.get('source')}: {e.get('text')}" for e in f.get("evidence", ())][:5],
        "fix": fixes[0] if fixes else {},
        "other_fixes": [x["title"] for x in fixes[1:]],
    }


def of_lint(found: Fields) -> Fields:
    """Findings of `unhang lint`: place, rule, what, what to do."""
    return {
        "count": len(found.get("findings", ())),
        "files": found.get("files"),
        "findings": [
            {"place": f"{f['file']}:{f['line']}", "rule": f["code"], "what": f["message"], "do": f["todo"]} for f in found.get("findings", ())
        ],
        "not_judged": [f"{u['file']}: {u['reason']}" for u in found.get("unread", ())],
    }  # fmt: skip


def of_verify(found: Fields) -> Fields:
    """The verdict of `unhang verify`, and its checks."""
    checks = [f"{c['verdict']}: {c['name']}: {c['reason']}" for c in found.get("checks", ())]
    return {"verified": found.get("exit_code") == 0, "headline": found.get("headline"), "checks": checks}


def of_explain(found: Fields) -> Fields:
    """All that `unhang explain` says."""
    return {k: v for k, v in found.items() if k not in ("schema", "path", "sources")}
