"""First fixes where calls part elsewhere than they were decided, each beside a program in which nothing of the kind is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from unhang.analyze.calls.framework_settings import has_one_more_buffer
from unhang.analyze.calls.handled import begun_anew
from unhang.analyze.program.decisions import (
    lagging_count,
    late_buffer,
    logged_by_some,
    made_with,
    optional_output,
    partial_log,
    received_of_anybody,
    switched_mode,
    unsynced_monitor,
)
from unhang.analyze.program.source import around
from unhang.analyze.situation import Situation
from unhang.model import Frame, RaisedError
from unhang.rules.advice import fixes_of
from unhang.rules.framework_advice import within_first
from unhang.rules.registry import judge
from unhang.rules.remedies import of_handled, one_width, remedy_of
from unhang.testing import make_case, raised

_COUNTS = """\
class Averager:
    def step(self):
        self.updates += 1
        if self.updates % self.every:
            return
        dist.all_reduce(self.flat)
def main():
    for batch in batches:
        if {test}:
            averager.step()
        report(batch)
"""


@pytest.mark.parametrize(
    ("test", "is_told"), [("torch.isfinite(loss)", True), ("step % 4 == 0", False), ("rank == 0", False)]
)
def test_a_count_that_lags_is_followed_to_what_lets_it_grow(test: str, is_told: bool, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(_COUNTS.format(test=test))
    way = (Frame(str(file), 10, "main"), Frame(str(file), 6, "step"))
    found = lagging_count(way, way[1], around(way[1]).conditions)
    assert (found is not None) is is_told
    if found is not None:
        assert (found.at.line, found.condition.text, found.leads.line) == (10, test, 6)


def test_a_line_that_hangs_on_data_itself_is_no_count(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(_COUNTS.format(test="ok(batch)").replace("self.updates % self.every", "loss > self.every"))
    line = Frame(str(file), 6, "step")
    assert lagging_count((Frame(str(file), 10, "main"), line), line, around(line).conditions) is None


@pytest.mark.parametrize(
    ("value", "is_told"),
    [
        ("max(self.recent) < 9", True),
        ("step > 9", False),
        ("micro == self.accumulate - 1", False),
        ("self.is_open", False),
        ("most.item() < 9", False),
    ],
)
def test_a_mode_that_each_rank_switches_for_itself(value: str, is_told: bool, tmp_path: Path) -> None:
    (tmp_path / "room.py").write_text(
        f"def observe(self, most, step):\n    dist.all_reduce(most)\n    keep = {value}\n    self.model.set_reshard_after_forward(not keep)\n"
    )
    found = switched_mode(str(tmp_path))
    assert (found is not None) is is_told
    if found is not None:
        assert (found.at.line, found.condition.text, found.leads.line) == (3, value, 4)


def test_a_mode_switched_under_a_condition_and_two_of_them(tmp_path: Path) -> None:
    text = "def observe(model, tokens):\n    if tokens.max() > 9:\n        model.set_requires_gradient_sync(False)\n"
    (tmp_path / "one.py").write_text(text)
    found = switched_mode(str(tmp_path))
    assert found is not None
    assert (found.condition.line, found.leads.line) == (2, 3)
    (tmp_path / "more").mkdir()
    for name in ("one.py", "two.py"):
        (tmp_path / "more" / name).write_text(text)
    assert switched_mode(str(tmp_path / "more")) is None


@pytest.mark.parametrize(("test", "line"), [("mean > 2 * self.first", 5), ("trainer.current_epoch > 3", None)])
def test_the_parts_of_a_step_that_a_callback_changes_by_its_own_data(
    test: str, line: int | None, tmp_path: Path
) -> None:
    (tmp_path / "growth.py").write_text(
        "def on_train_epoch_start(self, trainer):\n    if trainer.current_epoch < self.start:\n        return\n"
        "    mean = self.losses.mean().item()\n"
        f"    if {test}:\n        trainer.accumulate_grad_batches *= 2\n"
    )
    found = switched_mode(str(tmp_path))
    assert (found and found.condition.line) == line


_MODULE = "class Net:\n    def validation_step(self, batch):\n        self.log('val', loss(batch){given})\n"


@pytest.mark.parametrize(("given", "is_told"), [("", True), (", sync_dist=True", False)])
def test_a_monitored_value_that_each_rank_has_for_itself(given: str, is_told: bool, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(_MODULE.format(given=given))
    assert unsynced_monitor(str(tmp_path)) is None  # nobody monitors it
    (tmp_path / "train.py").write_text("best = ModelCheckpoint(monitor='val')\n")
    found = unsynced_monitor(str(tmp_path))
    assert (found is not None) is is_told
    assert found is None or (found[0].line, found[1]) == (3, "val")


_BUFFER = """\
class Net(nn.Module):
    def __init__(self):
        self.register_buffer("band", None)
        {first}
    def forward(self, x):
        self.band = mask(x)
