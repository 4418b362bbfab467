"""Findings that say the same of several ranks, none of them the consequence of another, are one answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from unhang.model import Finding, Fix
from unhang.rules import wording as w

_MOST_SAID = 3
_MANY = {"is": "are", "was": "were", "has": "have", "waits": "wait", "comes": "come"}
T = TypeVar("T")


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, those of one rule that are independent, equally sure and of one cause as one."""
    groups: list[list[Finding]] = []
    for finding in findings:
        group = next((g for g in groups if all(_are_one(finding, f) for f in g)), None)
        if group is None:
            groups.append([finding])
        else:
            group.append(finding)
    return [_one(group) if len(group) > 1 else group[0] for group in groups]


def _are_one(a: Finding, b: Finding) -> bool:
    """Whether both say the same, of different ranks of which none holds the other up."""
    mine, theirs = set(a.culprit_ranks), set(b.culprit_ranks)
    is_same = (a.rule, a.cause, a.confidence, a.consequence_of) == (b.rule, b.cause, b.confidence, None)
    is_apart = mine.isdisjoint({*theirs, *b.victim_ranks}) and theirs.isdisjoint(a.victim_ranks)
    return is_same and bool(mine) and bool(theirs) and is_apart


def _one(group: Sequence[Finding]) -> Finding:
    first = group[0]
    culprits = tuple(sorted(r for f in group for r in f.culprit_ranks))
    return replace(
        first,
        title=_title(group, culprits),
        culprit_ranks=culprits,
        victim_ranks=tuple(sorted({r for f in group for r in f.victim_ranks})),
        because=" ".join(dict.fromkeys(f.because for f in group[:_MOST_SAID])),
        process_group=_shared(group, lambda f: f.process_group),
        collective=_shared(group, lambda f: f.collective),
        location=_shared(group, lambda f: f.location),
        evidence=tuple(dict.fromkeys(line for f in group for line in f.evidence)),
        fixes=_fixes(group, culprits),
        is_root=any(f.is_root for f in group),
    )


def _shared(group: Sequence[Finding], part: Callable[[Finding], T]) -> T | None:
    first = part(group[0])
    return first if all(part(f) == first for f in group) else None


def _said(finding: Finding) -> str:
    """The title without its subject."""
    return finding.title.removeprefix(w.name_ranks(finding.culprit_ranks))


def _title(group: Sequence[Finding], culprits: Sequence[int]) -> str:
    """One subject for what is said of all, with the one word in which it differs named for each; else one after the other."""
    said = [_said(f).split(" ") for f in group]
    is_about_them = all(s != f.title for s, f in zip(map(_said, group), group, strict=True))
    differing = [i for i, words in enumerate(zip(*said, strict=False)) if len(set(words)) > 1]
    is_whole = all(s[i].count("(") == s[i].count(")") for s in said for i in differing if i < len(s))
    if not is_about_them or not is_whole or len({len(s) for s in said}) > 1 or len(differing) > 1:
        more = f"; and {len(group) - _MOST_SAID} more like these" if len(group) > _MOST_SAID else ""
        return "; ".join(f.title for f in group[:_MOST_SAID]) + more
    words = [
        "",
        *(_MANY.get(word, word) for word in said[0][1:2]),
        *("their" if x == "its" else x for x in said[0][2:]),
    ]
    for i in differing:
        each = list(dict.fromkeys(s[i].rstrip(",") for s in said))
        shown = [*each[:_MOST_SAID], f"{len(each) - _MOST_SAID} more"] if len(each) > _MOST_SAID else each
        words[i] = ", ".join(shown[:-1]) + f" and {shown[-1]}" + ("," if said[0][i].endswith(",") else "")
    return w.name_ranks(culprits) + " ".join(words)


def _fixes(group: Sequence[Finding], culprits: Sequence[int]) -> tuple[Fix, ...]:
    """The fixes of all, those that do the same once."""
    fixes: dict[object, Fix] = {}
    for finding in group:
        name = re.compile(re.escape(w.name_ranks(finding.culprit_ranks)) + r"\b")
        for fix in finding.fixes:
            whole = replace(fix, title=name.sub(w.name_ranks(culprits), fix.title))
            fixes.setdefault((fix.patch, fix.command, fix.setting), whole)
    return tuple(fixes.values())
