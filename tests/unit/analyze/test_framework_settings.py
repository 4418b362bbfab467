"""What a program may set so that a framework makes the same calls on every rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.analyze.calls.framework_settings import property_read, sized_apart
from unhang.analyze.program.metrics import guarded_update, left_out_update, own_metrics
from unhang.model import Frame

_EVALUATES = """
def evaluate(net, scenes, metric):
    for image, target in scenes:
        {before}
            continue
        metric.update(net(image), target)
    return metric.compute()
"""
_ALWAYS = """
def evaluate(net, scenes, metric):
    for image, target in scenes:
        metric.update(net(image), target)
        if target.numel() == 0:
            continue
    return metric.compute()
"""


def written(folder: Path, text: str, name: str = "job.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_round_without_an_update_is_named(tmp_path: Path) -> None:
    file = written(tmp_path, _EVALUATES.format(before="if target.numel() == 0:"))
    found = left_out_update(Frame(file, 7, "evaluate"))
    assert found is not None
    assert (found.metric, found.update.line, found.way.line) == ("metric", 6, 4)


def test_an_update_in_every_round_is_not(tmp_path: Path) -> None:
    assert left_out_update(Frame(written(tmp_path, _ALWAYS), 7, "evaluate")) is None


_SCORES = """
class Scores:
    def update(self, x, y, dark):
        self.loss.update(x)
        {test}
            self.dark.update(x[dark])

    def compute(self):
        return self.loss.compute(), self.dark.compute()
"""


@pytest.mark.parametrize("test", ["if dark.any():", "with timer:"])
def test_an_update_that_only_runs_under_a_test(test: str, tmp_path: Path) -> None:
    found = guarded_update(Frame(written(tmp_path, _SCORES.format(test=test)), 9, "compute"))
    told = found and (found[0], found[1].line, found[2].text)
    assert told == (("self.dark", 6, "dark.any()") if test.startswith("if") else None)


_TRAINER = """
class SpanTrainer(Trainer):
    def evaluate(self):
        metrics = {made}
        self.log(metrics)
        return metrics
"""


def test_metrics_of_a_rank_alone_are_handed_on(tmp_path: Path) -> None:
    written(tmp_path, _TRAINER.format(made="spans(self.model)"))
    found = own_metrics(str(tmp_path))
    assert found is not None
    assert (found.at.line, found.name) == (5, "metrics")


@pytest.mark.parametrize("made", ["super().evaluate()", "self.gather_all(spans(self.model))", "self.evaluation_loop()"])
def test_metrics_of_all_ranks_are_not(made: str, tmp_path: Path) -> None:
    written(tmp_path, _TRAINER.format(made=made))
    assert own_metrics(str(tmp_path)) is None


@pytest.mark.parametrize(("added", "is_own"), [("worst(self.level)", True), ("reduce(worst(self.level))", False)])
def test_what_is_added_to_metrics_of_all_ranks_is_of_one(added: str, is_own: bool, tmp_path: Path) -> None:
    written(tmp_path, _TRAINER.format(made=f"super().evaluate(); metrics['worst'] = {added}"))
    assert (own_metrics(str(tmp_path)) is not None) is is_own


@pytest.mark.parametrize(
    ("line", "text"),
    [("flush(trainer.log_dir)", "trainer.log_dir"), ("flush(trainer.log_dir())", ""), ("flush(trainer.name)", "")],
    ids=["it is read", "it is called", "another one is read"],
)
def test_a_property_is_read_and_not_called(line: str, text: str, tmp_path: Path) -> None:
    assert property_read(written(tmp_path, f"def end(trainer):\n    {line}\n"), 2, "log_dir") == text


@pytest.mark.parametrize(
    ("found", "line"), [("pick(data, dist.get_rank())", 2), ("pick(data, 17)", None), ("args.batch", None)]
)
def test_a_size_of_batches_that_each_rank_finds_for_itself(found: str, line: int | None, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        f"def main(args, data):\n    size = {found}\n    return TrainingArguments(per_device_train_batch_size=size)\n"
    )
    sized = sized_apart(str(file))
    assert (sized and sized.at.line) == line
