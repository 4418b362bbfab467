"""`unhang diagnose --follow LOG`: a verdict as soon as a growing log gives one, and again when it says something new."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from unhang.cli.streams import log
from unhang.diagnosis import judge_case
from unhang.errors import WrongUsage
from unhang.read.given import STDIN, Given
from unhang.read.logs.case import case_of_outputs
from unhang.read.logs.follow import FollowedLog, follow
from unhang.show.reports import render

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
        for lines in follow(path, stopped.is_set, pause=lambda seconds: _pause(stopped, seconds)):
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


def _pause(stopped: threading.Event, seconds: float) -> None:
    stopped.wait(min(seconds, _PAUSE_S))


@contextmanager
def _until_interrupted() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, unless the caller ignores it; the old handlers come back afterwards."""
    stopped = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    heard = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
    old = {number: signal.signal(number, stop) for number in heard}
    try:
        yield stopped
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
