"""First fixes that the program itself shows, and programs beside them that show nothing of the kind."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rules.cases.filesystem_race import on_nodes
from unhang.analyze.program import shared_state
from unhang.analyze.program.finite import origin_in, raised_for
from unhang.analyze.program.source import Condition, surroundings
from unhang.model import Fix, Frame, RaisedError
from unhang.rules.advice import decided_together, fixes_of
from unhang.rules.item_repairs import of_worker
from unhang.rules.repairs import (
    of_draws,
    of_exception,
    of_limit,
    of_list,
    of_lost_graph,
    of_monitored,
    of_moved,
    of_parts,
    of_resumed,
)
from unhang.testing import judge, make_case


def written(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(text)
    return str(path)


def line_of(path: str, part: str) -> int:
    return next(i for i, line in enumerate(Path(path).read_text().splitlines(), 1) if part in line)


def frame_at(path: str, part: str, function: str) -> Frame:
    return Frame(path, line_of(path, part), function)


def first_of(text: str, kind: str, frame: Frame, *above: Frame) -> Fix | str:
    error = RaisedError(kind, text, 0, (*above, frame))
    return of_exception(error, frame, make_case({}))[0][0]


_SEGMENTS = """\
VOID = 255
def masks(y):
    y[y.gt(2)] = VOID
    return y
def work(net, x, y):
    return F.cross_entropy(net(x), masks(y))   # loss
def hist(a, b):
    return torch.bincount(a * 3 + b)
"""
_OUT = "Target 255 is out of bounds."


def test_a_label_that_the_program_sets_is_left_out_of_the_loss(tmp_path: Path) -> None:
    path = written(tmp_path, _SEGMENTS)
    fix = first_of(_OUT, "IndexError", frame_at(path, "# loss", "work"))
    assert isinstance(fix, Fix)
    assert "F.cross_entropy(net(x), masks(y), ignore_index=255)" in fix.advice
    assert "train.py:8 counts by label" in fix.advice


@pytest.mark.parametrize(
    "other", [("VOID = 255", "VOID = 250"), ("masks(y))", "y, ignore_index=0)"), ("cross_entropy", "mse_loss")]
)
def test_a_label_that_nobody_sets_is_to_be_looked_at(other: tuple[str, str], tmp_path: Path) -> None:
    path = written(tmp_path, _SEGMENTS.replace(*other))
    fix = first_of(_OUT, "IndexError", frame_at(path, "# loss", "work"))
    assert not isinstance(fix, Fix) or fix.kind == "look"


def test_a_class_too_many_is_no_label_for_none(tmp_path: Path) -> None:
    path = written(tmp_path, _SEGMENTS.replace("VOID = 255", "ROOF = 3").replace("VOID", "ROOF"))
    fix = first_of("Target 3 is out of bounds.", "IndexError", frame_at(path, "# loss", "work"))
    assert not isinstance(fix, Fix) or fix.kind == "look"


def test_a_loss_that_was_made_before_is_mended_where_it_was_made(tmp_path: Path) -> None:
    text = "loss = nn.CrossEntropyLoss()\ndef work(net, x, y):\n    y = torch.full_like(y, -1)\n    return loss(net(x), y)   # loss\n"
    path = written(tmp_path, text)
    fix = first_of("Target -1 is out of bounds.", "IndexError", frame_at(path, "# loss", "work"))
    assert isinstance(fix, Fix)
    assert "nn.CrossEntropyLoss(ignore_index=-1)" in fix.advice


_PREPARED = """\
class Data(L.LightningDataModule):
    def prepare_data(self):
        rows = scan()
        print(rows)
        self.scale = rows.max()
    def setup(self, stage):
        self.rows = load(self.scale)   # used
