"""`unhang fix`: the diff that fixes what a report names."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unhang.cli.streams import log, write_out
from unhang.errors import CannotWrite, NotEvidence

if TYPE_CHECKING:
    from unhang.fix import Mended
    from unhang.model import Diagnosis

NO_DIFF = 3
PATCH = "fix.patch"


@click.command("fix")
@click.argument("report", required=False)
@click.option("--apply", "is_applied", is_flag=True, help="Write the change into the file, and print how to undo it.")
def command(report: str | None, is_applied: bool) -> int:
    """Show the diff that fixes what a report names; with --apply, write it.

    REPORT is the folder of a run, or its report.json; without it, the newest in ./unhang-reports. The diff is made from your source, and
    only if it is sure what to change; otherwise it says why not. It goes to stdout: 'unhang fix REPORT | git apply' works. Verify it with
    'unhang verify --before REPORT --after -- COMMAND'.
    """
    from unhang.fix import NoDiff, mend

    path = _report_file(report)
    diagnosis = _read(path)
    if not diagnosis.findings:
        log(f"{path}: {diagnosis.outcome.value}, and no finding: nothing to fix")
        return 0
    first = diagnosis.findings[0]
    try:
        mended = mend(first, diagnosis.job.backend, find_file)
    except NoDiff as why:
        log(f"no diff can be made for '{first.title}': {why}. See 'What to do' in {path.with_name('report.txt')}")
        return NO_DIFF
    _check_unchanged(mended, path, next((f.patch for f in first.fixes if f.patch), ""))
    log(f"{mended.says.text}.")
    write_out(mended.diff.encode(), None)
    if is_applied:
        _apply(mended, path)
    else:
        place = "" if mended.root == Path.cwd() else f" in {_shown(mended.root)}"
        log(f"write it: unhang fix {_shown(path.parent)} --apply, or pipe this into 'git apply'{place}")
    return 0


def _report_file(given: str | None) -> Path:
    from unhang.cli.diagnose import newest_report
    from unhang.read.runs import REPORT, holds_report, report_beside

    path = Path(str(newest_report(os.environ)[0]) if given is None else given)
    if path.is_dir():
        if holds_report(path):
            return path / REPORT
        near = difflib.get_close_matches(path.name, [p.parent.name for p in path.glob(f"*/{REPORT}")], 1, 0)
        hint = f"; did you mean {path / near[0]}?" if near else f"; 'unhang diagnose {path}' may say more"
        raise NotEvidence(f"{path}: there is no {REPORT} in this folder{hint}")
    if not path.exists():
        raise NotEvidence(f"{path}: there is no such file or folder")
    return report_beside(path)


def _read(path: Path) -> Diagnosis:
    """The verdict as it was reported; judged anew from the bundle beside it where the report is of an older unhang."""
    from unhang.read.runs import has_bundle, read_report

    said = read_report(path)
    if said.findings and said.findings[0].condition is None and has_bundle(path.parent):
        from unhang.diagnosis import judge_paths

        return judge_paths([path.parent]).diagnosis
    return said


def find_file(name: str) -> Path:
    """Where a file of the job lies here: there, or below the working folder under the same last names."""
    path = Path(name)
    if path.is_file():
        return path
    tails = (Path(*path.parts[i:]) for i in range(1, len(path.parts)))
    return next((tail for tail in tails if tail.is_file()), path)


def _check_unchanged(mended: Mended, report: Path, recorded: str) -> None:
    """Raises CannotWrite: the file is another one than that which ran."""
    is_later = mended.path.stat().st_mtime_ns > report.stat().st_mtime_ns
    if _changes(recorded) != _changes(mended.diff) if recorded else is_later:
        raise CannotWrite(f"{_shown(mended.path)} was changed after the run: run the job again, then 'unhang fix'")


def _changes(diff: str) -> list[str]:
    """The lines of a diff without the names of the files."""
    return [line for line in diff.splitlines() if not line.startswith(("--- ", "+++ "))]


def _apply(mended: Mended, report: Path) -> None:
    patch = report.with_name(PATCH)
    try:
        patch.write_text(mended.diff, encoding="utf-8")
        mended.path.write_bytes(mended.after)
    except OSError as error:
        raise CannotWrite(f"{error.filename or mended.path}: {error.strerror}") from error
    log(f"{_shown(mended.path)} is changed. Undo it: patch -R -p1 -d {_shown(mended.root)} < {_shown(patch)}")
    log(f"verify it: unhang verify --before {_shown(report.parent)} --after -- <the same command>")


def _shown(path: Path) -> str:
    whole, here = path.absolute(), Path.cwd()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) else str(whole)
