"""First fixes for calls of a framework: the setting, the metric, what has to be the same on every rank."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from unhang.analyze.calls.divergence import library_tests
from unhang.analyze.calls.framework_loops import LeftFramework, own_loader
from unhang.analyze.calls.framework_settings import limit_of, trains_below
from unhang.analyze.program.callpath import Fork
from unhang.analyze.situation import Situation
from unhang.model import Frame
from unhang.rules.advice import call_first, look_inside
from unhang.rules.early_ends import dealt_out_by_trainer
from unhang.rules.framework_advice import (
    of_best_metric,
    of_closure,
    of_kept_result,
    of_left_loop,
    of_same_stop,
    of_stop,
    of_stop_apart,
    out_of_first,
)
from unhang.rules.job import sizes
from unhang.testing import make_case

_MAIN = """\
import lightning as L
def main():
    trainer = L.Trainer(max_steps=9)
    trainer.fit(model)
    dist.barrier()
"""
"""The program; a Trainer of its own that stops by metrics of each rank."""
_TAGGER = """\
class SpanTrainer(Trainer):
    def evaluate(self):
        metrics = spans(self.model)
        self.log(metrics)
        return metrics
"""
_LIB = "/site-packages/lightning/pytorch/loops/evaluation_loop.py"


def job(folder: Path, rounds: int) -> tuple[Situation, LeftFramework]:
    """Rank 2 has left the loop of an evaluation after some rounds, ranks 0 and 1 are in the next one."""
    file = folder / f"train{zlib.crc32(bytes(rounds))}.py"
    file.write_text(_MAIN)
    calls = ["barrier@main:2", *["all_reduce[1]@main:4"] * rounds]
    case = make_case(
        {r: [*calls, "all_gather[1]@main:5 !" if r == 2 else "all_reduce[1]@main:4 !"] for r in range(3)},
        world=3,
        source=_MAIN,
    )
    loop = Frame(_LIB, 146, "run")
    line = next(f for stack in case.calls.stacks for f in stack if f.line == 4)
    stacks = tuple((loop, *stack) if stack[0].line == 4 else stack for stack in case.calls.stacks)
    case = replace(case, calls=replace(case.calls, stacks=stacks))
    situation = Situation(case)
    return situation, LeftFramework((2,), (0, 1), replace(line, file=str(file)), loop, None)


@pytest.mark.parametrize("rounds", [3, 20])
def test_lightning_is_told_how_many_batches_all_have(rounds: int, tmp_path: Path) -> None:
    situation, gone = job(tmp_path, rounds)
    d = situation.divergence
    assert d is not None
    limit = limit_of(situation, d, gone)
    assert limit is not None
    assert (limit.name, limit.batches, limit.at.line) == ("limit_val_batches", rounds, 3)
    fix = of_left_loop(situation, d, gone)
    assert fix is not None
    assert f"limit_val_batches={rounds})" in fix.advice


def test_a_loop_of_another_framework_has_no_such_setting(tmp_path: Path) -> None:
    situation, gone = job(tmp_path, 3)
    assert situation.divergence is not None
    other = replace(gone, loop=Frame("/site-packages/other/evaluation_loop.py", 146, "run"))
    assert of_left_loop(situation, situation.divergence, other) is None


def stopped(folder: Path, step: str) -> Situation:
    """Rank 2 is behind the line in which the others still do steps of a Trainer."""
    (folder / "train.py").write_text(_MAIN)
    (folder / "tagger.py").write_text(_TAGGER)
    calls = ["barrier@main:2", "all_reduce[1]@main:4"]
    case = make_case(
        {r: [*calls, "barrier@main:5 !" if r == 2 else "broadcast[4]@main:4 !"] for r in range(3)},
        world=3,
        source=_MAIN,
    )
    library = Frame("/site-packages/transformers/trainer.py", 2090, step)
    moved = [tuple(replace(f, file=str(folder / "train.py")) for f in stack) for stack in case.calls.stacks]
    stacks = tuple((library, *stack) if stack[0].line == 4 else stack for stack in moved)
    return Situation(replace(case, calls=replace(case.calls, stacks=stacks)))


@pytest.mark.parametrize(("step", "is_told"), [("training_step", True), ("save_model", False)])
def test_a_trainer_that_stops_by_metrics_of_one_rank(step: str, is_told: bool, tmp_path: Path) -> None:
    d = stopped(tmp_path, step).divergence
    assert d is not None
    assert (trains_below(d) is not None) is is_told
    fix = of_stop_apart(d)
    assert (fix is not None) is is_told
    if fix is not None:
        assert fix.advice.startswith("# tagger.py:4, before this line: `metrics`")


_LIBRARY = """def save(self):
    if {asked}:
        dist.barrier()
