"""Ranks in two branches of one `if` have a role each; behind it, one has gone on where the others wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.model import Frame
from unhang.rules.late import _are_roles

STEP = """def step(rank):
    if rank == 0:
        feed()
    elif rank < 2:
        pass_on()
    else:
        take(targets())
    dist.barrier()
    work()
"""


@pytest.mark.parametrize(
    ("wait", "here", "are_roles"), [(3, 7, True), (5, 7, True), (3, 9, False), (8, 9, False)], ids=str
)
def test_branches_of_one_if_are_roles(wait: int, here: int, are_roles: bool, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(STEP)
    assert _are_roles(Frame(str(file), wait, "step"), Frame(str(file), here, "step")) is are_roles
