"""What `unhang.check_learning` and `unhang.check_replicas` said in the output, also that of a job that ended well."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, LogLine

_MOST_QUOTED = 6
_LEARNING = re.compile(r"^\[learning\] (?:rank \d+: |(?!rank \d))(?!the check ends)(?P<text>.+)")
_APART = re.compile(r"^\[learning\] (?:rank \d+: )?(?P<text>DDP module .+)")
_REPLICAS = re.compile(r"^\[replicas\] (?P<text>replicas differ since .+)")
_DIFFER = re.compile(r", ranks? (?P<ranks>\d[\d, -]*) differs? from ranks? ")


def said_of_learning(s: Situation) -> list[tuple[str, LogLine]]:
    """(text, line) of what keeps the model from learning on all ranks alike."""
    return [(text, line) for text, line in _said(s, _LEARNING) if not text.startswith("DDP module ")]


def said_of_replicas(s: Situation) -> list[tuple[str, LogLine]]:
    """(text, line) of what has the ranks train apart, the difference that was seen first."""
    return [*_said(s, _REPLICAS), *_said(s, _APART)]


def ranks_that_differ(text: str) -> tuple[int, ...]:
    """The minority that a comparison named; none where it found no majority, or named too many to list."""
    found = _DIFFER.search(text)
    ranks: list[int] = []
    for part in found["ranks"].split(",") if found else ():
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            return ()
        ranks.extend(range(int(first), min(int(last or first), int(first) + 4096) + 1))
    return tuple(ranks)


def quoted(lines: Sequence[tuple[str, LogLine]]) -> tuple[EvidenceLine, ...]:
    """The first lines as evidence, each text once."""
    once: dict[str, LogLine] = {}
    for text, line in lines:
        once.setdefault(text, line)
    return tuple(
        EvidenceLine("output", line.text[:300], line.source.line) for line in list(once.values())[:_MOST_QUOTED]
    )


def _said(s: Situation, pattern: re.Pattern[str]) -> Iterable[tuple[str, LogLine]]:
    for line in s.case.log:
        if line.text.startswith("[") and (match := pattern.match(line.text)):
            yield match["text"], line
