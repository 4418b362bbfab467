"""What all commands have in common: the names of their options, and defaults from `[tool.unhang]` of the user's pyproject.toml."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
from click.decorators import FC

from unhang.cli.streams import FILE
from unhang.errors import WrongUsage

# Old name -> name. An old name goes on working, and no help shows it.
RENAMED = {"output-format": "format"}
# What starts other programs, ends processes or overwrites files is asked for by a person, not by a file that lies there.
ONLY_BY_HAND = frozenset({"via", "nodes", "remote", "before-command", "end-orphans", "force", "apply", "pid"})
_OWN_TABLE = "lint"  # it has settings of its own, read where the code is


def renamed(name: str) -> str:
    """The name of an option today."""
    return RENAMED.get(name, name)


def format_option(formats: Sequence[str], help_text: str = "What to write.") -> Callable[[FC], FC]:
    """--format, as every command has it that can write more than one."""
    choice = click.Choice(tuple(formats))
    return click.option("--format", "output_format", type=choice, default="text", show_default=True, help=help_text)


def output_option(help_text: str = "Write to this file instead of stdout.") -> Callable[[FC], FC]:
    """-o, --output, as every command has it that writes a result."""
    return click.option("-o", "--output", type=FILE, help=help_text)


def defaults_of(name: str, command: click.Command, environ: Mapping[str, str], start: Path) -> dict[str, object]:
    """Defaults of one command's options, by parameter: those of `[tool.unhang.NAME]` in the nearest pyproject.toml.

    An option that a variable UNHANG_<OPTION> sets is left to it.

    Raises:
        WrongUsage: the file is no TOML, or it has a key or a value that makes no sense.
    """
    from unhang.read.files import nearest_table

    path, tables = nearest_table(start)
    if path is None:
        return {}
    _check_tables(path, tables)
    if name == _OWN_TABLE or not isinstance(tables.get(name), dict):
        return {}
    where, found = f"{path}: [tool.unhang.{name}]", dict[str, object]()
    options = {opt[2:]: p for p in command.params if isinstance(p, click.Option) for opt in p.opts if opt[:2] == "--"}
    for key, value in tables[name].items():
        if key in ONLY_BY_HAND and key in options:
            raise WrongUsage(f"{where} may not set {key!r}: it can only be set on the command line")
        if key not in options:
            raise WrongUsage(f"{where} has no key {key!r}{did_you_mean(key, list(options))}")
        if f"UNHANG_{key.upper().replace('-', '_')}" not in environ:
            found[options[key].name or key] = _value(where, key, value, options[key])
    return found


def _check_tables(path: Path, tables: Mapping[str, object]) -> None:
    from unhang.cli.main import COMMANDS

    for key, value in tables.items():
        if key not in COMMANDS:
            raise WrongUsage(f"{path}: [tool.unhang] has no key {key!r}{did_you_mean(key, list(COMMANDS))}")
        if not isinstance(value, dict):
            raise WrongUsage(f"{path}: {key!r} of [tool.unhang] must be a table, [tool.unhang.{key}]")


def _value(where: str, key: str, value: object, option: click.Option) -> object:
    """What the option takes: a truth for a flag, a list where it may be repeated, else the text that a person would type."""
    if option.is_flag:
        wanted, is_right = "true or false", isinstance(value, bool)
    elif option.multiple:
        wanted, is_right = "a list of texts", isinstance(value, list) and all(isinstance(v, str) for v in value)
    else:
        wanted, is_right = "a text or a number", isinstance(value, str | int | float) and not isinstance(value, bool)
    if not is_right:
        raise WrongUsage(f"{where} {key!r} must be {wanted}")
    plain = value if option.is_flag or option.multiple else str(value)
    try:
        option.type_cast_value(click.Context(click.Command(key)), plain)
    except click.BadParameter as error:
        raise WrongUsage(f"{where} {key!r}: {error.message.rstrip('.')}") from None
    return plain


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """The nearest of the known words as a question, to be put behind an error; empty where none is near."""
    import difflib

    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def here() -> Path:
    """The working folder; the root where it is gone."""
    try:
        return Path(os.getcwd())
    except OSError:
        return Path("/")
