"""A judged job as a report: as text, JSON or a page, as the three files beside a bundle, and its calls as a trace."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from unhang.diagnosis import Judged
from unhang.errors import CannotWrite, WrongUsage


def render(judged: Judged, output_format: str, color: bool = False, is_file: bool = False) -> bytes:
    """The diagnosis as "text", "json" or "html", encoded; ends with a newline. `is_file`: no terminal tells how wide text may be."""
    case, diagnosis, waits, _ = judged = with_fix(judged)
    if output_format == "json":
        from unhang.show.report_json import to_json

        content = to_json(diagnosis, case)
    elif output_format == "html":
        from unhang.show.web_page import render_html

        content = render_html(diagnosis, case, waits).encode(errors="replace")
    else:
        from unhang.show.paper import terminal_width
        from unhang.show.text import render_text

        content = render_text(diagnosis, case, waits, color, terminal=0 if is_file else terminal_width()).encode(
            errors="replace"
        )
    return content if content.endswith(b"\n") else content + b"\n"


def with_fix(judged: Judged) -> Judged:
    """The same with the diff that mends the first finding, where there is a sure one."""
    if not judged.diagnosis.findings:
        return judged
    from unhang.fix import with_diff  # a job without a finding needs none of it

    return judged._replace(diagnosis=with_diff(judged.diagnosis))


def write_reports(judged: Judged, report_dir: Path) -> list[OSError]:
    """Writes report.json, report.html and report.txt, each whole or not at all. Returns what could not be written."""
    judged = with_fix(judged)
    failures: list[OSError] = []
    for name, output_format in (("report.json", "json"), ("report.txt", "text"), ("report.html", "html")):
        unfinished = report_dir / f".{name}.tmp"
        try:
            unfinished.write_bytes(render(judged, output_format, is_file=True))
            unfinished.replace(report_dir / name)
        except OSError as error:
            failures.append(error)
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
    return failures


def write_trace(judged: Judged, output: Path) -> None:
    """Writes all calls of all ranks as a trace for Perfetto.

    Raises:
        WrongUsage: there is nothing but a report, which holds no calls.
        CannotWrite: the file cannot be written.
    """
    from unhang.show.perfetto import write_trace as write

    if judged.evidence is None:
        raise WrongUsage("--trace needs the recorded calls, which a report alone does not hold")
    dumps, findings = judged.evidence.dumps, judged.diagnosis.findings
    try:
        if dumps is None or dumps.is_whole:
            write([judged.case.calls], output, findings=findings)
        else:
            parts = (shard.table for shard in dumps.in_parts(frames=True))
            write(parts, output, findings=findings, zero_ns=dumps.first_ns)
    except OSError as error:
        raise CannotWrite(f"{output}: {error.strerror}") from error
