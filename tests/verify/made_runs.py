"""Runs for tests, made from notations instead of by jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unhang.model import Case, HangObservation, ProcessGroup, RankEvidence, RankIdentity
from unhang.read.logs.case import log_case
from unhang.testing import judge, make_case
from unhang.verify import Run
from unhang.verify.step_times import StepTrace

STEP_NS = 100_000_000


def trace_of(seconds: Sequence[float], ranks: int = 2) -> StepTrace:
    """Every rank takes the same seconds for the same steps; the first step has none."""
    trace = StepTrace()
    for rank in range(ranks):
        at_ns = 10**18
        trace.see(rank, 1, at_ns)
        for step, took_s in enumerate(seconds, 2):
            at_ns += round(took_s * 1e9)
            trace.see(rank, step, at_ns)
    return trace


def hung_run(steps: int | None = 20, **parts: Any) -> Run:
    """Rank 0 makes a call that rank 1 does not make."""
    case = make_case(
        {
            0: ["all_reduce[8]@main:10>step:20", "all_reduce[2]@main:11>report:29 !"],
            1: ["all_reduce[8]@main:10>step:20", "broadcast[256]@main:10>step:20 !"],
            2: ["all_reduce[8]@main:10>step:20", "broadcast[256]@main:10>step:20 !"],
        },
        world=3,
    )
    return _run(replace(case, job=replace(case.job, exit_code=124)), steps, **parts)


def clean_run(log: str = "", steps: int | None = 40, world_size: int | None = 3, **parts: Any) -> Run:
    """A run that ended well, with this output."""
    told = log_case(log)
    job = replace(told.job, world_size=world_size, exit_code=0)
    return _run(replace(told, job=job, present=("output.log",)), steps, **parts)


def stopped_run() -> Run:
    """It hung, and nothing tells why."""
    case = Case(hang=HangObservation("suspected", 1.0, 2.0), present=("ranks",))
    return _run(replace(case, job=replace(case.job, exit_code=124, world_size=2)), 20)


def _run(case: Case, steps: int | None, groups: Sequence[ProcessGroup] = (), **parts: Any) -> Run:
    known = {r: case.ranks.get(r, RankEvidence(RankIdentity(r))) for r in case.world}
    ranks = {r: replace(evidence, steps=steps) for r, evidence in known.items()}
    case = replace(case, ranks=ranks, groups=(*case.groups, *groups))
    return Run(Path("somewhere"), case, judge(case), **parts)
