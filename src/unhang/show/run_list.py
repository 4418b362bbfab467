"""The verdicts on several runs, one line each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from unhang.diagnosis import verdict_on
from unhang.errors import UnhangError
from unhang.model import Case, Diagnosis, Outcome, ProcessGroup, WaitsFor
from unhang.model.rank_sets import name_ranks
from unhang.read.bundle import ReadDumps
from unhang.read.gathered import Progress
from unhang.read.given import Opened
from unhang.read.runs import Job, began_ns
from unhang.show.headline import headline
from unhang.show.paper import Paper, duration
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


# How the job was set up: limits and who set them, variables and who changed them, devices, and what unhang switched on.

_MOST = 12
_QUIET = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
# What `unhang run` sets for each job, or torchrun for each rank.
_OURS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")


def run_card(case: Case) -> list[tuple[str, str]]:
    """(of what, what), a few lines; none where the job was not recorded."""
    if not any(e.identity.variables or e.identity.variables_at_init for e in case.ranks.values()):
        return []
    return [*_limits(case), *_variables(case), *_devices(case), *_switched_on(case)]


def _limits(case: Case) -> Iterator[tuple[str, str]]:
    said = Counter(_limit(group) for group in case.groups if group.timeout_s)
    for text, count in list(said.items())[:_MOST]:
        yield "Limit", text if count == 1 else f"{text} ({count} groups)"


def _limit(group: ProcessGroup) -> str:
    at = group.timeout_set_at
    who = "torch's default" if at is None else f"set at {Path(at.file).name}:{at.line} in {at.function}"
    return f"{duration(group.timeout_s or 0.0)} for {'the default group' if group.name == '0' else group}, {who}"


def _variables(case: Case) -> Iterator[tuple[str, str]]:
    """What is set for the communication, and by whom: before the job, by the launcher, or by the script."""
    first = [e.identity for e in case.ranks.values() if e.identity.variables_at_init is not None]
    if not first:
        return
    requested, identity = {**case.job.environment, **case.job.added}, first[0]
    at_init = identity.variables_at_init or {}
    for name in [n for n in sorted({*at_init, *identity.variables}) if n not in _OURS][:_MOST]:
        differing = {e.variables_at_init.get(name) for e in first if e.variables_at_init is not None}
        if name in _QUIET and at_init.get(name) == requested.get(name):
            continue
        if len(differing) > 1:
            yield "Variable", f"{name} differs between ranks: {', '.join(sorted(map(str, differing))[:4])}"
        else:
            yield (
                "Variable",
                f"{name}={at_init.get(name, '(removed)')}, {_who(name, at_init, identity.variables, requested, case)}",
            )
    gone = [
        n for n in requested if n.startswith(("NCCL_", "TORCH_NCCL", "GLOO_")) and n not in at_init and n not in _OURS
    ]
    for name in gone[:_MOST]:
        yield "Variable", f"{name}={requested[name]} was set for the job but did not reach the ranks"


def _who(
    name: str, at_init: Mapping[str, str], at_start: Mapping[str, str], requested: Mapping[str, str], case: Case
) -> str:
    if not at_start and name not in requested:
        return "set by the launcher or the program"
    if at_start and at_init.get(name) != at_start.get(name):
        before = f", before it was {at_start[name]}" if name in at_start else ""
        return f"set by the program before it created its first group{before}"
    if name not in requested:
        return "set by the launcher"
    if at_init.get(name) != requested[name]:
        return f"set by the launcher{'' if at_start else ' or the program'}; {requested[name]} was requested"
    return "set by unhang run (--env, --debug-nccl)" if name in case.job.added else "as it was before the job"


def _devices(case: Case) -> Iterator[tuple[str, str]]:
    by_device: dict[tuple[str, int], list[int]] = {}
    for rank, evidence in case.ranks.items():
        if evidence.identity.device is not None:
            by_device.setdefault((evidence.identity.host, evidence.identity.device), []).append(rank)
    if by_device:
        hosts = {host for host, _ in by_device}
        told = [
            f"{name_ranks(tuple(r), 4)} on {f'{host} ' if len(hosts) > 1 else ''}cuda:{d}"
            for (host, d), r in by_device.items()
        ]
        yield "Devices", ", ".join(told[:_MOST])


def _switched_on(case: Case) -> Iterator[tuple[str, str]]:
    identity = next(e.identity for e in case.ranks.values() if e.identity.variables or e.identity.variables_at_init)
    kept = {**identity.variables, **(identity.variables_at_init or {})}.get(_OURS[0])
    if kept:
        asked = _OURS[0] in case.job.environment or _OURS[1] in case.job.environment
        yield (
            "Flight recorder",
            f"the last {kept} calls of each rank, {'as requested' if asked else 'enabled by unhang run for this job'}",
        )
