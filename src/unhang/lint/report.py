"""Findings, written for people and for programs: text, json, sarif, github, gitlab."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

from unhang import __version__, remarks
from unhang.lint.cards import all_cards
from unhang.lint.checking import LintResult
from unhang.lint.ir import Found

SCHEMA = "unhang.lint/1"


def _text(result: LintResult, color: bool) -> str:
    bold, dim, code, off = ("\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[0m") if color else ("", "", "", "")
    out = []
    for path, found in result.found:
        card = all_cards()[found.code]
        out.append(f"{bold}{path}{off}:{found.line}:{found.column}: {code}{found.code}{off} {card.title_of(found)}")
        for n, (place, line, what) in enumerate(found.way):
            out.append(f"    {dim}{'because' if n == 0 else '->':7}{off} {place}:{line}  {what}")
        out.append(f"    {dim}{'do':7}{off} {card.todo_of(found)}")
    for path, reason in sorted(result.unread.items()):
        out.append(f"{path}: not judged: {reason}")
    out.append(_last_line(result))
    return "\n".join(out) + "\n"


def _last_line(result: LintResult) -> str:
    n, fixable = len(result.found), sum(1 for _, f in result.found if f.edits and f.is_safe)
    files = f"{result.files} file{'s' * (result.files != 1)}, {result.lines:,} lines"
    far = f" {result.far} more, less sure, with --depth 9." if result.far else ""
    if not n:
        return f"Nothing found that can hang ({files}).{far}"
    fixes = f", {fixable} fixable with --fix" if fixable else ""
    return (
        f"{n} finding{'s' * (n != 1)} in {files}{fixes}.{far} 'unhang explain {result.found[0][1].code}' explains it."
    )


def _as_fields(path: str, found: Found) -> dict[str, Any]:
    card = all_cards()[found.code]
    return {
        "file": path, "line": found.line, "column": found.column, "code": found.code, "rule": card.name, "cause": card.cause,
        "message": card.title_of(found), "todo": card.todo_of(found), "fix": "safe" if found.edits and found.is_safe else "unsafe" if found.edits else None,
        "way": [{"file": p, "line": n, "what": what} for p, n, what in found.way],
    }  # fmt: skip


def _json(result: LintResult, color: bool) -> str:
    unread = [{"file": p, "reason": r} for p, r in sorted(result.unread.items())]
    whole = {
        "schema": SCHEMA, "files": result.files, "lines": result.lines, "silenced": result.silenced, "far": result.far,
        "findings": [_as_fields(p, f) for p, f in result.found], "unread": unread,
    }  # fmt: skip
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _uri(path: str) -> str:
    return os.path.relpath(path).replace(os.sep, "/")


def _remarks(result: LintResult) -> list[remarks.Remark]:
    return [
        remarks.Remark(
            f.code,
            all_cards()[f.code].title_of(f),
            all_cards()[f.code].todo_of(f),
            remarks.Place(_uri(path), f.line, f.column),
            way=tuple(remarks.Place(_uri(p), line, 1, what) for p, line, what in f.way),
        )
        for path, f in result.found
    ]


def _sarif(result: LintResult, color: bool) -> str:
    cards = {f.code: all_cards()[f.code] for _, f in result.found}
    rules = {
        code: {
            "name": card.name, "shortDescription": {"text": card.what}, "help": {"text": card.sections["How to fix"]}
        }
        for code, card in cards.items()
    }  # fmt: skip
    return remarks.sarif(_remarks(result), "unhang lint", __version__, rules)


FORMATS: dict[str, Callable[[LintResult, bool], str]] = {
    "text": _text, "json": _json, "sarif": _sarif,
    "github": lambda result, _: remarks.github(_remarks(result)), "gitlab": lambda result, _: remarks.gitlab(_remarks(result)),
}  # fmt: skip


def statistics(result: LintResult) -> str:
    """How often each rule spoke, the most frequent first."""
    counted = Counter(f.code for _, f in result.found)
    rows = [f"{n:6}  {code}  {all_cards()[code].name}" for code, n in counted.most_common()]
    return "\n".join([*rows, _last_line(result)]) + "\n"


def listing() -> str:
    """All rules, one a line."""
    rows = [f"{c.code}  {c.name:28} {'' if c.is_default else '(off) '}{c.what}" for c in all_cards().values()]
    return "\n".join(rows) + "\n"


def card_text(code: str) -> str:
    """All that a rule says of itself."""
    card = all_cards()[code]
    out = [f"{card.code} {card.name}  [cause {card.cause}]", "", card.what]
    for heading, text in card.sections.items():
        out += ["", heading, *(f"  {line}" for line in text.splitlines())]
    out += ["", "It says nothing about", *(f"  - {why}" for why in card.silent)]
    out += ["", "To check for it", f"  unhang lint {'' if card.is_default else f'--extend-select {code} '}PATH..."]
    return "\n".join(out) + "\n"


def card_json(code: str) -> dict[str, Any]:
    """The same for programs."""
    card = all_cards()[code]
    return {
        "code": card.code, "rule": card.name, "cause": card.cause, "what": card.what, "is_default": card.is_default,
        "sections": dict(card.sections), "silent": list(card.silent),
    }  # fmt: skip
