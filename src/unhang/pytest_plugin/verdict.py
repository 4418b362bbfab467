"""The verdict of a report folder, as the text of a test's failure; and where such folders go."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import NamedTuple

_MOST_LINES = 80


class Verdict(NamedTuple):
    """The first line of a report, and what follows, as far as a failure shows it."""

    headline: str
    rest: str

    @property
    def text(self) -> str:
        """All of it."""
        return f"{self.headline}\n{self.rest}"


def read_verdict(report: Path) -> Verdict | None:
    """What `report.txt` says; None where there is none."""
    try:
        lines = (report / "report.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return None
    if not lines:
        return None
    left_out = [f"... {len(lines) - _MOST_LINES} more lines in {report / 'report.txt'}"]
    return Verdict(lines[0], "\n".join([*lines[1:_MOST_LINES], *(left_out if len(lines) > _MOST_LINES else [])]))


def folder_for(reports: Path, test: str) -> Path:
    """A new folder for the report of a test, named after it."""
    reports.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{re.sub(r'[^A-Za-z0-9_]+', '-', test)[:40]}-", dir=reports))
