"""`unhang inject`: runs a job with faults in it, without a change to its script."""

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

from unhang.cli.console import format_option
from unhang.errors import UnreadableInput, WrongUsage

if TYPE_CHECKING:
    from unhang.inside.inject import Wanted
    from unhang.inside.inject.fault import Fault

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
def command(
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
