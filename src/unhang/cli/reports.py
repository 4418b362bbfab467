"""What is done with reports that are there: list them, open one, remove old ones, pack one into a file, show the diff that fixes what one names."""

from __future__ import annotations

import difflib
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unhang.cli import format_option, keeping, log, output_option, wants_color, write_out
from unhang.errors import CannotWrite, NotEvidence, WrongUsage

if TYPE_CHECKING:
    from unhang.fix import Mended
    from unhang.model import Diagnosis
    from unhang.read import Given

_MOST_SHOWN = 12
_NO_DIFF = 3
PATCH = "fix.patch"


class NoReport(WrongUsage):
    """Nothing was named, and no run left a report here."""

    help_text = "name what to judge, or start the job with 'unhang run -- COMMAND'"


def newest_report(environ: Mapping[str, str]) -> tuple[Given, ...]:
    """The folder of the newest run where `unhang run` leaves its reports, named on stderr; several for a job of many nodes.

    Raises:
        NoReport: there is none.
    """
    from unhang.read.runs import began_ns, has_bundle, jobs_in, jobs_of

    folder = _folder(environ)
    jobs = jobs_of([folder]) if has_bundle(folder) else jobs_in(folder)
    if not jobs:
        raise NoReport(f"there is no report in {folder}")
    newest = [run.path for run in jobs[0]]
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began_ns(jobs[0]) / 1e9))
    log(f"{', '.join(map(str, newest))} is the newest report, of a run that began {began}")
    return tuple(newest)


