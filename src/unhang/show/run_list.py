"""The verdicts on several runs, one line each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from unhang.diagnosis import verdict_on
from unhang.errors import UnhangError
from unhang.model import Case, Diagnosis, Outcome, WaitsFor
from unhang.read.bundle import ReadDumps
from unhang.read.gathered import Progress
from unhang.read.given import Opened
from unhang.read.runs import Job, began_ns
from unhang.show.headline import headline
from unhang.show.paper import Paper
from unhang.show.report_json import encoded

SCHEMA = "unhang.runs/1"
_STYLE = {Outcome.HANG: "bad", Outcome.CRASH: "bad", Outcome.CLEAN: "good"}


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run, of which each node may have left a report of its own. `reason`: why there is no verdict."""

    paths: tuple[str, ...]
    started_ns: int
    diagnosis: Diagnosis | None = None
    reason: str = ""

    @property
    def headline(self) -> str:
        """The answer, or why there is none."""
        return headline(self.diagnosis, Case(), WaitsFor()) if self.diagnosis else self.reason

    @property
    def outcome(self) -> Outcome:
        """What became of it."""
        return self.diagnosis.outcome if self.diagnosis else Outcome.UNKNOWN


def listed(job: Job, given: Opened, read_dumps: ReadDumps, on_progress: Progress | None = None) -> ListedRun:
    """A run with its verdict, or with the reason why there is none."""
    diagnosis, reason = None, ""
    try:
        diagnosis = verdict_on(job, read_dumps, on_progress)
    except UnhangError as error:
        reason = given.shown(str(error))
    return ListedRun(tuple(given.shown(str(run.path)) for run in job), began_ns(job), diagnosis, reason)


def exit_code_of(runs: Sequence[ListedRun]) -> int:
    """1 if there are findings on any, else 3 if any could not be judged, else 0."""
    codes = {run.diagnosis.exit_code if run.diagnosis else 3 for run in runs}
    return 1 if 1 in codes else max(codes, default=0)


def render_run_list(runs: Sequence[ListedRun], color: bool = False, terminal: int = 0) -> str:
    """A line for each, without a final newline; the answer comes last, below it where a terminal of so many columns is too narrow."""
    paper = Paper(color, terminal)
    rows = [
        (
            _began(run),
            (run.diagnosis.word if run.diagnosis else run.outcome.value).upper(),
            _ended(run),
            " ".join(run.paths),
        )
        for run in runs
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for run, row in zip(runs, rows, strict=True):
        began, outcome, *rest = (cell.ljust(size) for cell, size in zip(row, widths, strict=True))
        style = _STYLE.get(run.outcome, "warn")
        head = f"{began}  ", (outcome, style), "  ", "  ".join(rest)
        if terminal and len(f"{began}  {outcome}  {'  '.join(rest)}  {run.headline}") > terminal:
            paper.line(*head)
            paper.prose(run.headline, indent=4)
        else:
            paper.line(*head, "  ", run.headline)
    return str(paper).rstrip()


def _began(run: ListedRun) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started_ns / 1e9))


def _ended(run: ListedRun) -> str:
    code = run.diagnosis.job.exit_code if run.diagnosis else None
    return "" if code is None else f"exit {code}"


def run_list_json(runs: Sequence[ListedRun]) -> bytes:
    """The list as UTF-8 JSON without a final newline. `exit_code` is the job's."""
    return encoded({"schema": SCHEMA, "runs": [_fields(run) for run in runs]})


def _fields(run: ListedRun) -> dict[str, object]:
    found = run.diagnosis
    first = found.findings[0] if found and found.findings else None
    return {
        "paths": run.paths,
        "started": datetime.fromtimestamp(run.started_ns / 1e9, UTC).isoformat(timespec="seconds"),
        "outcome": run.outcome.value,
        "headline": run.headline,
        "cause": first and first.cause,
        "confidence": first and first.confidence,
        "culprit_ranks": first.culprit_ranks if first else (),
        "exit_code": found and found.job.exit_code,
        "command": found.job.command if found else (),
    }
