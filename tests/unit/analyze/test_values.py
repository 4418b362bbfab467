"""What a condition gave by the variables that ranks held, and on what they disagree."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from unhang.analyze.program.source import surroundings
from unhang.analyze.program.values import Disagreement, _value, disagreements, holds_on, is_asked
from unhang.model import Case, Frame, RankEvidence, RankIdentity


def case_of(frame: Frame, values: dict[int, dict[str, str]], inner: Frame | None = None) -> Case:
    within = ((inner, "k", "1"),) if inner else ()
    ranks = {
        rank: RankEvidence(
            RankIdentity(rank, len(values)), variables=(*within, *((frame, k, v) for k, v in own.items()))
        )
        for rank, own in values.items()
    }
    return Case(ranks=ranks)


@pytest.mark.parametrize(
    ("test", "given", "expected"),
    [
        ("len(self.buffer) >= self.cfg.starts", {"len(self.buffer)": "2", "self.cfg.starts": "16"}, False),
        ("not batch", {"len(batch)": "0"}, True),
        ("batch", {"len(batch)": "3"}, 3),
        ("x.shape[0] == 0", {"x.shape": "[0, 4]"}, True),
        ("x.numel() > 0", {"x.shape": "[0, 4]"}, False),
        ("x.size(-1) == 4", {"x.shape": "[0, 4]"}, True),
        ("len(x) > 1", {"x.shape": "[0, 4]"}, False),
        ("loss is None", {"loss.shape": "[]"}, False),
        ("path is not None", {"path": "None"}, False),
        ("path is None", {"path": "a text (#00aa)"}, False),
        ("step % self.every == 0", {"step": "40", "self.every": "20"}, True),
        ("done or step > 3", {"step": "4"}, True),
        ("done and step > 3", {"step": "2"}, False),
    ],
)
def test_value(test: str, given: dict[str, str], expected: object) -> None:
    assert _value(ast.parse(test, mode="eval").body, given) == expected


@pytest.mark.parametrize(
    ("test", "given"),
    [
        ("not x", {"x.shape": "[2]"}),
        ("x.max() > 2", {"x.shape": "[2]"}),
        ("name == 'a'", {"name": "a text (#00aa)"}),
        ("step % every == 0", {"step": "3", "every": "0"}),
        ("len(x) > 0", {}),
        ("done and step > 3", {"step": "4"}),
        ("x.shape[5] > 1", {"x.shape": "[2]"}),
    ],
)
def test_what_is_not_known_has_no_value(test: str, given: dict[str, str]) -> None:
    assert type(_value(ast.parse(test, mode="eval").body, given)) is object


PROGRAM = """\
def run(self, rows):
    if len(rows) > 2:
        update(rows)
    {between}
    gather(rows)
"""


def test_the_truth_of_a_tensor_is_in_its_items(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("def run(x):\n    if x:\n        update()\n    gather()\n")
    frame = Frame(str(path), 4, "run")
    condition = surroundings(str(path), 3).conditions[0]
    assert holds_on(case_of(frame, {0: {"x.shape": "[2]"}}), [0], frame, condition) is None
    assert holds_on(case_of(frame, {0: {"x": "True"}}), [0], frame, condition) is True


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        ("print(1)", (True, False)),
        ("rows.append(1)", (None, None)),
        ("rows = rows[1:]", (None, None)),
        ("rows[0] = 1", (None, None)),
    ],
)
def test_only_what_was_not_changed_since(
    tmp_path: Path, between: str, expected: tuple[bool | None, bool | None]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM.format(between=between))
    frame = Frame(str(path), 5, "run")
    case = case_of(frame, {0: {"len(rows)": "3"}, 1: {"len(rows)": "1"}})
    condition = surroundings(str(path), 3).conditions[0]
    assert (holds_on(case, [0], frame, condition), holds_on(case, [1], frame, condition)) == expected


def test_an_attribute_may_change_in_the_owners_methods(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("def run(self):\n    if len(self.rows) > 2:\n        update()\n    self.collect()\n    gather()\n")
    condition = surroundings(str(path), 3).conditions[0]
    for line, inner, expected in ((5, None, None), (4, Frame(str(path), 9, "collect"), None), (4, None, True)):
        frame = Frame(str(path), line, "run")
        case = case_of(frame, {0: {"len(self.rows)": "3"}}, inner)
        assert holds_on(case, [0], frame, condition) is expected


HERE = Frame("train.py", 9, "main")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({0: {"len(self.rows)": "8"}, 1: {"len(self.rows)": "3"}, 2: {"len(self.rows)": "8"}}, ["len(self.rows)"]),
        ({0: {"name": "a text (#1)"}, 1: {"name": "a text (#2)"}, 2: {"name": "a text (#1)"}}, ["name"]),
        ({0: {"name": "a text (#1)"}, 1: {"name": "a text (#2)"}}, []),  # of two ranks, a name is often each one's own
        ({0: {"loss": "0.5"}, 1: {"loss": "0.6"}, 2: {"loss": "0.5"}}, []),
        ({0: {"loss": "0.5"}, 1: {"loss": "nan"}, 2: {"loss": "0.5"}}, ["loss"]),
        ({0: {"x.shape": "[2]"}, 1: {"x": "None"}, 2: {"x.shape": "[3]"}}, ["x"]),
        ({0: {"x": "None"}, 1: {"len(x)": "4"}, 2: {"x": "None"}}, ["x"]),
        ({0: {"self.rank": "0"}, 1: {"self.rank": "1"}, 2: {"self.rank": "0"}}, []),
        ({0: {"n": "1"}, 1: {"n": "2"}, 2: {"n": "3"}}, []),  # each has another
        ({0: {"n": "1"}, 1: {"n": "2"}, 2: {}}, ["n"]),  # rank 2 left none
    ],
)
def test_disagreements(values: dict[int, dict[str, str]], expected: list[str]) -> None:
    found = list(disagreements(case_of(HERE, values), (1,)))
    assert [d.expression for d in found] == expected
    assert all(isinstance(d, Disagreement) and d.frame == HERE for d in found)


@pytest.mark.parametrize(
    ("test", "expression", "expected"),
    [
        ("len(self.rows) > self.most", "len(self.rows)", True),
        ("not self.rows", "len(self.rows)", True),
        ("len(self.rows) > self.most", "self.most", True),
        ("len(self.rows_kept) > 3", "len(self.rows)", False),
        ("self.rows.full()", "len(self.rows)", False),
        ("step % 4", "step", True),
        ("batch.step % 4", "step", False),
    ],
)
def test_what_a_condition_asks_for(test: str, expression: str, expected: bool) -> None:
    assert is_asked(test, expression) is expected
