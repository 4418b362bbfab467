"""Writes docs/reference/exit-codes.md and the manual page docs/unhang.1 from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from unhang import __version__
from unhang.cli.main import COMMANDS, GENERAL, cli, codes_of

DOCS = Path(__file__).parent


def exit_codes() -> str:
    """The table of exit codes."""
    lines = [
        "# Exit codes",
        "",
        "Written from the commands by `make docs`. They are a promise: a script may rely on them.",
        "",
        "| code | everywhere |",
        "|---|---|",
        *(f"| {code} | {meaning} |" for code, meaning in GENERAL.items()),
        "",
        "What they mean for one command:",
        "",
        "| command | code | |",
        "|---|---|---|",
    ]
    for name in COMMANDS:
        lines += [f"| `unhang {name}` | {code} | {meaning} |" for code, meaning in codes_of(name).items()]
    return "\n".join(lines) + "\n"


def manual() -> str:
    """The manual page, as roff."""
    lines = [
        f'.TH UNHANG 1 "" "unhang {__version__}" "User Commands"',
        ".SH NAME",
        "unhang \\- says why a distributed PyTorch job hangs",
        ".SH SYNOPSIS",
        ".B unhang",
        "COMMAND [OPTIONS]... [ARGUMENTS]...",
        ".SH DESCRIPTION",
        _roff(cli.help or ""),
        ".SH COMMANDS",
    ]
    context = click.Context(cli, info_name="unhang")
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        lines += _command(command, click.Context(command, info_name=name, parent=context))
    lines += [".SH EXIT STATUS"]
    for code, meaning in GENERAL.items():
        lines += [".TP", f".B {code}", _roff(meaning)]
    lines += [
        ".SH FILES",
        ".TP",
        ".I unhang-reports/",
        "The reports, one folder for each run;",
        ".I latest",
        "leads to the newest.",
        ".TP",
        ".I pyproject.toml",
        "Its tables [tool.unhang.COMMAND] give defaults of options.",
    ]
    return "\n".join(lines) + "\n"


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    usage = " ".join(command.collect_usage_pieces(context))
    yield f".SS {_roff(context.command_path)} {_roff(usage)}"
    for i, paragraph in enumerate((command.help or "").split("\n\n")):
        yield from [".PP"] * (i > 0)
        yield _roff(" ".join(paragraph.split()))
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record and "--help" not in record[0]:
            yield from (".TP", f".B {_roff(record[0])}", _roff(record[1]))
    if command.epilog:
        yield from (".PP", _roff(command.epilog))
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from _command(child, click.Context(child, info_name=name, parent=context))


def _roff(text: str) -> str:
    """Plain text as roff shows it. No line of it may begin with a dot or a quote."""
    return re.sub(r"^([.'])", r"\\&\1", text.replace("\\", "\\e").replace("-", "\\-"))


def pages() -> dict[Path, str]:
    """Every page that is written here, and its content."""
    return {DOCS / "reference" / "exit-codes.md": exit_codes(), DOCS / "unhang.1": manual()}


if __name__ == "__main__":
    for path, content in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
