"""What the first fix says where no condition decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from unhang.analyze.program.source import around
from unhang.analyze.situation import Situation
from unhang.model import Fix, Frame
from unhang.model.findings import LIMIT, limits_last
from unhang.rules.advice import fixes_of, of_skipped_part, part_left_out
from unhang.rules.item_repairs import bound_item, fresh_lock
from unhang.rules.registry import judge
from unhang.testing import make_case

_BACKWARD = Frame("/job/moe.py", 16, "backward")
_APPLY = Frame("/env/site-packages/torch/autograd/function.py", 325, "apply")


def test_a_call_of_an_own_backward_is_left_out_by_who_left_the_graph() -> None:
    first, *_ = fixes_of(Frame("/job/train.py", 48, "main"), None, "rank 2", (_BACKWARD, _APPLY))
    assert first.title == "Keep the exchange in the graph on every rank"
    assert first.advice.startswith("moe.py:16: ")


def test_a_function_that_is_only_called_backward_is_none() -> None:
    first, *_ = fixes_of(Frame("/job/train.py", 48, "main"), None, "rank 2", (_BACKWARD,))
    assert first.title == "Find what led rank 2 a different way from the other ranks"
    assert not first.mends


_HOLDS_TWICE = """\
import threading
lock = threading.Lock()
def main():
    with lock:
        log(1)
    dist.all_reduce(x)
def log(x):
    with lock:
        write(x)
"""
_KEEPS = """\
def main():
    if baton.try_acquire():
        build()
        baton.release()
    else:
        baton.wait()
    dist.all_reduce(x)
"""


@pytest.mark.parametrize(
    ("source", "stack", "title"),
    [
        (_HOLDS_TWICE, "main:5>log:8", "Take it once: who waits for it has it already"),
        (_HOLDS_TWICE.replace("Lock()", "RLock()"), "main:5>log:8", "Bound the wait"),
        (_KEEPS, "main:6>~lock", "Give it back also where the work raises"),
        (_KEEPS.replace("        build()\n", "        pass\n"), "main:6>~lock", "Bound the wait"),
    ],
    ids=["a lock taken twice", "one that may be", "kept where the work raises", "no work that may raise"],
)
def test_who_would_end_a_wait_is_named_where_the_source_shows_it(source: str, stack: str, title: str) -> None:
    calls = {r: ["barrier@main:1", "all_reduce[4]@main:7 !"] for r in (1, 2)}
    stacks = {0: stack, 1: "main:7>~comm", 2: "main:7>~comm"}
    case = make_case({0: ["barrier@main:1"], **calls}, world=3, stacks=stacks, source=source, hang="suspected")
    found = judge(Situation(case)).findings[0]
    assert (found.rule, found.culprit_ranks) == ("rank-stuck-in-user-code", (0,))
    assert found.fixes[0].title == title
    assert "{" not in found.fixes[0].advice


_EXPORTS = """\
def main():
    if trainer.is_global_zero:
        flush({read})
    loss.backward()
