"""A tensor that a function makes anew has left the graph; one that its layers give has not."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.analyze.calls.framework_settings import made_anew

_EXPERT = """
from comm import exchange
class Expert:
    def forward(self, x):
        if {test}:
            return {made}
        return self.up(x)
"""


def found_in(folder: Path, text: str) -> int | None:
    (folder / "comm.py").write_text("def exchange(x):\n    return x\n")
    (folder / "moe.py").write_text(text)
    found = made_anew(str(folder / "comm.py"))
    return found.line if found else None


@pytest.mark.parametrize("test", ["x.shape[0] == 0", "not len(x)", "x.numel() < 1"])
def test_an_empty_batch_is_made_anew_in_a_file_that_uses_the_exchange(test: str, tmp_path: Path) -> None:
    assert found_in(tmp_path, _EXPERT.format(test=test, made="torch.empty_like(x)")) == 5


@pytest.mark.parametrize(
    ("test", "made"),
    [("x.shape[0] == 0", "x"), ("self.skips", "torch.zeros(1)"), ("len(x) == 0", "torch.zeros(1, requires_grad=True)")],
    ids=["it goes on", "no test for rows", "it asks for a gradient"],
)
def test_what_stays_in_the_graph_is_left_alone(test: str, made: str, tmp_path: Path) -> None:
    assert found_in(tmp_path, _EXPERT.format(test=test, made=made)) is None


def test_of_two_places_none_is_named(tmp_path: Path) -> None:
    one = _EXPERT.format(test="len(x) == 0", made="torch.empty_like(x)")
    assert found_in(tmp_path, one + one.replace("Expert", "Router").replace("from comm import exchange", "")) is None
