"""The lines that are understood: a regular expression with named groups, found through the literal text it needs."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from unhang.read.logs import families

MIN_ANCHOR = 4


@dataclass(frozen=True)
class Pattern:
    """One kind of line.

    Args:
        kind: `family.what`; several patterns may have the same (the same line of another version).
        regex: searched in a line without its prefixes; a group `rank` is the global rank that the line is about.
        anchors: literal texts, one of which is in every line that the regex matches. Case counts; at least 4 characters, and
            the rarer the better: only lines with an anchor are looked at.
        examples: lines that it must match.
        says: "hang" where such a line proves that a limit of a wait was hit, "crash" where a process failed; "" else.
        is_background: such lines are many in every log, and matter only beside others: a search of a huge log does not look
            for them, but keeps some lines before each line that it finds.
        not_examples: lines that hold an anchor and that it must not match.
    """

    kind: str
    regex: str
    anchors: tuple[str, ...]
    examples: tuple[str, ...]
    not_examples: tuple[str, ...] = ()
    says: str = ""
    flags: int = 0
    is_background: bool = False

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The expression, ready to search."""
        return re.compile(self.regex, self.flags)


@cache
def all_patterns() -> tuple[Pattern, ...]:
    """The patterns of all families, in the order of their files."""
    found: list[Pattern] = []
    for module in sorted(pkgutil.iter_modules(families.__path__), key=lambda m: m.name):
        found.extend(importlib.import_module(f"{families.__name__}.{module.name}").PATTERNS)
    return tuple(found)


def _by_anchor(patterns: Iterable[Pattern]) -> Mapping[str, tuple[Pattern, ...]]:
    found: dict[str, list[Pattern]] = {}
    for pattern in patterns:
        for anchor in pattern.anchors:
            found.setdefault(anchor, []).append(pattern)
    return {anchor: tuple(patterns) for anchor, patterns in found.items()}


@cache
def by_anchor() -> Mapping[str, tuple[Pattern, ...]]:
    """The patterns that each anchor leads to, without those of the background."""
    return _by_anchor(p for p in all_patterns() if not p.is_background)


@cache
def all_anchors() -> Mapping[str, tuple[Pattern, ...]]:
    """The patterns that each anchor leads to, with those of the background."""
    return _by_anchor(all_patterns())


@cache
def _anchor_regex() -> tuple[re.Pattern[str], Mapping[str, tuple[str, ...]]]:
    """An expression that finds every anchor, and the anchors that each text found begins with."""
    # A lookahead finds anchors that overlap; the longest first, as an alternation takes the first that fits.
    words = sorted(all_anchors(), key=lambda a: (-len(a), a))
    begins = {word: tuple(a for a in words if word.startswith(a)) for word in words}
    return re.compile(f"(?=({'|'.join(map(re.escape, words))}))"), begins


def matches(line: str) -> Iterator[tuple[Pattern, re.Match[str]]]:
    """The patterns that match a line, each once."""
    regex, begins = _anchor_regex()
    return matches_of(line, (anchor for found in regex.finditer(line) for anchor in begins[found[1]]))


def matches_of(line: str, anchors: Iterable[str]) -> Iterator[tuple[Pattern, re.Match[str]]]:
    """The patterns that match a line of which the anchors are known, each once."""
    known = all_anchors()
    seen: set[int] = set()
    for anchor in anchors:
        for pattern in known[anchor]:
            if id(pattern) not in seen:
                seen.add(id(pattern))
                match = pattern.compiled.search(line)
                if match is not None:
                    yield pattern, match
