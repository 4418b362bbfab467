"""How sure a finding is, in the same words in the text and on the page: of a cause; or of who, where no cause is established."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.show.cases import hang
from unhang.show.text import render_text
from unhang.show.verdict import certainty
from unhang.show.web_page import page_data


@pytest.mark.parametrize(
    ("changes", "text", "chips"),
    [
        ({}, "code-divergence, 97%", [["cause", "code-divergence"], ["confidence", "97%"]]),
        (
            {"cause": "unknown", "confidence": 0.9},
            "who: 90%; why: not established",
            [["who", "90%"], ["why", "not established"]],
        ),
        (
            {"cause": "unknown", "confidence": 0.3, "culprit_ranks": ()},
            "why: not established; confidence: 30%",
            [["why", "not established"], ["confidence", "30%"]],
        ),
    ],
)
def test_the_bracket_and_the_page_say_the_same(changes: dict[str, object], text: str, chips: list[list[str]]) -> None:
    sample = hang()
    first = replace(sample.diagnosis.findings[0], **changes)  # type: ignore[arg-type]
    diagnosis = replace(sample.diagnosis, findings=(first, replace(first, id="F9")))
    assert certainty(first) == text
    lines = render_text(diagnosis, sample.case, sample.waits).splitlines()
    assert lines[0].endswith(f"  [{text}]")
    view = page_data(diagnosis, sample.case, sample.waits)
    assert [c[1:] for c in view["chips"] if c[0] == "fact"][: len(chips)] == chips
    assert view["others"][0]["certainty"] == text
