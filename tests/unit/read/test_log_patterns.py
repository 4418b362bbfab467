from __future__ import annotations

import re

from unhang.read.logs.patterns import MIN_ANCHOR, Pattern, all_patterns, by_anchor, matches

LINES = [(p, example, True) for p in all_patterns() for example in p.examples]
COUNTER_LINES = [(p, example, False) for p in all_patterns() for example in p.not_examples]


def name_of(pattern: Pattern) -> str:
    return f"{pattern.kind} {pattern.regex}"


def test_a_line_holds_an_anchor_of_its_pattern() -> None:
    """Also a counter-example: without an anchor it would prove nothing."""
    bare = [(p, line) for p, line, _ in LINES + COUNTER_LINES if not any(anchor in line for anchor in p.anchors)]
    assert [(name_of(p), line) for p, line in bare] == []


def test_a_pattern_matches_its_examples_and_no_counter_example() -> None:
    assert [name_of(p) for p in all_patterns() if not p.examples] == []
    wrong = [
        (p, line) for p, line, wanted in LINES + COUNTER_LINES if any(f is p for f, _ in matches(line)) is not wanted
    ]
    assert [(name_of(p), line) for p, line in wrong] == []


def is_well_formed(pattern: Pattern) -> bool:
    return (
        re.fullmatch(r"[a-z0-9_]+\.[a-z0-9_]+", pattern.kind) is not None
        and all(len(anchor) >= (2 if pattern.is_background else MIN_ANCHOR) for anchor in pattern.anchors)
        and pattern.says in ("", "hang", "crash")
    )


def test_patterns_are_well_formed() -> None:
    assert [name_of(p) for p in all_patterns() if not is_well_formed(p)] == []


def test_every_anchor_leads_somewhere() -> None:
    assert by_anchor()
