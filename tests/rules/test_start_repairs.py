"""Where ranks do not begin, go on or end as one: the lines that mend it, beside programs in which they would be wrong."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.analyze.small_programs import program
from unhang.analyze.program.rounds import counted_by_files, ended_by_files
from unhang.analyze.program.shared_state import looks_unmet
from unhang.analyze.program.source import surroundings
from unhang.analyze.program.ways_out import way_past
from unhang.analyze.situation import Situation
from unhang.fix.program import Program
from unhang.model import Fix, Frame
from unhang.rules.base import Found
from unhang.rules.start_repairs import left_by_asking, of_module, of_number, of_resume, resumed_apart
from unhang.testing import make_case


def _file(folder: Path, text: str) -> str:
    file = folder / "train.py"
    file.write_text(text)
    return str(file)


def _line(text: str, part: str) -> int:
    return next(i for i, line in enumerate(text.splitlines(), 1) if part in line)


_STARTS = "def main(node_rank, local_rank, nodes, per_node):\n    world = nodes * per_node\n    rank = %s\n    dist.init_process_group('gloo', rank=rank, world_size=world)\n"


@pytest.mark.parametrize(
    ("rank", "twins", "says"),
    [
        ("node_rank + local_rank", (7,), "node_rank * per_node + local_rank"),
        ("node_rank + local_rank", (), ""),  # no rank is there twice
        ("node_rank * per_node + local_rank", (7,), ""),
        ("offset + local_rank", (7,), ""),
    ],
)
def test_every_process_has_a_number_of_its_own(rank: str, twins: tuple[int, ...], says: str, tmp_path: Path) -> None:
    file = _file(tmp_path, _STARTS % rank)
    case = make_case({0: ["barrier@main:4 !"], 1: ["barrier@main:4 !"]}, world=4)
    ranks = {r: replace(e, twins=twins if r == 1 else ()) for r, e in case.ranks.items()}
    fix = of_number(Situation(replace(case, ranks=ranks)), Frame(file, 4, "main"))
    assert (fix.advice.splitlines()[-1] if fix else "") == says


_WRAPPED = """\
class Net(nn.Module):
    def part(self, x):
        return x
    def forward(self, x, y):
        return x
def loss(model, x):
    if x.dim() == 2:
        return model(x[0], x[1])
    return model.module.part(x)
"""


@pytest.mark.parametrize(
    ("old", "new", "is_told"),
    [
        ("", "", True),
        ("    if x.dim", "    torch.no_grad()\n    if x.dim", False),
        ("model(x[0], x[1])", "other(x)", False),
        ("def part", "def whole", False),
    ],
)
def test_a_model_is_called_through_its_wrapper(old: str, new: str, is_told: bool, tmp_path: Path) -> None:
    text = _WRAPPED.replace(old, new) if old else _WRAPPED
    conditions = surroundings(
        _file(tmp_path, text), _line(text, "return model(" if "return model(" in text else "other(x)")
    ).conditions
    fix = of_module(conditions[-1])
    assert (fix is not None) is is_told
    assert fix is None or "model(x, way='part')" in fix.advice


_RESUMES = """\
class Kept:
    def resume(self, net):
        if %s:
            net.load_state_dict(torch.load(self.path))
            return 3
        return 0
class Engine:
    def __init__(self, kept, net):
        self.first = kept.resume(net)
    def run(self):
        for epoch in range(self.first, 9):
            dist.all_reduce(x)
"""


@pytest.mark.parametrize(
    ("test", "says"),
    [
        ("self.rank == 0 and os.path.exists(self.path)", "if os.path.exists(self.path):"),
        ("os.path.exists(self.path)", ""),
        ("self.rank == 0", ""),
    ],
)
def test_every_rank_reads_the_checkpoint(test: str, says: str, tmp_path: Path) -> None:
    text = _RESUMES % test
    fix = of_resume(Frame(_file(tmp_path, text), _line(text, "for epoch"), "run"))
    assert (fix.advice.splitlines()[-1] if fix else "") == says


_STAGES = """\
class Kept:
    def latest(self):
        found = list(self.folder.glob("*.pt"))
        return max(found)
    def load(self, net):
        path = self.latest()
        return torch.load(path)["step"]
def run(kept, until, data):
    step = %s
    while step < until:
        for x in data:
            dist.all_reduce(x)
            step += 1
            if step >= until:
                break
