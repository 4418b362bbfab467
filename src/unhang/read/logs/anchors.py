"""The literal texts of which a line must hold one for an expression to match it; and which of many a line holds."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

MIN_ANCHOR = 4
_MOST_TEXTS, _MOST_ALTERNATIVES, _MOST_OF_A_SET = 24, 40, 4

Item = tuple[Any, Any]
"""A node of a parsed expression: its operation and what belongs to it."""


def derived(regex: str) -> tuple[str, ...]:
    """Texts of which one is in every line that the expression matches; none where it needs no text of four characters.

    Of all parts of the expression that must match, the one is taken whose shortest text is the longest. It takes about 0.2 ms.
    """
    parser = importlib.import_module("re._parser")  # the one that cannot disagree with `re`
    parsed = parser.parse(regex)
    if parsed.state.flags & re.IGNORECASE:
        return ()
    return tuple(sorted(_without_longer(_required(parsed) or ())))


def _required(items: Iterable[Item]) -> frozenset[str] | None:
    """The best texts that a sequence needs."""
    best: frozenset[str] | None = None
    texts = [""]
    for item in items:
        here = _texts_of(item)
        joined = _joined(texts, here) if here is not None else None
        if joined is not None:
            texts = joined
            continue
        best = _better(_better(best, _long_enough(texts)), None if here is not None else _inside(item))
        texts = here or [""]
    return _better(best, _long_enough(texts))


def _inside(item: Item) -> frozenset[str] | None:
    """The texts that a part needs which is no plain text itself."""
    operation, value = str(item[0]), item[1]
    if operation == "SUBPATTERN":
        return None if value[1] & re.IGNORECASE else _required(value[3])
    if operation in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        return _required(value[2]) if value[0] else None
    if operation == "ATOMIC_GROUP":
        return _required(value)
    if operation == "BRANCH":
        found: set[str] = set()
        for alternative in value[1]:
            needed = _required(alternative)
            if needed is None:
                return None
            found |= needed
        return frozenset(found) if len(found) <= _MOST_ALTERNATIVES else None
    return None


def _texts_of(item: Item) -> list[str] | None:
    """All texts that a part may match; None where they are many, or not plain texts."""
    operation, value = str(item[0]), item[1]
    if operation == "LITERAL":
        return [chr(value)]
    if operation == "IN" and len(value) <= _MOST_OF_A_SET and all(str(kind) == "LITERAL" for kind, _ in value):
        return [chr(character) for _, character in value]
    if operation == "SUBPATTERN":
        return None if value[1] & re.IGNORECASE else _texts_of_all(value[3])
    if operation == "BRANCH":
        found: list[str] = []
        for alternative in value[1]:
            texts = _texts_of_all(alternative)
            if texts is None:
                return None
            found += texts
        return found if len(found) <= _MOST_TEXTS else None
    if operation == "MAX_REPEAT" and value[:2] == (0, 1):
        texts = _texts_of_all(value[2])
        return ["", *texts] if texts is not None and len(texts) < _MOST_TEXTS // 2 else None
    return [""] if operation in ("AT", "ASSERT", "ASSERT_NOT") else None


def _texts_of_all(items: Iterable[Item]) -> list[str] | None:
    texts = [""]
    for item in items:
        here = _texts_of(item)
        joined = _joined(texts, here) if here is not None else None
        if joined is None:
            return None
        texts = joined
    return texts


def _joined(first: Sequence[str], then: Sequence[str]) -> list[str] | None:
    return [a + b for a in first for b in then] if len(first) * len(then) <= _MOST_TEXTS else None


def _long_enough(texts: Sequence[str]) -> frozenset[str] | None:
    return frozenset(texts) if min(map(len, texts)) >= MIN_ANCHOR else None


def _better(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return one if other is None else other
    return max(one, other, key=lambda texts: (min(map(len, texts)), -len(texts)))


def _without_longer(texts: Iterable[str]) -> Iterable[str]:
    """Those that hold no other one: a line with the longer text is found by the shorter."""
    found: list[str] = []
    for text in sorted(set(texts), key=len):
        if not any(shorter in text for shorter in found):
            found.append(text)
    return found


_GRAM = 4


class AnchorIndex:
    """Texts by the four characters with which they begin."""

    def __init__(self, anchors: Iterable[str]) -> None:
        found: dict[str, list[str]] = {}
        for anchor in sorted(anchors, key=lambda a: (-len(a), a)):
            found.setdefault(anchor[:_GRAM], []).append(anchor)
        self._short = [gram for gram in found if len(gram) < _GRAM]
        self._grams = {tuple(gram): anchors for gram, anchors in found.items() if len(gram) == _GRAM}

    def anchors_in(self, line: str) -> Sequence[str]:
        """The texts that a line holds, in the order in which they begin; some of them several times."""
        places = [(place, anchor) for anchor in self._short if (place := line.find(anchor)) >= 0]
        grams = zip(line, line[1:], line[2:], line[3:], strict=False)
        for place, anchors in enumerate(map(self._grams.get, grams)):
            if anchors is not None:
                places.extend((place, anchor) for anchor in anchors if line.startswith(anchor, place))
        places.sort(key=lambda found: found[0])
        return [anchor for _, anchor in places]
