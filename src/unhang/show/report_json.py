"""`report.json`: the contract "unhang.report/1". Keys are never renamed or removed, and stand in a fixed order."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unhang.model import Attempt, Case, Diagnosis, Finding, Fix, HangObservation, Job, ProcessGroup, grouped
from unhang.model.findings import name_ranks
from unhang.show.course import cost_of, stop_of
from unhang.show.paper import duration

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
    by_device = grouped(
        ((evidence.identity.host, evidence.identity.device), rank)
        for rank, evidence in case.ranks.items()
        if evidence.identity.device is not None
    )
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


SCHEMA = "unhang.report/1"
_NUMBER_LIST = re.compile(r"\[\n\s*(-?\d+(?:,\n\s*-?\d+)*)\n\s*\]")  # JSON strings hold no raw newline


def _plain(value: Any) -> Any:
    """A value that JSON knows: numpy scalars become numbers, sets and tuples lists, NaN null, the rest text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return [_plain(v) for v in sorted(value)]
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [_plain(v) for v in value]
    scalar = value.item() if hasattr(value, "item") else value
    if isinstance(scalar, int):
        return int(scalar)
    if isinstance(scalar, float):
        return scalar if math.isfinite(scalar) else None
    return str(scalar)


def encoded(report: Mapping[str, Any]) -> bytes:
    """Indented UTF-8 JSON in which a list of numbers is one line."""
    text = json.dumps(_plain(report), indent=2, ensure_ascii=False, allow_nan=False)
    folded = _NUMBER_LIST.sub(lambda match: "[" + re.sub(r"\s+", " ", match[1]) + "]", text)
    # A lone surrogate (an undecodable byte of a path) leaves as \udcXX, which is what JSON calls it.
    return folded.encode("utf-8", "backslashreplace")


def _job(job: Job) -> dict[str, Any]:
    return {
        "world_size": job.world_size,
        "nodes": job.nodes,
        "command": job.command,
        "backend": job.backend,
        "torch_version": job.torch_version,
        "exit_code": job.exit_code,
    }


def _hang(hang: HangObservation | None) -> dict[str, Any] | None:
    if hang is None:
        return None
    return {
        "kind": hang.kind,
        "onset_s": None if hang.onset_s is None else round(hang.onset_s, 6),
        "detected_after_s": None if hang.detected_after_s is None else round(hang.detected_after_s, 6),
        "waiting_ranks": hang.waiting_ranks,
    }


def _fix(fix: Fix) -> dict[str, str]:
    more = {name: text for name in ("undo", "kind") if (text := getattr(fix, name))}
    return {"title": fix.title, **fix.changes, "verify": fix.verify, **more}


def evidence_json(finding: Finding) -> list[dict[str, Any]]:
    """The lines that prove a finding."""
    return [{"source": e.source, "line": e.line, "text": e.text} for e in finding.evidence]


def _finding(finding: Finding) -> dict[str, Any]:
    location = finding.location
    return {
        "id": finding.id,
        "rule": finding.rule,
        "cause": finding.cause,
        "title": finding.title,
        "confidence": finding.confidence,
        "culprit_ranks": finding.culprit_ranks,
        "victim_ranks": finding.victim_ranks,
        "process_group": finding.process_group,
        "collective": finding.collective,
        "location": location and {"file": location.file, "line": location.line, "function": location.function},
        "because": finding.because,
        "evidence": evidence_json(finding),
        "fixes": [_fix(fix) for fix in finding.fixes],
        "consequence_of": finding.consequence_of,
        **({} if finding.attempt is None else {"attempt": finding.attempt}),
        **({} if finding.condition is None else {"condition": asdict(finding.condition)}),
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "outcome": attempt.outcome.value,
        "findings": [_finding(f) for f in attempt.findings],
    }


def _course(case: Case, diagnosis: Diagnosis) -> dict[str, Any]:
    """Where the job stopped, what that cost, how it ran until then; only what is known, without the samples."""
    course = case.course
    found = {
        "stop": stop_of(case, diagnosis.findings[0] if diagnosis.findings else None),
        "cost": cost_of(case),
        "set_up": [{"what": what, "value": value} for what, value in run_card(case)],
        "course": {
            "ran_s": course.ran_s,
            "steps": {rank: asdict(pace) for rank, pace in course.steps.items()},
            "slow_steps": [asdict(step) for step in course.slow_steps],
            "slow_count": course.slow_count,
            "slower": asdict(course.slower) if course.slower else None,
            "stalls": [asdict(stall) for stall in course.stalls],
            "contexts": course.contexts,
        }
        if course is not None
        else {},
    }
    return {name: value for name, value in found.items() if value}


def _as_reported(diagnosis: Diagnosis) -> dict[str, Any]:
    """The same of a job of which nothing but a report is left."""
    found = {"stop": diagnosis.stop, "cost": diagnosis.cost, "set_up": diagnosis.set_up, "course": diagnosis.course}
    return {name: value for name, value in found.items() if value}


def to_json(diagnosis: Diagnosis, case: Case | None = None) -> bytes:
    """The report as UTF-8 JSON with a final newline; the same diagnosis gives the same bytes. `case`: for the course of the job."""
    report = {
        "schema": SCHEMA,
        "outcome": diagnosis.outcome.value,
        "job": _job(diagnosis.job),
        "hang": _hang(diagnosis.hang),
        "findings": [_finding(f) for f in diagnosis.findings],
        "outcomes": [{"rule": o.rule, "verdict": o.verdict.value, "reason": o.reason} for o in diagnosis.outcomes],
        "inventory": {
            "present": diagnosis.inventory.present,
            "absent": [{"what": a.what, "reason": a.reason} for a in diagnosis.inventory.absent],
        },
        "notes": diagnosis.notes,
        "verdict": diagnosis.word,
        **({"earlier": [_attempt(a) for a in diagnosis.earlier]} if diagnosis.earlier else {}),
        **({"next_steps": [asdict(step) for step in diagnosis.next_steps]} if diagnosis.next_steps else {}),
        **(_as_reported(diagnosis) or (_course(case, diagnosis) if case is not None else {})),
    }
    return encoded(report) + b"\n"
