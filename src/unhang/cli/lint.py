"""What is found in files before the first run: collectives that can hang (`unhang lint`), variables that are set wrongly (`unhang env`)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unhang.cli import PATH, format_option, log, output_option, wants_color, write_out
from unhang.errors import WrongUsage

if TYPE_CHECKING:
    from unhang.lint.cards import LintSettings
    from unhang.lint.checking import LintResult

FORMATS = ("text", "json", "sarif", "github", "gitlab")
FOUND, UNREADABLE = 1, 2
_WORDS = {"metavar": "RULES", "multiple": True}


@click.command("lint")
@click.argument("paths", nargs=-1)
@click.option("--select", help="Only these rules: LNT101,LNT2, a name, or ALL.", **_WORDS)  # type: ignore[arg-type]
@click.option("--extend-select", help="These rules too; most that are off are a matter of opinion.", **_WORDS)  # type: ignore[arg-type]
@click.option("--ignore", help="Not these rules.", **_WORDS)  # type: ignore[arg-type]
@click.option(
    "--depth",
    type=click.IntRange(min=1),
    help="How many calls may lead to the collective if conditions stand on the way; each doubt counts as four. Default: 3.",
)
@click.option("--fix", is_flag=True, help="Fix what can be fixed without changing what the program does.")
@click.option("--unsafe-fixes", is_flag=True, help="With --fix or --diff: also fixes that may change results or speed.")
@click.option("--diff", is_flag=True, help="Show what --fix would change, and change nothing.")
@click.option("--statistics", is_flag=True, help="The number of findings of each rule, instead of the findings.")
@click.option("--lsp", is_flag=True, help="Be a language server: an editor asks on stdin, findings come on stdout.")
@click.option("--list", "is_list", is_flag=True, help="Show all rules.")
@click.option("--no-cache", is_flag=True, help="Neither read nor write .unhang_cache.")
@click.option(
    "--jobs",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    help="Processes that read files and follow functions. Default: one for each core.",
)
@click.option(
    "--stdin-filename", default="stdin.py", show_default=True, help="The name of what comes on stdin (PATH -)."
)
@format_option(FORMATS)
@output_option()
def command(
    paths: tuple[str, ...], select: tuple[str, ...], extend_select: tuple[str, ...], ignore: tuple[str, ...], depth: int | None, fix: bool,
    unsafe_fixes: bool, diff: bool, statistics: bool, lsp: bool, is_list: bool, no_cache: bool, jobs: int, stdin_filename: str,
    output_format: str, output: Path | None,
) -> int:  # fmt: skip
    """Find collectives that can hang, in the code, before the first run.

    PATHS are files (.py, .ipynb) and folders; `-` is a program on stdin; without any, this folder. None of the code is run.
    A line is ignored with `# noqa: LNT101` or `# unhang: ignore[LNT101] reason`; [tool.unhang.lint] in pyproject.toml takes select,
    extend-select, ignore, per-file-ignores, exclude and depth.
    """
    from unhang.lint import report
    from unhang.lint.cards import read_settings

    if is_list:
        write_out(report.listing().encode(), output)
        return 0
    on, more, off = (tuple(w for one in given for w in one.split(",")) for given in (select, extend_select, ignore))
    if lsp:
        from unhang.lint.server import Server

        return Server(sys.stdout.buffer, lambda root: read_settings(root, on, more, off, depth)).run(sys.stdin.buffer)
    if unsafe_fixes and not (fix or diff):
        raise WrongUsage("--unsafe-fixes goes with --fix or --diff")
    paths = paths or (".",)
    if "-" in paths and (len(paths) > 1 or fix or diff):
        raise WrongUsage("- must be the only path, and cannot be fixed")
    first = Path(stdin_filename if paths[0] == "-" else paths[0])
    settings = read_settings(first, on, more, off, depth)
    result = _judged(paths, settings, no_cache, jobs, stdin_filename)
    if fix or diff:
        from unhang.lint.reading import diff as as_patch
        from unhang.lint.reading import mended_files

        files = mended_files(result.found, unsafe_fixes)
        if diff:
            write_out(as_patch(files).encode("utf-8", "surrogateescape"), output)
            return FOUND if files else 0
        if _write_all(files):
            result = _judged(paths, settings, no_cache, jobs, stdin_filename)
    color = output is None and output_format == "text" and wants_color(1)
    text = report.statistics(result) if statistics else report.FORMATS[output_format](result, color)
    write_out(text.encode("utf-8", "surrogateescape"), output)
    for path, reason in sorted(result.unread.items()) if output_format in ("github", "gitlab", "sarif") else ():
        log(f"{path}: not judged: {reason}")
    return FOUND if result.found else UNREADABLE if result.unread else 0


def _judged(
    paths: tuple[str, ...], settings: LintSettings, no_cache: bool, jobs: int, stdin_filename: str
) -> LintResult:
    from unhang.lint.checking import Cache, lint_paths, lint_text

    if paths == ("-",):
        return lint_text(stdin_filename, sys.stdin.buffer.read(), settings)
    return lint_paths(paths, settings, None if no_cache else Cache(), jobs)


def _write_all(files: dict[str, tuple[bytes, bytes, int]]) -> bool:
    for path, (_, after, _) in files.items():
        write_out(after, Path(path))
    if files:
        log(f"{sum(n for *_, n in files.values())} findings fixed in {len(files)} files")
    return bool(files)


# `unhang env`: which environment variables are real, and which are set wrongly.


@click.command("env")
@click.argument("paths", nargs=-1, type=PATH)
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
@format_option(("text", "json"))
@output_option()
def env(
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
        from unhang.show.preflight import chosen_variables, list_json, render_list

        chosen = chosen_variables([str(p) for p in paths])
        content = list_json(chosen) if output_format == "json" else render_list(chosen, color).encode(errors="replace")
        code = 0
    else:
        from unhang.diagnosis import NoVariables, judge_environment
        from unhang.show.preflight import env_json, render_env

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
