"""What sends one rank another way: a round left out, a signal, two requests under one test, a module in training mode; beside each a look-alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from unhang.analyze.calls.framework_loops import asked_for, train_loader
from unhang.analyze.calls.handled import caught_elsewhere
from unhang.analyze.program.early_ends import skipped_round
from unhang.analyze.program.may_differ import OWN
from unhang.analyze.program.rank_names import kind_of_name
from unhang.analyze.program.sets import loop_over_set
from unhang.analyze.program.source import surroundings
from unhang.analyze.situation import Situation
from unhang.fix.agreed import modules
from unhang.fix.program import Program
from unhang.model import Frame, RaisedError
from unhang.rules.graph_repairs import of_left_graph, of_run_without_graph
from unhang.rules.start_repairs import in_eval_mode
from unhang.testing import judge, make_case


def _file(folder: Path, text: str, name: str = "train.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


_ROUNDS = """\
def epoch(model, loader):
    for i, x in enumerate(loader):
        loss = model(x).mean()
        {test}
            {leaves}
        loss.backward()
"""


@pytest.mark.parametrize(
    ("test", "leaves", "is_told"),
    [
        ("if not torch.isfinite(loss):", "continue", True),
        ("if i % 4 == 0:", "continue", False),
        ("if rank == 0:", "continue", False),
        ("if not torch.isfinite(loss):", "break", False),
        ("if not torch.isfinite(loss):", "loss = loss * 0", False),
    ],
)
def test_a_round_that_a_rank_leaves_out_by_its_own_data(test: str, leaves: str, is_told: bool, tmp_path: Path) -> None:
    file = _file(tmp_path, _ROUNDS.format(test=test, leaves=leaves))
    found = skipped_round(Frame(file, 6, "epoch"))
    assert (found is not None and found[0].line == 4) is is_told


_LEASE = """\
import signal
class Lease:
    def __init__(self):
        self.ending = self.checked = False
        signal.signal(signal.SIGUSR1, self.notice)
    def notice(self, signum, frame):
        self.ending = True
    def look(self):
        self.checked = True
    def on_step_end(self, args, state, control):
        if self.ending:
            control.should_save = True
            control.should_training_stop = True
        if self.checked:
            state.looked = 1
"""


@pytest.mark.parametrize(("line", "is_own"), [(12, True), (15, False)])
def test_what_the_handler_of_a_signal_sets_is_each_ranks_own(line: int, is_own: bool, tmp_path: Path) -> None:
    (condition,) = surroundings(_file(tmp_path, _LEASE), line).conditions
    assert (condition.suspicion == OWN) is is_own


@pytest.mark.parametrize("apart", [False, True])
def test_requests_under_one_test_are_one(apart: bool, tmp_path: Path) -> None:
    source = _LEASE
    if apart:
        source = source.replace(
            "            control.should_training_stop",
            "        if self.checked:\n            control.should_training_stop",
        )
    file = _file(tmp_path, source + "def main(trainer):\n    trainer.train()\n")
    main = len(Path(file).read_text().splitlines())
    lib = "/env/site-packages/transformers/trainer.py"
    ways = {"_save_checkpoint": "all_gather", "training_step": "all_reduce"}
    frames = {
        op: (Frame(lib, 900, name), Frame(lib, 500, "_inner_training_loop"), Frame(file, main, "main"))
        for name, op in ways.items()
    }
    case = make_case(
        {0: ["all_gather[1]@main:1 !"], 1: ["all_reduce[9]@main:1 !"], 2: ["all_reduce[9]@main:1 !"]},
        world=3,
        hang="proven",
    )
    d = Situation(case).divergence
    assert d is not None
    one, other = (replace(c, frames=frames[c.op.lower()]) for c in (d.odd_call, d.reference_call))
    found = asked_for(replace(d, odd_call=one, reference_call=other))
    assert (found.line if found else None) == (None if apart else 12)


_QUANTIZE = """\
def sample(model, x):
    out = model(x)
class Quantize:
    def forward(self, x):
        if {test}:
            dist.all_reduce(x)
