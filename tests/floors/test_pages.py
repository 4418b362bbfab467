"""The pages for those who change the program name files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("CONTRIBUTING.md", "docs/architecture.md")
_PATH = re.compile(r"`((?:src|tests|docs|[a-z]+)/[\w./-]*[\w/])`|\]\(([\w./-]+)\)")


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    """A path is meant from the page, from the root, or from the package."""
    text = (ROOT / page).read_text()
    named = {a or b for a, b in _PATH.findall(text)}
    starts = (ROOT, ROOT / "src" / "unhang", (ROOT / page).parent)
    assert named
    assert [path for path in sorted(named) if not any((start / path).exists() for start in starts)] == []


def test_the_commands_of_the_page_are_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", (ROOT / "CONTRIBUTING.md").read_text())) <= targets | {"sure"}
