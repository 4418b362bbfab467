"""Writes docs/reference/coverage.md from the table of what the stories ask for."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.stories.coverage import ADVICE_VERDICTS, AdviceRow, Row, advice_rows, all_rows, rows  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "coverage.md"
_WORDS = {"works": "works", "truth": "answered with the truth", "open": "open"}


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _row(row: Row) -> str:
    said = _WORDS[row.verdict] + (f": {row.open}" if row.open else "")
    command = f"`{_cell(row.command)}`" + (" (`-m whole`)" if row.whole else "")
    file, _, name = row.test.partition("::")
    test = f"[{Path(file).stem}](../../{file})" + ("" if name == "*" else f" `{name}`")
    return f"| {row.id} | {_cell(row.asked)} | {_cell(said)} | {command} | {test} |"


def _advice(row: AdviceRow) -> str:
    return f"| {row.id} | {_cell(row.said)} | {ADVICE_VERDICTS[row.told]} | {'open' if row.by == 'open' else f'`{_cell(row.by)}`'} |"


def page() -> str:
    """The whole page."""
    count = Counter(row.verdict for row in all_rows())
    unanswered = [row for row in advice_rows() if row.by == "open"]
    out = [
        "# What the five stories ask for", "",
        "Written by `make docs` from `tests/stories/coverage.toml`; each command is run by `tests/stories/test_coverage.py`, those that take long with `-m whole`.", "",
        f"Of {len(all_rows())} rows {count['works']} work, {count['truth']} are answered with the truth (harmful or without effect as asked), {count['open']} are open. "
        f"Of {len(advice_rows())} pieces of advice {len(advice_rows()) - len(unanswered)} are answered.",
    ]  # fmt: skip
    for title, of_it in rows():
        out += ["", f"## {title}", "", "| row | asked for | verdict | command | test |", "|---|---|---|---|---|"]
        out += map(_row, of_it)
    out += [
        "",
        "## What the stories say",
        "",
        "`explain`, `env` and `lint` are commands of `unhang`; a rule is explained by `unhang explain RULE`; a row stands above.",
        "",
    ]
    out += ["| row | the story says | it is | answered by |", "|---|---|---|---|", *map(_advice, advice_rows())]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
    print(PAGE)
