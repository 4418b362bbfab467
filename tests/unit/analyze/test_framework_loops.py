"""Who left a loop that a framework runs in one call of the user, and the line that asked for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.analyze.calls.framework_loops import left_framework
from unhang.analyze.situation import Situation
from unhang.model import (
    CallState,
    Case,
    Frame,
    HangObservation,
    Job,
    PendingCall,
    ProcessGroup,
    RankEvidence,
    RankIdentity,
    Reading,
    TableBuilder,
)
from unhang.rules.registry import judge

FRAMEWORK = """def fit(self):
    self.start()
    while not self.done:
        self.advance()
        self.on_advance_end()
    self.end()
"""
MAIN = """def main():
    trainer.fit(model)
    trainer.save(path)
from data import Data
"""
CALLBACK = """def on_epoch_end(trainer):
    if stale > 3:
        trainer.should_stop = True
"""


def parted(
    folder: Path,
    line: int,
    ranks_gone: tuple[int, ...] = (1,),
    world: int = 2,
    below: tuple[Frame, ...] = (),
    ended: int = -1,
    batches: tuple[int, ...] = (),
) -> Situation:
    """Five rounds of `advance` by all; then `ranks_gone` are at `line` of main, and the others advance once more.

    `batches`: of each rank's newest loader; then those who are gone are in the evaluation at the end of the round.
    """
    library = folder / "site-packages" / "frame" / "loop.py"
    library.parent.mkdir(parents=True)
    library.write_text(FRAMEWORK)
    main = folder / "main.py"
    main.write_text(MAIN)
    builder = TableBuilder()
    group = builder.group(ProcessGroup("0", "default_pg", tuple(range(world)), backend="gloo"))
    inside = (*below, Frame(str(library), 4, "fit"), Frame(str(main), 2, "main"))
    gone = (Frame(str(main), line, "main"),)
    if batches:
        gone = (Frame(str(library), 9, "on_advance_end"), Frame(str(library), 5, "fit"), Frame(str(main), 2, "main"))
    for rank in range(world):
        for i in range(6):
            is_gone = i == 5 and rank in ranks_gone
            builder.add(
                rank=rank, group=group, seq=i + 1, op="barrier" if is_gone else "all_reduce", in_sizes=((8,),), record_id=i,
                state=CallState.SCHEDULED if i == 5 else CallState.COMPLETED, created_ns=10**18 + i,
                frames=gone if is_gone else inside,
            )  # fmt: skip
    table = builder.build()
    hang = HangObservation("proven", 1.0, 3.0, tuple(range(world)))
    asked = Frame(str(main), 2, "main")
    end = PendingCall("loader_end", 1, "", None, 1, 1, (asked,), "5")
    ranks = {
        r: RankEvidence(
            RankIdentity(r, world),
            pending=(end,) * (r == ended),
            facts=(Reading("program.loader", "", {"ends": True, **_loader(batches[r : r + 1])}, r, at=asked),),
        )
        for r in range(world)
    }
    return Situation(
        Case(Job(world, backend="gloo", ended_by_us=True), ranks if below else {}, table.groups, table, hang=hang)
    )


def _loader(batches: tuple[int, ...]) -> dict[str, int | str]:
    return {"batch_size": 8, "sampler": "RandomSampler", "batches": batches[0]} if batches else {}


_DATA = """\
class Data:
    def train_dataloader(self):
        return DataLoader(self.kept(), batch_size=8)
"""


@pytest.mark.parametrize(
    ("batches", "cause", "line"),
    [((9, 5), "uneven-inputs", 3), ((9, 9), "code-divergence", 2), ((5, 9), "code-divergence", 2)],
)
def test_who_has_no_batch_left_evaluates_before_the_others(
    batches: tuple[int, int], cause: str, line: int, tmp_path: Path
) -> None:
    (tmp_path / "data.py").write_text(_DATA)
    inner = (Frame(str(tmp_path / "site-packages" / "frame" / "inner.py"), 1, "backward"),)
    first = judge(parted(tmp_path, 3, below=inner, batches=batches)).findings[0]
    assert first.location is not None
    assert (first.cause, first.location.line) == (cause, line)
    assert ("had no batch left" in first.title) is (cause == "uneven-inputs")


@pytest.mark.parametrize("after", ["", "    trainer.strategy.barrier()\n"])  # a barrier agrees on nothing
def test_the_one_line_that_asks_the_framework_to_stop_is_named(tmp_path: Path, after: str) -> None:
    (tmp_path / "callbacks.py").write_text(CALLBACK + after)
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


@pytest.mark.parametrize(
    "more", [CALLBACK, "    trainer.should_stop = trainer.strategy.reduce_boolean_decision(trainer.should_stop)\n"]
)
def test_two_lines_that_ask_for_it_or_one_that_is_agreed_on_name_none(tmp_path: Path, more: str) -> None:
    (tmp_path / "callbacks.py").write_text(CALLBACK + more)
    gone = left_framework(parted(tmp_path, 3))
    assert gone is not None
    assert gone.stop is None


@pytest.mark.parametrize(
    ("below", "ended", "cause", "says"),
    [
        ("backward", 1, "uneven-inputs", "left the loop of fit"),
        ("backward", -1, "code-divergence", "and no loader had ended"),
        ("reduce_metric", -1, "code-divergence", "made all_reduce"),  # the loop goes over something else
    ],
)
def test_a_framework_that_had_more_data_was_told_to_stop(
    tmp_path: Path, below: str, ended: int, cause: str, says: str
) -> None:
    inner = (Frame(str(tmp_path / "site-packages" / "frame" / "inner.py"), 1, below),)
    first = judge(parted(tmp_path, 3, world=3, below=inner, ended=ended)).findings[0]
    assert (first.cause, first.culprit_ranks) == (cause, (1,))
    assert says in first.title
