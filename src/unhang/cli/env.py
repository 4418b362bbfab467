"""`unhang env`: which environment variables are real, and which are set wrongly."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unhang.cli.writing import wants_color, write_out
from unhang.errors import NothingToJudge, WrongUsage

if TYPE_CHECKING:
    from unhang.read.environment.settings import Assignment, Settings
    from unhang.read.environment.tables import Variable

FORMATS = ("text", "json")
FOUND, UNREADABLE = 1, 2


class NoVariables(NothingToJudge):
    """Nothing sets a variable that there is an opinion on."""

    help_text = "give launch scripts, job scripts, Python files, YAML, .env files or logs, or --pid of a rank"


@click.command("env")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--list",
    "is_list",
    is_flag=True,
    help="The reference: all variables, or those that PATHS name (a part, or a pattern with *).",
)
@click.option("--pid", type=click.IntRange(min=1), multiple=True, help="Judge the environment of this process.")
@click.option("--live", is_flag=True, help="The job runs on this machine: check the named network interfaces too.")
@click.option("--output-format", type=click.Choice(FORMATS), default="text", show_default=True, help="What to write.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file instead of stdout.")
def command(
    paths: tuple[Path, ...], is_list: bool, pid: tuple[int, ...], live: bool, output_format: str, output: Path | None
) -> int:
    """Say which environment variables are unknown, old, out of range, contradictory or harmful.

    PATHS are scripts (shell, sbatch, Dockerfile, Python), configurations (YAML, JSON, TOML), .env files, environ files of
    /proc, logs, or folders of these; without any, this process's own environment is judged. No code of a file is executed.
    Exit code: 0 nothing wrong, 1 findings, 2 wrong usage or unreadable input, 3 nothing to judge.
    """
    color = output is None and wants_color(1)
    if is_list:
        if pid or live:
            raise WrongUsage("--list shows the reference; it goes with neither --pid nor --live")
        content, code = reference([str(p) for p in paths], output_format, color), 0
    else:
        content, code = judged(paths, pid, live, output_format, color)
    write_out(content, output)
    return code


def reference(patterns: Sequence[str], output_format: str, color: bool = False) -> bytes:
    """The variables whose name contains one of the words, or matches a pattern; all without any.

    Raises:
        WrongUsage: there is none.
    """
    from unhang.read.environment.tables import beliefs, variables
    from unhang.show.env_report import list_json, render_list

    chosen = [v for v in variables().values() if not patterns or any(_matches(v, p.upper()) for p in patterns)]
    if not chosen:
        asked = " ".join(patterns)
        if belief := beliefs().get(asked.upper()):
            raise WrongUsage(f"no library reads {asked.upper()}; what does it: {belief.instead}")
        raise WrongUsage(f"no variable matches {asked!r}")
    return list_json(chosen) if output_format == "json" else render_list(chosen, color).encode(errors="replace")


def _matches(variable: Variable, pattern: str) -> bool:
    return fnmatchcase(variable.name, pattern) if set(pattern) & set("*?[") else pattern in variable.name


def judged(
    paths: Sequence[Path], pids: Sequence[int], is_live: bool, output_format: str, color: bool = False
) -> tuple[bytes, int]:
    """The report, and the exit code.

    Raises:
        UnhangError: nothing can be read, or nothing is set.
    """
    from unhang.analyze.env_judge import judge_settings
    from unhang.read.environment.sources import interfaces_here, of_pid, of_process, read_sources
    from unhang.show.env_report import env_json, render_env

    sources, failed = read_sources(list(paths))
    sources += [of_pid(pid) for pid in pids]
    if not paths and not pids:
        sources = [of_process(os.environ)]
    if failed and not any(s.assignments or s.launches for s in sources):
        raise failed[0]
    if is_live:
        here = interfaces_here()
        sources = [replace(s, interfaces=here) for s in sources]
    verdict = judge_settings([without_secrets(s) for s in sources])
    if not verdict.judged:
        raise NoVariables("no NCCL_, TORCH_, GLOO_, CUDA_ or OMP_ variable is set there")
    unreadable = [str(error) for error in failed]
    content = (
        env_json(verdict, unreadable)
        if output_format == "json"
        else render_env(verdict, unreadable, color).encode(errors="replace")
    )
    return content, FOUND if verdict.findings else UNREADABLE if failed else 0


def without_secrets(settings: Settings) -> Settings:
    """The same without values that look like secrets."""
    from unhang.read.redact import redact_command

    kept = tuple(map(_redacted, settings.assignments))
    launches = tuple(
        replace(x, options={k: redact_command([f"--{k}={v}"])[0].partition("=")[2] for k, v in x.options.items()})
        for x in settings.launches
    )
    return replace(settings, assignments=kept, launches=launches)


def _redacted(assignment: Assignment) -> Assignment:
    from unhang.read.redact import redact_command

    def hidden(text: str) -> str:
        return redact_command([f"{assignment.name}={text}"])[0].partition("=")[2]

    value = assignment.value if assignment.value is None else hidden(assignment.value)
    return replace(assignment, value=value, expression=hidden(assignment.expression))
