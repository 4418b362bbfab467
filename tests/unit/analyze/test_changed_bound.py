"""Whether those who changed the number of rounds make more of them, or fewer."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.analyze.calls.loop_heads import changed_bound
from unhang.model import Frame

_LOOP = "def main(n, xs, mark):\n    if odd():\n        {change}\n    for x in {over}:\n        reduce(x)\n"


@pytest.mark.parametrize(
    ("change", "over", "grows"),
    [
        ("n *= 2", "range(n)", True),
        ("n, mark = n * 2, mark / 2", "range(n)", True),
        ("n -= 1", "range(n)", False),
        ("n = n // 2", "range(n)", False),
        ("xs.pop()", "xs", False),
        ("n = min(n, limit())", "range(n)", None),
    ],
)
def test_who_changed_it_makes_more_rounds_or_fewer(change: str, over: str, grows: bool | None, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(_LOOP.format(change=change, over=over))
    found = changed_bound(Frame(str(file), 5, "main"), 4)
    assert found is not None
    assert found.grows is grows
