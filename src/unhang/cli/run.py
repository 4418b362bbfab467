"""`unhang run`: runs a training job, watches it, and leaves a report."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from unhang.cli import (
    PATH,
    Progress,
    format_option,
    keeping,
    log,
    output_option,
    seconds_option,
    wants_color,
    write_out,
)
from unhang.errors import CannotWrite, NoNumpy, did_you_mean
from unhang.numeric import has_numpy
from unhang.show import FORMATS, verdict_in
from unhang.watch import Headline, OnHang, RunOptions, SeenOutside, debug_nccl, parse_url, parse_variable, read_options
from unhang.watch.joining import JoinWishes, find_join

if TYPE_CHECKING:
    from unhang.model import Diagnosis
    from unhang.watch.supervise import JobEnd


class Told(NamedTuple):
    """In which format the verdict is told, besides the text on stderr, and in which file; stdout where there is none."""

    format: str
    file: Path | None


def variable(text: str) -> tuple[str, str]:
    """Reads NAME=VALUE of the command line, or ends with a usage error."""
    try:
        return parse_variable(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from None


def url(text: str) -> str:
    """Reads a URL of the command line, or ends with a usage error."""
    try:
        return parse_url(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is {error}") from None


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.option("--report-dir", type=PATH, help="Where the report goes [unhang-reports/<time>].")
@seconds_option("--stall-after", help="Suspect a hang after this time without progress [adaptive, >= 15].")
@seconds_option(
    "--abort-after", help="Also end a job that is only suspected to hang, when its wait has lasted this long [never]."
)
@click.option(
    "--on-hang",
    type=click.Choice(["abort", "report"]),
    help="End a job that provably hangs, or only report it [abort].",
)
@click.option(
    "--env",
    "variables",
    type=variable,
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a variable for the job only; the report lists it.",
)
@click.option(
    "--debug-nccl",
    "debugs_nccl",
    is_flag=True,
    help="Make NCCL log to files in the report, for this run only.",
)
@click.option(
    "--native", is_flag=True, help="Take C++ frames of a hang too: 300 MB of memory for each rank, for a second."
)
@click.option(
    "--join",
    metavar="HOST[:PORT]|auto|off",
    help="Judge together with the other nodes of this job; HOST is the first of them [auto if there are several].",
)
@click.option(
    "--join-port", type=click.IntRange(1, 65535), metavar="PORT", help="The port at which they connect [29437]."
)
@click.option("--join-cert", type=PATH, help="Encrypt this connection: one certificate for all nodes (PEM).")
@click.option("--join-key", type=PATH, help="The certificate's private key (PEM).")
@click.option("--metrics", type=click.IntRange(1, 65535), metavar="PORT", help="Answer Prometheus at this port.")
@click.option("--webhook", type=url, metavar="URL", help="Send a small JSON message there on a hang.")
@click.option(
    "--keep",
    type=keeping,
    default="all",
    metavar="failed|all|N",
    help="Which reports stay: those of runs that went wrong, all, or the newest N of unhang-reports [all].",
)
@format_option(
    FORMATS, "Format of the verdict at the end: text goes to stderr, any other to stdout, after the job's output."
)
@output_option("Write it to this file instead.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing at the end of a clean job.")
@click.argument("command_line", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
def command(
    report_dir: Path | None,
    stall_after: float | None,
    abort_after: float | None,
    on_hang: OnHang | None,
    variables: tuple[tuple[str, str], ...],
    debugs_nccl: bool,
    native: bool,
    join: str | None,
    join_port: int | None,
    join_cert: Path | None,
    join_key: Path | None,
    metrics: int | None,
    webhook: str | None,
    keep: str,
    output_format: str,
    output: Path | None,
    quiet: bool,
    command_line: tuple[str, ...],
) -> int:
    """Run a training job; when it hangs, say why, and end it.

    The job's output, signals and exit code pass through.

    Example: unhang run -- torchrun --nproc-per-node 8 train.py
    """
    from unhang.watch.supervise import say

    options = read_options(
        dict(os.environ),
        say,
        report_dir=report_dir,
        stall_after_s=stall_after,
        abort_after_s=abort_after,
        on_hang=on_hang,
        metrics_port=metrics,
        webhook=webhook,
    )
    options = replace(options, added=dict(variables), debugs_nccl=debugs_nccl, native=native)
    options = replace(
        options, render=_live_renderer(options), headline=_headline, get_ready=_get_ready, look_outside=_look_outside
    )
    given = JoinWishes(join, join_port, join_cert, join_key)
    token_folder = options.report_dir.parent if options.has_default_report_dir else options.report_dir
    if (code := _cannot_start(command_line[0])) is not None:
        return code
    options = replace(options, join=find_join(given, options.env, command_line, token_folder, say))
    told = Told(output_format, output) if output or output_format != "text" else None
    return run_and_report(command_line, options, quiet, keep, told)


def _cannot_start(program: str) -> int | None:
    """Says that a program is not there or may not be run, before anything is made for it; the exit code is that of a shell."""
    if shutil.which(program) is not None:
        return None
    is_there = os.path.exists(program) and "/" in program
    near = "" if "/" in program else did_you_mean(program, _programs())
    log(f"{program}: {'it is not executable' if is_there else 'there is no such command'}{near}")
    return 126 if is_there else 127


def _programs() -> list[str]:
    """The names of what PATH leads to."""
    found: set[str] = set()
    for folder in os.environ.get("PATH", "").split(":"):
        with suppress(OSError):
            found.update(os.listdir(folder))
    return sorted(found)


def _headline(run_dir: Path) -> Headline:
    """One line on the hang, for the screens of other nodes, and for machines."""
    from unhang.diagnosis import judge_paths
    from unhang.show.verdict import headline

    judged = judge_paths([run_dir])
    line, found = headline(judged.diagnosis, judged.case, judged.waits), judged.diagnosis.findings
    return Headline(line, found[0].cause, tuple(found[0].culprit_ranks)) if found else Headline(line)


def _get_ready() -> None:
    """Imports what a headline needs: half a second, which the hub has while the others look."""
    from unhang.diagnosis import judge_paths  # noqa: F401
    from unhang.rules.registry import load_rules
    from unhang.show.verdict import headline  # noqa: F401

    load_rules(False)


def _look_outside(pid: int, run_dir: Path) -> SeenOutside | None:
    """What looks from outside say of ranks that have no recorder."""
    from unhang.attach import look_below  # most jobs never need it

    return look_below(pid, run_dir)


def _live_renderer(options: RunOptions) -> Callable[[Path], str]:
    """Makes what is shown of a hang in the watcher's process, coloured if our stderr is a terminal."""
    from unhang.diagnosis import judge_paths
    from unhang.show import render
    from unhang.show.wait_graph import render_stall

    color = wants_color(2)
    ends = options.on_hang == "abort" and options.abort_after_s is not None
    what_next = (
        f"The job is ended when the wait has lasted {options.abort_after_s:g} s (--abort-after)."
        if ends
        else "The job is watched further and not ended (--abort-after SECONDS would end it); a line follows when it moves again."
    )

    def render_live(run_dir: Path) -> str:
        judged = judge_paths([run_dir])
        hang = judged.diagnosis.hang
        if hang is not None and hang.kind == "suspected":
            return render_stall(judged.case, judged.waits, hang, what_next, color)
        return render(judged, "text", color=color).decode()

    return render_live


