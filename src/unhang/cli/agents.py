"""What agents get: `unhang skill` writes or checks a skill in the format of agentskills.io, `unhang mcp` serves tools over stdin and stdout."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import click

from unhang.cli.console import seconds
from unhang.errors import UnhangError

_WRONG = 1


@click.group("skill")
def skill() -> None:
    """Teach an agent to find out why a job hangs: write the skill, or check one."""


@skill.command("install")
@click.option(
    "--target",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of skills [.claude/skills if there is .claude, else skills].",
)
@click.option("--force", is_flag=True, help="Overwrite a folder that unhang did not write, or that was changed.")
def install(target: Path | None, force: bool) -> int:
    """Write DIR/unhang/SKILL.md and what it refers to.

    A folder that an earlier version wrote is replaced; one that somebody else wrote or changed only with --force.
    """
    from unhang.skill import folder

    where = target if target is not None else folder.default_target(Path.cwd())
    click.echo(folder.install(folder.skill_files(commands_with_help()), where, force))
    return 0


@skill.command("validate")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
def check(folder: Path) -> int:
    """Check a skill against the format: names, limits, links."""
    from unhang.skill.folder import validate

    problems = validate(folder)
    for problem in problems:
        click.echo(f"{folder}: {problem}")
    if problems:
        return _WRONG
    click.echo(f"{folder}: a valid skill")
    return 0


def commands_with_help() -> Mapping[str, str]:
    """The commands of this installation, and the first sentence of each one's help."""
    from unhang.cli.main import COMMANDS, cli

    context = click.Context(cli)
    found = ((name, cli.get_command(context, name)) for name in COMMANDS)
    return {name: (known.help or "").strip().split("\n\n")[0].replace("\n", " ") for name, known in found if known}


class NoSdk(UnhangError):
    """The SDK is not installed, or too old."""

    help_text = "pip install 'unhang[mcp]'"


@click.command("mcp")
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=".",
    show_default="this folder",
    help="Only files below this folder are read.",
)
@click.option(
    "--time-limit", type=seconds, default=120.0, metavar="SECONDS", help="How long one call of a tool may take [120]."
)
@click.option(
    "--most-characters",
    type=click.IntRange(500, 200_000),
    metavar="N",
    default=8000,
    show_default=True,
    help="The length limit of one answer.",
)
def mcp(root: Path, time_limit: float, most_characters: int) -> int:
    """Serve commands to agents as tools (MCP).

    The tools are diagnose, attach, explain, check, verify and lint, over stdin and stdout.

    The agent's program starts it, and ends it by closing stdin. An agent can read nothing outside --root, run no command
    and end no process.
    """
    if find_spec("mcp") is None or find_spec("mcp.server.mcpserver") is None:
        raise NoSdk("the SDK of the Model Context Protocol, version 2.1 or newer, is not installed")
    from unhang.mcp_server import serve

    serve(root, time_limit, most_characters)
    return 0
