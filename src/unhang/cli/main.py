"""The `unhang` command. Commands are imported when they are used; errors become one line and an exit code here."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
from collections.abc import Sequence

import click

from unhang import __version__
from unhang.errors import UnhangError

# Each is `command` of the module with its name, in the order in which they are useful.
COMMANDS = ("run", "diagnose", "check", "reproduce", "verify", "inject", "demo", "env", "explain", "skill")
INTERRUPTED = 130


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which they are useful."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports one command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"unhang.cli.{cmd_name}").command
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="unhang")
def cli() -> None:
    """Find out why a distributed PyTorch job hangs: the rank, the line, the cause."""


def _tell(error: UnhangError) -> int:
    help_text = f" ({error.help_text})" if error.help_text else ""
    click.echo(f"unhang: {error}{help_text}", err=True)
    return error.exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code. Without arguments it is the process's own command, and its last act."""
    if arguments is None:
        atexit.register(gc.freeze)  # else the interpreter looks for cycles in all that goes with the process
    try:
        code = cli.main(arguments, prog_name="unhang", standalone_mode=False)
        sys.stdout.flush()
    except UnhangError as error:
        return _tell(error)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has seen enough; the interpreter must not flush into it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    return code if isinstance(code, int) else 0