def _facts(command_line: tuple[str, ...], options: RunOptions, report_dir: Path | None) -> dict[str, Any]:
    """What is known of the job before it starts, without secrets. `report_dir`: what to give to `unhang diagnose` later."""
    from unhang import __version__
    from unhang.read.environment import redact_command, stored_environment

    return {
        "command": redact_command(command_line),
        "cwd": os.getcwd(),
        "unhang_version": __version__,
        "report_dir": str(report_dir or ""),
        "environment": stored_environment(options.env),
        "added": stored_environment(options.added),
    }


def run_and_report(
    command_line: tuple[str, ...], options: RunOptions, is_quiet: bool, keep: str, told: Told | None
) -> int:
    """Runs the job, saves the evidence, shows the verdict; returns the exit code. `keep`: which reports stay, as --keep says it.

    Blocks: as long as the job.
    """
    from unhang.watch.folders import hold, make_report_dir, make_run_dir, save_bundle
    from unhang.watch.supervise import run_job, say

    if not has_numpy():
        say(f"numpy is not installed: the job runs, and is not ended if it hangs ({NoNumpy.help_text})")
    run_dir = make_run_dir()
    if options.debugs_nccl:
        options = replace(options, added={**debug_nccl(run_dir), **options.added})
    with suppress(OSError):
        hold(run_dir)
    report_dir = make_report_dir(options.report_dir, options.has_default_report_dir, say)
    shared = options.report_dir.absolute()
    to_read = shared if report_dir and report_dir.parent == shared else report_dir
    end = run_job(command_line, options, run_dir, _facts(command_line, options, to_read))
    try:
        bundle = save_bundle(run_dir, report_dir, say)
        if end.joint_line:
            say(f"{end.joint_line}; the evidence of this node is in {bundle}")
        elif _show(bundle, is_quiet or keep == "failed", told) and keep == "failed" and end.exit_code == 0:
            shutil.rmtree(bundle.parent, ignore_errors=True)
            return _leave(end)
        if report_dir is not None and options.has_default_report_dir and report_dir.parent == shared.parent:
            _tidy(report_dir, keep)
    except KeyboardInterrupt:
        say("interrupted while the report was made")
    return _leave(end)


