"""`unhang skill`: the skill for agents, written as a folder by the format of agentskills.io, and the check of such a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

WRONG = 1


@click.group("skill")
def command() -> None:
    """Teach an agent to find out why a job hangs: write the skill, or check one."""


@command.command("install")
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


@command.command("validate")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
def check(folder: Path) -> int:
    """Check a skill against the format: names, limits, links."""
    from unhang.skill.folder import validate

    problems = validate(folder)
    for problem in problems:
        click.echo(f"{folder}: {problem}")
    if problems:
        return WRONG
    click.echo(f"{folder}: a valid skill")
    return 0


def commands_with_help() -> Mapping[str, str]:
    """The commands of this installation, and the first sentence of each one's help."""
    from unhang.cli.main import COMMANDS, cli

    context = click.Context(cli)
    found = ((name, cli.get_command(context, name)) for name in COMMANDS)
    return {name: (known.help or "").strip().split("\n\n")[0].replace("\n", " ") for name, known in found if known}