"""
_MISSING = "'Data' object has no attribute 'scale'"


def test_what_prepare_data_sets_is_set_in_setup(tmp_path: Path) -> None:
    path = written(tmp_path, _PREPARED)
    fix = first_of(_MISSING, "AttributeError", frame_at(path, "# used", "setup"))
    assert isinstance(fix, Fix)
    assert fix.advice.endswith("rows = scan()\nself.scale = rows.max()")


def test_what_one_rank_sets_is_given_to_all(tmp_path: Path) -> None:
    text = "class Data:\n    def scan(self, rank):\n        if rank == 0:\n            self.scale = 3\n    def use(self):\n        return self.scale   # used\n"
    path = written(tmp_path, text)
    fix = first_of(_MISSING, "AttributeError", frame_at(path, "# used", "use"))
    assert isinstance(fix, Fix)
    assert "self.scale = box[0]" in fix.advice


@pytest.mark.parametrize(
    "text",
    [
        _PREPARED.replace("prepare_data", "begin"),
        _PREPARED.replace("    def setup", "    def later(self):\n        self.scale = 2\n    def setup"),
        _PREPARED.replace("class Data", "class Other"),
    ],
    ids=["on every rank", "in two places", "another class"],
)
def test_what_other_ways_set_is_not_said_to_be_one_ranks_own(text: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    assert first_of(_MISSING, "AttributeError", frame_at(path, "# used", "setup")) == "mend"


_BATCHES = (
    "def work(net, loader):\n    for x, y in loader:\n        loss = net(x)   # forward\n        loss.backward()\n"
)
_ONE = "Expected more than 1 value per channel when training, got input size torch.Size([1, 12, 1, 1])"


def test_a_batch_of_one_item_is_given_twice(tmp_path: Path) -> None:
    path = written(tmp_path, _BATCHES)
    at = frame_at(path, "# forward", "work")
    fix = first_of(
        _ONE, "ValueError", Frame("/venv/lib/python3.11/site-packages/torch/nn/modules/batchnorm.py", 1, "f"), at
    )
    assert isinstance(fix, Fix)
    assert "x, y = torch.cat([x, x]), torch.cat([y, y])" in fix.advice


_SAVES = """\
def save(part, final, rank):
    if rank == 0:
        part.mkdir()
    torch.save({}, part / 'a')   # writes
    if part.exists():
        os.rename(part, final)
