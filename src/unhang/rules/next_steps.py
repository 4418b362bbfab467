"""What to do now, where no cause is established: which experiments decide, what each outcome means, what it costs, how it is undone."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from unhang.analyze.situation import Situation
from unhang.model import (
    Finding,
    NextStep,
    Outcome,
)
from unhang.rules import wording as w
from unhang.rules.advice import RECORD_IT, SEE_IT
from unhang.rules.base import filled

_MOST = 4
# How much longer than the one failure that is known a run has to last, so that none in it means something: the time to a failure is
# not known better than by that one, so this is s/(1-s) of it (a constant rate, itself unknown).
_SURE = ((0.5, 1.0), (0.9, 9.0), (0.95, 19.0))
_CAUSELESS = (Outcome.HANG, Outcome.CRASH, Outcome.UNKNOWN)


@cache
def _steps() -> Sequence[Mapping[str, Any]]:
    text = files("unhang.rules").joinpath("next_steps.toml").read_text(encoding="utf-8")
    steps: list[Mapping[str, Any]] = tomllib.loads(text)["step"]
    return steps


def next_steps(s: Situation, findings: Sequence[Finding], outcome: Outcome) -> tuple[NextStep, ...]:
    """The experiments that decide, the most telling first; none where a cause is established or nothing is wrong."""
    if outcome not in _CAUSELESS or any(f.cause != "unknown" for f in findings):
        return ()
    kind, generic = _kind(s, findings, outcome), (SEE_IT.title, RECORD_IT.title)
    if not kind or any(f.helps and f.title not in generic for found in findings[:1] for f in found.fixes):
        return ()  # the finding itself knows better what to look at
    accused = next((f.culprit_ranks for f in findings if f.culprit_ranks), ())
    words = {"who": w.name_ranks(accused) if accused else "the rank that is missing"}
    failed_s, world = failed_after_s(s), s.case.job.world_size or 0
    chosen = [step for step in _steps() if kind in step["when"]][:_MOST]
    return tuple(
        NextStep(
            title=filled(step["title"], words),
            do=step["do"],
            outcomes=tuple((seen, means) for seen, means in step["outcomes"]),
            undo=step["undo"],
            minutes=step.get("minutes"),
            run_s=tuple((sure, failed_s * factor) for sure, factor in _SURE) if step.get("is_run") and failed_s else (),
            ranks=world if step.get("is_run") else 0,
        )
        for step in chosen
    )


def _kind(s: Situation, findings: Sequence[Finding], outcome: Outcome) -> str:
    """missing, together, unclear or crash: what is known; "" where nothing shows that it failed."""
    if any(f.culprit_ranks for f in findings) or s.waits.roots:
        return "missing"
    waits, world = s.watchdogs.timed_out, s.case.job.world_size
    calls = {(wait.group, wait.seq, wait.op) for wait in waits}
    if waits and len(calls) == 1 and world and set(s.watchdogs.ranks) == set(range(world)):
        return "together"
    if waits or outcome is Outcome.HANG:
        return "unclear"
    return "crash" if outcome is Outcome.CRASH else ""


def failed_after_s(s: Situation) -> float | None:
    """How long the job had run when it stopped, as far as a clock of the job tells: to the wait, not to its limit."""
    if s.case.hang is not None and s.case.hang.onset_s:
        return s.case.hang.onset_s
    first = next((line.time_ns for line in s.case.log if line.time_ns), None)
    ends = [
        event.time_ns - (wait.ran_ms or wait.limit_ms or 0) * 1_000_000
        for wait in s.watchdogs.timed_out for event in wait.events[:1] if event.time_ns
    ]  # fmt: skip
    ends = ends or [event.time_ns for event in s.events if event.says and event.time_ns]
    lasted_s = (min(ends) - first) / 1e9 if first and ends else 0.0
    return lasted_s if lasted_s >= 1.0 else None
