"""What is expected of a run, written in TOML: a function for each judges it by the evidence that the run left.

What the evidence does not show is skipped.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from unhang.errors import WrongUsage, did_you_mean
from unhang.model import CAUSES, LogEvent, Outcome
from unhang.verify import BAD_ENDS, Check, Run, failed, passed, read_toml, skipped

Settings = Mapping[str, Any]

WARM_UP_STEPS = 10
_FIRST_STEPS = 100
_STEP = r"(?i)\bstep\s*[:=#]?\s*(\d+)"
_EPOCH = r"(?i)\bepoch\s*[:=#]?\s*(\d+)"
_HEARTBEAT_MEDIAN = re.compile(r"\[heartbeat\] step \d+: .*median ([\d.e+-]+) s/step")
_HEARTBEAT_SLOW = re.compile(r"\[heartbeat\] rank \d+: step (\d+) took ([\d.e+-]+) s")
_REPLICAS = "[replicas] "
_COMPARING = re.compile(r"comparing a model after every (\d{1,9}) optimizer steps")
_REPLICAS_GROUP = "unhang replicas"
_UNANSWERED = ("not compared:", "no more comparisons", "not all ranks answered", "nothing is left to compare")


def no_finding(run: Run, settings: Settings) -> Check:
    """Nothing wrong was found, or only what is allowed."""
    name, allowed = "no_finding", settings.get("allow", ())
    others = [f for f in run.findings if f.cause not in allowed]
    if others:
        return failed(name, f"{others[0].cause}: {others[0].title}")
    outcome = run.diagnosis.outcome
    if outcome in BAD_ENDS and not run.findings:
        return failed(name, f"{outcome.value}, with no established cause")
    if outcome is Outcome.UNKNOWN:
        return skipped(name, "the evidence does not tell how the job ended")
    return passed(name, "nothing was found" if not run.findings else "only what is allowed was found")


def exit_code(run: Run, settings: Settings) -> Check:
    """The job ended with this exit code."""
    wanted = settings.get("is", 0)
    if run.overran:
        return failed("exit_code", "it took too long, and was ended")
    if run.exit_code is None:
        return skipped("exit_code", "the evidence holds no exit code")
    if run.exit_code != wanted:
        return failed("exit_code", f"exit code {run.exit_code}, not {wanted}")
    return passed("exit_code", f"exit code {run.exit_code}")


def steps(run: Run, settings: Settings) -> Check:
    """Every rank did so many optimizer steps."""
    if run.steps is None:
        return skipped("steps", "no rank was recorded")
    left_out = min((e.skipped_steps for e in run.case.ranks.values()), default=0)
    if run.steps == 0 and left_out and settings["min"]:
        return failed("steps", f"no step was taken: the loss scaler left out all {left_out}")
    if run.steps == 0 and settings["min"]:
        return skipped("steps", "no optimizer of torch made a step, so that steps cannot be counted")
    judged = passed if run.steps >= settings["min"] else failed
    return judged("steps", f"{run.steps} steps, at least {settings['min']} wanted")


def step_time(run: Run, settings: Settings) -> Check:
    """No step took longer than `max_s`, and the median is at most `median_s`."""
    skip, name = settings.get("skip_first", WARM_UP_STEPS), "step_time"
    took = {step: seconds for step, seconds in run.durations.items() if step > skip}
    source = "seen while it ran"
    middle, largest = (median(took.values()), max(took.values())) if took else (None, None)
    if not took:
        medians = [float(found[1]) for text in _texts(run) if (found := _HEARTBEAT_MEDIAN.search(text))]
        slow = [found for text in _texts(run) if (found := _HEARTBEAT_SLOW.search(text)) and int(found[1]) > skip]
        middle, source = medians[-1] if medians else None, "told by the heartbeat"
        largest = max((float(found[2]) for found in slow), default=None)
        if largest is not None and largest <= settings.get("max_s", math.inf):
            largest = None  # the heartbeat tells one slow step a minute, so that what it tells is not the maximum
    said = []
    for value, limit, what in ((largest, settings.get("max_s"), "step"), (middle, settings.get("median_s"), "median")):
        if limit is None:
            continue
        if value is not None and value > limit:
            slowest = f" {max(took, key=lambda s: took[s])}" if took and what == "step" else ""
            return failed(name, f"{what}{slowest} took {value:.3g} s, at most {limit:g} s wanted ({source})")
        said.append("" if value is None else f"{what}{' at most' * (what == 'step')} {value:.3g} s")
    if not all(said) and run.durations and not took:
        seen = max(run.durations)
        return skipped(name, f"only {seen} steps were seen, of which the first {skip} do not count (skip_first)")
    if not all(said):
        return skipped(name, "step times are not known: let 'unhang verify' make the run, or use unhang.heartbeat()")
    return passed(name, f"{', '.join(said)} ({source})")


def no_timeout_text(run: Run, settings: Settings) -> Check:
    """In the first steps no line of the log tells of a wait that hit its limit."""
    name, within = "no_timeout_text", settings.get("first_steps", _FIRST_STEPS)
    if not run.case.log:
        return skipped(name, "there is no log")
    marks = _steps_mentioned(run, settings.get("step_pattern", _STEP))
    for event in (event for event in run.case.events if event.says == "hang"):
        step = _step_before(marks, event)
        if step is None and run.steps is not None and run.steps <= within:
            step = run.steps
        if step is None:
            return skipped(name, f"nothing tells at which step this was printed: {event.text.strip()[:120]}")
        if step < within or step == run.steps <= within:
            return failed(name, f"after step {step}: {event.text.strip()[:160]}")
    return passed(name, f"no such line in the first {within} steps")


def _steps_mentioned(run: Run, pattern: str) -> dict[str, list[tuple[int, int]]]:
    """For each log the lines that mention a step, each with the largest step so far."""
    marks: dict[str, list[tuple[int, int]]] = {}
    for line in run.case.log:
        known = marks.setdefault(line.source.path, [(-1, -1)])
        steps = [int(number) for number in _numbers([line.text], pattern) if number.isdecimal()]
        if steps and max(steps) > known[-1][1]:
            known.append((line.source.line or 0, max(steps)))
    return marks


def _step_before(marks: Mapping[str, list[tuple[int, int]]], event: LogEvent) -> int | None:
    """The largest step that the same log mentions before a line."""
    known = marks.get(event.source.path, [(-1, -1)])
    step = known[bisect_left(known, (event.source.line or 0, -1)) - 1][1]
    return step if step >= 0 else None


def utilisation(run: Run, settings: Settings) -> Check:
    """The median of what the job prints of it; without a pattern, the processor time of the rank that used least."""
    name, least = "utilisation", settings["min"]
    if "pattern" in settings:
        printed = _floats(_texts(run), settings["pattern"])
        if not printed:
            return skipped(name, "no line of the log matches the pattern")
        value, what = median(printed), f"median of {len(printed)} lines"
    else:
        shares = run.trace.cpu_share if run.trace else {}
        if not shares:
            how = "give a pattern for what the job prints, or let 'unhang verify' make the run"
            return skipped(name, f"not known: {how}")
        rank = min(shares, key=lambda r: shares[r])
        value, what = shares[rank], f"processors used by rank {rank}"
    return (passed if value >= least else failed)(name, f"{what}: {value:.3g}, at least {least:g} wanted")


def epochs(run: Run, settings: Settings) -> Check:
    """The log mentions so many different epochs."""
    seen = {int(number) for number in _numbers(_texts(run), settings.get("pattern", _EPOCH)) if number.isdecimal()}
    if not seen:
        return skipped("epochs", "no line of the log mentions an epoch")
    judged = passed if len(seen) >= settings["min"] else failed
    return judged("epochs", f"{len(seen)} epochs in the log, at least {settings['min']} wanted")


def replicas_equal(run: Run, _: Settings) -> Check:
    """`unhang.check_replicas`, or `--replicas`, compared the replicas, and found no difference."""
    name = "replicas_equal"
    printed = [text.partition(_REPLICAS)[2] for text in _texts(run) if _REPLICAS in text]
    if differ := [text for text in printed if text.startswith("replicas differ")]:
        return failed(name, differ[0])
    if unanswered := [text for text in printed if text.startswith(_UNANSWERED)]:
        return skipped(name, unanswered[0])
    every = next((int(found[1]) for text in printed if (found := _COMPARING.match(text))), None)
    if every is not None:
        if run.steps is not None and run.steps < every:
            return skipped(name, f"{run.steps} optimizer steps, and the first comparison comes after {every}")
        return passed(name, f"compared after every {every} optimizer steps, no difference told")
    if not any(group.desc == _REPLICAS_GROUP for group in run.case.groups):
        return skipped(name, "nothing shows that the script called unhang.check_replicas()")
    return passed(name, "compared by unhang.check_replicas(), no difference told")


def final_loss(run: Run, settings: Settings) -> Check:
    """The last loss that the log tells."""
    name = "final_loss"
    printed = _floats(_texts(run), settings["pattern"])
    if not printed:
        return skipped(name, "no line of the log matches the pattern")
    last = printed[-1]
    wanted = []
    if "max" in settings:
        wanted.append((last <= settings["max"], f"at most {settings['max']:g}"))
    if "value" in settings:
        value, tolerance = settings["value"], settings.get("tolerance", 0.0)
        wanted.append((abs(last - value) <= tolerance, f"{value:g} +- {tolerance:g}"))
    judged = passed if all(is_met for is_met, _ in wanted) else failed
    return judged(name, f"the last of {len(printed)} is {last:.6g}, wanted {' and '.join(text for _, text in wanted)}")


def _texts(run: Run) -> Sequence[str]:
    return [line.text for line in run.case.log]


def _numbers(texts: Sequence[str] | Iterator[str], pattern: str) -> Iterator[str]:
    compiled = re.compile(pattern)
    for text in texts:
        for found in compiled.finditer(text):
            if found[1] is not None:
                yield found[1]


def _floats(texts: Sequence[str], pattern: str) -> list[float]:
    values = []
    for number in _numbers(texts, pattern):
        try:
            values.append(float(number))
        except ValueError:
            continue
    return values


# The expectations that there are, and their settings.


class Kind(NamedTuple):
    """What a setting may be: in words, and whether a value is that."""

    meant: str
    fits: Callable[[Any], bool]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_pattern(value: object) -> bool:
    try:
        return isinstance(value, str) and re.compile(value).groups == 1
    except re.error:
        return False


_NUMBER = Kind("a number", _is_number)
_AMOUNT = Kind("a number of at least 0", lambda value: _is_number(value) and value >= 0)
_COUNT = Kind("a whole number of at least 0", _is_count)
_CODE = Kind("an exit code", _is_count)
_PATTERN = Kind("a regular expression with one group", _is_pattern)
_CAUSES = Kind(
    "a list of causes, as 'unhang explain' knows them",
    lambda value: isinstance(value, list) and all(cause in CAUSES for cause in value),
)


@dataclass(frozen=True)
class Kinds:
    """An expectation that exists: its settings, those without which it says nothing, and who judges it."""

    settings: Mapping[str, Kind]
    judge: Callable[[Run, Settings], Check]
    needs_one_of: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


KNOWN: Mapping[str, Kinds] = {
    "no_finding": Kinds({"allow": _CAUSES}, no_finding),
    "exit_code": Kinds({"is": _CODE}, exit_code),
    "steps": Kinds({"min": _COUNT}, steps, needs=("min",)),
    "step_time": Kinds(
        {"max_s": _AMOUNT, "median_s": _AMOUNT, "skip_first": _COUNT}, step_time, needs_one_of=("max_s", "median_s")
    ),
    "no_timeout_text": Kinds({"first_steps": _COUNT, "step_pattern": _PATTERN}, no_timeout_text),
    "utilisation": Kinds({"min": _AMOUNT, "pattern": _PATTERN}, utilisation, needs=("min",)),
    "epochs": Kinds({"min": _COUNT, "pattern": _PATTERN}, epochs, needs=("min",)),
    "replicas_equal": Kinds({}, replicas_equal),
    "final_loss": Kinds(
        {"pattern": _PATTERN, "value": _NUMBER, "tolerance": _AMOUNT, "max": _NUMBER},
        final_loss,
        needs=("pattern",),
        needs_one_of=("value", "max"),
    ),
}
ALWAYS = ("exit_code", "no_finding")


@dataclass(frozen=True)
class Expectation:
    """One expectation with its settings. `is_own`: it was not written, but holds for every run."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    is_required: bool = False
    is_own: bool = False

    def judge(self, run: Run) -> Check:
        """The answer of one run."""
        check = KNOWN[self.name].judge(run, self.settings)
        return replace(check, is_required=self.is_required, is_own=self.is_own)


