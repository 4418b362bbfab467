"""A rank that failed: whether it had passed the call in which the others wait, or had not come to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unhang.analyze.program.callpath import user_path
from unhang.analyze.situation import Situation
from unhang.analyze.waits.overtaking import left_out_before
from unhang.model import Frame
from unhang.testing import make_case

SOURCE = """def main():
    for image, mask in loader:
        logits = model(image)
        loss = criterion(logits, mask)
        loss.backward()
        scores = log(loss)

def forward(x):
    return norm(x)
"""


@pytest.mark.parametrize(
    ("lines", "passed"),
    [
        ((6,), 5),
        ((3, 9), None),  # the forward that sends the buffers first, and then fails
        ((4,), None),
    ],
)
def test_who_fails_in_the_line_of_its_last_call_has_passed_nothing(lines: tuple[int, ...], passed: int | None) -> None:
    rounds = ["broadcast[7]@main:3", "all_reduce[8]@main:5"] * 3 + ["broadcast[7]@main:3"]
    waits = [*rounds, "all_reduce[8]@main:5 !"]
    s = Situation(make_case({0: waits, 1: rounds, 2: waits}, world=3, source=SOURCE))
    (at,) = user_path(s.stuck[0].calls[0].frames)
    now = [replace(at, line=lines[0]), *(Frame(at.file, line, "forward") for line in lines[1:])]
    found = left_out_before(s.case, s.stuck, 1, tuple(now))
    assert (found.passed.line if found else None) == passed
