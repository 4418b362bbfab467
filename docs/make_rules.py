"""Writes docs/rules/ID.md and the table of rules from the rules' own docstrings."""

from __future__ import annotations

import inspect
from pathlib import Path

from unhang.rules.registry import all_rules

FOLDER = Path(__file__).parent / "rules"


def page(rule: object) -> str:
    """One rule as a page."""
    text = inspect.cleandoc(type(rule).__doc__ or "")
    lines = [f"# {rule.id}", "", f"Cause: `{rule.cause}`", ""]  # type: ignore[attr-defined]
    for line in text.splitlines():
        is_heading = line.endswith(":") and not line.startswith(" ")
        lines.append(f"## {line[:-1]}\n" if is_heading else line.strip())
    return "\n".join(lines).rstrip() + "\n"


def pages() -> dict[str, str]:
    """File name -> content of every page."""
    found = {f"{rule.id}.md": page(rule) for rule in all_rules()}
    rows = [f"| [{r.id}]({r.id}.md) | {r.cause} | {(type(r).__doc__ or '').splitlines()[0]} |" for r in all_rules()]
    table = [
        "# Rules",
        "",
        "Written from the rules' docstrings by `make docs`.",
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
