"""The `unhang` command. Commands are imported when used, options get the defaults of the user, errors become one line and an exit code."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click

from unhang import __version__
from unhang.cli import give_up_stdout, hold_streams
from unhang.errors import NoTorch, UnhangError, WrongUsage, did_you_mean
from unhang.numeric import without_threads

# The exit codes of all commands, in one table: the help, the page and the manual are made from it.

# The same for every command.
GENERAL: Mapping[int, str] = {
    0: "done, and nothing is wrong",
    1: "something is wrong: a finding, a hang, a check that failed",
    2: "wrong usage, or a file that cannot be read or written",
    3: "no verdict: the evidence is not enough",
    130: "interrupted by Ctrl-C",
}
JOBS = "the job's own, or 128+n where signal n ended it"
# What they mean for one command. "job": the command ends with the exit code of the job that it runs.
OF_COMMAND: Mapping[str, Mapping[int | str, str]] = {
    "run": {
        "job": JOBS,
        124: "the job hung and was ended",
        126: "the command is not executable",
        127: "there is no such command",
        2: "wrong usage",
    },
    "attach": {0: "the job moves", 1: "something is wrong", 3: "could not judge"},
    "diagnose": {0: "nothing wrong", 1: "findings, or a failure of unknown cause", 3: "the evidence is not enough"},
    "fix": {
        0: "there is a diff, or nothing to fix",
        2: "wrong usage, or the file has changed since the run",
        3: "no diff can be made",
    },
    "reports": {0: "done", 2: "there is no report"},
    "bundle": {0: "written"},
    "check": {0: "nothing wrong", 1: "findings", 3: "could not judge, or an area of --require was skipped"},
    "lint": {0: "nothing found", 1: "findings", 2: "wrong usage, or a file that could not be judged"},
    "reproduce": {
        0: "written, and it fails in the same way (with --reduce: every run passed)",
        1: "a run failed (with --reduce)",
        3: "it cannot be reproduced from the calls",
    },
    "verify": {0: "as expected", 1: "not as expected", 3: "could not judge"},
    "inject": {"job": JOBS, 0: "listed (with --list)", 2: "wrong usage, or no such fault", 3: "no fault happened"},
    "demo": {0: "the cause was named and the fix verified", 1: "not", 3: "could not judge"},
    "env": {0: "nothing wrong", 1: "findings", 3: "nothing to judge"},
    "explain": {0: "explained", 2: "an unknown word, or an unreadable file", 3: "no line of the text is known"},
    "skill": {0: "written, or valid", 1: "not valid"},
    "mcp": {0: "stdin was closed", 2: "wrong usage, or the SDK is missing"},
    "completion": {0: "written"},
}


def codes_of(command: str) -> Mapping[int | str, str]:
    """The exit codes of one command and what they mean, the job's own first."""
    own = OF_COMMAND.get(command, {0: GENERAL[0]})
    whole = own if 2 in own else {**own, 2: GENERAL[2]}
    return dict(sorted(whole.items(), key=lambda item: -1 if isinstance(item[0], str) else item[0]))


def sentence(command: str) -> str:
    """The exit codes in one sentence, for the command's help."""
    said = (meaning if code == "job" else f"{code} {meaning}" for code, meaning in codes_of(command).items())
    return f"Exit code: {'; '.join(said)}."


