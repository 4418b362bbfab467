"""`unhang reproduce`: the smallest stand-alone program that fails as a job did, or the smallest set-up in which it fails."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from unhang.cli.console import FILE, Progress, format_option, log, output_option, seconds, write_out
from unhang.errors import CannotWrite, WrongUsage

if TYPE_CHECKING:
    from unhang.diagnosis import Judged
    from unhang.reproduce.reproducing import Reproduction

_PROGRAM = "repro.py"
_MADE_HERE = "Written by `unhang reproduce`"


@click.command("reproduce", context_settings={"allow_interspersed_args": True})
@output_option("The program [repro.py in the report's folder].")
@click.option(
    "--as-test",
    type=FILE,
    help="Instead of a program write a pytest test that runs the job's command: it fails until the fault is fixed.",
)
@click.option("--no-run", is_flag=True, help="Write the program without running it or making it smaller.")
@click.option(
    "--limit",
    "limit_s",
    type=seconds,
    metavar="SECONDS",
    help="For all trials [60]; with --reduce for each run [600]; with --as-test for the job.",
)
@format_option(("text", "json"), "What to print.")
@click.option(
    "--reduce",
    "is_reduce",
    is_flag=True,
    help="Run a command in different set-ups, the smallest first, until one fails.",
)
@click.option("--nproc", metavar="N,N,...", help="With --reduce: the values of {nproc} in the command.")
@click.option("--vary", metavar="NAME=A,B", multiple=True, help="With --reduce: the values of {NAME} in the command.")
@click.option("--all", "is_all", is_flag=True, help="With --reduce: go on after the first failure.")
@click.option("--stall-after", type=seconds, metavar="SECONDS", help="With --reduce: as for 'unhang run'.")
@click.option("--abort-after", type=seconds, metavar="SECONDS", help="With --reduce: as for 'unhang run'.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="REPORT | -- COMMAND...")
def command(
    output: Path | None,
    as_test: Path | None,
    no_run: bool,
    limit_s: float | None,
    output_format: str,
    is_reduce: bool,
    nproc: str | None,
    vary: tuple[str, ...],
    is_all: bool,
    stall_after: float | None,
    abort_after: float | None,
    arguments: tuple[str, ...],
) -> int:
    """Write the smallest program that fails as a job did; or find the smallest set-up in which a command fails.

    REPORT is a report folder, its report.json, a bundle, or flight-recorder dumps. The program needs only torch, and no
    GPU.

    Example: unhang reproduce --reduce --nproc 1,2,4 --vary lr=0.1,0.2 -- torchrun --nproc-per-node {nproc} train.py {lr}
    """
    if is_reduce:
        from unhang.reproduce.reduce import Limits, options_of, reduce, table_json, table_text

        limits = Limits(limit_s or 600.0, stall_after, abort_after)
        table = reduce(arguments, options_of(nproc, vary), limits, is_all, log)
        write_out(table_json(table) if output_format == "json" else table_text(table), output)
        return 1 if table.failed else 0
    if nproc or vary or is_all or stall_after or abort_after:
        raise WrongUsage("--nproc, --vary, --all, --stall-after and --abort-after belong to --reduce")
    if not arguments:
        raise WrongUsage("name a report, a bundle or dumps; or use --reduce -- COMMAND")
    if as_test is not None:
        _write_test(arguments, as_test, limit_s)
        return 0
    from unhang.reproduce.reproducing import made_json, made_text

    made, path = _reproduce(arguments, output, no_run, limit_s)
    write_out(made_json(made, path) if output_format == "json" else made_text(made, path), None)
    return 0


def _judged(arguments: tuple[str, ...]) -> tuple[Judged, Path]:
    """The evidence, judged; and the folder in which the program belongs."""
    from unhang.diagnosis import judge_paths
    from unhang.read.given import check_one_job, given_paths, opened

    paths = given_paths(arguments)
    first = Path(paths[0]) if isinstance(paths[0], Path) else Path()
    folder = next((f for f in (first, first.parent) if (f / "report.json").is_file()), Path())
    with opened(paths, log) as given, Progress() as progress:
        check_one_job(given, log)
        return judge_paths(given, on_progress=progress), folder


def _write_test(arguments: tuple[str, ...], path: Path, limit_s: float | None) -> None:
    from unhang.reproduce.reduce import MADE, regression_test

    judged, _ = _judged(arguments)
    text = regression_test(judged.diagnosis, judged.case.job.command, path, limit_s)
    try:
        if path.exists() and MADE not in path.read_text(errors="replace"):
            raise WrongUsage(f"{path} exists and was not written by unhang: choose another name")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise CannotWrite(f"{path}: {error.strerror}") from error
    log(f"wrote {path}; it fails until the fault is fixed: python -m pytest {path}")


def _reproduce(
    arguments: tuple[str, ...], output: Path | None, no_run: bool, limit_s: float | None
) -> tuple[Reproduction, Path]:
    from unhang.analyze.situation import Situation
    from unhang.reproduce.reproducing import LIMIT_S, reproduce, write_only

    judged, folder = _judged(arguments)
    path, situation = output or folder / _PROGRAM, Situation(judged.case)
    if output is None and path.exists() and _MADE_HERE not in path.read_text(errors="replace"):
        raise WrongUsage(f"{path} exists and was not written by unhang: name the program with --output")
    try:
        if no_run:
            return write_only(situation, judged.diagnosis, path), path
        return reproduce(situation, judged.diagnosis, path, limit_s or LIMIT_S), path
    except OSError as error:
        raise CannotWrite(f"{path}: {error.strerror}") from error