"""


@pytest.mark.parametrize("asked", ["self.state.best_global_step", "self.state.epoch > last"])
def test_a_trainer_that_waits_where_a_rank_has_a_best_metric(asked: str, tmp_path: Path) -> None:
    library = tmp_path / "transformers" / "trainer.py"
    library.parent.mkdir()
    library.write_text(_LIBRARY.format(asked=asked))
    parted = stopped(tmp_path, "training_step").divergence
    assert parted is not None
    line, save = Frame(str(tmp_path / "train.py"), 4, "main"), Frame(str(library), 3, "save")
    mine, theirs = (replace(parted.odd_call, frames=(replace(save, line=n), line)) for n in (1, 3))
    d = replace(
        parted,
        fork=None,
        by_condition=None,
        reference_path=(line,),
        odd_path=(line,),
        odd_call=mine,
        reference_call=theirs,
    )
    assert d.location == line
    fix = of_best_metric(d)
    assert (fix is not None) is ("best" in asked)
    shown = look_inside(line, (save, save), "rank 1", False, library_tests(d)[0])
    assert shown.advice.endswith(f"runs only if `{asked}` (trainer.py:2)")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("compute_metrics=Accuracy(seed=rank), callbacks=[EarlyStoppingCallback(3)]", "Accuracy(seed=rank)"),
        ("compute_metrics=Accuracy(seed=rank)", ""),  # nothing stops by it
        ("args=args, callbacks=[EarlyStoppingCallback(3)]", ""),
    ],
)
def test_what_a_trainer_computes_by_is_given_by_rank_0(given: str, line: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"def main():\n    trainer = Trainer(\n        {given},\n    )\n    trainer.train()\n")
    at, loop = (
        Frame(str(file), 5, "main"),
        Frame("/site-packages/transformers/trainer.py", 1660, "_inner_training_loop"),
    )
    fix = of_same_stop(LeftFramework((0,), (1, 2), at, loop, None, has_data=True))
    assert (fix is not None) is bool(line)
    if fix is not None:
        assert fix.advice.startswith(
            f"# train.py:3: compute_metrics=same_metrics instead, and before that\nown_metrics = {line}\n"
        )


_CALLBACKS = """\
import lightning
class Stop:
    def on_step_end(self, args, control, **more):
        if args.rank == 0:
            if time.monotonic() > self.end:
                control.should_training_stop = True
    def on_log(self, trainer):
        if self.stale > 3:
            trainer.should_stop = True
    def stop(self, control):
        if rank == 0:
            control.should_training_stop = True
"""


@pytest.mark.parametrize(
    ("line", "starts", "holds"),
    [
        (6, "# stops.py:3: rename on_step_end to on_step_end_here", "self.on_step_end_here(args, control, **more)"),
        (9, "# stops.py:8, instead of `if self.stale > 3:`", "reduce_boolean_decision"),
    ],
)
def test_a_stop_is_agreed_on_where_all_ranks_come(line: int, starts: str, holds: str, tmp_path: Path) -> None:
    file = tmp_path / "stops.py"
    file.write_text(_CALLBACKS)
    fix = of_stop(Frame(str(file), line, "on_step_end"))
    assert fix is not None
    assert fix.advice.startswith(starts)
    assert holds in fix.advice


def test_what_is_no_hook_is_not_called_on_every_rank(tmp_path: Path) -> None:
    file = tmp_path / "stops.py"
    file.write_text(_CALLBACKS)
    assert of_stop(Frame(str(file), 12, "stop")) is None


def test_a_trainer_gets_as_many_items_on_every_rank(tmp_path: Path) -> None:
    situation, gone = job(tmp_path, 3)
    assert situation.divergence is not None
    file = tmp_path / "tune.py"
    file.write_text("trainer = OwnTrainer(\n    train_dataset=Shard(rank),\n)\ntrainer.train()\n")
    loop = Frame("/site-packages/transformers/trainer.py", 1660, "_inner_training_loop")
    of_trainer = replace(gone, line=Frame(str(file), 4, "<module>"), loop=loop)
    fix = of_left_loop(situation, situation.divergence, of_trainer)
    assert fix is not None
    assert fix.advice.startswith("# tune.py:2: train_dataset=even(Shard(rank)) instead")


def test_items_without_a_length_are_not_cut(tmp_path: Path) -> None:
    situation, gone = job(tmp_path, 3)
    assert situation.divergence is not None
    file = tmp_path / "tune.py"
    file.write_text(
        "class Shard(IterableDataset): ...\ndata = Shard(rank)\nSeq2SeqTrainer(train_dataset=data).train()\n"
    )
    loop = Frame("/site-packages/transformers/trainer.py", 1660, "_inner_training_loop")
    of_trainer = replace(gone, line=Frame(str(file), 3, "<module>"), loop=loop)
    fix = of_left_loop(situation, situation.divergence, of_trainer)
    assert fix is not None
    assert (fix.kind, "even(" in fix.advice) == ("look", False)


_FIRST = """\
def main(accelerator):
    with accelerator.{block}():
        prepare()
        dist.all_reduce(x)
    dist.barrier()
