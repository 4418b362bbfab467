"""Whether the value of a variable is one that its library understands."""

from __future__ import annotations

import re
from typing import TypeGuard

from unhang.read.environment.settings import Assignment, Settings
from unhang.read.environment.tables import Variable, variables
from unhang.rules.env.opinion import VALUE, WITHOUT, Opinion, instead

_NUMBER = re.compile(r"\s*([+-]?(?:0[xX][0-9a-fA-F]+|\d+))")
_YES, _NO = ("y", "yes", "1", "t", "true"), ("n", "no", "0", "f", "false")
# Read by torch's C++ code, which refuses what it cannot parse.
_CHECKED_BY_TORCH = ("TORCH_NCCL_", "TORCH_FR_", "NCCL_")
_OWN_JUDGEMENT = frozenset({"NCCL_IB_TIMEOUT"})


def number(text: str) -> int | None:
    """A number as C reads it: what follows it does not matter."""
    match = _NUMBER.match(text)
    try:
        return int(match[1], 0) if match else None
    except ValueError:  # 010 is octal for C
        return int(match[1], 8) if match and re.fullmatch(r"[+-]?[0-7]+", match[1]) else None


def is_on(a: Assignment | None) -> TypeGuard[Assignment]:
    """Whether a switch is set to something that means yes."""
    if a is None or a.value is None:
        return False
    value, variable = a.value.strip().lower(), variables().get(a.name)
    takes_words = variable is None or variable.library != "NCCL"
    return (takes_words and value in _YES) or (number(value) or 0) != 0


def is_off(a: Assignment | None) -> TypeGuard[Assignment]:
    """Whether a switch is set to something that means no."""
    return a is not None and a.value is not None and a.value.strip().lower() in _NO


def judge_value(s: Settings, a: Assignment) -> Opinion | None:
    """On a value that is out of range or cannot be parsed; None for one that is computed when the job runs."""
    variable = variables().get(a.name)
    if variable is None or a.value is None or a.name in _OWN_JUDGEMENT:
        return None
    value, kind = a.value.strip(), variable.type
    if not value and not (variable.library == "torch" and kind in ("int", "bool")):
        return None
    if kind == "bool" and value.lower() not in (*_YES, *_NO) and a.name.startswith(_CHECKED_BY_TORCH):
        return _refused(a, "0 or 1")
    if kind in ("int", "flag"):
        return _judge_number(s, a, variable, value)
    if kind == "choice" and value.upper() not in {v.upper() for v in variable.values}:
        return _out_of(a, variable)
    if kind == "list":
        words = [w.strip().upper() for w in value.lstrip("^").split(",") if w.strip()]
        if unknown := [w for w in words if w not in variable.values]:
            because = f"It knows {', '.join(variable.values)}; others are passed over."
            return Opinion(VALUE, 0.9, f"{a.name}={value}: no {' and no '.join(unknown)}", because)
    if kind == "level" and value not in variable.values and number(value) is None:
        if value.upper() not in variable.values:
            return _out_of(a, variable)
        title = f"{a.name}={value} is not read: the names are in capitals"
        because = (
            f"NCCL compares them letter by letter and passes over what it does not know. {_sentence(variable.meaning)}"
        )
        return Opinion(VALUE, 0.9, title, because, (f"{a.name}={value.upper()}", WITHOUT))
    return None


def _refused(a: Assignment, accepted: str) -> Opinion:
    what = f"{a.value!r}" if a.value else "the empty value"
    title = f"{a.name}: torch refuses {what}, and the process group cannot be made"
    because = (
        f"torch takes {accepted} here and raises 'Invalid value for environment variable: {a.name}' for anything else."
    )
    return Opinion(VALUE, 0.95, title, because, (f"{a.name}={accepted.split(' ')[0]}", WITHOUT))


def _judge_number(s: Settings, a: Assignment, variable: Variable, value: str) -> Opinion | None:
    found = number(value)
    if found is None:
        if variable.library == "torch" and a.name.startswith(_CHECKED_BY_TORCH):
            return _refused(a, variable.accepts)
        return _no_number(s, a, variable, value) if variable.library == "NCCL" else _out_of(a, variable)
    low, high = (0, 1) if variable.type == "flag" else (variable.low, variable.high)
    is_known = not variable.values or str(found) in variable.values
    is_within = (low is None or found >= low) and (high is None or found <= high)
    return None if is_known and is_within else _out_of(a, variable)


def _no_number(s: Settings, a: Assignment, variable: Variable, value: str) -> Opinion:
    default = f" ({variable.default})" if variable.default else ""
    because = f"NCCL takes numbers here, {variable.accepts}: up to 2.29 it reads a word as 0 without a warning, later versions take the default{default}."
    meant = "1" if value.lower() in _YES else "0" if value.lower() in _NO else ""
    change = f"{a.name}={meant}"
    fixes = (*((instead(s, a, change, f"If that was meant: {change}"),) if meant else ()), WITHOUT)
    title = f"{a.name}={value} means 0 to NCCL: it takes numbers, no words"
    return Opinion(VALUE, 0.75 if meant == "0" else 0.92, title, because, fixes)


def _out_of(a: Assignment, variable: Variable) -> Opinion:
    default = f" The default is {variable.default}." if variable.default else ""
    title = f"{a.name}={a.value} is out of range: {variable.accepts}"
    return Opinion(VALUE, 0.75 if variable.type == "flag" else 0.9, title, f"{_sentence(variable.meaning)}{default}")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
