"""Runs a job again and again, with faults in between: every fault must be found, every healthy run must be silent."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unhang.errors import UnhangError, WrongUsage, did_you_mean
from unhang.inside.inject import FAULTS, read_events
from unhang.model import CAUSES
from unhang.model.findings import name_ranks
from unhang.show.paper import duration
from unhang.verify import Check, HowToRun, Run, exit_code_of, failed, make_run, passed, read_toml, skipped
from unhang.verify.before_after import Share, checks_text

SCHEMA = "unhang.soak/1"
_INJECT = (sys.executable, "-m", "unhang", "inject")
_ENTRY = re.compile(r"\s*([^@]+?)@(\d+(?:\.\d+)?)\s*(?:[,;]|$)")

MakeRun = Callable[[Sequence[str], Path, HowToRun], Run]


@dataclass(frozen=True)
class ScheduledFault:
    """A fault as `unhang inject` takes it, when it is due, and the cause to be found; "": nothing may be found."""

    fault: str
    at_minute: float
    expected_cause: str


@dataclass(frozen=True)
class Stretch:
    """One run of the soak: healthy, or with a fault. `hit_ranks`: those that the fault struck, by its record."""

    number: int
    at_s: float
    fault: ScheduledFault | None = None
    run: Run | None = None
    problem: str = ""
    has_happened: bool = False
    hit_ranks: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """What the check of it is called."""
        return f"run {self.number}: {self.fault.fault if self.fault else 'healthy'}"


def known_faults() -> dict[str, str]:
    """The faults that `unhang inject` knows, with the cause that each must be given; "" for those without effect."""
    return {fault.name: fault.cause for fault in FAULTS.values()}


def read_schedule(text: str, known: Mapping[str, str], soak_s: float) -> tuple[ScheduledFault, ...]:
    """The faults of `NAME[:KEY=VALUE,...]@MINUTE, ...`, or of a TOML file with `[[fault]]` tables, in order of time.

    Raises:
        UnreadableInput: the file cannot be read.
        WrongUsage: it says something that is not known or makes no sense.
    """
    if text.endswith(".toml") or Path(text).is_file():
        entries = _read_file(Path(text))
    else:
        found = list(_ENTRY.finditer(text))
        if "".join(match[0] for match in found) != text or not found:
            raise WrongUsage(f"--faults takes NAME[:KEY=VALUE,...]@MINUTE with commas between them, not {text!r}")
        entries = [{"fault": match[1], "at_minute": float(match[2])} for match in found]
    return tuple(sorted((_scheduled(e, known, soak_s) for e in entries), key=lambda fault: fault.at_minute))


def _read_file(path: Path) -> list[dict[str, Any]]:
    content = read_toml(path)
    entries = content.get("fault")
    if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries) or set(content) != {"fault"}:
        raise WrongUsage(f"{path}: a schedule consists of [[fault]] tables with fault and at_minute")
    return entries


def _scheduled(entry: Mapping[str, Any], known: Mapping[str, str], soak_s: float) -> ScheduledFault:
    if unknown := set(entry) - {"fault", "at_minute", "expected_cause"}:
        raise WrongUsage(f"a fault of the schedule has fault, at_minute and expected_cause, not {sorted(unknown)[0]!r}")
    fault, minute, cause = entry.get("fault"), entry.get("at_minute"), entry.get("expected_cause")
    if not isinstance(fault, str) or isinstance(minute, bool) or not isinstance(minute, int | float):
        raise WrongUsage("a fault of the schedule needs fault (a text) and at_minute (a number)")
    name = fault.partition(":")[0].strip().replace("-", "_")
    if name not in known:
        raise WrongUsage(f"there is no fault {name!r}{did_you_mean(name, known, 0.5)}")
    if not (math.isfinite(minute) and 0 <= minute * 60 < soak_s):
        raise WrongUsage(f"{fault} at minute {minute:g} does not lie within the {soak_s / 60:g} minutes of the soak")
    if cause is not None and cause not in CAUSES:
        raise WrongUsage(f"there is no cause {cause!r}; 'unhang explain' knows them")
    return ScheduledFault(fault.strip(), float(minute), known[name] if cause is None else str(cause))


def run_soak(
    command: Sequence[str],
    schedule: Sequence[ScheduledFault],
    soak_s: float,
    folder: Path,
    how: HowToRun,
    log: Callable[[str], None],
    make: MakeRun = make_run,
    clock: Callable[[], float] = time.monotonic,
) -> list[Stretch]:
    """Runs the job until the time is over, with each fault when it is due, and a healthy run between two faults.

    No run begins when the time is over; faults that were not reached then are part of the answer. The folder of a healthy
    run that was silent is removed.

    Blocks: for the time, and the end of the last run.
    """
    began, stretches, left = clock(), list[Stretch](), list(schedule)
    while (at_s := clock() - began) < soak_s:
        was_fault = bool(stretches) and stretches[-1].fault is not None
        is_due = bool(left) and left[0].at_minute * 60 <= at_s and not was_fault
        stretch = Stretch(len(stretches) + 1, at_s, left.pop(0) if is_due else None)
        stretches.append(_run_stretch(stretch, command, folder, how, make))
        last = stretches[-1]
        log(f"{last.name}: {last.run or last.problem}")
    return [*stretches, *(Stretch(len(stretches) + n, soak_s, fault) for n, fault in enumerate(left, 1))]


def _run_stretch(stretch: Stretch, command: Sequence[str], folder: Path, how: HowToRun, make: MakeRun) -> Stretch:
    own = folder / f"run-{stretch.number}"
    record = own / "injected.jsonl"
    if stretch.fault is not None:
        own.mkdir(parents=True, exist_ok=True)
        options = ("--fault", stretch.fault.fault, "--seed", str(stretch.number), "--record", str(record.absolute()))
        how = replace(how, before=(*_INJECT, *options, "--"))
    try:
        run = make(command, own, how)
    except UnhangError as error:
        return replace(stretch, problem=str(error))
    if stretch.fault is None and not run.has_failed:
        shutil.rmtree(own, ignore_errors=True)  # there may be thousands
    events = _events(record)
    ranks = {event["rank"] for event in events if isinstance(event.get("rank"), int)}
    return replace(stretch, run=run.without_calls(), has_happened=bool(events), hit_ranks=tuple(sorted(ranks)))


def _events(record: Path) -> list[dict[str, Any]]:
    return [e for e in read_events(record) if isinstance(e, dict) and e.get("event", "happened") == "happened"]


def soak_checks(stretches: Sequence[Stretch]) -> list[Check]:
    """One check for each run."""
    return [replace(_judge(stretch), is_own=True) for stretch in stretches]


def _judge(stretch: Stretch) -> Check:
    name, fault, run = stretch.name, stretch.fault, stretch.run
    if stretch.problem:
        return failed(name, stretch.problem)
    if run is None:
        return skipped(name, "the time was over before its turn came")
    if fault is None:
        return failed(name, f"a healthy run: {run}") if run.has_failed else passed(name, str(run))
    if not stretch.has_happened:
        return skipped(name, "the fault never happened in this program")
    if run.overran:
        return failed(name, f"it took too long, and was ended ({run})")
    if not fault.expected_cause:
        return failed(name, f"without effect, but accused: {run.cause}") if run.cause else passed(name, str(run))
    if run.cause != fault.expected_cause:
        return failed(name, f"{run.cause or 'nothing'} was found instead of {fault.expected_cause} ({run})")
    named, hit = run.findings[0].culprit_ranks, stretch.hit_ranks
    if named and hit and not set(named) & set(hit):
        return failed(name, f"{run.cause} is right, but rank {named[0]} was named, and rank {hit[0]} was struck")
    if hit and set(named) > set(hit) and set(named) >= set(run.case.world):
        return failed(name, f"{run.cause} is right, but every rank was named, and rank {hit[0]} was struck")
    return passed(name, f"{run}, {name_ranks(named) if named else 'rank not named'}")


def soak_text(stretches: Sequence[Stretch], checks: Sequence[Check]) -> str:
    """The whole as text."""
    pairs = list(zip(stretches, checks, strict=True))
    said = []
    for what, chosen in (
        ("faults found", [c for s, c in pairs if s.fault and s.has_happened]),
        ("healthy runs silent", [c for s, c in pairs if not s.fault]),
    ):
        share = Share(sum(not c.has_failed for c in chosen), len(chosen))
        said.append(f"{what}: {share}" if chosen else f"{what}: none was run")
    first = next((check for check in checks if check.has_failed), None)
    head = f"SOAK FAILED: {first.name}: {first.reason}" if first else "SOAK PASSED"
    if first is None and any(s.fault and not s.has_happened for s in stretches):
        head = "SOAK NOT JUDGED: not every fault happened"
    lasted = duration(max((s.at_s + ((s.run.seconds or 0) if s.run else 0) for s in stretches), default=0.0))
    return "\n".join([f"{head}  ({lasted})", "", *said, "", checks_text(checks)]) + "\n"


def soak_json(stretches: Sequence[Stretch], checks: Sequence[Check]) -> str:
    """The whole for programs."""
    runs = [
        {
            "number": s.number,
            "at_s": round(s.at_s, 3),
            "fault": s.fault and s.fault.fault,
            "expected_cause": s.fault and (s.fault.expected_cause or None),
            "hit_ranks": list(s.hit_ranks),
            "cause": (s.run.cause or None) if s.run else None,
            "culprit_ranks": list(s.run.findings[0].culprit_ranks) if s.run and s.run.findings else [],
            "seconds": s.run.seconds if s.run else None,
            "folder": str(s.run.folder) if s.run and (s.fault or s.run.has_failed) else None,
            "verdict": c.verdict.value,
            "reason": c.reason,
        }
        for s, c in zip(stretches, checks, strict=True)
    ]
    return json.dumps({"schema": SCHEMA, "exit_code": exit_code_of(checks), "runs": runs}, indent=2) + "\n"