@click.group("reports", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> int:
    """List the reports here, open one, or remove old ones.

    The reports are those in ./unhang-reports, or in the folder that UNHANG_REPORT_DIR names. Without a subcommand: list.
    """
    return 0 if context.invoked_subcommand else _list("text", None)


@command.command("list")
@format_option(("text", "json"))
@output_option()
def list_(output_format: str, output: Path | None) -> int:
    """List the runs, newest first: when each began, how it ended, and why."""
    return _list(output_format, output)


@command.command("open")
@click.argument("report", required=False)
def open_(report: str | None) -> int:
    """Show a report in the browser: that of a folder, or the newest. Also print its path."""
    folder = Path(report if report is not None else str(newest_report(os.environ)[0]))
    page = folder if folder.suffix == ".html" else (folder.parent if folder.is_file() else folder) / "report.html"
    if not page.is_file():
        raise WrongUsage(f"{page}: there is no such report")
    click.echo(str(page))
    if any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        import webbrowser

        webbrowser.open(page.absolute().as_uri())
    else:
        log("there is no display here; copy the page to a machine with a browser: it is one file")
    return 0


@command.command("prune")
@click.option("--keep", type=keeping, metavar="failed|all|N", default="10", show_default=True, help="What to keep.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
def prune(keep: str, dry_run: bool) -> int:
    """Remove all reports but the newest N, or those of runs that ended well. Anything that is not a report of unhang stays."""
    from unhang.watch.folders import kept_in, remove, to_remove

    folder = _folder(os.environ)
    kept = kept_in(folder)
    going = to_remove(kept, keep)
    for path in going:
        click.echo(f"{'would remove' if dry_run else 'removed'} {path}")
        if not dry_run:
            remove([path])
    log(f"{len(kept) - len(going)} of {len(kept)} reports {'would stay' if dry_run else 'stay'} in {folder}")
    return 0


def _folder(environ: Mapping[str, str]) -> Path:
    """Where `unhang run` leaves its reports."""
    from unhang.watch import default_report_dir

    return Path(environ.get("UNHANG_REPORT_DIR") or default_report_dir().parent)


def _list(output_format: str, output: Path | None) -> int:
    """As the reports say it: nothing is judged again."""
    from unhang.errors import UnhangError
    from unhang.read.runs import Job, began_ns, jobs_in, read_report
    from unhang.show.paper import terminal_width
    from unhang.show.runs import ListedRun, render_run_list, run_list_json

    def listed(job: Job) -> ListedRun:
        paths, began = tuple(str(run.path) for run in job), began_ns(job)
        report = next((run.report for run in job if run.report), None)
        if report is None:
            return ListedRun(paths, began, reason="there is no report; 'unhang diagnose' on the folder makes one")
        try:
            return ListedRun(paths, began, read_report(report))
        except UnhangError as error:
            return ListedRun(paths, began, reason=str(error))

    folder = _folder(os.environ)
    runs = [listed(job) for job in jobs_in(folder)]
    if not runs and output_format == "text":
        raise NoReport(f"there is no report in {folder}")
    color, terminal = output is None and wants_color(1), terminal_width() if output is None and os.isatty(1) else 0
    as_text = output_format == "text"
    content = render_run_list(runs, color, terminal).encode(errors="replace") if as_text else run_list_json(runs)
    write_out(content + b"\n", output)
    sys.stdout.flush()
    return 0


# `unhang bundle`: what `unhang run` or `unhang attach` saw, as one file without secrets.


@click.command("bundle")
@click.argument("what", required=False)
@output_option("The file [unhang-bundle.tar.gz]; - is the standard output.")
def bundle(what: str | None, output: Path | None) -> int:
    """Pack a report into one file that you can send, without secrets.

    WHAT is a report folder or a bundle; or the pid of a running job, which is then inspected as by 'unhang attach'. Without it, or with -,
    the newest report here. 'unhang diagnose FILE' reads the file.
    """
    target = output or Path("unhang-bundle.tar.gz")
    if what is not None and what.isdecimal() and not Path(what).exists():
        with tempfile.TemporaryDirectory(prefix="unhang-") as temporary:
            return _pack(_looked_at(what, Path(temporary)), target)
    return _pack(_what(what), target)


def _looked_at(pid: str, folder: Path) -> Path:
    from unhang.attach import Wish, attach, jobs_wanted
    from unhang.show import write_reports
    from unhang.watch.folders import BUNDLE

    jobs, processes = jobs_wanted(Wish(pid))
    write_reports(attach(jobs[0], processes, folder / BUNDLE, Wish(pid)), folder)
    return folder


def _what(what: str | None) -> Path:
    from unhang.read.runs import REPORTS

    if what is None or what == "-":
        found = newest_report(os.environ)
        if len(found) > 1:
            raise WrongUsage("the newest job has several reports, one of each node; name one of them")
        return Path(found[0])
    path = Path(what)
    return path.parent if path.name in REPORTS and path.is_file() else path


def _pack(folder: Path, target: Path) -> int:
    from unhang.attach.folder import pack, pack_to

    if str(target) == "-":
        pack(folder, sys.stdout.buffer)
        return 0
    packed, size = pack_to(folder, target)
    log(f"{target}: {_size(size)}, {len(packed.files)} files, secrets replaced")
    for name, bytes_ in packed.files[:_MOST_SHOWN]:
        log(f"  {name}  {_size(bytes_)}")
    if len(packed.files) > _MOST_SHOWN:
        log(f"  ... and {len(packed.files) - _MOST_SHOWN} more")
    for name, why in packed.left_out[:_MOST_SHOWN]:
        log(f"  left out: {name}: {why}")
    log(f"to read it: unhang diagnose {target.name}")
    return 0


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1_000_000 else f"{max(1, count // 1000)} kB"


# `unhang fix`: the diff that fixes what a report names.


@click.command("fix")
@click.argument("report", required=False)
@click.option("--apply", "is_applied", is_flag=True, help="Write the change into the file, and print how to undo it.")
def fix(report: str | None, is_applied: bool) -> int:
    """Show the diff that fixes what a report names; with --apply, write it.

    REPORT is the folder of a run, or its report.json; without it, the newest in ./unhang-reports. The diff is made from your source, and
    only if it is sure what to change; otherwise it says why not. It goes to stdout: 'unhang fix REPORT | git apply' works. Verify it with
    'unhang verify --before REPORT --after -- COMMAND'.
    """
    from unhang.fix import mend
    from unhang.fix.program import NoDiff

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
        return _NO_DIFF
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
