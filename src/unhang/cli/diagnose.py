"""`unhang diagnose`: says what went wrong, from a bundle, dumps, logs, or any mixture of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from unhang.cli.reading import (
    ENGINES,
    Given,
    Progress,
    Reader,
    Timings,
    closer_look,
    given_path,
    import_numpy,
    reading,
    stdin_as_file,
    without_collector,
)
from unhang.cli.writing import CannotWrite, wants_color, write_out

if TYPE_CHECKING:
    from unhang.model import Case, Diagnosis, WaitsFor
    from unhang.read.bundle import Evidence

FORMATS = ("text", "json", "html")


class Judged(NamedTuple):
    """The evidence, what follows from it, and who waits for whom."""

    case: Case
    diagnosis: Diagnosis
    waits: WaitsFor
    evidence: Evidence | None = None


@click.command("diagnose")
@click.argument("paths", nargs=-1, required=True, callback=lambda _, __, texts: tuple(map(given_path, texts)))
@click.option("--output-format", type=click.Choice(FORMATS), default="text", show_default=True, help="What to write.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file instead of stdout.")
@click.option("--against", metavar="OTHER", help="Compare the run with another one: its dumps, or a bundle.")
@click.option(
    "--trace",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write all calls as a trace for Perfetto (.json.gz).",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="local",
    show_default=True,
    help="Who reads the dumps: this machine, or a Ray cluster.",
)
@click.option(
    "--ray-address", metavar="ADDRESS", help="The Ray cluster (auto, ray://host:10001); default: Ray's own choice."
)
@click.option("--follow", is_flag=True, help="Watch one growing log, and judge again when it says something new.")
@click.option("--no-cache", is_flag=True, help="Neither use nor leave a cache beside the dumps.")
def command(
    paths: tuple[Given, ...],
    output_format: str,
    output: Path | None,
    against: str | None,
    trace: Path | None,
    engine: str,
    ray_address: str | None,
    follow: bool,
    no_cache: bool,
) -> int:
    """Say what went wrong in a job, from what it left behind.

    PATHS are bundles written by 'unhang run', flight-recorder dumps (folders, archives, files of any layout, or URLs such
    as s3://bucket/dumps), or logs; - is the standard input. Exit code: 0 nothing wrong, 1 findings, 2 wrong usage or unreadable input, 3 the
    evidence does not suffice.
    """
    if follow:
        from unhang.cli.following import follow_log

        return follow_log(paths, output_format, output)
    with without_collector(), reading(engine, ray_address, not no_cache) as reader, stdin_as_file(paths) as given:
        if against is not None:
            content = compare(given, given_path(against), output_format, reader)
            code = 0
        else:
            judged = diagnose(given, reader)
            if trace is not None:
                write_trace(judged, trace)
            color = output is None and wants_color(sys.stdout.fileno())
            content, code = render(judged, output_format, color=color), judged.diagnosis.exit_code
    write_out(content, output)
    return code


def diagnose(paths: Sequence[Given], reader: Reader | None = None) -> Judged:
    """Reads the evidence and judges it. `reader`: how dumps are read; by default in processes of this machine.

    Raises:
        UnhangError: nothing of it can be read.
    """
    timings = Timings()
    import_numpy()
    from unhang.analyze.situation import Situation
    from unhang.read.bundle import open_paths
    from unhang.rules.registry import judge

    timings.mark("import")
    progress = Progress("MB of logs", 1_000_000)
    try:
        evidence = open_paths(paths, reader=reader, tell=progress)
    finally:
        progress.clear()
    timings.mark("read")
    closer_look(evidence)
    timings.mark("closer_look")
    situation = Situation(evidence.case)
    judged = Judged(evidence.case, judge(situation), situation.waits, evidence)
    timings.mark("judge")
    timings.tell()
    return judged


def write_trace(judged: Judged, output: Path) -> None:
    """Writes all calls of all ranks as a trace for Perfetto."""
    from unhang.show.perfetto import write_trace as write

    dumps = judged.evidence.dumps if judged.evidence else None
    whole = dumps is None or dumps.is_whole
    findings = judged.diagnosis.findings
    try:
        if dumps is None or whole:
            write([judged.case.calls], output, findings=findings)
        else:
            parts = (shard.table for shard in dumps.in_parts(frames=True))
            write(parts, output, findings=findings, zero_ns=dumps.first_ns)
    except OSError as error:
        raise CannotWrite(f"{output}: {error.strerror}") from error


def compare(paths: Sequence[Given], other: Given, output_format: str, reader: Reader) -> bytes:
    """Two runs side by side."""
    from unhang.analyze.compare_dumps import compare_runs
    from unhang.show.comparison import comparison_json, render_comparison

    found = compare_runs(paths, [other], reader)
    return (comparison_json(found) if output_format == "json" else render_comparison(found).encode()) + b"\n"


def render(judged: Judged, output_format: str, color: bool = False) -> bytes:
    """The diagnosis in one of FORMATS, encoded; ends with a newline."""
    case, diagnosis, waits, _ = judged
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
