"""Text follows the terminal; elsewhere a line stays a line, which can be searched."""

from __future__ import annotations

import pytest

from unhang.show import paper
from unhang.show.paper import Paper, fitted
from unhang.show.runs import ListedRun, render_run_list

LONG = "rank 0 called all_reduce alone: evaluation.py:29 runs only on rank 0 (`if dist.get_rank() == 0`)"


def test_a_folded_line_keeps_its_words_and_styles() -> None:
    folding = Paper(True, 60, is_terminal=True)
    folding.folded([("HANG", "bad"), "  ", (LONG, "strong"), ("  [93%]", "dim")], 6)
    first, second = str(folding).splitlines()
    assert first.startswith("\x1b[1;31mHANG\x1b[0m  \x1b[1mrank 0 called")
    assert second.startswith("      \x1b[1m")
    plain = Paper(False, 60, is_terminal=True)
    plain.folded(["HANG", "  ", LONG], 6)
    lines = str(plain).splitlines()
    assert max(map(len, lines)) <= 60
    assert " ".join(" ".join(lines).split()) == f"HANG {LONG}"
    away = Paper(False, 60)
    away.folded(["HANG", "  ", LONG], 6)
    assert str(away) == f"HANG  {LONG}\n"


@pytest.mark.parametrize("width", [0, 60])
def test_lines_fit_a_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(paper, "terminal_width", lambda: width)
    monkeypatch.setattr(paper.sys.stdout, "isatty", lambda: True, raising=False)
    text = f"short\n\n  - {LONG}\n"
    if not width:
        assert fitted(text) == text
    else:
        lines = fitted(text).split("\n")
        assert lines[:2] == ["short", ""]
        assert max(map(len, lines)) <= width
        assert lines[3].startswith("    ")


def test_a_list_of_runs_puts_the_answer_below_where_there_is_no_room() -> None:
    run = ListedRun(("unhang-reports/1",), 0, None, LONG)
    assert len(render_run_list([run]).splitlines()) == 1
    head, *answer = render_run_list([run], terminal=80).splitlines()
    assert head.endswith("unhang-reports/1")
    assert " ".join(" ".join(answer).split()) == LONG
    assert max(map(len, answer)) <= 80
