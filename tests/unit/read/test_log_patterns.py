from __future__ import annotations

import re

import pytest

from unhang.read.logs.patterns import MIN_ANCHOR, Pattern, all_patterns, by_anchor, matches


def case_of(pattern: Pattern, number: int) -> object:
    return pytest.param(pattern, id=f"{pattern.kind}-{number}")


PATTERNS = [case_of(p, i) for i, p in enumerate(all_patterns())]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_matches_its_examples_through_its_anchors(pattern: Pattern) -> None:
    assert pattern.examples
    for line in pattern.examples:
        assert any(anchor in line for anchor in pattern.anchors), line
        assert any(found is pattern for found, _ in matches(line)), line


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_is_silent_on_its_counter_examples(pattern: Pattern) -> None:
    for line in pattern.not_examples:
        assert any(anchor in line for anchor in pattern.anchors), f"not a counter-example, no anchor in it: {line}"
        assert not any(found is pattern for found, _ in matches(line)), line


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_is_well_formed(pattern: Pattern) -> None:
    assert re.fullmatch(r"[a-z0-9_]+\.[a-z0-9_]+", pattern.kind)
    assert all(len(anchor) >= (2 if pattern.is_background else MIN_ANCHOR) for anchor in pattern.anchors)
    assert pattern.says in ("", "hang", "crash")


def test_every_anchor_leads_somewhere() -> None:
    assert by_anchor()