"""


@pytest.mark.parametrize(
    ("block", "line", "is_told"),
    [("main_process_first", 4, True), ("main_process_first", 5, False), ("join", 4, False)],
)
def test_a_call_in_the_block_of_the_first_rank(block: str, line: int, is_told: bool, tmp_path: Path) -> None:
    file = tmp_path / f"{block}.py"
    file.write_text(_FIRST.format(block=block))
    situation, _ = job(tmp_path, 3)
    assert situation.divergence is not None
    fork = Fork(Frame(str(file), 2, "main"), Frame(str(file), line, "main"), 0, same_line=False)
    assert (out_of_first(replace(situation.divergence, fork=fork)) is not None) is is_told


_CLOSURE = """\
def refine(opt, strip):
    def closure():
        loss = strip.loss()
        loss.backward()
        {more}
        return loss
    opt.step(closure)
"""


@pytest.mark.parametrize(
    ("library", "more", "is_told"),
    [
        ("torch/optim/lbfgs.py", "count()", True),
        ("torch/optim/lbfgs.py", "dist.all_reduce(loss)", False),
        ("accelerate/tracking.py", "count()", False),
    ],
)
def test_an_optimizer_that_asks_as_often_as_each_rank_s_loss_demands(
    library: str, more: str, is_told: bool, tmp_path: Path
) -> None:
    file = tmp_path / "solver.py"
    file.write_text(_CLOSURE.format(more=more))
    situation, _ = job(tmp_path, 3)
    d = situation.divergence
    assert d is not None
    frames = (
        Frame(str(file), 4, "closure"),
        Frame(f"/site-packages/{library}", 90, "step"),
        Frame(str(file), 7, "refine"),
    )
    fix = of_closure(replace(d, reference_call=replace(d.reference_call, frames=frames)))
    assert (fix is not None) is is_told
    if fix is not None:
        assert fix.advice.startswith("# solver.py:6, in place of `return loss`")


def test_a_hook_of_ddp_that_sends_by_its_own_state(tmp_path: Path) -> None:
    d = job(tmp_path, 3)[0].divergence
    assert d is not None
    hook = Frame("/site-packages/torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py", 400, "powerSGD_hook")
    with_hook = replace(d, odd_call=replace(d.odd_call, frames=(hook, *(d.odd_call.frames or ()))))
    assert [sizes.fixes_of(x, False, None) for x in (with_hook, d)] == [("hook", "shape"), ("shape",)]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("return self.used_up or self.check()", "asked = self.check()\nreturn self.used_up or asked"),
        ("if near and self.check():", "asked = self.check()\nif near and asked:"),
        ("done = late or votes(self.flag) > 0", "asked = votes(self.flag) > 0\ndone = late or asked"),
        ("return self.check() or self.used_up", None),
        ("return self.check()", None),
    ],
)
def test_a_call_behind_what_may_decide_without_it(line: str, told: str | None, tmp_path: Path) -> None:
    file = tmp_path / "budget.py"
    file.write_text(f"def day_is_over(self, near, late):\n    {line}\n{'        pass' if line.endswith(':') else ''}\n")
    fix = call_first(Frame(str(file), 2, "day_is_over"))
    assert (None if fix is None else fix.advice.partition("\n")[2]) == told
    assert call_first(None) is None


def test_a_metric_that_some_ranks_did_not_gather(tmp_path: Path) -> None:
    (tmp_path / "report.py").write_text("def show(self):\n    return self.strong.compute()\n")
    assert of_kept_result(Frame(str(tmp_path / "report.py"), 2, "show")).advice.startswith(
        "# report.py:2: `return self.strong.compute()`\n"
    )


_OWN_LOADER = """\
class OwnTrainer(Trainer):
    def {name}(self, data=None):
        mine = range(self.args.process_index, len(data), self.args.world_size)
        loader = DataLoader(Subset(data, list(mine)))
        return {given}
OwnTrainer(train_dataset=data).train()
"""


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("get_eval_dataloader", "loader", 3),
        ("get_eval_dataloader", "self.accelerator.prepare(loader)", 0),
        ("get_train_dataloader", "loader", 0),  # another loop's
    ],
)
def test_a_loader_that_a_trainer_makes_itself(name: str, given: str, expected: int, tmp_path: Path) -> None:
    file = tmp_path / "tune.py"
    file.write_text(_OWN_LOADER.format(name=name, given=given))
    found = own_loader(str(file), "evaluation_loop")
    assert (found.line if found else 0) == expected
    if found:
        assert dealt_out_by_trainer(found).advice.startswith("# tune.py:3, in get_eval_dataloader()")