"""


def test_a_buffer_that_is_filled_late(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(_BUFFER.format(first="pass"))
    found = late_buffer(str(tmp_path))
    assert found is not None
    assert (found[0].line, found[1]) == (6, "band")
    file.write_text(_BUFFER.format(first="pass").replace("None", "mask(9)"))
    assert late_buffer(str(tmp_path / "nowhere")) is None


_WRAPPED = "/env/torch/nn/parallel/distributed.py"


def buffers(sizes: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Whether rank 2 broadcasts one buffer more, where it makes broadcasts of these sizes in its forward, and the others these."""
    head = ["all_reduce[9]@main:4"]
    calls = {r: [*head, *(f"broadcast[{n}]@main:3" for n in others), "all_reduce[9]@main:4 !"] for r in (0, 1)}
    calls[2] = [*head, *(f"broadcast[{n}]@main:3" for n in sizes[:-1]), f"broadcast[{sizes[-1]}]@main:3 !"]
    case = make_case(calls, world=3)
    inner = Frame(_WRAPPED, 9, "_sync_buffers")
    stacks = tuple((inner, *s) if s[0].line == 3 else s for s in case.calls.stacks)
    s = Situation(replace(case, calls=replace(case.calls, stacks=stacks)))
    return s.divergence is not None and has_one_more_buffer(s, s.divergence)


def test_one_more_buffer_in_one_forward() -> None:
    assert buffers((5, 6, 7), (5, 6))
    assert not buffers((5, 6, 5), (5, 6))  # the next forward
    assert not buffers((5,), ())


_CALLED_ANEW = """\
{decorator}
def fit(size):
    model = prepare(size)
    for batch in batches:
        loss = model(batch)
        loss.backward()
def main():
    fit(16)
"""


@pytest.mark.parametrize(("decorator", "is_told"), [("@retry(stop=3)", True), ("@torch.no_grad()", False)])
def test_a_function_that_is_called_anew_on_one_rank(decorator: str, is_told: bool, tmp_path: Path) -> None:
    file = str(tmp_path / "train.py")
    Path(file).write_text(_CALLED_ANEW.format(decorator=decorator))
    main, wrapper = Frame(file, 8, "main"), Frame("/env/site-packages/tenacity.py", 9, "wrapped")
    stays, gone = Frame(file, 6, "fit"), Frame(file, 3, "fit")
    found = begun_anew((stays, wrapper, main), (main, gone), stays, 4, has_data=True)
    assert (found is not None) is is_told
    if found is not None:
        assert (found.by, found.before.line, found.text) == (decorator, 5, "loss = model(batch)")
    assert begun_anew((stays, wrapper, main), (main, replace(gone, line=6)), stays, 4, has_data=True) is None


