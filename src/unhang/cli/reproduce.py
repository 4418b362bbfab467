"""`unhang reproduce`: the smallest stand-alone program that fails as a job did, or the smallest set-up in which it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unhang.cli.run import seconds
from unhang.cli.writing import CannotWrite, write_out
from unhang.errors import WrongUsage

if TYPE_CHECKING:
    from unhang.cli.diagnose import Judged
    from unhang.verify.reduce import Table
    from unhang.verify.reproduce import Reproduction

_PROGRAM = "repro.py"
_MADE_HERE = "Written by `unhang reproduce`"


@click.command("reproduce", context_settings={"allow_interspersed_args": True})
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="The program [repro.py in the report's folder]."
)
@click.option("--no-run", is_flag=True, help="Write the program without trying it, and without making it smaller.")
@click.option(
    "--limit", "limit_s", type=seconds, metavar="SECONDS", help="For trying [60]; with --reduce for each run [600]."
)
@click.option(
    "--output-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="What to print."
)
@click.option(
    "--reduce",
    "is_reduce",
    is_flag=True,
    help="Run a command in changing set-ups, the smallest first, until one fails.",
)
@click.option("--nproc", metavar="N,N,...", help="With --reduce: the values of {nproc} in the command.")
@click.option("--vary", metavar="NAME=A,B", multiple=True, help="With --reduce: the values of {NAME} in the command.")
@click.option("--all", "is_all", is_flag=True, help="With --reduce: go on after the first failure.")
@click.option("--stall-after", type=seconds, metavar="SECONDS", help="With --reduce: as for 'unhang run'.")
@click.option("--abort-after", type=seconds, metavar="SECONDS", help="With --reduce: as for 'unhang run'.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="REPORT | -- COMMAND...")
def command(
    output: Path | None,
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

    REPORT is a report folder, its report.json, a bundle, or flight-recorder dumps. The program needs torch alone, and no
    GPU. Exit code: 0 written (and seen to fail in the same way), 2 wrong usage, 3 it cannot be reproduced from the calls.

    With --reduce: 0 every run passed, 1 one failed.
    Example: unhang reproduce --reduce --nproc 1,2,4 --vary lr=0.1,0.2 -- torchrun --nproc-per-node {nproc} train.py {lr}
    """
    if is_reduce:
        from unhang.verify.reduce import Limits, options_of, reduce

        limits = Limits(limit_s or 600.0, stall_after, abort_after)
        table = reduce(arguments, options_of(nproc, vary), limits, is_all, _tell)
        write_out(_table_json(table) if output_format == "json" else _table_text(table), output)
        return 1 if table.failed else 0
    if nproc or vary or is_all or stall_after or abort_after:
        raise WrongUsage("--nproc, --vary, --all, --stall-after and --abort-after belong to --reduce")
    if not arguments:
        raise WrongUsage("name a report, a bundle or dumps; or use --reduce -- COMMAND")
    made, path = _reproduce(arguments, output, no_run, limit_s)
    content = _json(made, path) if output_format == "json" else _text(made, path)
    write_out(content, None)
    return 0


def _tell(text: str) -> None:
    click.echo(f"unhang: {text}", err=True)


def _judged(arguments: tuple[str, ...]) -> tuple[Judged, Path]:
    """The evidence, judged; and the folder in which the program belongs."""
    from unhang.cli.diagnose import diagnose
    from unhang.cli.reading import given_path

    paths = [
        Path(a).parent if Path(a).name == "report.json" and Path(a).is_file() else given_path(a) for a in arguments
    ]
    first = Path(paths[0]) if isinstance(paths[0], Path) else Path()
    folder = next((f for f in (first, first.parent) if (f / "report.json").is_file()), Path())
    return diagnose(paths), folder


def _reproduce(
    arguments: tuple[str, ...], output: Path | None, no_run: bool, limit_s: float | None
) -> tuple[Reproduction, Path]:
    from unhang.analyze.situation import Situation
    from unhang.verify.reproduce import LIMIT_S, reproduce, write_only

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


def _text(made: Reproduction, path: Path) -> bytes:
    ranks, lines = len(made.schedule.ranks), len(made.program.splitlines())
    size = f"{path} ({lines} lines, {ranks} of {made.ranks_recorded} ranks)"
    if not made.was_run:
        return f"WRITTEN, NOT RUN  {made.title}\n  program  {size}\n".encode()
    text = [
        f"REPRODUCED  {made.title}",
        f"  program  {size}",
        f"  run      fails the same way: python {path} ends with exit code 1 ({made.trials} trials in {made.seconds:.0f} s)",
    ]
    if made.fix_passes:
        text.append(f"  fix      passes: python {path} fixed, the calls that the ranks should have made")
    text += [f"  note     {note}" for note in made.notes]
    return ("\n".join(text) + "\n").encode()


def _json(made: Reproduction, path: Path) -> bytes:
    content = {
        "schema": "unhang.reproduction/1",
        "program": str(path),
        "title": made.title,
        "fails_the_same_way": True if made.was_run else None,
        "fix_passes": made.fix_passes,
        "ranks": made.schedule.ranks,
        "stands": {str(rank): what for rank, what in made.schedule.expected.items()},
        "trials": made.trials,
        "seconds": round(made.seconds, 1),
        "notes": made.notes,
    }
    return json.dumps(content, indent=1).encode() + b"\n"


def _table_text(table: Table) -> bytes:
    heads = (*table.names, "result", "")
    rows = [heads, *((*row.values, row.result, row.detail) for row in table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    failed = table.failed
    lines.append("")
    if failed is None:
        lines.append(f"all {len(table.rows)} runs passed")
    else:
        values = ", ".join(f"{name}={value}" for name, value in zip(table.names, failed.values, strict=True))
        lines += [
            f"first failure: {values or 'the command as it is'}",
            f"  {failed.command}",
            f"  report in {failed.report_dir}",
        ]
    return ("\n".join(lines) + "\n").encode()


def _table_json(table: Table) -> bytes:
    def row(r: object) -> dict[str, object]:
        from dataclasses import asdict

        content = asdict(r)  # type: ignore[call-overload]
        return {**content, "values": dict(zip(table.names, content["values"], strict=True))}

    first = table.rows.index(table.failed) if table.failed else None
    content = {"schema": "unhang.reduction/1", "rows": [row(r) for r in table.rows], "first_failure": first}
    return json.dumps(content, indent=1).encode() + b"\n"