"""


def test_a_path_that_all_ranks_move_is_moved_by_one(tmp_path: Path) -> None:
    path = written(tmp_path, _SAVES)
    fix = of_moved([frame_at(path, "# writes", "save")])
    assert fix is not None
    assert (
        "if dist.get_rank() == 0:\n    if part.exists():\n        os.rename(part, final)\ndist.barrier()" in fix.advice
    )


@pytest.mark.parametrize(
    "text",
    [
        _SAVES.replace("if part.exists()", "if rank == 0"),
        _SAVES.replace("os.rename(part, final)", "name.replace('a', 'b')"),
        _SAVES.replace("os.rename(part", "part = f'part{rank}'\n        os.rename(part"),
    ],
    ids=["by one rank", "a text", "its own"],
)
def test_what_one_rank_moves_is_left_alone(text: str, tmp_path: Path) -> None:
    assert of_moved([frame_at(written(tmp_path, text), "# writes", "save")]) is None


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("y = x.sum(1) / mask.sum(1)", "x.sum(1) / mask.sum(1).clamp(min=1)"),
        ("y = torch.log(x)", "torch.log(x.clamp(min=1e-06))".replace("1e-06", "1e-6")),
        ("y = box[:, 2:].log()", "box[:, 2:].clamp(min=1e-6).log()"),
        ("y = x.sum(1) / mask.sum(1).clamp(min=1)", ""),
        ("y = torch.log(x + 1e-6)", ""),
        ("y = x.log(); z = w.log()", ""),
        ("y = x / 3", ""),
    ],
)
def test_where_a_number_may_begin_to_be_none(text: str, safe: str, tmp_path: Path) -> None:
    written(tmp_path, text + "\n")
    found = origin_in(str(tmp_path))
    assert (found.safe if found else "") == safe


def test_an_exception_for_a_number_that_is_none_names_its_test(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "def work(x):\n    if math.isnan(x):\n        raise ValueError(x)   # here\n    if x > 3:\n        raise ValueError(x)   # large\n",
    )
    assert raised_for(frame_at(path, "# here", "work"))
    assert not raised_for(frame_at(path, "# large", "work"))
    fixes, gate = of_exception(RaisedError("ValueError", "nan", 0, ()), frame_at(path, "# here", "work"), make_case({}))
    assert fixes == ("mend",)
    assert gate is not None
    assert gate.text == "math.isnan(x)"


@pytest.mark.parametrize(
    ("text", "longer"),
    [
        (
            "Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=8))])",
            "timeout=timedelta(hours=2)",
        ),
        ("TrainingArguments(ddp_timeout=60)", "ddp_timeout=7200"),
        ("requests.get(url, timeout=3)", ""),
    ],
)
def test_the_limit_that_the_program_sets(text: str, longer: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"{text}\n")
    fix = of_limit(Frame(path, 1, "<module>"))
    assert (fix is not None) is bool(longer)
    assert fix is None or longer in fix.advice


_APPLIED = Frame("/venv/lib/python3.11/site-packages/accelerate/utils/operations.py", 120, "recursively_apply")


def test_a_list_that_is_gathered_item_by_item_is_gathered_in_one_call(tmp_path: Path) -> None:
    path = written(
        tmp_path, "def score(acc, batch, out):\n    out += acc.gather([f(x) for x in batch['rows']])   # here\n"
    )
    found = shared_state.list_of_calls((_APPLIED, frame_at(path, "# here", "score")))
    assert found is not None
    assert not found.is_chosen
    assert "out += gather_object([f(x) for x in batch['rows']])" in of_list(found).advice


@pytest.mark.parametrize("given", ["x", "(a, b)", "{'a': a}"])
def test_a_fixed_number_of_tensors_is_no_list_of_calls(given: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"def score(acc, a, b, x, out):\n    out += acc.gather({given})   # here\n")
    assert shared_state.list_of_calls((_APPLIED, frame_at(path, "# here", "score"))) is None


_LIGHTNING = """\
class Data:
    def train_dataloader(self):
        return DataLoader(Rows(self.rank), 8, drop_last=True)
trainer = Trainer(use_distributed_sampler=False, val_check_interval=%s)
"""


@pytest.mark.parametrize(("interval", "is_part"), [("0.25", True), ("args.checks", True), ("200", False)])
def test_a_part_of_a_loader(interval: str, is_part: bool, tmp_path: Path) -> None:
    written(tmp_path, _LIGHTNING % interval)
    found = shared_state.part_of_loader(str(tmp_path))
    assert (found is not None) is is_part
    assert found is None or found.loader == "DataLoader(data, 8, drop_last=True)"


def test_lightning_shares_the_data_out_itself(tmp_path: Path) -> None:
    written(tmp_path, (_LIGHTNING % "0.25").replace("use_distributed_sampler=False, ", ""))
    assert shared_state.part_of_loader(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("last", "is_own"), [("get_last_checkpoint(home) if os.path.isdir(home) else None", True), ("None", False)]
)
def test_a_checkpoint_that_each_rank_finds_for_itself(last: str, is_own: bool, tmp_path: Path) -> None:
    written(tmp_path, f"def run(home, trainer):\n    last = {last}\n    trainer.train(resume_from_checkpoint=last)\n")
    assert (shared_state.resumes_from(str(tmp_path)) is not None) is is_own


_SEARCH = """\
class Rows:
    def __getitem__(self, i):
        other = i
        while self.kind[other] != 3:
            other = np.random.randint(9)   # draws
        return self.x[other]