# In the order in which they are useful; each line fits 80 columns.
COMMANDS = {
    "run": "Run a training job; when it hangs, say why, and end it.",
    "attach": "Say why a running job hangs that was started without unhang.",
    "diagnose": "Say what went wrong in a job, from what it left behind.",
    "fix": "Show the diff that fixes what a report names, or apply it.",
    "reports": "List the reports here, open one, or remove old ones.",
    "bundle": "Pack a report into one file that you can send.",
    "check": "Check this machine, or all machines of a job, before it runs.",
    "lint": "Find collectives in your code that can hang.",
    "reproduce": "Write the smallest program that fails as a job did.",
    "verify": "Show by runs that a change helps.",
    "inject": "Inject a fault into a training job.",
    "demo": "See a small training hang, and how it is diagnosed and fixed.",
    "env": "Check environment variables of NCCL, torch and CUDA.",
    "explain": "Explain a message, a variable, a rule, or a log.",
    "skill": "Write a skill that teaches an agent to use unhang.",
    "mcp": "Serve commands to agents as tools (MCP).",
    "completion": "Print the completion script for your shell.",
}
# Each is `command` of the module with its name, or has its own name in one of these.
_MODULES = {
    "fix": "reports",
    "bundle": "reports",
    "demo": "verify",
    "env": "lint",
    "skill": "explain",
    "mcp": "explain",
    "inject": "reproduce",
    "completion": "main",
}
INTERRUPTED = 130

# Old name -> name. An old name goes on working, and no help shows it.
RENAMED = {"output-format": "format"}
# What starts other programs, ends processes or overwrites files is asked for by a person, not by a file that lies there.
ONLY_BY_HAND = frozenset({"via", "nodes", "remote", "before-command", "end-orphans", "force", "apply", "pid"})
_OWN_TABLE = "lint"  # it has settings of its own, read where the code is


def renamed(name: str) -> str:
    """The name of an option today."""
    return RENAMED.get(name, name)


_UNBROKEN = "\N{NON-BREAKING HYPHEN}"


class Formatter(click.HelpFormatter):
    """A help in which no line ends within a path or an option such as --report-dir."""

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """The rows, wrapped between words only."""
        super().write_dl([(a, b.replace("-", _UNBROKEN)) for a, b in rows], col_max, col_spacing)

    def write_text(self, text: str) -> None:
        """The text, wrapped between words only."""
        super().write_text(text.replace("-", _UNBROKEN))

    def getvalue(self) -> str:
        """What was written, with plain hyphens."""
        return super().getvalue().replace(_UNBROKEN, "-")


class Context(click.Context):
    """What a command runs in; its help is ours."""

    formatter_class = Formatter


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for."""

    context_class = Context

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which they are useful."""
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The names with a line each; no command is imported for it."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports one command.

        Raises:
            UsageError: there is none of that name.
        """
        if cmd_name not in COMMANDS:
            raise click.UsageError(f"there is no command {cmd_name!r}{did_you_mean(cmd_name, COMMANDS)}", ctx)
        module = importlib.import_module(f"unhang.cli.{_MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, cmd_name if cmd_name in _MODULES else "command")
        command.epilog = sentence(cmd_name)
        for ours in (command, *(command.commands.values() if isinstance(command, click.Group) else ())):
            ours.context_class = Context
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command with the defaults that the user's pyproject.toml gives its options."""
        name, command, rest = super().resolve_command(ctx, args)
        if name and command and not ctx.resilient_parsing and not {"-h", "--help"} & set(rest[:1]):
            ctx.default_map = {name: defaults_of(name, command, os.environ, here())}
        return name, command, rest


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": renamed})
@click.version_option(__version__, "-V", "--version", prog_name="unhang")
def cli() -> None:
    """Find out why a distributed PyTorch job hangs: the rank, the line, the cause."""


