"""What is told and not run: `unhang explain` (a rule, a cause, a variable, a line of a log, a file; without argument, the way from symptoms to rules).

And what agents get: `unhang skill` writes or checks a skill in the format of agentskills.io, `unhang mcp` serves tools over stdin and stdout.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import click

from unhang.cli import format_option, seconds_option
from unhang.errors import UnhangError


@click.command("explain")
@click.argument("what", nargs=-1)
@format_option(("text", "json"))
def command(what: tuple[str, ...], output_format: str) -> int:
    """Explain a rule, a cause, a variable, or a log.

    WHAT is a rule (gpu-out-of-memory, or LNT101 of 'unhang lint'), a cause (gpu-oom), an environment variable, common advice (expand-vs-repeat), a
    line of a log in quotes, a file (a log or a launch script), or - for text on stdin. Without WHAT, questions lead from what you
    see to the rules that may explain it.
    """
    from unhang.cli.main import COMMANDS
    from unhang.show.explain_text import SCHEMA, tree_json, tree_text
    from unhang.show.paper import fitted
    from unhang.skill.explaining import explained

    word = " ".join(what).strip()
    if word:
        kind, text, fields = explained(word, tuple(COMMANDS))
    elif output_format == "text" and is_interactive():
        return ask(tuple(COMMANDS))
    else:
        kind, text, fields = "tree", tree_text(), tree_json(tuple(COMMANDS))
    if output_format == "json":
        whole = {"schema": SCHEMA, "kind": kind, "what": word or None, **fields}
        text = json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
    click.echo(text if output_format == "json" else fitted(text), nl=False)
    return 0


def is_interactive() -> bool:
    """Whether a person can answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def ask(commands: Sequence[str]) -> int:
    """Walks the tree with a person: a number answers, b goes back, q ends."""
    from unhang.rules.decision_tree import FIRST, QUESTIONS
    from unhang.show.explain_text import leaf_text, question_text
    from unhang.show.paper import fitted

    trail = [FIRST]
    while trail:
        question = QUESTIONS[trail[-1]]
        click.echo(fitted(question_text(question)))
        choice = _choice(len(question.answers), can_go_back=len(trail) > 1)
        if choice == "q":
            return 0
        if choice == "b":
            trail.pop()
            continue
        answer = question.answers[int(choice) - 1]
        if answer.then:
            trail.append(answer.then)
            continue
        click.echo("\n" + fitted(leaf_text(question, answer, commands)))
        if _choice(0, can_go_back=True) == "q":
            return 0
    return 0


def _choice(count: int, can_go_back: bool) -> str:
    """A number up to `count`, b or q; the end of the input is q."""
    choices = [*map(str, range(1, count + 1)), *(["b"] if can_go_back else []), "q"]
    label = f"1-{count}, " if count else ""
    label += ("b = back, " if can_go_back else "") + "q = quit"
    try:
        answer = click.prompt(label, type=click.Choice(choices, case_sensitive=False), show_choices=False)
    except click.Abort as end:
        if isinstance(end.__context__, KeyboardInterrupt):
            raise
        click.echo()
        return "q"
    return str(answer).lower()


# What agents get.


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
        return 1
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
@seconds_option("--time-limit", help="How long one call of a tool may take [120].", default=120.0)
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