"""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (_SEARCH, "next item"),
        (_SEARCH.replace("other", "i").replace("i = i", "pass"), "usable items"),
        (_SEARCH.replace("while self.kind[other] != 3", "if self.kind[other] != 3"), "no fork"),
    ],
)
def test_a_worker_that_searches_for_a_part_of_an_item(text: str, name: str, tmp_path: Path) -> None:
    place = frame_at(written(tmp_path, text), "# draws", "__getitem__")
    assert of_worker(place, None, (place,))[0] == name


def test_a_worker_that_waits_in_a_library_does_not_search(tmp_path: Path) -> None:
    place = frame_at(written(tmp_path, _SEARCH), "# draws", "__getitem__")
    assert of_worker(place, None, (Frame("/usr/lib/python3.11/threading.py", 324, "wait"), place))[0] == "no fork"


def condition_of(frame: Frame) -> Condition:
    return surroundings(frame.file, frame.line).conditions[-1]


_METRIC = """\
accuracy = Accuracy(dist_sync_on_step=True)
def work(x, y, kept):
    if kept.any():
        accuracy(x[kept], y[kept])   # here
"""
_OF_METRIC = Frame("/venv/lib/python3.11/site-packages/torchmetrics/metric.py", 300, "forward")


def test_a_metric_that_meets_the_others_in_each_call_meets_them_in_compute(tmp_path: Path) -> None:
    here = frame_at(written(tmp_path, _METRIC), "# here", "work")
    fix = fixes_of(here, condition_of(here), "rank 1", (_OF_METRIC, here))[0]
    assert fix.advice.startswith("# train.py:1: take out dist_sync_on_step=True")
    assert not fix.does
    assert fixes_of(here, condition_of(here), "rank 1", (here,))[0].does == "decide together"


def test_a_mean_of_those_that_have_some_is_one_of_sums_and_counts(tmp_path: Path) -> None:
    text = "def work(rare):\n    if rare.numel() > 0:\n        mean = rare.mean()\n        dist.all_reduce(mean)   # here\n"
    here = frame_at(written(tmp_path, text), "# here", "work")
    assert (
        "both = torch.stack([rare.sum(), rare.new_tensor(float(rare.numel()))])"
        in decided_together(here, condition_of(here)).advice
    )
    (tmp_path / "other").mkdir()
    here = frame_at(written(tmp_path / "other", text.replace("rare.mean()", "rare")), "# here", "work")
    assert "ReduceOp.MAX" in decided_together(here, condition_of(here)).advice


def apart(path: str, mine: tuple[Frame, ...], theirs: tuple[Frame, ...]) -> Any:
    """What is read of a divergence: two calls below one line of the program."""
    line = Frame(path, 1, "main")
    one, other = (SimpleNamespace(frames=(*frames, line)) for frames in (mine, theirs))
    return SimpleNamespace(odd_call=one, reference_call=other, location=line)


_LIB = "/venv/lib/python3.11/site-packages/"
_IN_EPOCH = Frame(f"{_LIB}lightning/pytorch/loops/training_epoch_loop.py", 265, "advance")
_EVALUATES = Frame(f"{_LIB}lightning/pytorch/loops/evaluation_loop.py", 160, "run")


def test_an_evaluation_that_comes_by_a_part_of_the_loader(tmp_path: Path) -> None:
    path = written(tmp_path, _LIGHTNING % "0.25")
    fix = of_parts(apart(path, (_IN_EPOCH,), (_EVALUATES, _IN_EPOCH)))
    assert fix is not None
    assert "data = torch.utils.data.Subset(data, range(min(sizes)))" in fix.advice
    assert of_parts(apart(path, (_IN_EPOCH,), (_IN_EPOCH,))) is None


def test_loaders_that_are_made_before_the_ranks_have_met_get_whole_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, (_LIGHTNING % "0.25").replace("train_dataloader", "loader"))
    fix = of_parts(apart(path, (_IN_EPOCH,), (_EVALUATES, _IN_EPOCH)))
    assert fix is not None
    assert "val_check_interval=int(0.25 * least)" in fix.advice


def test_a_trainer_that_goes_on_from_what_each_rank_finds(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "def run(home, trainer):\n    last = get_last_checkpoint(home) if os.path.isdir(home) else None\n    trainer.train(resume_from_checkpoint=last)\n",
    )
    step, loop = (
        Frame(f"{_LIB}transformers/trainer.py", n, f) for n, f in ((9, "training_step"), (20, "evaluation_loop"))
    )
    fix = of_resumed(apart(path, (step,), (loop,)))
    assert fix is not None
    assert "last = last if all(found) and len(set(found)) == 1 else None" in fix.advice
    assert of_resumed(apart(path, (step,), (step,))) is None


_LOSS = "def loss(x, y):\n    found = mine(x, y)\n    if len(found) == 0:\n        return %s\n    return (x[found] - y).norm()\n"


@pytest.mark.parametrize(
    ("zero", "says"), [("torch.tensor(0.0)", "return x.sum() * 0.0"), ("x.sum() * 0.0", ""), ("torch.tensor(1.0)", "")]
)
def test_a_loss_of_nothing_has_a_gradient(zero: str, says: str, tmp_path: Path) -> None:
    path = written(tmp_path, _LOSS % zero)
    error = RaisedError("RuntimeError", "element 0 of tensors does not require grad and does not have a grad_fn", 1, ())
    fix = of_lost_graph(error, Frame(path, 9, "main"))
    assert (says in fix.advice) if fix is not None else not says
    assert of_lost_graph(RaisedError("RuntimeError", "other", 1, ()), Frame(path, 9, "main")) is None


_LOGS = "class Net:\n    def on_validation_epoch_end(self):\n        %s\n            self.log('val_bleu', bleu)\n"


@pytest.mark.parametrize(("test", "is_told"), [("if self.trainer.is_global_zero:", True), ("if self.deep:", False)])
def test_what_a_callback_looks_for_is_logged_on_every_rank(test: str, is_told: bool, tmp_path: Path) -> None:
    path = written(tmp_path, _LOGS % test)
    message = (
        "`ModelCheckpoint(monitor='val_bleu')` could not find the monitored key in the returned metrics: ['step']."
    )
    fix = of_monitored(RaisedError("MisconfigurationException", message, 1, ()), Frame(path, 9, "main"))
    assert (fix is not None) is is_told
    assert fix is None or "self.trainer.strategy.broadcast(bleu if self.trainer.is_global_zero else None)" in fix.advice


def test_what_each_rank_draws_for_its_loader_is_drawn_alike(tmp_path: Path) -> None:
    text = "class Data:\n    def train_dataloader(self):\n        return DataLoader(random.sample(self.parts, 8))\n%s"
    library = Frame("/site-packages/lightning/pytorch/loops/training_epoch_loop.py", 265, "advance")

    def asked(seeded: str) -> Fix | None:
        folder = tmp_path / str(len(seeded))
        folder.mkdir()
        path = written(folder, text % seeded)
        call = SimpleNamespace(frames=(library, Frame(path, 5, "main")))
        apart: Any = SimpleNamespace(odd_call=call, reference_call=call, location=Frame(path, 5, "main"))
        return of_draws(apart)

    fix = asked("")
    assert fix is not None
    assert fix.advice.endswith("random.Random(self.trainer.current_epoch).sample(self.parts, 8)")
    assert asked("pl.seed_everything(4)\n") is None


@pytest.mark.parametrize(
    ("failed", "title"),
    [
        ((2, 3), "Make it once on each machine"),
        ((3,), "Let the others wait"),
        ((1, 2, 3), "Let the others wait"),
    ],
)
def test_a_file_that_whole_machines_do_not_find_is_made_on_each(failed: tuple[int, ...], title: str) -> None:
    (found,) = judge(on_nodes(failed)()).findings
    assert (found.culprit_ranks, found.fixes[0].title.startswith(title)) == (failed, True)