def handled(folder: Path, text: str, frames: str, handler: int, call: str) -> tuple[str, str]:
    """The title of the first fix, or its name, and the test by which all ranks should raise it. `call`: of the other ranks, and of the one before."""
    file = folder / "train.py"
    file.write_text(text)
    case = make_case({r: [call, f"{call} !"] for r in (0, 1)}, world=2)
    moved = tuple(tuple(replace(f, file=str(file)) for f in stack) for stack in case.calls.stacks)
    error = raised(frames, 0, handled=True, handler=Frame(str(file), handler, "main"))
    error = replace(error, frames=tuple(replace(f, file=str(file)) for f in error.frames))
    assert isinstance(error, RaisedError)
    fixes, test = of_handled(replace(case, calls=replace(case.calls, stacks=moved)), error)
    return fixes[0] if isinstance(fixes[0], str) else fixes[0].title, test.text if test is not None else ""


_HANDLES = """\
def main():
    for x in xs:
        try:
            step(x)
        except ValueError:
            continue
def step(x):
    {check}
    y = load(x)
    dist.all_reduce(y)
def load(x):
    return read(x)
"""


def test_an_exception_is_raised_by_all_where_calls_stand_above_what_raised(tmp_path: Path) -> None:
    call = "all_reduce[8]@main:4>step:10"
    together = "Let all ranks raise it together: then all of them go to the handler"
    text = _HANDLES.format(check="pass")
    assert handled(tmp_path, text, "ValueError: x@main:4>step:9>load:12", 5, call) == (together, "")
    (tmp_path / "own").mkdir()
    checks = text.replace("    pass\n", "    if not x:\n        raise ValueError\n").replace(
        "x)\n    dist", "x)\n    dist"
    )
    found = handled(tmp_path / "own", checks, "ValueError: x@main:4>step:9", 5, "all_reduce[8]@main:4>step:11")
    assert found == (together, "not x")


def test_behind_the_handler_all_decide_where_no_calls_stand_in_it(tmp_path: Path) -> None:
    text = _HANDLES.format(check="pass")
    assert handled(tmp_path, text, "ValueError: x@main:4>step:9", 5, "all_reduce[8]@main:1") == ("decide together", "")
    assert (
        handled(tmp_path / ".", text, "ValueError: x@main:4>step:10", 5, "all_reduce[8]@main:4>step:10")[0]
        == "re-raise"
    )


def test_a_decorator_that_tries_again_goes_to_what_makes_no_calls(tmp_path: Path) -> None:
    text = (
        "def retries(fn):\n    def main(*args):\n        for _ in range(3):\n            try:\n                return fn(*args)\n"
        "            except OSError:\n                pass\n    return main\n"
        "@retries\ndef evaluate():\n    for x in xs:\n        y = score(x)\n        dist.all_gather(y)\ndef score(x):\n    return read(x)\n"
    )
    title, _ = handled(tmp_path, text, "OSError: x@main:5>evaluate:12>score:15", 6, "all_gather[8]@main:5>evaluate:13")
    assert title == "Retry score() alone: in evaluate() the other ranks wait"


