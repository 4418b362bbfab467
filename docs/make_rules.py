"""Writes docs/rules/ID.md and the table of rules from the rules' cards."""

from __future__ import annotations

from pathlib import Path

from unhang.rules.base import Rule
from unhang.rules.registry import all_rules

FOLDER = Path(__file__).parent / "rules"


def page(rule: Rule) -> str:
    """One rule as a page."""
    card = rule.card
    lines = [f"# {rule.id}", "", f"Cause: `{card.cause}`", "", card.what, ""]
    for heading, text in card.sections.items():
        lines += [f"## {heading}\n", *text.splitlines(), ""]
    return "\n".join(lines).rstrip() + "\n"


def pages() -> dict[str, str]:
    """File name -> content of every page."""
    found = {f"{rule.id}.md": page(rule) for rule in all_rules()}
    rows = [f"| [{r.id}]({r.id}.md) | {r.cause} | {r.card.what} |" for r in all_rules()]
    table = [
        "# Rules",
        "",
        "Written from the rules' cards by `make docs`.",
        "",
        "| rule | cause | |",
        "|---|---|---|",
        *rows,
    ]
    return {**found, "README.md": "\n".join(table) + "\n"}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, content in pages().items():
        (FOLDER / name).write_text(content)
    print(f"{len(pages())} pages in {FOLDER}")
