"""Failures on purpose: `unhang reproduce` writes the smallest stand-alone program that fails as a job did, or finds the smallest set-up in which it fails.

And `unhang inject` runs a job with faults in it, without a change to its script.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from unhang.cli import FILE, Progress, format_option, log, output_option, seconds_option, write_out
from unhang.errors import CannotWrite, UnreadableInput, WrongUsage

if TYPE_CHECKING:
    from unhang.diagnosis import Judged
    from unhang.inside.inject import Wanted
    from unhang.inside.inject.fault import Fault
    from unhang.reproduce import Reproduction

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
@seconds_option(
    "--limit", "limit_s", help="For all trials [60]; with --reduce for each run [600]; with --as-test for the job."
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
@seconds_option("--stall-after", help="With --reduce: as for 'unhang run'.")
@seconds_option("--abort-after", help="With --reduce: as for 'unhang run'.")
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
    from unhang.reproduce import made_json, made_text

    made, path = _reproduce(arguments, output, no_run, limit_s)
    write_out(made_json(made, path) if output_format == "json" else made_text(made, path), None)
    return 0


def _judged(arguments: tuple[str, ...]) -> tuple[Judged, Path]:
    """The evidence, judged; and the folder in which the program belongs."""
    from unhang.diagnosis import judge_paths
    from unhang.read import check_one_job, given_paths, opened

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
    from unhang.reproduce import LIMIT_S, reproduce, write_only

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


# `unhang inject`: faults in a job.

NOTHING_HAPPENED = 3
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class NoSuchFault(WrongUsage):
    """A fault or parameter that does not exist, or a value outside its limits."""

    help_text = "see 'unhang inject --list'"


class RecordNotWritten(UnreadableInput):
    """The file for the record cannot be written."""

    help_text = "give --record a file in a folder that exists and is writable"


@click.command("inject", context_settings={"allow_interspersed_args": False})
@click.option(
    "--fault", "faults", multiple=True, metavar="NAME[:KEY=VALUE,...]", help="The fault to inject; repeatable."
)
@click.option(
    "--seed",
    type=int,
    metavar="N",
    default=0,
    show_default=True,
    help="Chooses the rank and the step if they are not given.",
)
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help="Append what happened, as JSON lines.")
@click.option("--list", "is_list", is_flag=True, help="List the faults and their parameters.")
@format_option(("text", "json"), "How to list them.")
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
def inject(
    faults: tuple[str, ...],
    seed: int,
    record: Path | None,
    is_list: bool,
    output_format: str,
    command_line: tuple[str, ...],
) -> int:
    """Inject a fault into a training job, without a change to its script.

    The job's output, signals and exit code pass through.

    Example: unhang inject --fault skip_collective:rank=2,call=5 -- unhang run -- torchrun --nproc-per-node 8 train.py
    """
    from unhang.inside.inject import BadFault, read_fault

    if is_list:
        click.echo(_listed(output_format), nl=False)
        return 0
    if not faults:
        raise NoSuchFault("no --fault was given")
    if not command_line:
        raise WrongUsage("no command was given: unhang inject --fault NAME -- COMMAND...")
    try:
        wanted = [read_fault(text) for text in faults]
    except BadFault as error:
        raise NoSuchFault(str(error)) from None
    return run_with(wanted, seed, record, command_line)


def run_with(wanted: Wanted, seed: int, record: Path | None, command_line: Sequence[str]) -> int:
    """Runs the job; returns its exit code, or 3 if none of the faults happened.

    Blocks: as long as the job.
    """
    from unhang.inside.inject import environment_with, never_happened, read_events

    if record is not None:
        try:
            record = record.absolute()
            record.open("a").close()
        except OSError as error:
            raise RecordNotWritten(f"{record}: {error.strerror}") from None
    with tempfile.TemporaryDirectory(prefix="unhang-inject-") as folder:
        events = Path(folder) / "events.jsonl"
        code = _run(command_line, environment_with(wanted, seed, events, record, os.environ))
        missed = never_happened(wanted, read_events(events))
    for line in missed:
        click.echo(f"[unhang] inject: {line}", err=True)
    return NOTHING_HAPPENED if len(missed) == len(wanted) else code


def _run(command_line: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs the command in our process group; a Ctrl-C reaches it as it reaches us."""
    import subprocess

    try:
        process = subprocess.Popen(command_line, env=environ)
    except OSError as error:
        click.echo(f"[unhang] inject: {command_line[0]}: {error.strerror}", err=True)
        return 126 if isinstance(error, PermissionError) else 127

    def pass_on(number: int, _frame: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in _FORWARDED}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _listed(output_format: str) -> str:
    from unhang.inside.inject import FAULTS

    if output_format == "json":
        content = {"schema": "unhang.faults/1", "faults": [*map(_as_json, FAULTS.values())]}
        return json.dumps(content, indent=2) + "\n"
    lines, family = list[str](), ""
    for fault in FAULTS.values():
        if fault.family != family:
            family = fault.family
            lines.append(f"\n{family.upper()}")
        lines.append(f"  {fault.name:<28} {fault.summary}")
        parameters = ", ".join(p.name if p.default is None else f"{p.name}={p.default}" for p in fault.parameters)
        lines.append(f"  {'':<28} {parameters}; found by {', '.join(fault.found_by)}")
    return "\n".join(lines).lstrip() + "\n"


def _as_json(fault: Fault) -> dict[str, object]:
    return {
        "name": fault.name,
        "family": fault.family,
        "summary": fault.summary,
        "parameters": [
            {"name": p.name, "summary": p.summary, "default": p.default, "limits": p.limits} for p in fault.parameters
        ],
        "found_by": list(fault.found_by),
        "expected_cause": fault.cause or None,
        "is_hang": fault.is_hang,
        "needs": fault.needs,
    }
