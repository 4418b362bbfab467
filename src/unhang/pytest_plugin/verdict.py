"""The verdict of a report folder, as the text of a test's failure; and where such folders go."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_MOST_EVIDENCE = 8
_MOST_LINES = 60


class Verdict(NamedTuple):
    """What happened in one line, and why, where, and what to do."""

    headline: str
    rest: str

    @property
    def text(self) -> str:
        """All of it."""
        return f"{self.headline}\n{self.rest}"


def read_verdict(report: Path) -> Verdict | None:
    """What a report says, in short; None where there is none."""
    try:
        fields = json.loads((report / "report.json").read_bytes())
        lines = (report / "report.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except (OSError, ValueError):
        return None
    if not fields["findings"]:
        return Verdict(lines[0], "\n".join(lines[1:_MOST_LINES])) if lines else None
    first, *others = fields["findings"]
    place = first["location"]
    at = f"{place['file'].rsplit('/', 1)[-1]}:{place['line']}" if place else ""
    where = f", at {at}" if at and at not in first["title"] else ""
    headline = f"{fields.get('verdict', fields['outcome']).upper()}: {first['title']}{where} [{first['cause']}, {first['confidence']:.0%}]"
    also = [f"also: {other['title']}" for other in others[:3] if not other["consequence_of"]]
    return Verdict(headline, "\n".join([*_explained(first), *also]))


def _explained(finding: Mapping[str, Any]) -> Iterator[str]:
    from unhang.model.findings import Fix  # only a test that failed pays for it

    if place := finding["location"]:
        yield f"where: {place['file']}:{place['line']} in {place['function']}"
    yield f"why: {finding['because']}"
    yield "evidence:"
    yield from (f"  {e['source']}: {e['text']}" for e in finding["evidence"][:_MOST_EVIDENCE])
    for fix in map(Fix.of, finding["fixes"]):
        yield f"what to do: {fix.title}" if fix.helps else fix.title
        yield from (f"  {line}" for line in fix.change.splitlines())
        yield f"  verify: {fix.verify}"


def folder_for(reports: Path, test: str) -> Path:
    """A new folder for the report of a test, named after it."""
    reports.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{re.sub(r'[^A-Za-z0-9_]+', '-', test)[:40]}-", dir=reports))