"""


@pytest.mark.parametrize(("test", "is_told"), [("self.training", True), ("self.shared", False)])
def test_a_module_that_meets_the_others_in_training_mode(test: str, is_told: bool, tmp_path: Path) -> None:
    file = _file(tmp_path, _QUANTIZE.format(test=test))
    at, made = (
        Frame(file, 2, "sample"),
        (Frame(file, 6, "forward"), Frame("/env/torch/nn/modules/module.py", 9, "_call_impl")),
    )
    fix = in_eval_mode(at, (*made, at))
    assert (fix is not None and "eval()" in fix.change) is is_told
    assert in_eval_mode(at, (at,)) is None


@pytest.mark.parametrize(
    ("above", "alias"), [("import distributed as dist\n", "torch_dist"), ("import torch.distributed as dist\n", "dist")]
)
def test_the_name_of_a_module_of_the_program_is_not_taken(above: str, alias: str, tmp_path: Path) -> None:
    program = Program(Path(_file(tmp_path, above + "def main(dist_of_mine=None):\n    return dist.is_primary()\n")))
    assert modules(program, is_torch_used=False)[1] == alias
    assert f"import torch.distributed as {alias}" in program.result().decode()


def test_the_primary_process_is_the_first() -> None:
    assert {kind_of_name(n) for n in ("is_primary", "is_primary_process", "is_chief_worker")} == {"zero"}
    assert kind_of_name("primary_key") is None


@pytest.mark.parametrize(("function", "line"), [("step", 4), ("read", None)])
def test_an_exception_parts_a_rank_where_it_is_caught(function: str, line: int | None, tmp_path: Path) -> None:
    file = _file(
        tmp_path, "def step(x):\n    try:\n        return read(x)\n    except ValueError:\n        return None\n"
    )
    raised, handler = Frame(file, 9, "read"), Frame(file, 5, function)
    found = caught_elsewhere(RaisedError("ValueError", "", 0, (raised,), handler=handler), raised)
    assert (found.line if found else None) == line


_SHEET = """\
class Sheet:
    def __init__(self, rank):
        self.rank = rank
    def __call__(self, prediction):
        if {test}:
            return {empty}
        return {{"f1": 1.0}}
def main(trainer):
    trainer.train()
"""


@pytest.mark.parametrize(
    ("test", "empty", "raised", "is_told"),
    [
        ("dist.get_rank() != 0", "{}", (1, 2), True),
        ("dist.get_rank() != 0", "{}", (2,), False),
        ("dist.get_rank() != 0", "dict(f1=0.0)", (1, 2), False),
        ("not prediction", "{}", (1, 2), False),
    ],
)
def test_what_the_program_gives_a_library_on_some_ranks(
    test: str, empty: str, raised: tuple[int, ...], is_told: bool, tmp_path: Path
) -> None:
    file = _file(tmp_path, _SHEET.format(test=test, empty=empty))
    frames = (Frame("/env/site-packages/transformers/trainer.py", 3450, "_best"), Frame(file, 9, "main"))
    error = RaisedError("KeyError", "no f1 among the metrics", _SECOND, frames)
    case = make_case({}, world=3, hang=None, errors=dict.fromkeys(raised, error), exit_code=1)
    first = judge(case).findings[0]
    assert ("gave nothing on just these ranks" in first.title) is is_told
    assert first.culprit_ranks == raised


_SECOND = 1_000_000_000


_LANGUAGES = """\
def languages():
    return {over}
def main(rank):
    for lang in {loop}:
        for x in loader(lang):
            dist.all_reduce(x)
        dist.all_gather(out, x)
