"""`unhang diagnose`: says what went wrong, from a bundle, dumps, logs, or any mixture of them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from unhang import remarks
from unhang.cli import FILE, Progress, Timings, format_option, log, output_option, wants_color, write_out
from unhang.cli.reports import newest_report
from unhang.diagnosis import judge_case
from unhang.errors import WrongUsage
from unhang.read import STDIN, Given
from unhang.read.logs.case import case_of_outputs
from unhang.read.logs.source import FollowedLog, follow
from unhang.show import FORMATS, render, verdict_in

if TYPE_CHECKING:
    from unhang.read import Opened, ReadDumps
    from unhang.read.runs import Job


@click.command("diagnose")
@click.argument("paths", nargs=-1)
@format_option(FORMATS)
@output_option()
@click.option("--against", metavar="OTHER", help="Compare the run with another one: its dumps, or a bundle.")
@click.option(
    "--shapes",
    metavar="FILE",
    type=FILE,
    help="Name the calls by the model's shapes: JSON {name: [sizes]}, or .safetensors.",
)
@click.option("--trace", metavar="FILE", type=FILE, help="Also write all calls as a trace for Perfetto (.json.gz).")
@click.option(
    "--engine",
    type=click.Choice(("local", "ray")),
    default="local",
    show_default=True,
    help="Who reads the dumps: this machine, or a Ray cluster.",
)
@click.option(
    "--ray-address", metavar="ADDRESS", help="The Ray cluster (auto, ray://host:10001); default: Ray's own choice."
)
@click.option("--follow", is_flag=True, help="Watch one growing log, and report again when it has something new.")
@click.option("--pid", metavar="PID", help="Inspect a running job: the same as 'unhang attach PID'.")
@click.option("--no-cache", is_flag=True, help="Neither read nor write a cache beside the dumps.")
def command(
    paths: tuple[str, ...],
    output_format: str,
    output: Path | None,
    against: str | None,
    shapes: Path | None,
    trace: Path | None,
    engine: str,
    ray_address: str | None,
    follow: bool,
    pid: str | None,
    no_cache: bool,
) -> int:
    """Say what went wrong in a job, from what it left behind.

    PATHS are bundles written by 'unhang run', flight-recorder dumps (folders, archives, files of any layout, or URLs such
    as s3://bucket/dumps), or logs; - is the standard input. Without PATHS, the newest report in ./unhang-reports.
    A folder with the reports of several runs gives a list of their verdicts.
    """
    if output_format in remarks.FORMATS and (pid or follow or against):
        raise WrongUsage(f"--format {output_format} cannot be used with --pid, --follow or --against")
    if pid is not None:
        from unhang.cli.attach import attach_pid

        if paths:
            raise WrongUsage("--pid inspects a running job; it cannot be used with PATHS")
        return attach_pid(pid, output_format, output)
    from unhang.read import dump_reader, given_paths, opened, without_collector

    found = given_paths(paths)
    if follow:
        return follow_log(found, output_format, output)
    color = output is None and wants_color(1)
    with ExitStack() as stack:
        stack.enter_context(without_collector(is_last_act=True))
        progress = stack.enter_context(Progress("dumps", 1))
        read_dumps = stack.enter_context(dump_reader(engine, ray_address, not no_cache, progress))
        given = stack.enter_context(opened(found or newest_report(os.environ), log))
        if against is not None:
            content, code = _compare(given, against, output_format, read_dumps), 0
        elif len(jobs := _jobs(given)) > 1 and trace is None and shapes is None:
            content, code = _list(jobs, given, output_format, color, read_dumps)
        else:
            content, code = _judge(given, len(jobs), (trace, shapes), output_format, color, read_dumps)
    write_out(content, output)
    return code


def _jobs(given: Opened) -> Sequence[Job]:
    """The jobs in the one folder that was given."""
    from unhang.read.runs import jobs_in

    return jobs_in(given[0]) if len(given) == 1 and isinstance(given[0], Path) else ()


def _judge(
    given: Opened,
    jobs: int,
    trace_and_shapes: tuple[Path | None, Path | None],
    output_format: str,
    color: bool,
    read_dumps: ReadDumps,
) -> tuple[bytes, int]:
    timings, (trace, shapes) = Timings(), trace_and_shapes
    from unhang.diagnosis import judge_given, with_names
    from unhang.read import check_one_job
    from unhang.show import write_trace

    if jobs > 1 or len(given) > 1:
        check_one_job(given, log)
    timings.mark("import")
    with Progress() as progress:
        judged = judge_given(given, read_dumps, progress, timings.mark, log)
    timings.log()
    if shapes is not None:
        from unhang.read.case import read_shapes

        judged = with_names(judged, read_shapes(shapes))
    if trace is not None:
        write_trace(judged, trace)
    return verdict_in(output_format, judged, color), judged.diagnosis.exit_code


def _list(
    jobs: Sequence[Job], given: Opened, output_format: str, color: bool, read_dumps: ReadDumps
) -> tuple[bytes, int]:
    from unhang.read import SeveralRuns
    from unhang.show.paper import terminal_width
    from unhang.show.runs import exit_code_of, listed, render_run_list, run_list_json

    if output_format not in ("text", "json"):
        what = "a page shows" if output_format == "html" else f"--format {output_format} is made of"
        raise SeveralRuns(f"{given.shown(str(given[0]))} holds {len(jobs)} runs, and {what} one")
    with Progress() as progress:
        runs = [listed(job, given, read_dumps, progress) for job in jobs]
    terminal = terminal_width() if color else 0
    text = render_run_list(runs, color, terminal).encode(errors="replace")
    if output_format == "json":
        text = run_list_json(runs)
    return text + b"\n", exit_code_of(runs)


def _compare(ours: Opened, other: str, output_format: str, read_dumps: ReadDumps) -> bytes:
    from unhang.analyze.calls.compare import compare_runs
    from unhang.read import check_one_job, given_paths, opened
    from unhang.show.runs import comparison_json, render_comparison

    with opened(given_paths([other]), log) as theirs:
        for given in (ours, theirs):
            check_one_job(given, log)
        found = compare_runs(ours, theirs, read_dumps)
    return (comparison_json(found) if output_format == "json" else render_comparison(found).encode()) + b"\n"


# `unhang diagnose --follow LOG`: a verdict as soon as a growing log gives one, and again when it says something new.

_PAUSE_S = 0.5


def follow_log(paths: Sequence[Given], output_format: str, output: Path | None) -> int:
    """Follows one log until it is interrupted; returns the exit code of the last verdict.

    Raises:
        WrongUsage: it was not given exactly one file of this machine, or something that cannot be repeated.
    """
    if len(paths) != 1 or not isinstance(paths[0], Path) or str(paths[0]) == STDIN:
        raise WrongUsage("--follow takes exactly one file")
    if output is not None or output_format == "html":
        raise WrongUsage("--follow writes text or JSON to stdout, once for each verdict")
    path, shown, code = paths[0], "", 3
    followed = FollowedLog(str(path))
    log(f"following {path}; end with Ctrl-C")
    with _until_interrupted() as stopped:

        def pause(seconds: float) -> None:
            time.sleep(min(seconds, _PAUSE_S))

        for lines in follow(path, lambda: bool(stopped), pause=pause):
            if not lines or not followed.take(lines):
                continue
            judged = judge_case(case_of_outputs([followed.output()]))
            code, findings = judged.diagnosis.exit_code, judged.diagnosis.findings
            first = findings[0].title if findings else ""  # a log without trouble is not shown
            if first != shown:
                shown = first
                sys.stdout.buffer.write(render(judged, output_format))
                sys.stdout.buffer.flush()
    return code


@contextmanager
def _until_interrupted() -> Iterator[list[int]]:
    """What Ctrl-C or SIGTERM puts its number into, unless the caller ignores it; the old handlers come back afterwards.

    No event: the handler runs amid what the main thread does, and would wait for the lock of an event which that waits for.
    """
    stopped: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        stopped.append(number)

    heard = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
    old = {number: signal.signal(number, stop) for number in heard}
    try:
        yield stopped
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