def test_a_pipeline_takes_batches_of_one_width(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("stage = PipelineStage(module, rank, world, device)\n")
    assert made_with(str(tmp_path), ("PipelineStage",), "input_args") == Frame(str(file), 1, "<module>")
    assert one_width(str(tmp_path)) is not None
    file.write_text("model = DDP(module)\n")
    (tmp_path / "other").mkdir()
    assert one_width(str(tmp_path / "other")) is None


def test_a_call_in_a_finalizer_is_taken_out_of_it() -> None:
    source = "def main():\n    del table\n    dist.all_reduce(x)\nclass Table:\n    def __del__(self):\n        dist.barrier()\n"
    calls = {
        **{r: ["all_reduce[1]@main:3", "barrier@main:2>__del__:6 !"] for r in (0, 1)},
        2: ["all_reduce[1]@main:3", "all_reduce[1]@main:3 !"],
    }
    found = judge(Situation(make_case(calls, world=3, source=source))).findings[0]
    assert (found.rule, found.culprit_ranks) == ("rank-dependent-collective", (2,))
    assert found.fixes[0].title.startswith("Make no call with others in `__del__`")
    assert "table.close()   # train.py:2: on every rank, in place of `del table`" in found.fixes[0].advice


def test_what_is_logged_is_made_on_every_rank() -> None:
    source = "def main():\n    if n % 10 == 9:\n        log.info('step %d: %s', n, board)\n    dist.all_reduce(x)\ndef show():\n    dist.barrier()\n"
    calls = {
        **{key: ["all_reduce[1]@main:4", "all_reduce[1]@main:4 !"] for key in (0, 1)},
        2: ["all_reduce[1]@main:4", "barrier@main:3>~logging>show:6 !"],
    }
    found = judge(Situation(make_case(calls, world=3, source=source))).findings[0]
    assert (found.rule, found.culprit_ranks) == ("rank-dependent-collective", (2,))
    assert found.fixes[0].title.startswith("Make the text on every rank")
    assert "text = 'step %d: %s' % (n, board,)\nlog.info(text)" in found.fixes[0].advice
    calls[2] = ["all_reduce[1]@main:4", "barrier@main:3>show:6 !"]
    found = judge(Situation(make_case(calls, world=3, source=source))).findings[0]
    assert not found.fixes[0].title.startswith("Make the text")


@pytest.mark.parametrize(
    ("text", "line", "whole"),
    [
        ("def end(self):\n    if self.seen > 0:\n        self.log('rare', self.hits / self.seen, sync_dist=True)\n", 3,
         "self.log('rare', (self.hits / self.seen) if self.seen > 0 else 0.0, ..., sync_dist=True)"),
        ("def end(self, n):\n    found = {k: v for k, v in self.all.items() if v > n}\n    self.log_dict(found, sync_dist=True)\n", 2,
         "{k: (v) if v > n else 0.0 for (k, v) in self.all.items()}"),
        ("def end(self):\n    self.log('rare', self.hits, sync_dist=True)\n", 0, ""),
        ("def end(self):\n    if self.seen > 0:\n        self.log('rare', self.hits)\n", 0, ""),
    ],
)  # fmt: skip
def test_what_only_some_ranks_log(text: str, line: int, whole: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(text)
    found = partial_log(str(tmp_path))
    assert (found.at.line, found.whole) == (line, whole) if found else not line


_EXPORTS = """\
class Export:
    def __init__(self, monitor="val"):
        self.monitor = monitor
    def on_validation_end(self, trainer):
        score = trainer.{metrics}[self.monitor].item()
        if score < self.best:
            trainer.save_checkpoint("best")
"""


@pytest.mark.parametrize(
    ("metrics", "given", "title"),
    [
        ("callback_metrics", "", "Give `val` the same value on every rank: a callback decides by it"),
        ("callback_metrics", ", sync_dist=True", "Let all ranks take the decision together: the line runs on all of them or on none"),
        ("notes", "", "Let all ranks take the decision together: the line runs on all of them or on none"),
    ],
)  # fmt: skip
def test_a_metric_that_a_test_reads(metrics: str, given: str, title: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(_MODULE.format(given=given))
    file = tmp_path / "train.py"
    file.write_text(_EXPORTS.format(metrics=metrics))
    frame = Frame(str(file), 7, "on_validation_end")
    first, *_ = fixes_of(frame, around(frame).conditions[-1], "rank 0")
    assert first.title == title


@pytest.mark.parametrize(
    ("library", "text", "is_told"),
    [("fsdp/a.py", "vision(pixels)", True), ("nn/linear.py", "vision(pixels)", False), ("fsdp/a.py", "mix(1)", False)],
)
def test_a_sharded_module_that_runs_with_a_blank_input(library: str, text: str, is_told: bool, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        f"def forward(self, x, pixels):\n    if pixels is not None:\n        x = x + self.{text}\n    return x\n"
    )
    frame, inner = Frame(str(file), 3, "forward"), Frame(f"/env/site-packages/torch/{library}", 9, "unshard")
    first, *_ = fixes_of(frame, around(frame).conditions[-1], "rank 1", (inner, frame))
    assert (
        first.title
        == "Run `self.vision` on every rank: where a rank has nothing for it, with a blank input that counts zero"
    ) is is_told


_OBJECTS = """\
class Words:
    def state_dict(self):
        dist.all_gather(parts, self.counts)
class Numbers:
    def {method}(self):
        dist.all_reduce(self.total)
def save(components):
    dcp.save(components)
"""


@pytest.mark.parametrize(("method", "is_told"), [("state_dict", True), ("total", False)], ids=["one method", "two"])
def test_objects_of_which_each_makes_calls_are_gone_over_in_one_order(
    method: str, is_told: bool, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(_OBJECTS.format(method=method))
    above, words, numbers = (
        Frame(str(file), line, name) for line, name in ((8, "save"), (3, "state_dict"), (6, method))
    )
    calls = {r: ["all_reduce[3]@main:6 !"] for r in (0, 1)} | {2: ["all_gather[1]@main:3 !"]}
    d = Situation(make_case(calls, world=3)).divergence
    assert d is not None
    d = replace(d, odd_path=(above, words), reference_path=(above, numbers))
    found = remedy_of(Situation(make_case(calls, world=3)), d, words, ())
    told = [fix for fix in found.fixes if "dict(sorted(components.items()))" in (fix.advice or "")]
    assert bool(told) is is_told


_MODEL = """\
class Model:
    def forward(self, x, mask=None, labels=None):
        more = None
        if {test}:
            more = self.head(x)
        return Output(logits=self.body(x), more={given})
"""


@pytest.mark.parametrize(
    ("test", "given", "is_told"),
    [("mask.any()", "more", True), ("self.config.wide", "more", False), ("mask.any()", "x", False)],
    ids=["by the batch", "by the config", "not given"],
)
def test_an_output_that_hangs_on_the_batch(test: str, given: str, is_told: bool, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(_MODEL.format(test=test, given=given))
    found = optional_output(str(tmp_path))
    assert (found is not None) is is_told
    assert found is None or (found.at.line, found.test, found.name) == (4, "mask.any()", "more")


@pytest.mark.parametrize(("more", "is_told"), [("", True), (", src=sender", False)])
def test_parts_of_a_message_that_come_from_anybody(more: str, is_told: bool, tmp_path: Path) -> None:
    file = tmp_path / "wire.py"
    file.write_text(
        f"def take(head, body):\n    sender = dist.recv(head)\n    dist.recv(body{more})\n    return sender\n"
    )
    assert received_of_anybody(str(file), 2) == ((2, "dist.recv(head)", 3) if is_told else None)


_MONITORED = """\
class Module:
    def on_validation_epoch_end(self):
        if {test}:
            self.log("val_mae", self.error / self.hours)
stop = EarlyStopping("val_mae", strict=False)
"""


@pytest.mark.parametrize(("test", "is_told"), [("self.hours.any()", True), ("True", False)])
def test_a_monitored_value_that_some_ranks_do_not_log(test: str, is_told: bool, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(_MONITORED.format(test=test))
    monitor = unsynced_monitor(str(tmp_path))
    assert monitor is not None
    assert (monitor[0].line, monitor[1]) == (4, "val_mae")
    found = logged_by_some(monitor[0])
    assert (found is not None) is is_told
    assert found is None or "if self.hours.any() else 0.0" in found.whole


_FIRST = """def prepare(acc, path):
    try:
        with {block}:
            return build(path)
    except OSError:
        return basic()
"""


@pytest.mark.parametrize(("block", "is_told"), [("acc.main_process_first()", True), ("open(path)", False)])
def test_an_exception_that_leaves_the_block_of_the_first_rank(block: str, is_told: bool, tmp_path: Path) -> None:
    file = tmp_path / "first.py"
    file.write_text(_FIRST.format(block=block))
    frames = (Frame(str(file), 4, "prepare"),)
    fix = within_first(
        RaisedError("FileNotFoundError", "no such file", 0, frames, handler=Frame(str(file), 5, "prepare"))
    )
    assert (fix is not None) is is_told
    if fix is not None:
        assert "with acc.main_process_first():\n    try:\n        return build(path)\n    except OSError:" in fix.advice
