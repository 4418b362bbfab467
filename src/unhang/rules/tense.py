"""What ranks do is told in the present while the job runs, and in the past when it is over.

A verb is written in both forms, `⟨waits|waited⟩`, in cards and by `wording.verb`; which one is said is decided in one place,
where a finding gets its words and the end of the job is known.
"""

from __future__ import annotations

import re
from dataclasses import replace

from unhang.model import Finding, Fix

_BOTH = re.compile(r"⟨([^⟨⟩|]*)\|([^⟨⟩|]*)⟩")
_BEGINS = re.compile(r"(?:^|(?<=[.] ))r(?=anks? \d)", re.MULTILINE)  # a sentence of the reason
_PAST = {
    "is": "was", "are": "were", "has": "had", "have": "had", "waits": "waited", "wait": "waited", "gives": "gave", "give": "gave",
    "makes": "made", "make": "made", "runs": "ran", "run": "ran", "stands": "stood", "stand": "stood", "holds": "held",
}  # fmt: skip


def both(words: str) -> str:
    """The words with their first one in both forms, where its past is known."""
    first, *rest = words.split(" ")
    return " ".join((f"⟨{first}|{_PAST[first]}⟩" if first in _PAST else first, *rest))


def told(text: str, is_over: bool) -> str:
    """The text with one form of each verb."""
    return _BOTH.sub(r"\2" if is_over else r"\1", text) if "⟨" in text else text


def in_tense(finding: Finding, is_over: bool) -> Finding:
    """The finding with one form of each verb, and its reason in sentences."""
    evidence = tuple(replace(e, text=told(e.text, is_over)) if "⟨" in e.text else e for e in finding.evidence)
    fixes = tuple(_fix(fix, is_over) for fix in finding.fixes)
    title = told(finding.title, is_over)
    because = _BEGINS.sub("R", told(finding.because, is_over))
    return replace(finding, title=title, because=because, evidence=evidence, fixes=fixes)


def _fix(fix: Fix, is_over: bool) -> Fix:
    texts = {name: getattr(fix, name) for name in ("title", "verify", "undo", "advice", "command", "setting")}
    changed = {name: told(text, is_over) for name, text in texts.items() if "⟨" in text}
    return replace(fix, **changed) if changed else fix
