"""`unhang diagnose`: says what went wrong, from a bundle, dumps, logs, or any mixture of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from unhang.errors import UnhangError

if TYPE_CHECKING:
    from unhang.model import Case, Diagnosis, WaitsFor

FORMATS = ("text", "json", "html")


class Judged(NamedTuple):
    """The evidence, what follows from it, and who waits for whom."""

    case: Case
    diagnosis: Diagnosis
    waits: WaitsFor


class CannotWrite(UnhangError):
    """The output cannot be written where it was asked for."""


@click.command("diagnose")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--output-format", type=click.Choice(FORMATS), default="text", show_default=True, help="What to write.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file instead of stdout.")
def command(paths: tuple[Path, ...], output_format: str, output: Path | None) -> int:
    """Say what went wrong in a job, from what it left behind.

    PATHS are bundles written by 'unhang run', flight-recorder dumps, or logs. Exit code: 0 nothing wrong, 1 findings,
    2 wrong usage or unreadable input, 3 the evidence does not suffice.
    """
    judged = diagnose(paths)
    content = render(judged, output_format, color=output is None and wants_color(sys.stdout.fileno()))
    if output is None:
        sys.stdout.buffer.write(content)
    else:
        try:
            output.write_bytes(content)
        except OSError as error:
            raise CannotWrite(f"{output}: {error.strerror}") from error
    return judged.diagnosis.exit_code


def wants_color(descriptor: int) -> bool:
    """Whether text written to this descriptor may be coloured."""
    return os.isatty(descriptor) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def diagnose(paths: Sequence[Path]) -> Judged:
    """Reads the evidence and judges it.

    Raises:
        UnhangError: nothing of it can be read.
    """
    from unhang.analyze.closer_look import ranks_that_matter
    from unhang.analyze.situation import Situation
    from unhang.read.bundle import open_paths
    from unhang.rules.registry import judge

    evidence = open_paths(paths)
    if evidence.dumps is not None and not evidence.dumps.is_whole:
        evidence.closer(ranks_that_matter(Situation(evidence.case)))
    situation = Situation(evidence.case)
    return Judged(evidence.case, judge(situation), situation.waits)


def render(judged: Judged, output_format: str, color: bool = False) -> bytes:
    """The diagnosis in one of FORMATS, encoded; ends with a newline."""
    case, diagnosis, waits = judged
    if output_format == "json":
        from unhang.show.report_json import to_json

        content = to_json(diagnosis)
    elif output_format == "html":
        from unhang.show.web_page import render_html

        content = render_html(diagnosis, case, waits).encode(errors="replace")
    else:
        from unhang.show.text import render_text

        content = render_text(diagnosis, case, waits, color=color).encode(errors="replace")
    return content if content.endswith(b"\n") else content + b"\n"


def write_reports(judged: Judged, report_dir: Path) -> list[OSError]:
    """Writes report.json, report.html and report.txt, each whole or not at all. Returns what could not be written."""
    failures: list[OSError] = []
    for name, output_format in (("report.json", "json"), ("report.txt", "text"), ("report.html", "html")):
        unfinished = report_dir / f".{name}.tmp"
        try:
            unfinished.write_bytes(render(judged, output_format))
            unfinished.replace(report_dir / name)
        except OSError as error:
            failures.append(error)
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
    return failures


def diagnose_and_show(bundle: Path, report_dir: Path, is_quiet: bool = False) -> Diagnosis:
    """Diagnoses a bundle, leaves the three reports in `report_dir`, and shows the verdict on stderr.

    A clean job gets one line (none with `is_quiet`), any other the text of the verdict and where the report is.
    """
    judged = diagnose([bundle])
    diagnosis = judged.diagnosis
    failures = write_reports(judged, report_dir)
    if diagnosis.findings or diagnosis.hang:
        click.echo(b"\n" + render(judged, "text", color=wants_color(2)), err=True, nl=False)
        click.echo(f"unhang: report in {report_dir / 'report.html'}", err=True)
    elif not is_quiet:
        click.echo(f"unhang: {diagnosis.outcome}; report in {report_dir}", err=True)
    if failures:
        click.echo(f"unhang: the report is not complete: {failures[0]}", err=True)
    return diagnosis