def default_expectations() -> tuple[Expectation, ...]:
    """Those that hold without being written: the run ends with exit code 0, and nothing is found."""
    return tuple(Expectation(name, is_own=True) for name in ALWAYS)


def read_expectations(path: Path) -> tuple[Expectation, ...]:
    """The expectations in a TOML file, and those that hold always.

    Raises:
        UnreadableInput: the file cannot be read, or is no TOML.
        WrongUsage: it says something that is not known.
    """
    return parse_expectations(read_toml(path), str(path))


def parse_expectations(content: Mapping[str, Any], where: str = "the expectations") -> tuple[Expectation, ...]:
    """The expectations in TOML's tables, and those that hold always.

    Raises:
        WrongUsage: there is something that is not known, or makes no sense.
    """
    written = []
    for name, settings in content.items():
        if name not in KNOWN:
            raise WrongUsage(f"{where}: there is no expectation {name!r}{_nearest(name, KNOWN)}")
        if not isinstance(settings, dict):
            raise WrongUsage(f"{where}: write [{name}] and its settings below it")
        written.append(_expectation(name, dict(settings), where))
    own = tuple(e for e in default_expectations() if e.name not in content)
    return (*own, *written)


def _expectation(name: str, settings: dict[str, Any], where: str) -> Expectation:
    kinds = KNOWN[name]
    is_required = settings.pop("required", False)
    if not isinstance(is_required, bool):
        raise WrongUsage(f"{where}: [{name}] required is true or false, not {is_required!r}")
    for key, value in settings.items():
        if key not in kinds.settings:
            raise WrongUsage(f"{where}: [{name}] has no {key!r}{_nearest(key, [*kinds.settings, 'required'])}")
        if not kinds.settings[key].fits(value):
            raise WrongUsage(f"{where}: [{name}] {key} is {kinds.settings[key].meant}, not {value!r}")
    missing = [key for key in kinds.needs if key not in settings]
    if kinds.needs_one_of and not any(key in settings for key in kinds.needs_one_of):
        missing.append(" or ".join(kinds.needs_one_of))
    if missing:
        raise WrongUsage(f"{where}: [{name}] needs {' and '.join(missing)}")
    return Expectation(name, settings, is_required, is_own=name in ALWAYS)


def _nearest(word: str, names: Iterable[str]) -> str:
    known = list(names)
    return did_you_mean(word, known, 0.5) or f"; there are {', '.join(known)}"