"""


@pytest.mark.parametrize(
    ("read", "title"),
    [
        ("trainer.log_dir", "Read `trainer.log_dir` on every rank: it waits for all of them"),
        ("save()", "Let every rank make the call"),
    ],
)
def test_a_property_is_read_before_the_condition(read: str, title: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(_EXPORTS.format(read=read))
    frame, library = Frame(str(file), 3, "main"), Frame("/site-packages/lightning/trainer.py", 1157, "log_dir")
    first, *_ = fixes_of(frame, around(frame).conditions[-1], "rank 0", (library, frame))
    assert first.title == title


def test_a_decorator_is_taken_off_where_a_property_is_read(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("@rank_zero_only\ndef end(trainer):\n    flush(trainer.log_dir)\n")
    frame, library = Frame(str(file), 3, "end"), Frame("/site-packages/lightning/trainer.py", 1157, "log_dir")
    first, *_ = fixes_of(frame, around(frame).conditions[-1], "rank 0", (library, frame))
    assert first.advice.startswith(
        "# train.py:1: take @rank_zero_only off; first in end(), on every rank\nlog_dir = trainer.log_dir\n"
    )


@pytest.mark.parametrize(
    ("owner", "renew"),
    [("self.lock", 'setattr(self, "lock", threading.Lock())'), ("lock", "globals().update(lock=threading.Lock())")],
)
def test_a_lock_is_made_anew_in_a_forked_worker(owner: str, renew: str, tmp_path: Path) -> None:
    made = f"        {owner} = threading.Lock()\n" if owner != "lock" else "        pass\n"
    file = tmp_path / "cache.py"
    file.write_text(
        f"import threading\nlock = threading.Lock()\nclass Cache:\n    def __init__(self):\n{made}"
        f"    def get(self, key):\n        with {owner}:\n            return key\n"
    )
    assert renew in str(fresh_lock(Frame(str(file), 7, "get"))["renew"])
    assert fresh_lock(Frame(str(file), 8, "get")) == {}


@pytest.mark.parametrize(
    ("head", "is_told"), [("while True", True), ("for _ in range(9)", False), ("while rows", False)]
)
def test_a_worker_in_a_loop_without_a_bound(head: str, is_told: bool, tmp_path: Path) -> None:
    file = tmp_path / "data.py"
    file.write_text(
        f"def negative(rows):\n    {head}:\n        row = draw()\n        if fits(row):\n            return row\n"
    )
    assert bool(bound_item(Frame(str(file), 4, "negative"))) is is_told


def test_a_limit_on_a_wait_is_no_repair_and_comes_last() -> None:
    calls = {r: ["barrier@main:1", "all_reduce[4]@main:7 !"] for r in (1, 2)}
    stacks = {0: "main:6>~lock", 1: "main:7>~comm", 2: "main:7>~comm"}
    case = make_case({0: ["barrier@main:1"], **calls}, world=3, stacks=stacks, hang="suspected")
    found = judge(Situation(case)).findings[0]
    helping = [f for f in found.fixes if f.helps]
    assert helping[-1].kind == LIMIT
    assert helping[-1].note
    assert not any(f.mends for f in helping)
    assert (
        found.unmended == f"What mends it does not follow from this evidence. The line to look at is {found.location}."
    )
    repaired = replace(found, fixes=(*found.fixes, Fix("Take it once", "-", advice="x")))
    assert not repaired.unmended
    assert next(iter(limits_last(repaired.fixes))).mends


_PARTS = """class Block(nn.Module):
    def __init__(self):
        self.down = nn.Linear(4, 2)
        self.up = nn.Linear(2, 4)
    def forward(self, x, rows):
        out = x
        if {test}:
            out = out + self.up(self.down(x[rows]))
        return out
"""


@pytest.mark.parametrize(
    ("test", "is_told"),
    [("len(rows)", True), ("self.training", False), ("rows is not None", False), ("self.depth > 2", False)],
    ids=["the data decides", "a mode", "what is given", "a setting"],
)
def test_a_layer_that_some_steps_leave_out(test: str, is_told: bool, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(_PARTS.format(test=test))
    fixes = of_skipped_part(Frame(str(tmp_path / "train.py"), 7, "step"))
    assert bool(fixes) is is_told
    if fixes:
        assert (
            "else: out = out + 0.0 * sum(p.sum() for m in (self.up, self.down,) for p in m.parameters())"
            in fixes[0].advice
        )


def test_parameters_by_their_names_and_a_graph_that_was_promised(tmp_path: Path) -> None:
    train, model = tmp_path / "train.py", tmp_path / "model.py"
    step, names = Frame(str(train), 2, "step"), ("head.mix.0.weight", "head.mix.0.bias", "head.mix.2.weight")
    model.write_text(_PARTS.format(test="self.training"))
    train.write_text("model = DDP(net)\n")
    assert "getattr(model, 'module', model).get_submodule('head.mix')" in of_skipped_part(step, names)[0].advice
    train = tmp_path / "static" / "train.py"
    train.parent.mkdir()
    train.write_text("model = DDP(net, static_graph=args.save)\nx = checkpoint(f, x, use_reentrant=True)\n")
    advice = of_skipped_part(Frame(str(train), 1, "step"), names)[0].advice
    assert "train.py:1: take out static_graph" in advice
    assert "train.py:2: use_reentrant=False" in advice


_NULL = """class Net(nn.Module):
    def __init__(self):
        self.null = nn.Parameter(torch.zeros(4))
    def condition(self, c, drop):
        if drop.any():
            c = torch.where(drop, self.null, c)
        return c
    def forward(self, x, c, drop):
        return x + self.condition(c, drop){more}
"""


@pytest.mark.parametrize(("more", "is_told"), [("", True), (" + self.null", False)], ids=["only there", "always"])
def test_a_parameter_that_takes_part_in_some_steps_alone(more: str, is_told: bool, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(_NULL.format(more=more))
    part = part_left_out(Frame(str(tmp_path / "train.py"), 7, "step"), ("blocks.1.null",))
    assert (part is not None) is is_told
    if part is not None:
        assert (part.at.line, part.test, part.zero) == (5, "drop.any()", "0.0 * self.null.sum()")
    assert part_left_out(Frame(str(tmp_path / "train.py"), 7, "step"), ("other",)) is None
