"""Which line of the odd ranks' way decides: that under a condition on the rank, also calls deeper."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.analyze.program.callpath import fork_of, line_to_look_at
from unhang.model import Frame

_PROGRAM = """
def main():
    for x in data:
        loss.backward()
        if not accelerator.sync_gradients:
            continue
        checkpoint(step)
def checkpoint(step):
    if {test}:
        accelerator.save_state()
"""


@pytest.mark.parametrize(
    ("test", "line"), [("accelerator.is_main_process", 10), ("step % 100 == 0", 7), ("loss.isnan()", 7)]
)
def test_a_condition_on_the_rank_comes_before_one_on_data(test: str, line: int, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(_PROGRAM.format(test=test))
    odd = (Frame(str(file), 7, "main"), Frame(str(file), 10, "checkpoint"))
    others = (Frame(str(file), 4, "main"),)
    found = line_to_look_at(others, odd, fork_of(others, odd), skipped=False)
    assert found is not None
    assert found.line == line
