"""What all commands have of the console: streams that may be closed, progress, the result; options, and their defaults from `[tool.unhang]`."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click
from click.decorators import FC

from unhang.errors import CannotWrite, NoTorch, WrongUsage

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FILE = click.Path(path_type=Path, dir_okay=False)
_EVERY_S = 0.2
_SLOW_S = 1.0


class _Stdout(io.FileIO):
    """Its errors say whose they are."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, "the standard output") from error


class _Stderr(io.FileIO):
    """What cannot be told is no reason to stop."""

    def write(self, data: ReadableBuffer) -> int:
        with suppress(OSError):
            return super().write(data)
        return len(memoryview(data))


def hold_streams() -> None:
    """Has every stream there, with its number. What is written to a closed stdout fails, to a closed stderr it is lost.

    A file that is opened later would get the number of a closed one, and in it what a library prints.
    """
    if sys.stdout is None:
        _occupy(1, os.O_RDONLY)
    if sys.stderr is None:
        _occupy(2, os.O_WRONLY)
    sys.stdout = _text(_Stdout(1, "wb", closefd=False), "surrogateescape", sys.stdout)
    sys.stderr = _text(_Stderr(2, "wb", closefd=False), "backslashreplace", sys.stderr)


def _occupy(number: int, how: int) -> None:
    nothing = os.open(os.devnull, how)
    if nothing != number:
        os.dup2(nothing, number)
        os.close(nothing)


def _text(raw: io.FileIO, errors: str, old: TextIO | None) -> io.TextIOWrapper:
    """As the interpreter would have made it; stderr, and a terminal, show each line at once."""
    known = old if isinstance(old, io.TextIOWrapper) else None
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=known.encoding if known else None,
        errors=(known and known.errors) or errors,
        line_buffering=known.line_buffering if known else False,
    )


def give_up_stdout() -> None:
    """Lets what is still to be written go nowhere, so that the interpreter's last flush cannot fail."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def wants_color(descriptor: int) -> bool:
    """Whether text written to this descriptor may be coloured."""
    return os.isatty(descriptor) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def write_out(content: bytes, output: Path | None) -> None:
    """Writes to a file, or to stdout where none is given.

    Raises:
        CannotWrite: the file cannot be written.
    """
    if output is None:
        sys.stdout.buffer.write(content)
        return
    try:
        output.write_bytes(content)
    except OSError as error:
        raise CannotWrite(f"{output}: {error.strerror}") from error


def log(text: str) -> None:
    """Writes one line on stderr, in our name."""
    click.echo(f"unhang: {text}", err=True)


class Progress:
    """One line on the terminal that is overwritten, from the second on that the work takes; gone when it is left."""

    def __init__(self, what: str = "MB of logs", unit: int = 1_000_000) -> None:
        """`what` is counted in steps of `unit`."""
        self._began = self._shown = time.monotonic()
        self._is_shown = False
        self._what, self._unit = what, unit

    def __call__(self, done: int, total: int) -> None:
        """Shows how far it is, at most five times a second."""
        now = time.monotonic()
        if not sys.stderr.isatty() or now - self._began < _SLOW_S or now - self._shown < _EVERY_S:
            return
        self._shown, self._is_shown = now, True
        text = f"{done // self._unit} of {total // self._unit} {self._what} read"
        click.echo(f"\r\x1b[Kunhang: {text}", nl=False, err=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            click.echo("\r\x1b[K", nl=False, err=True)
            self._is_shown = False


# What a command needs of its own process: torch where ranks are started, a stopwatch.

TIMINGS = "UNHANG_TIMINGS"


def need_torch() -> None:
    """Refuses before ranks are started that would each say so: torch belongs to the user, and may not be there.

    Raises:
        NoTorch: there is none.
    """
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise NoTorch("torch is not installed here")


class Timings:
    """Seconds of wall-clock and CPU time of each stage, as one line of JSON on stderr if UNHANG_TIMINGS asks for it."""

    def __init__(self) -> None:
        self._stages: dict[str, list[float]] = {}
        self._last = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        times = os.times()
        return time.monotonic(), times.user + times.system + times.children_user + times.children_system

    def mark(self, stage: str) -> None:
        """Ends a stage."""
        now = self._now()
        self._stages[stage] = [round(b - a, 4) for a, b in zip(self._last, now, strict=True)]
        self._last = now

    def log(self) -> None:
        """Writes the line."""
        if os.environ.get(TIMINGS):
            import json

            click.echo(json.dumps({"timings_wall_cpu_s": self._stages}), err=True)


# The names of options, what several commands have, and defaults from the user's pyproject.toml.

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


def seconds(text: str) -> float:
    """Reads a number of seconds of the command line, or ends with a usage error."""
    from unhang.watch.options import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a positive number of seconds") from None


def keeping(text: str) -> str:
    """Reads which reports are to stay, or ends with a usage error."""
    from unhang.watch.folders import parse_keep

    try:
        return parse_keep(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is {error}") from None
