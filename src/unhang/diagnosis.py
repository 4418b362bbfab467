"""The verb: reads whatever a job left behind, and says what went wrong. The command line only parses and shows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from unhang.analyze.situation import Situation, ranks_that_matter
from unhang.errors import NothingToJudge, UnreadableInput
from unhang.model import Case, Diagnosis, WaitsFor
from unhang.read import Evidence, Given, Log, Opened, ReadDumps, check_one_job, given_paths, ignore, open_paths, opened
from unhang.read.gathered import Progress
from unhang.read.runs import REPORT, holds_report, is_own_file, read_report
from unhang.rules.registry import judge

if TYPE_CHECKING:
    from unhang.read.runs import Job
    from unhang.rules.env import EnvVerdict


class Judged(NamedTuple):
    """The evidence, what follows from it, and who waits for whom. `evidence`: None where only a report was left."""

    case: Case
    diagnosis: Diagnosis
    waits: WaitsFor
    evidence: Evidence | None = None


def diagnose(paths: str | Path | Iterable[str | Path]) -> Diagnosis:
    """Says what went wrong in one job, from what it left behind.

    Example:
        import unhang

        diagnosis = unhang.diagnose("unhang-reports/20260101-120000")
        print(diagnosis.outcome, diagnosis.exit_code)
        for finding in diagnosis.findings:
            print(finding.cause, finding.culprit_ranks, finding.title)

    Args:
        paths: Report folders and bundles of `unhang run`, flight-recorder dumps (folders, archives, files, URLs), logs, or
            any mixture of them that one job left. Patterns such as `dumps/*` may stand for several; `-` is the standard input.

    Blocks: while everything is read: a tenth of a second for a log, minutes for the dumps of thousands of ranks.

    Raises:
        UnhangError: in one line why there is no verdict: `UnreadableInput` where nothing can be read, `NothingToJudge` where
            it holds no evidence, `WrongUsage` where a folder holds several jobs.
    """
    several = [paths] if isinstance(paths, (str, Path)) else paths
    with opened(given_paths([os.fspath(path) for path in several])) as given:
        check_one_job(given)
        return judge_given(given).diagnosis


def judge_given(
    given: Opened,
    read_dumps: ReadDumps | None = None,
    on_progress: Progress | None = None,
    on_stage: Callable[[str], None] = ignore,
    log: Log = ignore,
) -> Judged:
    """As `judge_paths`; where nothing but a report is left of the job, the verdict is what that says, and `log` takes a line on it."""
    only = given[0] if len(given) == 1 and isinstance(given[0], Path) else None
    if only is not None and is_own_file(only):
        return _as_reported(only, given, log)
    try:
        return judge_paths(given, read_dumps, on_progress, on_stage)
    except NothingToJudge:
        if only is None or not holds_report(only):
            raise
        return _as_reported(only / REPORT, given, log)


def _as_reported(report: Path, given: Opened, log: Log) -> Judged:
    found = Judged(Case(), read_report(report), WaitsFor())
    log(f"this is what {given.shown(str(report))} says; the evidence is not beside it")
    return found


def judge_paths(
    paths: Sequence[Given],
    read_dumps: ReadDumps | None = None,
    on_progress: Progress | None = None,
    on_stage: Callable[[str], None] = ignore,
) -> Judged:
    """Reads the evidence and judges it.

    Args:
        paths: As they were opened by `opened`.
        read_dumps: How dumps are read; by default in processes of this machine.
        on_progress: Called while logs are read.
        on_stage: Called with the name of each stage that is over.

    Raises:
        UnhangError: nothing of it can be read.
    """
    evidence = open_paths(paths, read_dumps=read_dumps, on_progress=on_progress)
    on_stage("read")
    look_closer(evidence)
    on_stage("closer_look")
    judged = judge_case(evidence.case)._replace(evidence=evidence)
    on_stage("judge")
    return judged


def with_names(judged: Judged, shapes: Mapping[str, tuple[int, ...]]) -> Judged:
    """With notes on what the calls that did not complete may be, by the shapes of the model's tensors."""
    from unhang.analyze.waits.open_calls import named, waiting_counts

    found = [text for count in waiting_counts(Situation(judged.case)) if (text := named(count, shapes))]
    notes = tuple(dict.fromkeys((*judged.diagnosis.notes, *found)))
    return judged._replace(diagnosis=replace(judged.diagnosis, notes=notes))


def look_closer(evidence: Evidence) -> None:
    """Reads the few dumps whole on which the verdict hangs, if only the last calls of each were read."""
    if evidence.is_partial:
        evidence.closer(ranks_that_matter(Situation(evidence.case)))


def judge_case(case: Case) -> Judged:
    """Judges evidence that has been read."""
    situation = Situation(case)
    judged = Judged(case, judge(situation), situation.waits)
    return with_names(judged, case.shapes) if case.shapes and situation.is_hang else judged


def verdict_on(job: Job, read_dumps: ReadDumps | None = None, on_progress: Progress | None = None) -> Diagnosis:
    """What the report of a run says of it, else what its evidence does. Of several nodes no report says the whole.

    Raises:
        UnhangError: nothing of it can be read.
    """
    report = job[0].report if len(job) == 1 else None
    try:
        if report is not None:
            return read_report(report)
    except UnreadableInput:
        pass
    return judge_paths([run.path for run in job], read_dumps, on_progress).diagnosis


class NoVariables(NothingToJudge):
    """Nothing sets a variable that there is an opinion on."""

    help_text = "give launch scripts, job scripts, Python files, YAML, .env files or logs, or --pid of a rank"


def judge_environment(
    paths: Sequence[Path], pids: Sequence[int] = (), is_live: bool = False
) -> tuple[EnvVerdict, list[str]]:
    """What is wrong with the variables that files and processes set, and what could not be read of them.

    Args:
        paths: Scripts, configurations, logs, or folders of these; without any, and without `pids`, this process is judged.
        pids: Processes of this machine.
        is_live: The job runs on this machine, so that network interfaces are looked up here.

    Raises:
        UnhangError: nothing can be read, or nothing is set.
    """
    from unhang.read.environment import without_secrets
    from unhang.read.environment.sources import interfaces_here, of_pid, of_process, read_sources
    from unhang.rules.env import judge_settings

    sources, failed = read_sources(list(paths))
    sources += [of_pid(pid) for pid in pids]
    if not paths and not pids:
        sources = [of_process(os.environ)]
    if failed and not any(s.assignments or s.launches for s in sources):
        raise failed[0]
    if is_live:
        here = interfaces_here()
        sources = [replace(s, interfaces=here) for s in sources]
    verdict = judge_settings([without_secrets(s) for s in sources])
    if not verdict.judged:
        raise NoVariables("no NCCL_, TORCH_, GLOO_, CUDA_ or OMP_ variable is set there")
    return verdict, [str(error) for error in failed]
