"""A call that the program makes below a framework, left out by a rank on which the framework went further."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.analyze.waits.overtaking import _Made, _passed_below
from unhang.model import Case, Frame, Job, RankEvidence, RankIdentity, ThreadStack

LIBRARY = "def fit(self):\n    for batch in self:\n        self.step(batch)\n        self.log()\n\ndef step(self, batch):\n    loss = self.loss(batch)\n    loss.backward()\n"
PROGRAM = "def main():\n    trainer.fit()\n\ndef loss(self, batch):\n    hard = batch[batch > local.mean()]\n    if hard.numel() < 4:\n        return 0\n    return gather(hard)\n"


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Frame]:
    library, program = tmp_path / "site-packages" / "frame" / "loop.py", tmp_path / "train.py"
    library.parent.mkdir(parents=True)
    library.write_text(LIBRARY)
    program.write_text(PROGRAM)
    lines = {"fit": 3, "log": 4, "loss": 7, "backward": 8}
    found = {
        name: Frame(str(library), line, "fit" if name in ("fit", "log") else "step") for name, line in lines.items()
    }
    return {**found, "main": Frame(str(program), 2, "main"), "gather": Frame(str(program), 8, "loss")}


def made(*way: Frame, key: tuple[int, int], time_ns: int, is_open: bool = False) -> _Made:
    """A call; its way from the outermost frame on."""
    return _Made(time_ns, tuple(f for f in way if f.is_user), way, is_open, key)


@pytest.mark.parametrize(("now", "line"), [("backward", 8), ("loss", None)])
def test_who_stands_further_on_in_the_framework_left_the_call_out(
    places: dict[str, Frame], now: str, line: int | None
) -> None:
    p = places
    logged = made(p["main"], p["log"], key=(0, 9), time_ns=1)
    missed = made(p["main"], p["fit"], p["loss"], p["gather"], key=(1, 3), time_ns=2, is_open=True)
    stack = ThreadStack("MainThread", (p[now], p["fit"], p["main"]), is_main=True)
    case = Case(job=Job(world_size=2), ranks={1: RankEvidence(RankIdentity(1), (stack,))})
    found = _passed_below(case, 1, [logged, missed], [logged], missed.path, (p["main"],))
    assert (found.line if found else None) == line


def test_not_where_the_program_itself_went_another_way(places: dict[str, Frame]) -> None:
    p = places
    missed = made(p["main"], p["fit"], p["loss"], p["gather"], key=(1, 3), time_ns=2, is_open=True)
    case = Case(job=Job(world_size=2), ranks={})
    assert _passed_below(case, 1, [missed], [], missed.path, (Frame(p["main"].file, 5, "main"),)) is None
