"""Writes docs/decision-tree.md from the tree of questions and the rules' own docstrings."""

from __future__ import annotations

from pathlib import Path

from unhang.cli.explain import commands_with_help
from unhang.skill.folder import tree_page

PAGE = Path(__file__).parent / "decision-tree.md"


def page() -> str:
    """The page: the same for the same rules and commands."""
    return tree_page(lambda rule: f"rules/{rule}.md", commands_with_help())


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE)
