"""Two sides of a transfer that count their rounds by something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.analyze.program.rounds import counted_apart
from unhang.model import Frame

_STAGES = """
class First(Stage):
    def step(self, x):
        for part in x.split(self.size):
            dist.send(part, 1)
class Middle(Stage):
    def step(self, {given}):
        for _ in {over}:
            self.recv(0)
"""


def heads(folder: Path, given: str, over: str) -> tuple[str, bool] | None:
    file = folder / "stages.py"
    file.write_text(_STAGES.format(given=given, over=over))
    found = counted_apart(Frame(str(file), 5, "step"), 4, (Frame(str(file), 9, "step"),))
    return (f"{found.theirs_over} at {found.theirs.line}", found.can_name) if found else None


@pytest.mark.parametrize(("given", "can_name"), [("x", True), ("y", False)])
def test_the_other_loop_is_named_and_whether_it_could_go_over_the_same(
    given: str, can_name: bool, tmp_path: Path
) -> None:
    assert heads(tmp_path, given, "range(self.parts)") == ("range(self.parts) at 8", can_name)


def test_loops_over_the_same_are_not_apart(tmp_path: Path) -> None:
    assert heads(tmp_path, "x", "x.split(self.size)") is None
