"""`unhang diagnose --follow LOG`: a verdict as soon as a growing log gives one, and again when it says something new."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from unhang.cli.reading import STDIN, Given, import_numpy
from unhang.errors import WrongUsage

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
    import_numpy()
    from unhang.read.logs.follow import FollowedLog, follow

    path, shown, code = paths[0], "", 3
    log = FollowedLog(str(path))
    click.echo(f"unhang: following {path}; end with Ctrl-C", err=True)
    with _until_interrupted() as stopped:
        for lines in follow(path, stopped.is_set, pause=lambda seconds: _pause(stopped, seconds)):
            if not lines or not log.take(lines):
                continue
            verdict, first, code = _judged(log, output_format)
            if first != shown:
                shown = first
                sys.stdout.buffer.write(verdict)
                sys.stdout.buffer.flush()
    return code


def _pause(stopped: threading.Event, seconds: float) -> None:
    stopped.wait(min(seconds, _PAUSE_S))


def _judged(log: object, output_format: str) -> tuple[bytes, str, int]:
    """(the report, its answer alone, the exit code). A log without trouble has an empty answer, which is not shown."""
    from unhang.analyze.situation import Situation
    from unhang.cli.diagnose import Judged, render
    from unhang.read.logs.case import case_of_outputs
    from unhang.read.logs.follow import FollowedLog
    from unhang.rules.registry import judge

    assert isinstance(log, FollowedLog)
    case = case_of_outputs([log.output()])
    situation = Situation(case)
    diagnosis = judge(situation)
    first = diagnosis.findings[0].title if diagnosis.findings else ""
    return render(Judged(case, diagnosis, situation.waits), output_format), first, diagnosis.exit_code


@contextmanager
def _until_interrupted() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets; the old handlers come back afterwards."""
    stopped = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    old = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
