"""Writes docs/lint-rules.md from the cards of `unhang lint`."""

from __future__ import annotations

from pathlib import Path

from unhang.lint.cards import LintCard, all_cards

PAGE = Path(__file__).parent / "lint-rules.md"


def section(card: LintCard) -> str:
    """One rule."""
    lines = [
        f"## {card.code} {card.name}",
        "",
        f"Cause: `{card.cause}`{'' if card.is_default else '. Off unless selected'}",
        "",
        card.what,
        "",
    ]
    for heading, text in card.sections.items():
        lines += [f"**{heading}.** {' '.join(text.split())}", ""]
    lines += ["It says nothing about:", "", *(f"* {why}" for why in card.silent), ""]
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    rows = [
        f"| [{c.code}](#{c.code.lower()}-{c.name}) | {c.name} | {'' if c.is_default else 'off'} | {c.what} |"
        for c in all_cards().values()
    ]
    head = [
        "# Rules of unhang lint", "", "Written from the cards by `make docs`. Rules that are `off` are a matter of opinion: `--extend-select` asks them.", "",
        "| code | rule | | |", "|---|---|---|---|", *rows, "",
    ]  # fmt: skip
    return "\n".join([*head, *(section(c) for c in all_cards().values())]).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"{len(all_cards())} rules in {PAGE}")