"""


@pytest.mark.parametrize(
    ("over", "loop", "is_told"),
    [
        ("{row.lang for row in ROWS}", "languages() - {'de'}", True),
        ("{row.lang for row in ROWS}", "sorted(languages())", False),
        ("[row.lang for row in ROWS]", "languages()", False),
        ("{1, 2, 3}", "languages()", False),
    ],
)
def test_a_loop_over_what_a_function_gives_as_a_set(over: str, loop: str, is_told: bool, tmp_path: Path) -> None:
    file = _file(tmp_path, _LANGUAGES.format(over=over, loop=loop))
    found = loop_over_set((Frame(file, 6, "main"),))
    assert (found is not None and found[0].line == 4) is is_told


@pytest.mark.parametrize(("loop", "is_told"), [("set(rows) - {'de'}", True), ("sorted(set(rows))", False)])
def test_a_set_is_gone_through_in_another_order_by_each_rank(loop: str, is_told: bool) -> None:
    calls = {r: ["all_reduce[8]@main:6"] * 3 + ["all_reduce[8]@main:6 !"] for r in (0, 1)}
    calls[2] = ["all_reduce[8]@main:6"] * 3 + ["all_gather[8]@main:7 !"]
    case = make_case(calls, world=3, hang="proven", source=_LANGUAGES.format(over="1", loop=loop))
    first = judge(case).findings[0]
    assert first.title.startswith("the ranks go through the set") is is_told
    if is_told:
        assert first.location is not None
        assert (first.location.line, first.culprit_ranks) == (4, ())


_LOADS = "class Data:\n    def train_dataloader(self):\n        one = DataLoader({one}, 8)\n        two = DataLoader({two}, 8)\n        return [one, two]\n"


@pytest.mark.parametrize(
    ("one", "two", "line"),
    [("self.rows", "self.fresh()", 4), ("self.rows", "self.others", None), ("self.draw()", "self.fresh()", None)],
)
def test_of_two_loaders_that_which_is_made_anew(one: str, two: str, line: int | None, tmp_path: Path) -> None:
    found = train_loader(_file(tmp_path, _LOADS.format(one=one, two=two)))
    assert (found.at.line if found else None) == line


_TRIPLET = """\
from torch.distributed.nn.functional import all_gather
def gather(x):
    return torch.cat({gathers}(x))
def loss(feats, ids):
    every, names = gather(feats), ids
    far = 1 - feats @ every.t()
    if not (far > 0).any():
        return {value}, 0.0
    return far.mean(), 1.0
"""


@pytest.mark.parametrize(
    ("gathers", "value", "is_told"),
    [
        ("all_gather", "feats.sum() * 0.0", True),
        ("all_gather", "feats.sum() * 0.0 + every.sum() * 0.0", False),
        ("all_gather", "far.sum() * 0.0", False),
        ("own_gather", "feats.sum() * 0.0", False),
    ],
)
def test_a_result_that_leaves_the_graph_of_a_gather(gathers: str, value: str, is_told: bool, tmp_path: Path) -> None:
    _file(tmp_path, _TRIPLET.format(gathers=gathers, value=value))
    found = of_left_graph(str(tmp_path))
    assert (found is not None) is is_told
    if found is not None:
        assert (found.at.line, found.text) == (7, "`if not (far > 0).any()`")
        assert "return (feats.sum() * 0.0 + every.sum() * 0.0, 0.0)" in (found.fix.advice or "")


_STANDS_IN = """\
class Reader(nn.Module):
    def forward(self, ids, patches=None):
        if patches is not None:
            return self.sheet(patches)
        return self.blank(ids)
    {decorator}
    def blank(self, ids):
        return {runs}
    @torch.no_grad()
    def generate(self, ids):
        return self.out(ids)
"""


@pytest.mark.parametrize(
    ("decorator", "runs", "line"),
    [
        ("@torch.no_grad()", "self.sheet(zeros).mean() * 0", 6),
        ("@cached", "self.sheet(zeros).mean() * 0", None),  # with its graph
        ("@torch.no_grad()", "self.pool(zeros)", None),  # that module has no other run
    ],
)
def test_a_run_without_a_graph_that_stands_in_for_another(
    decorator: str, runs: str, line: int | None, tmp_path: Path
) -> None:
    _file(tmp_path, _STANDS_IN.format(decorator=decorator, runs=runs))
    found = of_run_without_graph(str(tmp_path))
    assert (found.at.line if found else None) == line
    if found:
        assert found.fix.title.startswith("Run `self.sheet` with a graph in blank(), too")
