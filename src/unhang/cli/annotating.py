"""A verdict in each of the formats in which it can be asked for; as remarks on lines of code, for CI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from unhang import __version__, remarks
from unhang.remarks import Place, Remark, github, gitlab, sarif

if TYPE_CHECKING:
    from unhang.diagnosis import Judged
    from unhang.model import Finding

FORMATS = ("text", "json", "html", *remarks.FORMATS)
_MOST = 10  # GitHub shows no more of one step


def verdict_in(output_format: str, judged: Judged, color: bool = False) -> bytes:
    """The verdict in one of FORMATS."""
    if output_format in remarks.FORMATS:
        return annotated(judged, output_format, Path.cwd())
    from unhang.show.reports import render

    return render(judged, output_format, color)


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
        return [_of_finding(f, root) for f in roots[:_MOST]]
    if judged.diagnosis.exit_code != 1:
        return []
    from unhang.show.headline import headline

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
