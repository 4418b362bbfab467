"""How the job was set up, how it ran, and where it stopped: limits and variables; steps, epoch, phase, slow steps, stalls that passed, and what the stop cost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from unhang.analyze.by_kind import handed_out
from unhang.model import (
    Case,
    Course,
    Finding,
    NextStep,
    PassedStall,
    ProcessGroup,
    RankEvidence,
    SlowStep,
    grouped,
    user_frames,
)
from unhang.model.case import ranks_by_phase
from unhang.model.findings import name_ranks
from unhang.show.paper import duration

_EPOCH = re.compile(r"(?:cur(?:rent)?_?)?ep(?:och)?(?:_?idx)?", re.IGNORECASE)
# What a user's function does, by its name; the outermost frame that tells is right.
_PHASES = (
    ("evaluation", re.compile(r"(?:^|_)(?:eval|valid|test(?:_|$)|metric)", re.IGNORECASE)),
    ("checkpoint", re.compile(r"(?:^|_)(?:save|checkpoint|ckpt)", re.IGNORECASE)),
    ("generation", re.compile(r"(?:^|_)(?:generat|rollout)", re.IGNORECASE)),
    ("data preparation", re.compile(r"(?:^|_)(?:tokeni|prepare_data|preprocess|build_data)", re.IGNORECASE)),
    ("set-up", re.compile(r"(?:^|_)(?:setup|init|initiali\w+|build_model|load_\w+)$", re.IGNORECASE)),
)
_WORDS = {
    "checkpoint": "while saving a checkpoint",
    "generation": "while generating",
    "data preparation": "while preparing data",
    "set-up": "while setting up",
    "data": "while loading data",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer step",
}
_MOST = 5


def stop_of(case: Case, finding: Finding | None) -> dict[str, Any]:
    """Where the job stood at the end: `steps` (counts with their ranks), `epoch`, `phase`; only what is known."""
    by_count = grouped((evidence.steps, rank) for rank, evidence in sorted(case.ranks.items()) if evidence.steps)
    epochs = {value for e in case.ranks.values() for value in _epochs(e)}
    steps = [{"count": count, "ranks": ranks} for count, ranks in sorted(by_count.items())]
    found: dict[str, Any] = {"steps": steps} if steps else {}
    if len(epochs) == 1:
        found["epoch"] = epochs.pop()
    if phase := _phase(case, finding):
        found["phase"] = phase
    return found


def _epochs(evidence: RankEvidence) -> Iterator[int]:
    for _, name, value in evidence.variables:
        if _EPOCH.fullmatch(name) and value.isdecimal():
            yield int(value)


def _phase(case: Case, finding: Finding | None) -> str:
    """What was going on, by the names of the user's functions on the ranks in question, else by the phase that is marked."""
    ranks = (finding.culprit_ranks or finding.victim_ranks) if finding else ()
    shown = [case.ranks[r] for r in ranks[:64] if r in case.ranks] or list(case.ranks.values())[:64]
    named = [name for e in shown if (name := _named(e.main_stack))]
    if not named and finding is not None and finding.location is not None:
        named = [name for name, pattern in _PHASES if pattern.search(finding.location.function)]
    if named:
        return named[0]
    marked = {e.phase for e in shown if e.phase}
    return marked.pop() if len(marked) == 1 else ""


def _named(stack: Any) -> str:
    functions = [frame.function for frame in reversed(user_frames(stack.frames))] if stack is not None else []
    return next((name for f in functions for name, pattern in _PHASES if pattern.search(f)), "")


def stop_in_words(stop: Mapping[str, Any]) -> str:
    """`after step 31, in the evaluation`; "" where nothing is known."""
    parts = []
    steps = stop.get("steps", [])
    if len(steps) == 1:
        parts.append(f"after step {steps[0]['count']}")
    elif steps:
        told = [f"{s['count']} ({name_ranks(s['ranks'], 4)})" for s in steps[-2:]]
        parts.append(f"after step {' and '.join(told)}")
    if "epoch" in stop:
        parts.append(f"epoch {stop['epoch']}")
    if phase := stop.get("phase"):
        parts.append(_WORDS.get(phase, f"in the {phase}"))
    return ", ".join(parts)


