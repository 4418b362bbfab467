"""`unhang env`: which environment variables are real, and which are set wrongly."""

from __future__ import annotations

from pathlib import Path

import click

from unhang.cli.options import format_option, output_option
from unhang.cli.streams import wants_color, write_out
from unhang.errors import WrongUsage

FORMATS = ("text", "json")
FOUND, UNREADABLE = 1, 2


@click.command("env")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--list",
    "is_list",
    is_flag=True,
    help="The reference: all variables, or those that PATHS name (a part, or a pattern with *).",
)
@click.option(
    "--pid", type=click.IntRange(min=1), metavar="PID", multiple=True, help="Check the environment of this process."
)
@click.option("--live", is_flag=True, help="The job runs on this machine: check the named network interfaces too.")
@click.option("--allow-none", is_flag=True, help="Exit code 0 if no such variable is set: for hooks.")
@format_option(FORMATS)
@output_option()
def command(
    paths: tuple[Path, ...],
    is_list: bool,
    pid: tuple[int, ...],
    live: bool,
    allow_none: bool,
    output_format: str,
    output: Path | None,
) -> int:
    """Say which environment variables are unknown, old, out of range, contradictory or harmful.

    PATHS are scripts (shell, sbatch, Dockerfile, Python), configurations (YAML, JSON, TOML), .env files, environ files of
    /proc, logs, or folders of these; without any, this process's own environment. No code in a file is executed.
    """
    color = output is None and wants_color(1)
    if is_list:
        if pid or live:
            raise WrongUsage("--list shows the reference; it cannot be used with --pid or --live")
        from unhang.show.env_report import chosen_variables, list_json, render_list

        chosen = chosen_variables([str(p) for p in paths])
        content = list_json(chosen) if output_format == "json" else render_list(chosen, color).encode(errors="replace")
        code = 0
    else:
        from unhang.diagnosis import NoVariables, judge_environment
        from unhang.show.env_report import env_json, render_env

        try:
            verdict, failed = judge_environment(paths, pid, live)
        except NoVariables:
            if not allow_none:
                raise
            return 0
        as_text = output_format != "json"
        content = render_env(verdict, failed, color).encode(errors="replace") if as_text else env_json(verdict, failed)
        code = FOUND if verdict.findings else UNREADABLE if failed else 0
    write_out(content, output)
    return code
