"""What a condition gives on a rank: by what the file says of its names, else by the names themselves; else it stays open."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.analyze.program.rank_conditions import RankView
from unhang.analyze.program.source import (
    Surroundings,
    around,
    is_up_to_the_rank,
    lines_that_call_the_same,
    surroundings,
)
from unhang.model import Frame

ONLY_ZERO, ONLY_ONE, BOTH, MAYBE = (True, False), (False, True), (True, True), (None, None)
OF_NO_RANK = "it does not ask for the rank"


def outcome(path: Path, line: int, nodes: int = 1) -> tuple[bool | None, ...] | str:
    """What the innermost condition around a line lets ranks 0 and 1 of two do."""
    condition = surroundings(str(path), line).conditions[-1]
    values = [condition.on(RankView(r, r if nodes == 1 else 0, 2)) for r in (0, 1)]
    return tuple(v.passes for v in values) if values[0].by_rank else OF_NO_RANK


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("rank == 0", ONLY_ZERO),
        ("not rank", ONLY_ZERO),
        ("rank != 0", ONLY_ONE),
        ("not is_main_process()", ONLY_ONE),
        ("accelerator.is_main_process", ONLY_ZERO),
        ("accelerator.is_local_main_process", ONLY_ZERO),
        ("trainer.is_global_zero", ONLY_ZERO),
        ("self.state.is_world_process_zero", ONLY_ZERO),
        ("self.args.should_save", ONLY_ZERO),
        ("control.should_save", OF_NO_RANK),
        ("self.is_main", ONLY_ZERO),
        ("master", ONLY_ZERO),
        ("xm.is_master_ordinal()", ONLY_ZERO),
        ("state.is_last_process", ONLY_ONE),
        ("dist.get_rank() == 0", ONLY_ZERO),
        ("get_rank()", ONLY_ONE),
        ("comm.Get_rank() == 0", ONLY_ZERO),
        ("accelerator.process_index == 0", ONLY_ZERO),
        ("local_rank == 0", ONLY_ZERO),
        ("args.local_rank in (-1, 0)", ONLY_ZERO),
        ("args.local_rank in [-1, 0]", ONLY_ZERO),
        ("int(os.environ['RANK']) == 0", ONLY_ZERO),
        ("os.environ['RANK'] == '0'", ONLY_ZERO),
        ("int(os.environ.get('LOCAL_RANK', 0)) < 1", ONLY_ZERO),
        ("os.getenv('RANK', '0') == '0'", ONLY_ZERO),
        ("getattr(args, 'rank', 0) == 0", ONLY_ZERO),
        ("not dist.is_initialized() or dist.get_rank() == 0", ONLY_ZERO),
        ("0 <= rank < 1", ONLY_ZERO),
        ("rank < world_size - 1", ONLY_ZERO),
        ("rank % 2", ONLY_ONE),
        ("(r := dist.get_rank()) == 0", ONLY_ZERO),
        ("True if rank == 0 else False", ONLY_ZERO),
        ("rank == 0 and step == 3", (None, False)),
        ("step % world_size == rank", MAYBE),
        ("dist.get_rank(group) == 0", MAYBE),
        ("mpu.get_tensor_model_parallel_rank() == 0", MAYBE),
        ("local_rank != -1", BOTH),
        ("rank < world_size", BOTH),
        ("lora.rank > 0", OF_NO_RANK),
        ("losses[rank] > 3", OF_NO_RANK),
        ("os.path.exists(f'x{rank}')", OF_NO_RANK),
        ("'RANK' in os.environ", OF_NO_RANK),
        ("step == 3", OF_NO_RANK),
        ("model.root", OF_NO_RANK),
    ],
)
def test_a_test_by_the_names_in_it(test: str, expected: object, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"if {test}:\n    go()\nelse:\n    stay()\n")
    assert outcome(file, 2) == expected
    if isinstance(expected, tuple):
        assert outcome(file, 4) == tuple(None if e is None else not e for e in expected)


FOLLOWED = {
    "a variable": ("chosen = dist.get_rank() == 0\nif chosen:\n    go()", ONLY_ZERO),
    "a variable of a variable": ("r = int(os.environ['RANK'])\nchosen = r == 0\nif chosen:\n    go()", ONLY_ZERO),
    "several at once": ("a, b = dist.get_rank(), dist.get_world_size()\nif a < b - 1:\n    go()", ONLY_ZERO),
    "what a call gives at once": ("rank, world = setup()\nif rank == 0:\n    go()", ONLY_ZERO),
    "a global": (
        "first = None\ndef setup():\n    global first\n    first = dist.get_rank() == 0\nif first:\n    go()", ONLY_ZERO),
    "a default": ("rank = 0\nif 'RANK' in os.environ:\n    rank = int(os.environ['RANK'])\nif rank == 0:\n    go()",
                  ONLY_ZERO),
    "a property": ("class A:\n    @property\n    def chosen(self):\n        return dist.get_rank() == 0\n"
                   "if A().chosen:\n    go()", ONLY_ZERO),
    "a property of a property": (
        "class A:\n    @property\n    def writes(self):\n        return self.place == 0\n    @property\n"
        "    def place(self):\n        return self._rank\n    def save(self):\n        if not self.writes:\n"
        "            return\n        go()", ONLY_ZERO),
    "an attribute": ("class A:\n    def __init__(self, rank):\n        self.writes = rank == 0\n    def save(self):\n"
                     "        if self.writes:\n            go()", ONLY_ZERO),
    "a function": ("def writes():\n    if not dist.is_initialized():\n        return True\n"
                   "    return dist.get_rank() == 0\nif writes():\n    go()", ONLY_ZERO),
    "a function's argument": ("def writes(r):\n    return r == 0\nif writes(dist.get_rank()):\n    go()", ONLY_ZERO),
    "a parameter": ("def main(rank):\n    save(1, rank == 0)\ndef save(x, chosen):\n    if chosen:\n        go()",
                    ONLY_ZERO),
    "a spawned function": ("def main(gpu, world):\n    if gpu == 0:\n        go()\nmp.spawn(main, args=(2,), nprocs=2)", ONLY_ZERO),
    "an early return": ("def save():\n    if rank != 0:\n        return\n    go()", ONLY_ZERO),
    "an early continue": ("for x in y:\n    if not is_main:\n        continue\n    go()", ONLY_ZERO),
    "a conditional expression": ("x = go() if rank == 0 else None", ONLY_ZERO),
    "its other branch": ("x = None if rank == 0 else go()", ONLY_ONE),
    "and": ("rank == 0 and go()", ONLY_ZERO),
    "or": ("rank == 0 or go()", ONLY_ONE),
    "a decorator": ("@rank_zero_only\ndef save():\n    go()", ONLY_ZERO),
    "a decorator of an object": ("@accelerator.on_main_process\ndef save():\n    go()", ONLY_ZERO),
    "a rank of a matrix": ("rank = 8\nif rank > 4:\n    go()", OF_NO_RANK),
    "a computed rank of a matrix": ("rank = torch.linalg.matrix_rank(x)\nif rank > 4:\n    go()", OF_NO_RANK),
    "a name that defines itself": ("a = b\nb = a\nif a:\n    go()", OF_NO_RANK),
    "a function that only raises": ("def f(r):\n    raise ValueError\nif f(rank):\n    go()", OF_NO_RANK),
    "two functions of one name": (
        "class A:\n    def f(self):\n        return dist.get_rank() == 0\nclass B:\n    def f(self):\n"
        "        return True\nif x.f():\n    go()", OF_NO_RANK),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLLOWED)
def test_names_are_followed_through_the_file(name: str, tmp_path: Path) -> None:
    source, expected = FOLLOWED[name]
    file = tmp_path / "train.py"
    file.write_text(source + "\n")
    line = next(i for i, text in enumerate(source.splitlines(), 1) if "go()" in text)
    assert outcome(file, line) == expected


def test_the_first_rank_of_another_node_has_its_own_number_there(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("if local_rank == 0:\n    go()\n")
    assert outcome(file, 2, nodes=2) == BOTH


def test_the_line_of_a_condition_itself_runs_in_any_case(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("if rank == go():\n    pass\n")
    assert surroundings(str(file), 1).tests == ()


def test_of_a_file_that_is_another_one_nothing_is_said(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def save():\n    if rank == 0:\n        dist.barrier()\n")
    written_ns = file.stat().st_mtime_ns
    frame = Frame(str(file), 3, "save")
    assert around(frame).tests == around(frame, written_ns + 1).tests == ("rank == 0",)
    assert around(frame, written_ns - 1) == Surroundings()  # written after the job had read it
    assert around(Frame(str(file), 3, "load")) == Surroundings()
    assert around(Frame(str(tmp_path / "gone.py"), 3, "save"), 1) == Surroundings()


def test_the_other_lines_that_make_the_same_call(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "def first():\n    if rank != 0:\n        dist.barrier()\n    prepare()\n    if rank == 0:\n"
        "        torch.distributed.barrier()\n\ndef other():\n    dist.barrier()\n"
    )
    lines = lines_that_call_the_same(Frame(str(file), 3, "first"))
    assert [(f.line, f.function) for f in lines] == [(6, "first")]


_MONITOR = """
class Monitor:
    def __init__(self, is_writer):
        self.is_writer = is_writer
    def record(self):
        if not self.is_writer:
            return
        report()
