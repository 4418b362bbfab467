"""Writes docs/messages.txt: what users may be told, in one file, to be read as prose before a release.

The first lines of verdicts, filled in, are in tests/fix/first_lines.txt; here are the words of the cards, what the code itself says, and every help.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import click

from unhang.cli.main import COMMANDS, Context, cli
from unhang.rules.known_repairs import all_rows, known_waits
from unhang.rules.registry import all_rules

ROOT = Path(__file__).parents[1] / "src" / "unhang"
FILE = Path(__file__).with_name("messages.txt")
# Functions whose texts a user reads, besides what is raised.
_SAYS = {"echo", "log", "say", "_report", "Unavailable", "print"}
_LEAST_WORDS = 3
_WIDTH = 80


def of_cards() -> Iterator[str]:
    """Titles, reasons and fixes of the rules, with their slots."""
    for rule in all_rules():
        yield f"\n{rule.id}"
        for text in (*rule.card.title.values(), *rule.card.because.values()):
            yield f"    {' '.join(text.split())}"
        for fix in rule.card.fixes.values():
            parts = (fix.title, f"verify: {fix.verify}" if fix.verify else "", f"undo: {fix.undo}" if fix.undo else "")
            yield "    * " + " | ".join(part for part in parts if part)
    yield "\nwaits in libraries"
    for row in known_waits():
        yield f"    * {row.fix.title} | verify: {row.fix.verify} | undo: {row.fix.undo}"


def of_remedies() -> Iterator[str]:
    """Titles of the fixes of exceptions, with their slots."""
    yield from (f"    {row.name}: {row.fields['title']}" for row in all_rows())


def _text(node: ast.AST) -> str:
    """A text in the source, with the names of what is put in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.FormattedValue):
        value = node.value
        return f"{{{ast.unparse(value)}}}" if isinstance(value, ast.Name | ast.Attribute) else "{...}"
    return ""


def _said(tree: ast.AST) -> Iterator[str]:
    """Texts of errors, of what is printed, and of `help_text` of an error."""
    for node in ast.walk(tree):
        call = node.exc if isinstance(node, ast.Raise) else node
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "help_text" for t in node.targets):
            yield _text(node.value)
        elif isinstance(call, ast.Call):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if isinstance(node, ast.Raise) or name in _SAYS:
                yield from map(_text, call.args)


def of_code() -> Iterator[str]:
    """What modules say themselves, by module, each text once."""
    for path in sorted(ROOT.rglob("*.py")):
        said = (" ".join(text.split()) for text in _said(ast.parse(path.read_text(encoding="utf-8"))))
        found = dict.fromkeys(text for text in said if len(text.split()) >= _LEAST_WORDS)
        if found:
            yield f"\n{path.relative_to(ROOT)}"
            yield from (f"    {text}" for text in found)


def of_help() -> Iterator[str]:
    """The help of every command, as 80 columns show it."""
    for words, command in (((), cli), *_commands()):
        name = " ".join(("unhang", *words))
        command._help_option = None  # click keeps that of the first use, which may have been of the command alone
        context = Context(command, info_name=name, terminal_width=_WIDTH, help_option_names=["-h", "--help"])
        yield f"\n{command.get_help(context)}"


def _commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        yield (name,), command
        if isinstance(command, click.Group):
            yield from (((name, inner), found) for inner, found in command.commands.items())


def text() -> str:
    """The whole file."""
    return (
        "\n".join(
            (
                "Words of the rules",
                *of_cards(),
                "\n\nRemedies of exceptions\n",
                *of_remedies(),
                "\n\nErrors and notices",
                *of_code(),
                "\n\nHelp",
                *of_help(),
            )
        )
        + "\n"
    )


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(FILE)