"""


@pytest.mark.parametrize(("begins", "line"), [("kept.load(net)", 3), ("0", 0), ("kept.other(net)", 0)])
def test_a_number_that_is_read_from_files_ends_the_loop(begins: str, line: int, tmp_path: Path) -> None:
    text = _STAGES % begins
    file = _file(tmp_path, text)
    found = ended_by_files(file, _line(text, "for x in"))
    assert (found.at.line if found else 0) == line
    assert counted_by_files(file, _line(text, "for x in")) is None


_ASKS = """\
def fit(self):
    for epoch in range(9):
        for x in self.batches(epoch):
            dist.all_reduce(x)
        if %s:
            break
"""


@pytest.mark.parametrize(
    ("test", "is_told"), [("ray.get(self.progress.finished.remote())", True), ("epoch > 5", False)]
)
def test_all_leave_a_loop_of_which_each_asks_an_actor_for_the_end(test: str, is_told: bool) -> None:
    calls = {r: ["all_reduce[8]@fit:4", "all_reduce[8]@fit:4 !"] for r in (1, 2)}
    case = make_case(calls, world=3, source=_ASKS % test, stacks={1: "fit:4>~comm", 2: "fit:4>~comm"})
    late: Any = SimpleNamespace(rank=0, victims=(1, 2))
    found = left_by_asking(Situation(case), late)
    assert (found is not None) is is_told
    if found is not None:
        at, said, fix = found
        assert (at.line, said, "over = torch.tensor(float(ray.get(" in fix.advice) == (5, test, True)


_GOES_ON = """\
class Stream:
    def epoch(self, n):
        for start in range(self.seen, n, 4):
            self.seen = start + 4
            yield start
def load(stream, state):
    stream.seen = %s
def run(stream):
    for x in stream.epoch(40):
        dist.all_reduce(x)
"""


@pytest.mark.parametrize(
    ("given", "says"),
    [("state['seen'].get(dist.get_rank(), 0)", "stream.seen = min(places)"), ("0", ""), ("min(state['seen'])", "")],
)
def test_all_ranks_go_on_at_one_place(given: str, says: str, tmp_path: Path) -> None:
    text = _GOES_ON % given
    header = Frame(_file(tmp_path, text), _line(text, "for x in"), "run")
    found = resumed_apart(Found(0.9, (0,), (), {}, "left", (), location=header), header)
    assert [f.advice.split("; ")[-1] for f in found.fixes if isinstance(f, Fix)] == ([says] if says else [])
    at = _line(text, "stream.seen =") if says else header.line
    assert found.location is not None
    assert found.location.line == at


_SWITCHED = """\
def step(model, ids, n, budget):
    last = n >= budget
    if n == 0:
        return None
    model.set_requires_gradient_sync(last)
    loss = model(ids)
    loss.backward()
"""


def test_the_line_that_switches_what_a_later_line_calls(tmp_path: Path) -> None:
    frame = Frame(_file(tmp_path, _SWITCHED), _line(_SWITCHED, "backward"), "step")
    passed = {c.text: way_past(frame, c, is_switch=True) for c in surroundings(frame.file, frame.line).conditions}
    assert {text: at and at.line for text, at in passed.items()} == {"last": 5, "n != 0": None}
    program = Program(Path(frame.file))
    value = next(n for n in ast.walk(program.tree) if isinstance(n, ast.Call) and "sync" in ast.unparse(n)).args[0]
    assert ast.unparse(program.once_bound(value)) == "n >= budget"
    twice = tmp_path / "twice.py"
    twice.write_text(_SWITCHED.replace("        return None", "        last = False"))
    program = Program(twice)
    value = next(n for n in ast.walk(program.tree) if isinstance(n, ast.Call) and "sync" in ast.unparse(n)).args[0]
    assert program.once_bound(value) is value


_BY_FILES = """\
import torch
def publish(net, path):
    torch.save(net, path)
def load(net, path):
    if path.exists():
        net.freeze()
    return net
def load_config(path):
    return read(path) if path.exists() else {{}}
def main(net, path):
    config = load_config(path)
    publish(net, path)
    {between}
    net = load(net, path)
    DDP(net)
"""


@pytest.mark.parametrize(
    ("between", "is_told"), [("pass", True), ("dist.barrier()", False), ("net = load(net, path)", False)]
)
def test_models_that_go_by_files_of_others(between: str, is_told: bool, tmp_path: Path) -> None:
    file = program(tmp_path, _BY_FILES.format(between=between))
    found = looks_unmet((Frame(str(file), 15, "main"),))
    assert (found is not None) is is_told
    if found is not None:
        assert (found[0].line, found[1]) == (14, "load(net, path)")