"""


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        ("from monitor import Monitor\nMonitor(is_writer=dist.get_rank() == 0)\n", ONLY_ZERO),
        ("from monitor import Monitor\nMonitor(dist.get_rank() == 0)\nMonitor(True)\n", OF_NO_RANK),
        ("from other import Monitor\nMonitor(dist.get_rank() == 0)\n", OF_NO_RANK),
        ("from monitor import Monitor\nMonitor(args.verbose)\n", OF_NO_RANK),
    ],
    ids=["with the rank", "in two ways", "another class", "with a setting"],
)
def test_what_a_class_is_made_with_in_another_file(main: str, expected: object, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(main)
    path = tmp_path / "monitor.py"
    path.write_text(_MONITOR)
    assert outcome(path, 8) == expected


_WRITER = """class Trainer:
    def __init__(self):
        self.writer = None
        if {test}:
            self.writer = SummaryWriter()
    def log(self):
        if self.writer is not None:
            gather()
def main():
    run = None
    if {test}:
        run = RunLog()
    if run is None:
        gather()
    {later}
"""


@pytest.mark.parametrize(
    ("test", "later", "attribute", "variable"),
    [
        ("dist.get_rank() == 0", "", ONLY_ZERO, ONLY_ONE),
        ("args.log", "", OF_NO_RANK, OF_NO_RANK),
        ("dist.get_rank() == 0", "run = again()", ONLY_ZERO, OF_NO_RANK),
    ],
    ids=["set on rank 0", "set by a setting", "set once more"],
)
def test_what_begins_as_none_and_is_set_on_some_ranks(
    test: str, later: str, attribute: object, variable: object, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(_WRITER.format(test=test, later=later))
    assert outcome(path, 8) == attribute
    assert outcome(path, 14) == variable


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("causal and src < 0", True),
        ("rank - hop < 0", True),
        ("rank == 0 and stop", False),  # one rank decides, and all are to follow it
        ("is_main_process and stop", False),
        ("loss > 3", False),
    ],
)
def test_a_test_that_is_reckoned_from_the_rank(tmp_path: Path, test: str, expected: bool) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "def run(rank, is_main_process, causal, stop, loss):\n    for hop in range(4):\n        src = rank - hop\n"
        f"        if {test}:\n            break\n        exchange(hop)\n"
    )
    assert is_up_to_the_rank(str(path), 4, 5) is expected
    assert not is_up_to_the_rank(str(path), 4, 0)
