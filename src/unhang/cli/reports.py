"""`unhang reports`: what lies in the folder of the reports: list it, open one, remove old ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from unhang.cli.options import format_option, output_option
from unhang.cli.run import keeping
from unhang.cli.streams import log, wants_color, write_out
from unhang.errors import WrongUsage


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
    from unhang.cli.diagnose import newest_report

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

    folder = _folder()
    kept = kept_in(folder)
    going = to_remove(kept, keep)
    for path in going:
        click.echo(f"{'would remove' if dry_run else 'removed'} {path}")
        if not dry_run:
            remove([path])
    log(f"{len(kept) - len(going)} of {len(kept)} reports {'would stay' if dry_run else 'stay'} in {folder}")
    return 0


def _folder() -> Path:
    from unhang.watch.options import default_report_dir

    return Path(os.environ.get("UNHANG_REPORT_DIR") or default_report_dir().parent)


def _list(output_format: str, output: Path | None) -> int:
    """As the reports say it: nothing is judged again."""
    from unhang.cli.diagnose import NoReport
    from unhang.errors import UnhangError
    from unhang.read.runs import Job, began_ns, jobs_in, read_report
    from unhang.show.paper import terminal_width
    from unhang.show.run_list import ListedRun, render_run_list, run_list_json

    def listed(job: Job) -> ListedRun:
        paths, began = tuple(str(run.path) for run in job), began_ns(job)
        report = next((run.report for run in job if run.report), None)
        if report is None:
            return ListedRun(paths, began, reason="there is no report; 'unhang diagnose' on the folder makes one")
        try:
            return ListedRun(paths, began, read_report(report))
        except UnhangError as error:
            return ListedRun(paths, began, reason=str(error))

    folder = _folder()
    runs = [listed(job) for job in jobs_in(folder)]
    if not runs and output_format == "text":
        raise NoReport(f"there is no report in {folder}")
    color, terminal = output is None and wants_color(1), terminal_width() if output is None and os.isatty(1) else 0
    content = (
        run_list_json(runs)
        if output_format == "json"
        else render_run_list(runs, color, terminal).encode(errors="replace")
    )
    write_out(content + b"\n", output)
    sys.stdout.flush()
    return 0