def _tidy(report_dir: Path, keep: str) -> None:
    """Leads `latest` to this report, and removes those that are too many."""
    from unhang.watch.folders import kept_in, point_latest, remove, to_remove

    point_latest(report_dir)
    if keep not in ("all", "failed"):
        try:
            remove([path for path in to_remove(kept_in(report_dir.parent), keep) if path != report_dir])
        except OSError as error:
            log(f"{error.filename}: an old report cannot be removed: {error.strerror}")


def _show(bundle: Path, is_quiet: bool, told: Told | None) -> bool:
    """Diagnoses; whether nothing is wrong. A fault of ours is one line: the job's exit code counts more."""
    from unhang.watch.supervise import say

    try:
        return diagnose_and_show(bundle, bundle.parent, is_quiet, told).exit_code == 0
    except CannotWrite as error:
        say(f"{error}; the report is in {bundle.parent}")
    except NoNumpy as error:
        say(f"no diagnosis: {error} ({error.help_text}); the evidence is in {bundle}")
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not hide the job's own end
        say(f"the diagnosis failed ({type(error).__name__}: {error}); the evidence is in {bundle}")
    return False


def diagnose_and_show(bundle: Path, report_dir: Path, is_quiet: bool = False, told: Told | None = None) -> Diagnosis:
    """Diagnoses a bundle, leaves the three reports in `report_dir`, and shows the verdict on stderr.

    A clean job gets one line (none with `is_quiet`), any other the text of the verdict and where the report is. `told`: how else.
    """
    from unhang.diagnosis import judge_paths
    from unhang.show import render, write_reports

    with Progress() as progress:
        judged = judge_paths([bundle], on_progress=progress)
    diagnosis = judged.diagnosis
    failures = write_reports(judged, report_dir)
    if diagnosis.findings or (diagnosis.hang and not diagnosis.hang.withdrawn):
        click.echo(b"\n" + render(judged, "text", color=wants_color(2)), err=True, nl=False)
        log(f"report in {report_dir / 'report.html'}")
    elif not is_quiet:
        from unhang.show.course import in_brief
        from unhang.show.verdict import headline

        said = headline(diagnosis, judged.case, judged.waits) if diagnosis.earlier else in_brief(judged.case.course)
        log(f"{': '.join(filter(None, (diagnosis.word, said)))}; report in {report_dir}")
        for found in diagnosis.remarks:
            log(f"note: {found.remark}")
    if failures:
        log(f"the report is not complete: {failures[0]}")
    if told:
        write_out(verdict_in(told.format, judged), told.file)
    return diagnosis


def _leave(end: JobEnd) -> int:
    """The exit code; a job that died of Ctrl-C makes us die of it too, else a shell's loop around us would go on."""
    if end.died_of_interrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return end.exit_code