def cost_of(case: Case) -> dict[str, Any]:
    """What the stop cost: `ranks`, `stood_s`, and `limit_s`, after which torch's own limit would have ended it. {} without a hang."""
    hang, world = case.hang, len(case.world)
    if hang is None or hang.withdrawn or hang.detected_after_s is None or not world:
        return {}
    limits = [g.timeout_s for g in case.groups if g.timeout_s]
    return {"ranks": world, "stood_s": round(hang.detected_after_s, 3)} | ({"limit_s": max(limits)} if limits else {})


def cost_in_words(cost: Mapping[str, Any]) -> str:
    """`4 ranks stuck for 2.1 s; its own limit of 30 min would have cost 2.0 rank-hours`; "" where nothing is known."""
    if not cost:
        return ""
    said = f"{cost['ranks']} rank{'s' * (cost['ranks'] > 1)} stuck for {duration(cost['stood_s'])}"
    return "; ".join(filter(None, (said, limit_in_words(cost))))


def limit_in_words(cost: Mapping[str, Any]) -> str:
    """`its own limit of 30 min would have cost 2.0 rank-hours`; "" where it is not known, or was reached."""
    limit_s = cost.get("limit_s", 0)
    if not cost or limit_s <= cost["stood_s"]:
        return ""
    return f"its own limit of {duration(limit_s)} would have cost {cost['ranks'] * limit_s / 3600:.1f} rank-hours"


def cost_of_step(step: NextStep) -> str:
    """`2 min`; for a run how long it has to last, and what that costs."""
    if step.minutes is not None:
        return f"{step.minutes} min"
    if not step.run_s:
        return "a run, several times as long as it took to fail"
    times = ", ".join(_roughly(seconds) for _, seconds in step.run_s)
    sure = ", ".join(f"{100 * sure:.0f}" for sure, _ in step.run_s)
    cost = f"; the second costs {step.ranks * step.run_s[1][1] / 3600:.0f} rank-hours" if step.ranks else ""
    return f"a run: {times} without a failure make it {sure} % sure{cost}"


