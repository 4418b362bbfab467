"""A verdict as remarks on lines of code, for CI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from unhang import __version__
from unhang.remarks import Place, Remark, github, gitlab, sarif

if TYPE_CHECKING:
    from unhang.diagnosis import Judged
    from unhang.model import Finding

_MOST = 10  # GitHub shows no more of one step


def annotated(judged: Judged, output_format: str, root: Path) -> bytes:
    """The verdict in one of `unhang.remarks.FORMATS`; empty of remarks where nothing is wrong. `root`: of the repository."""
    remarks = _remarks(judged, root)
    if output_format == "github":
        return github(remarks).encode(errors="replace")
    if output_format == "gitlab":
        return gitlab(remarks).encode()
    from unhang.model import CAUSES

    causes = {f.rule: CAUSES[f.cause] for f in judged.diagnosis.findings}
    rules = {r.code: {"name": r.code, "shortDescription": {"text": causes.get(r.code, r.title)}} for r in remarks}
    return sarif(remarks, "unhang diagnose", __version__, rules).encode()


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
    change = (fix.patch or fix.command or fix.setting or fix.advice) if fix else ""
    todo = "\n".join(filter(None, (finding.because, f"Do: {fix.title}" if fix else "", change)))
    return Remark(finding.rule, finding.title, todo, _place(finding, root), "error")


def _place(finding: Finding, root: Path) -> Place | None:
    """Where it is, if that is a file of the repository."""
    if finding.location is None or finding.location.line < 1:
        return None
    file = (root / finding.location.file).resolve()
    if not file.is_relative_to(root.resolve()) or not file.exists():
        return None
    return Place(file.relative_to(root.resolve()).as_posix(), finding.location.line)
