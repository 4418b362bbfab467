"""What a diagnosis looks like, in each format: text, JSON, a page, remarks on lines of code for CI; the three files beside a bundle; its calls as a trace."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from unhang import __version__, remarks
from unhang.errors import CannotWrite, WrongUsage
from unhang.remarks import Place, Remark, github, gitlab, sarif

if TYPE_CHECKING:
    from unhang.diagnosis import Judged
    from unhang.model import Finding

FORMATS = ("text", "json", "html", *remarks.FORMATS)
_MOST_REMARKS = 10  # GitHub shows no more of one step


def verdict_in(output_format: str, judged: Judged, color: bool = False) -> bytes:
    """The verdict in one of FORMATS."""
    if output_format in remarks.FORMATS:
        return annotated(judged, output_format, Path.cwd())
    return render(judged, output_format, color)


def render(judged: Judged, output_format: str, color: bool = False, is_file: bool = False) -> bytes:
    """The diagnosis as "text", "json" or "html", encoded; ends with a newline. `is_file`: no terminal tells how wide text may be."""
    case, diagnosis, waits, _ = judged = with_fix(judged)
    if output_format == "json":
        from unhang.show.verdict import to_json

        content = to_json(diagnosis, case)
    elif output_format == "html":
        from unhang.show.web_page import render_html

        content = render_html(diagnosis, case, waits).encode(errors="replace")
    else:
        from unhang.show.paper import terminal_width
        from unhang.show.text import render_text

        text = render_text(diagnosis, case, waits, color, terminal=0 if is_file else terminal_width())
        content = text.encode(errors="replace")
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


# Remarks on lines of code, for CI.


def annotated(judged: Judged, output_format: str, root: Path) -> bytes:
    """The verdict in one of `unhang.remarks.FORMATS`; empty of remarks where nothing is wrong. `root`: of the repository."""
    made = _remarks(judged, root)
    if output_format == "github":
        return github(made).encode(errors="replace")
    if output_format == "gitlab":
        return gitlab(made).encode()
    from unhang.model import CAUSES

    causes = {f.rule: CAUSES[f.cause] for f in judged.diagnosis.findings}
    rules = {r.code: {"name": r.code, "shortDescription": {"text": causes.get(r.code, r.title)}} for r in made}
    return sarif(made, "unhang diagnose", __version__, rules).encode()


def _remarks(judged: Judged, root: Path) -> list[Remark]:
    roots = [f for f in judged.diagnosis.findings if f.consequence_of is None]
    if roots:
        return [_of_finding(f, root) for f in roots[:_MOST_REMARKS]]
    if judged.diagnosis.exit_code != 1:
        return []
    from unhang.show.verdict import headline

    said = headline(judged.diagnosis, judged.case, judged.waits)
    return [Remark("unknown", said, "the report says what evidence is missing", None, "error")]


def _of_finding(finding: Finding, root: Path) -> Remark:
    fix = next((f for f in finding.fixes if f.helps), None)
    todo = "\n".join(filter(None, (finding.because, *((f"Do: {fix.title}", fix.change) if fix else ()))))
    return Remark(finding.rule, finding.title, todo, _place(finding, root), "error")


def _place(finding: Finding, root: Path) -> Place | None:
    """Where it is, if that is a file of the repository."""
    if finding.location is None or finding.location.line < 1:
        return None
    file = (root / finding.location.file).resolve()
    if not file.is_relative_to(root.resolve()) or not file.exists():
        return None
    return Place(file.relative_to(root.resolve()).as_posix(), finding.location.line)