def _roughly(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def course_lines(case: Case) -> list[tuple[str, str]]:
    """(of what, what) of the course of the run, a few lines; none where it was not watched."""
    course = case.course
    got = handed_out(case)
    data = [("Data", got)] if got else []
    if course is None:
        return data
    return [*_pace(course), *data, *_slow(course), *_stalls(course.stalls), *_contexts(course), *_memory(course)]


def is_remarkable(course: Course | None) -> bool:
    """Whether a job that ended well has something to tell of its course."""
    return course is not None and bool(course.slow_count or course.slower or course.stalls)


def in_brief(course: Course | None) -> str:
    """`200 steps, median 14 ms; 1 slow step; 1 stall of 16 s that passed`; "" where there is nothing to say."""
    if course is None:
        return ""
    parts = []
    paces = [p for p in course.steps.values() if p.median_s is not None]
    if paces:
        most = max(paces, key=lambda p: p.steps)
        parts.append(f"{most.steps} steps, median {_step(most.median_s or 0.0)}")
    if course.slow_count:
        parts.append(f"{course.slow_count} slow step{'s' * (course.slow_count > 1)}")
    if course.slower:
        parts.append(f"slower since step {course.slower.since_step}")
    if course.stalls:
        longest = max(s.lasted_s for s in course.stalls)
        stalls = f"{len(course.stalls)} stall{'s' * (len(course.stalls) > 1)}"
        parts.append(f"{stalls} that passed, of up to {duration(longest)}")
    return "; ".join(parts)


_PANELS = (
    ("Processor of each rank, cores", "rank ", " cpu"),
    ("Memory of each rank, MB", "rank ", " memory_mb"),
    ("Read by each rank, MB/s", "rank ", " read_mb_s"),
    ("Written by each rank, MB/s", "rank ", " written_mb_s"),
    ("Use of each device, %", "device ", " use"),
    ("Memory of each device, MB", "device ", " memory_mb"),
    ("Load of the machine", "node load", ""),
    ("Memory left on the machine, MB", "node memory_left_mb", ""),
    ("Network, received, MB/s", "node received_mb_s", ""),
    ("Network, sent, MB/s", "node sent_mb_s", ""),
)
_MOST_LINES = 16


def panels(course: Course | None) -> dict[str, Any]:
    """What the page draws: moments (s), and a panel of lines for each thing that was sampled. {} where nothing was."""
    if course is None or len(at := course.samples.get("at_s", ())) < 2:
        return {}
    shown = []
    for title, first, last in _PANELS:
        chosen = [n for n in course.samples if n.startswith(first) and n.endswith(last)]
        lines = [(n.removesuffix(last), course.samples[n]) for n in chosen]
        known = [v for _, values in lines for v in values if v is not None]
        if known and len(known) > 1:
            shown.append({"title": title, "lines": _few(lines), "most": max(known)})
    return {"at": at, "panels": shown} if shown else {}


def _few(lines: list[tuple[str, tuple[float | None, ...]]]) -> list[list[Any]]:
    """The lines, or where they are many the highest and the lowest of each moment."""
    if len(lines) <= _MOST_LINES:
        return [[name, values] for name, values in lines]
    moments = [[v for v in moment if v is not None] for moment in zip(*(values for _, values in lines), strict=False)]
    return [["highest", [max(m, default=None) for m in moments]], ["lowest", [min(m, default=None) for m in moments]]]


def _step(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else duration(seconds)


def _pace(course: Course) -> Iterator[tuple[str, str]]:
    paces = [p for p in course.steps.values() if p.median_s is not None and p.p95_s is not None]
    if paces:
        pace = max(paces, key=lambda p: p.median_s or 0.0)
        median, slow = _step(pace.median_s or 0.0), _step(pace.p95_s or 0.0)
        yield "Steps", f"{pace.steps}, median {median}, 95th percentile {slow}"


def _slow(course: Course) -> Iterator[tuple[str, str]]:
    worst = sorted(course.slow_steps, key=lambda s: -s.took_s)[:_MOST]
    for step in worst:
        yield "Slow step", _slow_step(step)
    if course.slow_count > len(worst):
        yield "", f"and {course.slow_count - len(worst)} more slow steps"
    if course.slower:
        s = course.slower
        times = f"{s.took_s / max(s.usual_s, 1e-9):.0f}x the {_step(s.usual_s)} at the beginning"
        yield "Slower", f"since about step {s.since_step} a step takes {_step(s.took_s)}, {times}"


def _slow_step(step: SlowStep) -> str:
    by_phase = list(ranks_by_phase(step.phases).items())[:4]
    told = "; ".join(f"{name_ranks(ranks, 4)}: {phase}" for phase, ranks in by_phase)
    return f"step {step.step} took {_step(step.took_s)}, {step.took_s / max(step.usual_s, 1e-9):.0f}x the usual {_step(step.usual_s)}{f' ({told})' if told else ''}"


def _stalls(stalls: tuple[PassedStall, ...]) -> Iterator[tuple[str, str]]:
    for stall in sorted(stalls, key=lambda s: -s.lasted_s)[:_MOST]:
        who = f": {name_ranks(stall.waiting_ranks, 4)} waited" if stall.waiting_ranks else ""
        yield "Stall that passed", f"{duration(stall.lasted_s)}, {duration(stall.onset_s)} after the start{who}"
    if len(stalls) > _MOST:
        yield "", f"and {len(stalls) - _MOST} more stalls that passed"


def _contexts(course: Course) -> Iterator[tuple[str, str]]:
    """Ranks that hold memory on a device besides the one that they use most: often `cuda:0` by mistake."""
    home: dict[str, tuple[str, float]] = {}
    for device, held in course.contexts.items():
        for who, megabytes in held.items():
            if megabytes > home.get(who, ("", -1.0))[1]:
                home[who] = (device, megabytes)
    for device, held in course.contexts.items():
        guests = {who: mb for who, mb in held.items() if home[who][0] != device}
        if guests:
            told = ", ".join(f"{who} ({mb:.0f} MB)" for who, mb in list(guests.items())[:8])
            yield "Foreign memory", f"on device {device}, of processes that compute elsewhere: {told}"


def _memory(course: Course) -> Iterator[tuple[str, str]]:
    """The most memory that a rank held, where it is far more than that of another one."""
    most = {}
    for name, values in course.samples.items():
        known = [v for v in values if v is not None]
        if name.startswith("rank ") and name.endswith(" memory_mb") and known:
            most[name.removesuffix(" memory_mb")] = max(known)
    if most:
        high, low = max(most, key=lambda n: most[n]), min(most, key=lambda n: most[n])
        spread = f"{most[low]:.0f} to {most[high]:.0f} MB" if most[high] > 1.2 * most[low] else f"{most[high]:.0f} MB"
        yield "Memory of a rank", spread + (f" (most: {high})" if most[high] > 1.2 * most[low] else "")


# How the job was set up: limits and who set them, variables and who changed them, devices, and what unhang switched on.

_MOST_SETTINGS = 12
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
    for text, count in list(said.items())[:_MOST_SETTINGS]:
        yield "Limit", text if count == 1 else f"{text} ({count} groups)"


def _limit(group: ProcessGroup) -> str:
    at = group.timeout_set_at
    who = "torch's default" if at is None else f"set at {at}"
    return f"{duration(group.timeout_s or 0.0)} for {'the default group' if group.name == '0' else group}, {who}"


def _variables(case: Case) -> Iterator[tuple[str, str]]:
    """What is set for the communication, and by whom: before the job, by the launcher, or by the script."""
    first = [e.identity for e in case.ranks.values() if e.identity.variables_at_init is not None]
    if not first:
        return
    requested, identity = {**case.job.environment, **case.job.added}, first[0]
    at_init = identity.variables_at_init or {}
    for name in [n for n in sorted({*at_init, *identity.variables}) if n not in _OURS][:_MOST_SETTINGS]:
        differing = {e.variables_at_init.get(name) for e in first if e.variables_at_init is not None}
        if name in _QUIET and at_init.get(name) == requested.get(name):
            continue
        if len(differing) > 1:
            yield "Variable", f"{name} differs between ranks: {', '.join(sorted(map(str, differing))[:4])}"
        else:
            who = _who(name, at_init, identity.variables, requested, case)
            yield "Variable", f"{name}={at_init.get(name, '(removed)')}, {who}"
    asked = [n for n in requested if n.startswith(("NCCL_", "TORCH_NCCL", "GLOO_"))]
    for name in [n for n in asked if n not in at_init and n not in _OURS][:_MOST_SETTINGS]:
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
    known = [(rank, e.identity) for rank, e in case.ranks.items() if e.identity.device is not None]
    by_device = grouped(((identity.host, identity.device), rank) for rank, identity in known)
    if by_device:
        has_hosts = len({host for host, _ in by_device}) > 1
        named = ((name_ranks(r, 4), f"{host} " if has_hosts else "", d) for (host, d), r in by_device.items())
        told = [f"{who} on {host}cuda:{d}" for who, host, d in named]
        yield "Devices", ", ".join(told[:_MOST_SETTINGS])


def _switched_on(case: Case) -> Iterator[tuple[str, str]]:
    identity = next(e.identity for e in case.ranks.values() if e.identity.variables or e.identity.variables_at_init)
    kept = {**identity.variables, **(identity.variables_at_init or {})}.get(_OURS[0])
    if kept:
        is_asked = _OURS[0] in case.job.environment or _OURS[1] in case.job.environment
        who = "as requested" if is_asked else "enabled by unhang run for this job"
        yield "Flight recorder", f"the last {kept} calls of each rank, {who}"
