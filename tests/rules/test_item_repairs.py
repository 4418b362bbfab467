"""What one item raises, and a model that each rank sizes by its own data: the lines that mend it, beside programs in which they would be wrong."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from unhang.model import Case, Frame, RaisedError
from unhang.rules.early_ends import told_by_first
from unhang.rules.item_repairs import as_raised_first, end_mark, of_item, of_own_size, of_temporary, on_another_rank
from unhang.rules.repairs import of_existing
from unhang.testing import make_case

_LIBRARY = "/site-packages/torch/utils/data/_utils/fetch.py"
_DATA = """\
class Rows:
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return float(self.rows[i])
class Plain:
    def __getitem__(self, i):
        return float(self.rows[i])
class Joins:
    def __call__(self, rows):
        return [KINDS[row] for row in rows]
def share(hits, gold):
    part = hits / (gold[1] - gold[0])
    return hits / len(hits) + hits / len(gold)
def lines(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            yield line
"""


def _line(part: str, text: str = _DATA) -> int:
    return next(i for i, line in enumerate(text.splitlines(), 1) if part in line)


def _raised(folder: Path, kind: str, line: int, function: str, message: str = "bad") -> RaisedError:
    file = folder / "train.py"
    file.write_text(_DATA)
    frames = (Frame(str(file), line, function), Frame(_LIBRARY, 50, "fetch"), Frame(str(file), 30, "main"))
    return RaisedError(kind, message, 1, frames)


def _case(error: RaisedError, calls: int = 20) -> Case:
    made = {r: [f"all_reduce[8]@main:{i}" for i in range(1, calls)] for r in range(2)}
    return make_case(made, world=2, errors={1: error})


def test_the_next_item_takes_the_place_of_one_that_cannot_be_made(tmp_path: Path) -> None:
    error = _raised(tmp_path, "ValueError", 5, "__getitem__")
    fix = of_item(error, _case(error))
    assert fix is not None
    methods = "\n".join(line for line in fix.advice.splitlines() if not line.startswith("#"))
    made = f"class Rows:\n    rows = ['1', 'n', '3']\n    def __len__(self): return 3\n    def make_item(self, i): return float(self.rows[i])\n{textwrap.indent(methods, '    ')}"
    space: dict[str, type] = {}
    exec(made, space)
    assert [space["Rows"]()[i] for i in range(3)] == [1.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("kind", "line", "function", "message", "calls"),
    [
        ("ValueError", 5, "__getitem__", "bad", 5),  # the first items: it may be the program
        ("NameError", 5, "__getitem__", "bad", 20),
        ("RuntimeError", 5, "__getitem__", "CUDA error: no", 20),
        ("ValueError", 8, "__getitem__", "bad", 20),  # it has no length
        ("ValueError", 12, "share", "bad", 20),
    ],
)
def test_no_other_item_is_given_where_it_is_not_the_item(
    kind: str, line: int, function: str, message: str, calls: int, tmp_path: Path
) -> None:
    error = _raised(tmp_path, kind, line, function, message)
    assert of_item(error, _case(error, calls)) is None


def test_another_row_takes_the_place_of_one_that_cannot_be_joined(tmp_path: Path) -> None:
    error = _raised(tmp_path, "KeyError", 11, "__call__")
    fix = of_item(error, _case(error))
    assert fix is not None
    methods = "\n".join(line for line in fix.advice.splitlines() if not line.startswith("#"))
    made = f"class Joins:\n    def collate(self, rows): return [dict(a=1)[row] for row in rows]\n{textwrap.indent(methods, '    ')}"
    space: dict[str, type] = {}
    exec(made, space)
    assert space["Joins"]()(["a", "b", "a"]) == [1, 1, 1]


def test_a_quotient_of_nothing_is_zero(tmp_path: Path) -> None:
    error = _raised(tmp_path, "ZeroDivisionError", _line("part = "), "share")
    fix = of_item(error, _case(error, 2))
    assert fix is not None
    assert fix.advice.splitlines()[-1] == "part = hits / (gold[1] - gold[0]) if gold[1] - gold[0] else 0.0"
    two = _raised(tmp_path, "ZeroDivisionError", _line("len(hits)"), "share")
    assert of_item(two, _case(two, 2)) is None  # which of the two is not told


def test_a_text_in_another_encoding_is_read(tmp_path: Path) -> None:
    inner = _raised(tmp_path, "UnicodeDecodeError", _line("for line in file"), "lines")
    fix = of_item(inner, _case(inner, 2))
    assert fix is not None
    assert ast.unparse(ast.parse(fix.advice.splitlines()[1])) == "open(path, encoding='utf-8', errors='replace')"


def test_an_exception_of_a_worker_is_the_one_that_the_worker_raised() -> None:
    text = (
        'Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  File "/job/data.py", line 9, in __getitem__\n'
        "    return float(x)\nValueError: could not convert\n"
    )
    error = as_raised_first(RaisedError("RuntimeError", text, 1, (Frame("/job/train.py", 3, "main"),)))
    assert (error.type, error.message, error.frames) == (
        "ValueError",
        "could not convert",
        (Frame("/job/data.py", 9, "__getitem__"),),
    )


_HANDLES = """\
def step(x):
    try:
        return net(x)
    except RuntimeError as e:
        if %s:
            print(e)
            return None
        raise
"""


@pytest.mark.parametrize(
    ("test", "says"),
    [
        ("'out of memory' in str(e) or \"can't allocate\" in str(e)", "can't allocate on another rank"),
        ("'no such words' in str(e)", "on another rank"),
        ("is_large(x)", "on another rank"),
    ],
)
def test_the_others_raise_what_the_handler_takes(test: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(_HANDLES % test)
    error = RaisedError("RuntimeError", "can't allocate memory", 1, (), handler=Frame(str(file), 6, "step"))
    assert on_another_rank(error) == says


# A model that is not as large on every rank.

_MODEL = "class Net(nn.Module):\n    pass\n"
_LIST = "class Data:\n    def __init__(self, rows):\n        self.kinds = sorted({r.kind for r in rows})\ndef main(rows):\n    data = Data(rows)\n    net = Net(len(data.kinds))\n"
_MOST = "class Data:\n    @property\n    def items(self):\n        return int(self.rows.max()) + 1\ndef main(data):\n    net = Net(data.items)\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (_LIST, "self.kinds = sorted(set().union(*everyone))"),
        (_MOST, "dist.all_reduce(largest, op=dist.ReduceOp.MAX)"),
        (_LIST.replace("Net(len(data.kinds))", "Net(8)"), ""),
        (
            _MOST.replace("    net", "    if dist.get_rank() == 0:\n        print(data.items)\n    net"),
            "",
        ),  # one rank alone would ask the others
    ],
)
def test_a_model_is_sized_by_what_all_ranks_have(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(_MODEL + text)
    message = "params[5] in this process with sizes [5, 128] appears not to match sizes of the same param in process 0."
    fix = of_own_size(RaisedError("RuntimeError", message, 1, ()), Frame(str(file), 9, "main"))
    assert (says in fix.advice) if fix is not None else not says
    assert of_own_size(RaisedError("RuntimeError", "other", 1, ()), Frame(str(file), 9, "main")) is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("shutil.copytree(here, there)", "shutil.copytree(here, there, dirs_exist_ok=True)"),
        ("os.mkdir(there)", "os.makedirs(there, exist_ok=True)"),
        ("there.mkdir()", "there.mkdir(exist_ok=True)"),
        ("there.mkdir(exist_ok=mine)", ""),
        ("os.link(here, there)", ""),
    ],
)
def test_a_folder_that_is_there_is_taken(line: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"{line}\n")
    fix = of_existing(RaisedError("FileExistsError", "[Errno 17] File exists: 'x'", 1, (Frame(str(file), 1, "main"),)))
    assert (says == fix.advice.splitlines()[1]) if fix is not None else not says


_KEEPS = "class Keeper:\n    def keep(self, state):\n        tmp = {made}\n        write(tmp, state)\n        {moves}\n"


@pytest.mark.parametrize(
    ("made", "moves", "is_told"),
    [
        ("self.path.with_suffix('.part')", "os.replace(tmp, self.path)", True),
        ("f'{self.path}.part'", "tmp.rename(self.path)", True),
        ("f'{self.path}.{os.getpid()}'", "os.replace(tmp, self.path)", False),
        ("self.path.with_suffix(f'.{self.rank}')", "os.replace(tmp, self.path)", False),
        ("self.path.with_suffix('.part')", "os.unlink(tmp)", False),
    ],
)
def test_a_temporary_file_is_each_writers_own(made: str, moves: str, is_told: bool, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(_KEEPS.format(made=made, moves=moves))
    said = "[Errno 2] No such file or directory: 'a/last.part' -> 'a/last'"
    fix = of_temporary(RaisedError("FileNotFoundError", said, 1, (Frame(str(file), 5, "keep"),)))
    assert (fix is not None and "{os.getpid()}" in fix.advice) is is_told


_TAPE = "class Tape:\n    def __iter__(self):\n        while True:\n            item = {got}\n            if {ends}:\n                return\n            yield item\n"


@pytest.mark.parametrize(
    ("got", "ends", "queue"),
    [
        ("self.queue.get()", "item is None", "self.queue"),
        ("self.queue.get(timeout=5)", "item is None", "self.queue"),
        ("self.queue.get()", "item == 0", None),
        ("self.read()", "item is None", None),
    ],
)
def test_a_mark_that_one_worker_takes_out_ends_no_other_one(
    got: str, ends: str, queue: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(_TAPE.format(got=got, ends=ends))
    assert end_mark(Frame(str(file), 4, "__iter__")).get("queue") == queue


_LEADS = (
    "def fit(self):\n    for epoch in rounds:\n        if {gate}:\n            labels = cluster()\n"
    "            if {test}:\n                {leaves}\n        dist.broadcast(labels, src=0)\n"
)


@pytest.mark.parametrize(
    ("gate", "test", "leaves", "is_told"),
    [
        ("self.rank == 0", "count < 2", "continue", True),
        ("self.rank == 0", "count < 2", "count = 2", False),
        ("self.rank == 1", "count < 2", "continue", False),
        ("self.ready", "count < 2", "continue", False),
    ],
)
def test_the_first_rank_says_that_it_leaves(gate: str, test: str, leaves: str, is_told: bool, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(_LEADS.format(gate=gate, test=test, leaves=leaves))
    fix = told_by_first(Frame(str(file), 7, "fit"))
    assert (fix is not None and "broadcast_object_list(leaves, src=0)" in fix.advice) is is_told
    assert told_by_first(Frame(str(file), 4, "fit")) is None


_WORDS = (
    "class Net(nn.Module):\n    pass\ndef main(tapes):\n    vocab = {built}\n    net = {made}\n    model = DDP(net)\n"
)


@pytest.mark.parametrize(
    ("built", "made", "says"),
    [
        ("Words.build(tapes.rows)", "Net(len(vocab))", "vocab = Words.build([x for part in everyone for x in part])"),
        ("Words(tapes.rows)", "Net(32, len(vocab))", "dist.all_gather_object(everyone, tapes.rows)"),
        ("Words.load(path='words.txt')", "Net(len(vocab))", ""),
        ("Words.build(tapes.rows)", "Net(8)", ""),
        ("Words.build(tapes.rows)", "Loader(len(vocab))", ""),
    ],
)
def test_what_sizes_a_model_is_built_of_what_all_have(built: str, made: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(_WORDS.format(built=built, made=made))
    message = "params[0] in this process with sizes [44, 32] appears not to match sizes of the same param in process 0."
    fix = of_own_size(RaisedError("RuntimeError", message, 1, ()), Frame(str(file), 6, "main"))
    assert (says in fix.advice) if fix is not None and says else fix is None
