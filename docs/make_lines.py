"""Writes what is derived from the tables of log lines: the index of their anchors, what is searched of the catalogue, the guards' echoes."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from unhang.inside.guards.words import ROWS
from unhang.model import grouped
from unhang.read.logs import FOLDER, INDEX, TABLES, all_patterns, key_of, table, written_rows
from unhang.read.logs.catalogue import SEARCHED, anchor_of, example_of, literals, speaking_rows
from unhang.read.logs.scan_engines import AnchorIndex

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


_SHARED = 6  # characters of a literal text of the tables that is long enough to find messages of the catalogue, too
# What many messages of one program have in common, and hardly another line.
_COMMON = (
    "nvidia-container-cli: ",
    "nvidia-fabricmanager",
    ": command not found",
    "srun: fatal: ",
    "mpirun ",
    "job killed: ",
    "TERM_",
)


def index_text() -> str:
    """What the index must hold: the anchors of all rows that give none. To derive them all takes too long at a start."""
    rows = {row.regex for path in FOLDER.rglob("*.lines") for row in written_rows(path)[1] if not row.anchors}
    found = {key_of(regex): derived(regex) for regex in rows}
    return "".join("\t".join([key, *anchors]) + "\n" for key, anchors in sorted(found.items()))


def searched_text() -> str:
    """What the list of searched messages of the catalogue must hold.

    Those that establish a cause, are no text of an exception, and are no line of the tables; each with the literal text by which
    it is found, one of the tables' where it holds one.
    """
    lines = grouped((anchor, p) for p in all_patterns() if not p.is_background for anchor in p.anchors)
    index = AnchorIndex(lines)
    found: dict[str, str] = {}
    for row in speaking_rows():
        for template in () if row.is_raised else row.templates:
            examples = (example_of(template), example_of(template, "PCI:0000:3b:00"))
            if not any(p.compiled.search(e) for e in examples for anchor in index.anchors_in(e) for p in lines[anchor]):
                shared = [a for part in literals(template) for a in index.anchors_in(part) if len(a) >= _SHARED]
                common = next((text for text in _COMMON if text in template), "")
                found[template] = common or max(shared, key=len, default=anchor_of(template))
    shortest = {a: min((b for b in found.values() if b in a), key=len) for a in found.values()}
    return "".join(f"{shortest[anchor]}\t{template}\n" for template, anchor in found.items())


def guards_text() -> str:
    """The echoes for the guards, which run in the user's process and import nothing of this: an expression and its anchors a line."""
    rows = (*(row for name in TABLES for row in table(name)), *all_patterns())
    echoes = dict.fromkeys((p.regex, p.anchors) for p in rows if p.role == "echo")
    return "".join("\t".join([regex, *anchors]) + "\n" for regex, anchors in echoes)


if __name__ == "__main__":
    # The index first: the tables are read with it.
    for path, text_of in ((INDEX, index_text), (SEARCHED, searched_text), (ROWS, guards_text)):
        path.write_text(text_of(), encoding="utf-8")
        print(path)
