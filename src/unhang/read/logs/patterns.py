"""The lines that are understood: a regular expression with named groups, found through the literal text it needs."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
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
        not_examples: lines that hold an anchor and that it must not match.
    """

    kind: str
    regex: str
    anchors: tuple[str, ...]
    examples: tuple[str, ...]
    not_examples: tuple[str, ...] = ()
    says: str = ""
    flags: int = 0

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


@cache
def by_anchor() -> Mapping[str, tuple[Pattern, ...]]:
    """The patterns that each anchor leads to."""
    found: dict[str, list[Pattern]] = {}
    for pattern in all_patterns():
        for anchor in pattern.anchors:
            found.setdefault(anchor, []).append(pattern)
    return {anchor: tuple(patterns) for anchor, patterns in found.items()}


@cache
def _anchor_regex() -> re.Pattern[str]:
    # A lookahead finds anchors that overlap; the longest first, as an alternation takes the first that fits.
    words = sorted(by_anchor(), key=lambda a: (-len(a), a))
    return re.compile(f"(?=({'|'.join(map(re.escape, words))}))")


def matches(line: str) -> Iterator[tuple[Pattern, re.Match[str]]]:
    """The patterns that match a line, each once."""
    seen: set[int] = set()
    for found in _anchor_regex().finditer(line):
        text = found[1]
        for anchor, patterns in by_anchor().items():
            if not text.startswith(anchor):
                continue
            for pattern in patterns:
                if id(pattern) not in seen:
                    seen.add(id(pattern))
                    match = pattern.compiled.search(line)
                    if match is not None:
                        yield pattern, match
