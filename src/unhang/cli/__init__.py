"""The command line: thin files, one for each command or for a few of one kind.

Here is what all commands have of the console (streams that may be closed, progress, the result), and what options of several have in common.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click
from click.decorators import FC

from unhang.errors import CannotWrite, NoTorch

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FILE, PATH = click.Path(path_type=Path, dir_okay=False), click.Path(path_type=Path)
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


# What options of several commands have in common.


def format_option(formats: Sequence[str], help_text: str = "What to write.") -> Callable[[FC], FC]:
    """--format, as every command has it that can write more than one."""
    choice = click.Choice(tuple(formats))
    return click.option("--format", "output_format", type=choice, default="text", show_default=True, help=help_text)


def output_option(help_text: str = "Write to this file instead of stdout.") -> Callable[[FC], FC]:
    """-o, --output, as every command has it that writes a result."""
    return click.option("-o", "--output", type=FILE, help=help_text)


def seconds(text: str) -> float:
    """Reads a number of seconds of the command line, or ends with a usage error."""
    from unhang.watch import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a positive number of seconds") from None


def seconds_option(*names: str, help: str, default: float | None = None) -> Callable[[FC], FC]:
    """An option that takes a number of seconds."""
    return click.option(*names, type=seconds, metavar="SECONDS", default=default, help=help)


def keeping(text: str) -> str:
    """Reads which reports are to stay, or ends with a usage error."""
    from unhang.watch.folders import parse_keep

    try:
        return parse_keep(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is {error}") from None
