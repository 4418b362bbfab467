"""Who left a loop that a framework runs in one call of the user, and the line that asked for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.analyze.framework_loops import left_framework
from unhang.analyze.situation import Situation
from unhang.model import CallState, Case, Frame, HangObservation, Job, ProcessGroup, TableBuilder
from unhang.rules.registry import judge

FRAMEWORK = """def fit(self):
    self.start()
    while not self.done:
        self.advance()
    self.end()
"""
MAIN = """def main():
    trainer.fit(model)
    trainer.save(path)
"""
CALLBACK = """def on_epoch_end(trainer):
    if stale > 3:
        trainer.should_stop = True
"""


def parted(folder: Path, line: int, ranks_gone: tuple[int, ...] = (1,), world: int = 2) -> Situation:
    """Five rounds of `advance` by all; then `ranks_gone` are at `line` of main, and the others advance once more."""
    library = folder / "site-packages" / "frame" / "loop.py"
    library.parent.mkdir(parents=True)
    library.write_text(FRAMEWORK)
    main = folder / "main.py"
    main.write_text(MAIN)
    builder = TableBuilder()
    group = builder.group(ProcessGroup("0", "default_pg", tuple(range(world)), backend="gloo"))
    inside = (Frame(str(library), 4, "fit"), Frame(str(main), 2, "main"))
    for rank in range(world):
        for i in range(6):
            is_gone = i == 5 and rank in ranks_gone
            builder.add(
                rank=rank, group=group, seq=i + 1, op="barrier" if is_gone else "all_reduce", in_sizes=((8,),), record_id=i,
                state=CallState.SCHEDULED if i == 5 else CallState.COMPLETED, created_ns=10**18 + i,
                frames=(Frame(str(main), line, "main"),) if is_gone else inside,
            )  # fmt: skip
    table = builder.build()
    hang = HangObservation("proven", 1.0, 3.0, tuple(range(world)))
    return Situation(Case(Job(world, backend="gloo", ended_by_us=True), {}, table.groups, table, hang=hang))


def test_the_one_line_that_asks_the_framework_to_stop_is_named(tmp_path: Path) -> None:
    (tmp_path / "callbacks.py").write_text(CALLBACK)
    s = parted(tmp_path, 3)
    gone = left_framework(s)
    assert gone is not None
    assert (gone.leavers, gone.stayers, gone.call) == ((1,), (0,), "trainer.fit")
    first = judge(s).findings[0]
    assert (first.cause, first.culprit_ranks) == ("code-divergence", (1,))
    assert first.location is not None
    assert (Path(first.location.file).name, first.location.line) == ("callbacks.py", 3)


@pytest.mark.parametrize("world", [2, 4])
def test_without_it_the_rounds_are_uneven(tmp_path: Path, world: int) -> None:
    first = judge(parted(tmp_path, 3, world=world)).findings[0]
    assert first.cause == "uneven-inputs"
    assert first.culprit_ranks == (1,)  # it left its habit
    assert first.location is not None
    assert first.location.line == 2


def test_two_lines_that_ask_for_it_name_none(tmp_path: Path) -> None:
    (tmp_path / "callbacks.py").write_text(CALLBACK + CALLBACK)
    gone = left_framework(parted(tmp_path, 3))
    assert gone is not None
    assert gone.stop is None
