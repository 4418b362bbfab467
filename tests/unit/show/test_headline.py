"""How sure a finding is, in the same words in the text and on the page: of a cause; or of who, where no cause is established."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.show.cases import hang
from unhang.model import Attempt, Outcome
from unhang.show.text import render_text
from unhang.show.verdict import certainty, ended
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


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome.CLEAN, "nothing wrong is seen in it"),  # a job that runs one launcher after the other
        (Outcome.CRASH, "the evidence does not suffice to say why"),
    ],
)
def test_an_attempt_without_a_fault_needs_no_cause(outcome: Outcome, said: str) -> None:
    assert ended(Attempt(0, outcome)) == said
