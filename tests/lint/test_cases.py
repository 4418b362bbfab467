"""Every rule fires where a case says so, on that line, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from unhang.lint.cards import LintSettings, all_cards, chosen
from unhang.lint.checking import lint_paths

CASES = sorted((Path(__file__).parent / "cases").glob("*.py"))
ALL = 9  # calls: also what is shown with --depth only
MARK = re.compile(r"#\s*(?:far )?(LNT\d+)\s*$")
FAR = re.compile(r"#\s*far (LNT\d+)\s*$")  # a doubt: shown with --depth alone


def marked(path: Path, mark: re.Pattern[str] = MARK) -> set[tuple[int, str]]:
    lines = enumerate(path.read_text().splitlines(), start=1)
    return {(number, m[1]) for number, line in lines for m in [mark.search(line)] if m}


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_case(path: Path) -> None:
    expected = marked(path)
    on = chosen((), {code for _, code in expected}, ())
    result = lint_paths([str(path)], LintSettings(on, depth=ALL), None, 1)
    assert {(f.line, f.code) for _, f in result.found} == expected


@pytest.mark.parametrize("path", [p for p in CASES if marked(p, FAR)], ids=lambda p: p.stem)
def test_a_doubt_is_kept_back(path: Path) -> None:
    shown = {(f.line, f.code) for _, f in lint_paths([str(path)], LintSettings(), None, 1).found}
    assert shown
    assert shown.isdisjoint(marked(path, FAR))


def test_every_rule_has_a_case_that_fires() -> None:
    fired = {code for path in CASES for _, code in marked(path)}
    assert fired == set(all_cards())
