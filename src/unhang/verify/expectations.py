"""What is expected of a run: written in TOML, judged on the evidence that the run left."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unhang.errors import UnreadableInput, WrongUsage
from unhang.model import CAUSES
from unhang.verify import judging
from unhang.verify.judging import Check
from unhang.verify.runs import Run

Kind = Callable[[object], bool]
Judge = Callable[[Run, Mapping[str, Any]], Check]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_amount(value: object) -> bool:
    return _is_number(value) and value >= 0  # type: ignore[operator]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_code(value: object) -> bool:
    return _is_count(value)


def _is_pattern(value: object) -> bool:
    try:
        return isinstance(value, str) and re.compile(value).groups == 1
    except re.error:
        return False


def _are_causes(value: object) -> bool:
    return isinstance(value, list) and all(cause in CAUSES for cause in value)


_MEANT: dict[Kind, str] = {
    _is_number: "a number",
    _is_amount: "a number of at least 0",
    _is_count: "a whole number of at least 0",
    _is_code: "an exit code",
    _is_pattern: "a regular expression with one group",
    _are_causes: "a list of causes, as 'unhang explain' knows them",
}


@dataclass(frozen=True)
class Kinds:
    """An expectation that exists: its settings, those without which it says nothing, and who judges it."""

    settings: Mapping[str, Kind]
    judge: Judge
    needs_one_of: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


KNOWN: Mapping[str, Kinds] = {
    "no_finding": Kinds({"allow": _are_causes}, judging.no_finding),
    "exit_code": Kinds({"is": _is_code}, judging.exit_code),
    "steps": Kinds({"min": _is_count}, judging.steps, needs=("min",)),
    "step_time": Kinds(
        {"max_s": _is_amount, "median_s": _is_amount, "skip_first": _is_count},
        judging.step_time,
        needs_one_of=("max_s", "median_s"),
    ),
    "no_timeout_text": Kinds({"first_steps": _is_count, "step_pattern": _is_pattern}, judging.no_timeout_text),
    "utilisation": Kinds({"min": _is_amount, "pattern": _is_pattern}, judging.utilisation, needs=("min",)),
    "epochs": Kinds({"min": _is_count, "pattern": _is_pattern}, judging.epochs, needs=("min",)),
    "replicas_equal": Kinds({}, judging.replicas_equal),
    "final_loss": Kinds(
        {"pattern": _is_pattern, "value": _is_number, "tolerance": _is_amount, "max": _is_number},
        judging.final_loss,
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
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UnreadableInput(f"{path}: {reason}") from None
    return parse_expectations(content, str(path))


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
        if not kinds.settings[key](value):
            raise WrongUsage(f"{where}: [{name}] {key} is {_MEANT[kinds.settings[key]]}, not {value!r}")
    missing = [key for key in kinds.needs if key not in settings]
    if kinds.needs_one_of and not any(key in settings for key in kinds.needs_one_of):
        missing.append(" or ".join(kinds.needs_one_of))
    if missing:
        raise WrongUsage(f"{where}: [{name}] needs {' and '.join(missing)}")
    return Expectation(name, settings, is_required, is_own=name in ALWAYS)


def _nearest(word: str, names: Iterable[str]) -> str:
    known = list(names)
    near: Sequence[str] = difflib.get_close_matches(word, known, 1, 0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"
