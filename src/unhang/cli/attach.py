"""`unhang attach`: says why a job hangs that runs now and was started without `unhang`."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from unhang.cli import FILE, PATH, format_option, log, output_option, seconds_option, wants_color, write_out
from unhang.errors import WrongUsage

if TYPE_CHECKING:
    from unhang.attach import Answer, Wish
    from unhang.diagnosis import Judged

FORMATS = ("text", "json", "html")
MOVES, WRONG, CANNOT_JUDGE = 0, 1, 3


class Shown(NamedTuple):
    """Where the report goes. `report_dir`: None for `unhang-reports/attach-<time>`."""

    output_format: str = "text"
    output: Path | None = None
    report_dir: Path | None = None

    def folder(self, number: int, of: int) -> Path:
        """The report folder of one job of several, made."""
        from unhang.watch.folders import make_fallback_dir, make_report_dir

        wanted = self.report_dir or Path("unhang-reports") / time.strftime("attach-%Y%m%d-%H%M%S")
        part = wanted / f"job-{number}" if of > 1 else wanted
        return make_report_dir(part, self.report_dir is None, log) or make_fallback_dir()


@click.command("attach")
@click.argument("target", required=False)
@click.option("--all", "takes_all", is_flag=True, help="All jobs on this machine.")
@seconds_option("--for", "for_s", help="How long to look [3].")
@click.option(
    "--watch",
    "is_watched",
    is_flag=True,
    help="Keep looking; report when it moves or stalls. Ends with the job, or Ctrl-C.",
)
@click.option("--native", is_flag=True, help="C frames in the stacks too: slower, and the job is paused for longer.")
@format_option(FORMATS)
@output_option()
@click.option("--report-dir", type=PATH, help="Where the report goes [unhang-reports/attach-<time>].")
@click.option(
    "--bundle", type=FILE, metavar="FILE", help="Give no verdict: pack what was seen into a file; - is stdout."
)
@click.option(
    "--via",
    metavar="COMMAND",
    help="Look on other nodes by this command: 'ssh {host}', 'srun --jobid J --overlap -w {host}'.",
)
@click.option("--nodes", metavar="A,B,...", help="The nodes for --via.")
@seconds_option("--node-limit", help="How long a node may take to answer [30].")
@click.option(
    "--remote",
    default="unhang",
    show_default=True,
    metavar="PROGRAM",
    help="The command that runs unhang on the nodes.",
)
def command(
    target: str | None,
    takes_all: bool,
    for_s: float | None,
    is_watched: bool,
    native: bool,
    output_format: str,
    output: Path | None,
    report_dir: Path | None,
    bundle: Path | None,
    via: str | None,
    nodes: str | None,
    node_limit: float | None,
    remote: str,
) -> int:
    """Say why a running job hangs that was started without unhang.

    TARGET is a pid (of the launcher, of a rank, or of a process above it) or a part of the command line; without it, the only
    job on this machine. The job is inspected from outside: nothing runs in it, and no signal is sent.
    """
    from unhang.attach import NODE_LIMIT_S, Wish
    from unhang.attach.looks import FOR_S

    wish, shown = Wish(target, takes_all, for_s or FOR_S, native), Shown(output_format, output, report_dir)
    if target is not None and not target.strip():
        raise WrongUsage("TARGET is empty: name a pid or a part of the command line")
    if is_watched and (takes_all or via or bundle):
        raise WrongUsage("--watch follows one job on this machine; it cannot be used with --all, --via or --bundle")
    if (via is None) != (nodes is None):
        raise WrongUsage("--via and --nodes go together: --via 'ssh {host}' --nodes a,b")
    if via is not None and nodes is not None:
        return _on_nodes(via, nodes, remote, node_limit or NODE_LIMIT_S, wish, shown)
    if bundle is not None:
        return _pack(wish, bundle)
    return _here(wish, shown, is_watched)


def attach_pid(pid: str, output_format: str, output: Path | None) -> int:
    """`unhang diagnose --pid`: the same as `unhang attach PID`."""
    from unhang.attach import Wish

    return _here(Wish(pid), Shown(output_format, output), False)


def _here(wish: Wish, shown: Shown, is_watched: bool) -> int:
    from unhang.attach import attach, jobs_wanted, watch
    from unhang.watch.folders import BUNDLE

    jobs, processes = jobs_wanted(wish)
    codes = []
    for i, job in enumerate(jobs, 1):
        report_dir = shown.folder(i, len(jobs))
        bundle = report_dir / BUNDLE
        attached = watch(job, processes, bundle, wish, log) if is_watched else attach(job, processes, bundle, wish)
        codes.append(_show(attached, report_dir, shown))
    return worst(codes)


def worst(codes: Sequence[int]) -> int:
    """The exit code for several jobs."""
    return WRONG if WRONG in codes else CANNOT_JUDGE if CANNOT_JUDGE in codes else MOVES


def _show(judged: Judged, report_dir: Path, shown: Shown) -> int:
    from unhang.show import render, write_reports
    from unhang.watch import default_report_dir
    from unhang.watch.folders import point_latest

    failures = write_reports(judged, report_dir)
    if report_dir.parent == default_report_dir().parent.absolute():
        point_latest(report_dir)
    color = shown.output is None and wants_color(1)
    write_out(render(judged, shown.output_format, color), shown.output)
    log(f"the report is not complete: {failures[0]}" if failures else f"report in {report_dir / 'report.html'}")
    return judged.diagnosis.exit_code


def _pack(wish: Wish, target: Path) -> int:
    """Sends what was seen of all jobs that are meant, unjudged: whoever asked joins it with that of other nodes."""
    from unhang.attach import jobs_wanted, look_at
    from unhang.attach.folder import pack_folders

    jobs, processes = jobs_wanted(wish)
    with tempfile.TemporaryDirectory(prefix="unhang-") as temporary:
        folders = [Path(temporary) / f"job-{i + 1}" for i in range(len(jobs))]
        for job, folder in zip(jobs, folders, strict=True):
            look_at(job, processes, folder, wish)
        if str(target) == "-":
            pack_folders(folders, sys.stdout.buffer)
        else:
            with target.open("wb") as file:
                pack_folders(folders, file)
    return 0


def _on_nodes(via: str, nodes: str, remote: str, limit_s: float, wish: Wish, shown: Shown) -> int:
    from unhang.attach import ask_nodes, parse_nodes
    from unhang.diagnosis import judge_paths

    which = [wish.target] if wish.target is not None else []
    words = [remote, "attach", *which, "--all", "--for", f"{wish.for_s:g}", "--bundle", "-"]
    words += ["--native"] if wish.native else []
    with tempfile.TemporaryDirectory(prefix="unhang-") as temporary:
        answers = ask_nodes(via, parse_nodes(nodes), words, Path(temporary), limit_s)
        for answer in answers:
            if answer.why_not:
                log(f"node {answer.node}: {answer.why_not}")
        codes = [_show(judge_paths([folder]), folder, shown) for folder in _joined(answers, wish, shown)]
    return worst(codes)


def _joined(answers: Sequence[Answer], wish: Wish, shown: Shown) -> Iterator[Path]:
    """The report folders of the jobs that the nodes have seen.

    Raises:
        NoJob: there is none. SeveralJobs: one is meant and there are several.
    """
    from unhang.attach import join
    from unhang.attach.ranks import NoJob, SeveralJobs

    keys = list(dict.fromkeys(key for answer in answers for key in answer.jobs))
    if not keys:
        raise NoJob("no node has answered with a job")
    if len(keys) > 1 and not wish.takes_all:
        raise SeveralJobs("several jobs run on these nodes:\n" + "\n".join(f"  {key}" for key in keys))
    for i, key in enumerate(keys, 1):
        report_dir = shown.folder(i, len(keys))
        join(key, answers, report_dir)
        yield report_dir