@click.command("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> int:
    """Print the completion script for your shell.

    bash: add to ~/.bashrc: eval "$(unhang completion bash)"

    zsh: add to ~/.zshrc: eval "$(unhang completion zsh)"

    fish: unhang completion fish > ~/.config/fish/completions/unhang.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    maker = kind(cli, {}, "unhang", "_UNHANG_COMPLETE")
    click.echo(maker.source_template % maker.source_vars(), nl=False)
    return 0


# Defaults of options, from `[tool.unhang]` of the user's pyproject.toml.


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
            raise WrongUsage(f"{where} has no key {key!r}{did_you_mean(key, options)}")
        if f"UNHANG_{key.upper().replace('-', '_')}" not in environ:
            found[options[key].name or key] = _value(where, key, value, options[key])
    return found


def _check_tables(path: Path, tables: Mapping[str, object]) -> None:
    for key, value in tables.items():
        if key not in COMMANDS:
            raise WrongUsage(f"{path}: [tool.unhang] has no key {key!r}{did_you_mean(key, COMMANDS)}")
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


def here() -> Path:
    """The working folder; the root where it is gone."""
    try:
        return Path(os.getcwd())
    except OSError:
        return Path("/")


# Errors become one line and an exit code.


def _report(text: str, help_text: str, code: int) -> int:
    click.echo(f"unhang: {text}{f' ({help_text})' if help_text else ''}", err=True)
    return code


def _of_click(error: click.ClickException) -> int:
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        error.show()
        return error.exit_code
    context = error.ctx if isinstance(error, click.UsageError) else None
    help_text = f"see '{context.command_path} --help'" if context else ""
    return _report(_in_our_words(error), help_text, error.exit_code)


def _in_our_words(error: click.ClickException) -> str:
    """What is wrong, as all our errors say it: what it is about, a colon, the reason, perhaps a suggestion."""
    if isinstance(error, click.NoSuchOption):
        near = f"; did you mean {error.possibilities[0]}?" if error.possibilities else ""
        return f"there is no option {error.option_name}{near}"
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f"{error.param.make_metavar(error.ctx) if error.ctx else error.param.name} is missing"
    if isinstance(error, click.BadOptionUsage):
        return f"{error.option_name} needs a value" if "requires" in error.message else error.message.rstrip(".")
    if type(error).__name__ == "NoSuchCommand" and isinstance(error, click.UsageError) and error.ctx:
        group = error.ctx.command
        known = list(group.commands) if isinstance(group, click.Group) else []
        word = str(getattr(error, "command_name", ""))
        return f"there is no command {word!r}{did_you_mean(word, known)}"
    if isinstance(error, click.BadParameter) and error.param is not None and error.ctx is not None:
        hint = error.param.opts[-1] if isinstance(error.param, click.Option) else (error.param.name or "").upper()
        return f"{hint}: {error.message.rstrip('.')}"
    text = error.format_message().rstrip(".")
    return text[:1].lower() + text[1:]


def _of_the_machine(error: OSError) -> int:
    """A full disk, a missing permission: one line with the file's name."""
    give_up_stdout()
    reason = error.strerror or str(error)
    return _report(reason if error.filename is None else f"{error.filename}: {reason}", "", UnhangError.exit_code)


def _of_unhang(error: Exception) -> int:
    """What nobody foresaw. Its exit code must not be the interpreter's 1, which means findings."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":  # it belongs to the user, and may not be there
        return _report("torch is not installed here", NoTorch.help_text, NoTorch.exit_code)
    import traceback

    traceback.print_exc()
    return _report(
        "this is a bug in unhang, not a verdict", "please report it with the lines above", UnhangError.exit_code
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code. Without arguments it is the process's own command, and its last act."""
    if arguments is None:
        hold_streams()
        without_threads()
        atexit.register(gc.freeze)  # else the interpreter looks for cycles in all that goes with the process
    try:
        code = cli.main(arguments, prog_name="unhang", standalone_mode=False)
        sys.stdout.flush()
    except UnhangError as error:
        name = next(iter(sys.argv[1:] if arguments is None else arguments), "")
        return _report(str(error), error.help_text.replace("unhang COMMAND", f"unhang {name}"), error.exit_code)
    except click.ClickException as error:
        return _of_click(error)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has seen enough; the interpreter must not flush into it again
        give_up_stdout()
        return 0
    except Exception as error:
        if arguments is not None:
            raise
        return _of_the_machine(error) if isinstance(error, OSError) and error.errno else _of_unhang(error)
    return code if isinstance(code, int) else 0
