"""Every row of the stories has a verdict, a command that shows it, and a test."""

from __future__ import annotations

import ast
import importlib.util
import os
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from tests.slowness import slowness
from unhang.cli.main import main
from unhang.lint.cards import all_cards
from unhang.rules.decision_tree import rules_by_id
from unhang.skill.explaining import explained

from .coverage import ADVICE_VERDICTS, VERDICTS, AdviceRow, Row, advice_rows, all_rows

ROOT = Path(__file__).parents[2]
STORIES = {"R0": 13, "R1": 13, "R2": 10, "R3": 10, "R4": 10}
ADVICE = {"S0": 39, "S1": 43, "S2": 30, "S3": 44, "S4": 50}
LIMIT_S = 120
_MEANT = {"": " "}


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def _made_by() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_coverage", ROOT / "docs" / "make_coverage.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_row_is_left_out() -> None:
    assert Counter(row.id.partition(".")[0] for row in all_rows()) == STORIES
    assert Counter(row.id.partition(".")[0] for row in advice_rows()) == ADVICE


@pytest.mark.parametrize("row", all_rows(), ids=lambda row: row.id)
def test_a_row_has_a_verdict_a_command_and_a_test(row: Row) -> None:
    assert row.verdict in VERDICTS
    assert bool(row.open) == (row.verdict == "open"), "what is missing is said of open rows, and of no other"
    assert row.command
    assert row.shows
    file, _, name = row.test.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    tests = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert tests if name == "*" else name in tests


@pytest.mark.parametrize("row", [row for row in all_rows() if not row.whole], ids=lambda row: row.id)
def test_a_command_shows_it(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    program, *words = shlex.split(row.command.replace("{tmp}", str(tmp_path)))
    assert program == "unhang"
    code = main(words)
    told = capfd.readouterr()
    _check(row, code, told.out + told.err)


@pytest.mark.whole
@pytest.mark.timeout(3 * LIMIT_S)
@pytest.mark.parametrize("row", [row for row in all_rows() if row.whole], ids=lambda row: row.id)
def test_a_command_that_takes_long_shows_it(row: Row, tmp_path: Path) -> None:
    words = shlex.split(row.command.replace("{tmp}", str(tmp_path)))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for name in ("examples", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S * slowness()
    )
    _check(row, done.returncode, done.stdout + done.stderr)


def _check(row: Row, code: int, told: str) -> None:
    assert code == row.code, told[-3000:]
    flat = _in_one_line(told)
    assert [text for text in row.shows if _in_one_line(text) not in flat] == [], told[-3000:]


@pytest.mark.parametrize("row", advice_rows(), ids=lambda row: row.id)
def test_what_a_story_says_is_answered(row: AdviceRow) -> None:
    assert row.told in ADVICE_VERDICTS
    how, _, what = row.by.partition(" ")
    if how == "explain":
        kind, text, _ = explained(what, ())
        assert (kind, bool(text)) in {
            (k, True) for k in ("rule", "cause", "variable", "advice", "messages", "topics", "lines", "lint rule")
        }
    elif how == "rule":
        assert what in rules_by_id()
    elif how == "lint":
        assert what in all_cards()
    elif how == "row":
        assert next(r for r in all_rows() if r.id == what).verdict != "open"
    else:
        assert how == "open"


def test_the_page_is_up_to_date() -> None:
    made = _made_by()
    assert made.PAGE.read_text() == made.page(), "make docs"
