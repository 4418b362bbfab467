"""Whether the value of a variable is one that its library understands."""

from __future__ import annotations

import re

from unhang.analyze.env_finding import instead, opinion, without
from unhang.model import Finding
from unhang.read.environment.settings import Assignment, Settings
from unhang.read.environment.tables import Variable, variables

RULE = "env-value"
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


def is_on(assignment: Assignment | None) -> bool:
    """Whether a switch is set to something that means yes."""
    if assignment is None or assignment.value is None:
        return False
    value, variable = assignment.value.strip().lower(), variables().get(assignment.name)
    takes_words = variable is None or variable.library != "NCCL"
    return (takes_words and value in _YES) or (number(value) or 0) != 0


def is_off(assignment: Assignment | None) -> bool:
    """Whether a switch is set to something that means no."""
    return assignment is not None and assignment.value is not None and assignment.value.strip().lower() in _NO


def judge_value(settings: Settings, assignment: Assignment) -> Finding | None:
    """A finding on a value that is out of range or cannot be parsed; None for one that is computed when the job runs."""
    variable = variables().get(assignment.name)
    if variable is None or assignment.value is None or assignment.name in _OWN_JUDGEMENT:
        return None
    value = assignment.value.strip()
    if not value and not (variable.library == "torch" and variable.type in ("int", "bool")):
        return None
    if variable.type == "bool":
        return _judge_bool(settings, assignment, value)
    if variable.type in ("int", "flag"):
        return _judge_number(settings, assignment, variable, value)
    if variable.type == "choice" and value.upper() not in {v.upper() for v in variable.values}:
        return _out_of(settings, assignment, variable)
    if variable.type == "list":
        return _judge_list(settings, assignment, variable, value)
    if variable.type == "level" and value not in variable.values and number(value) is None:
        return _unknown_level(settings, assignment, variable, value)
    return None


def _judge_bool(settings: Settings, assignment: Assignment, value: str) -> Finding | None:
    if value.lower() in (*_YES, *_NO) or not assignment.name.startswith(_CHECKED_BY_TORCH):
        return None
    return _refused(settings, assignment, "0 or 1")


def _refused(settings: Settings, assignment: Assignment, accepted: str) -> Finding:
    name, what = assignment.name, f"{assignment.value!r}" if assignment.value else "the empty value"
    title = f"{name}: torch refuses {what}, and the process group cannot be made"
    because = (
        f"torch takes {accepted} here and raises 'Invalid value for environment variable: {name}' for anything else."
    )
    return opinion(
        settings,
        (assignment,),
        RULE,
        0.95,
        title,
        because,
        (instead(settings, assignment, f"{name}={accepted.split(' ')[0]}"), without(settings, assignment)),
    )


def _judge_number(settings: Settings, assignment: Assignment, variable: Variable, value: str) -> Finding | None:
    found = number(value)
    if found is None:
        if variable.library == "torch" and assignment.name.startswith(_CHECKED_BY_TORCH):
            return _refused(settings, assignment, variable.accepts)
        return _no_number(settings, assignment, variable, value)
    low, high = (0, 1) if variable.type == "flag" else (variable.low, variable.high)
    if variable.values and str(found) not in variable.values:
        return _out_of(settings, assignment, variable)
    if (low is not None and found < low) or (high is not None and found > high):
        return _out_of(settings, assignment, variable)
    return None


def _no_number(settings: Settings, assignment: Assignment, variable: Variable, value: str) -> Finding:
    name = assignment.name
    if variable.library != "NCCL":
        return _out_of(settings, assignment, variable)
    default = f" ({variable.default})" if variable.default else ""
    because = f"NCCL takes numbers here, {variable.accepts}: up to 2.29 it reads a word as 0 without a warning, later versions take the default{default}."
    meant = "1" if value.lower() in _YES else "0" if value.lower() in _NO else ""
    change = (instead(settings, assignment, f"{name}={meant}", f"If that was meant: {name}={meant}"),) if meant else ()
    title = f"{name}={value} means 0 to NCCL: it takes numbers, no words"
    confidence = 0.75 if meant == "0" else 0.92
    return opinion(settings, (assignment,), RULE, confidence, title, because, (*change, without(settings, assignment)))


def _out_of(settings: Settings, assignment: Assignment, variable: Variable) -> Finding:
    default = f" The default is {variable.default}." if variable.default else ""
    title = f"{assignment.name}={assignment.value} is out of range: {variable.accepts}"
    confidence = 0.75 if variable.type == "flag" else 0.9
    return opinion(settings, (assignment,), RULE, confidence, title, f"{_sentence(variable.meaning)}{default}")


def _judge_list(settings: Settings, assignment: Assignment, variable: Variable, value: str) -> Finding | None:
    words = [w.strip().upper() for w in value.lstrip("^").split(",") if w.strip()]
    unknown = [w for w in words if w not in variable.values]
    if not unknown:
        return None
    title = f"{assignment.name}={value}: no {' and no '.join(unknown)}"
    return opinion(
        settings, (assignment,), RULE, 0.9, title, f"It knows {', '.join(variable.values)}; others are passed over."
    )


def _unknown_level(settings: Settings, assignment: Assignment, variable: Variable, value: str) -> Finding:
    if value.upper() not in variable.values:
        return _out_of(settings, assignment, variable)
    right = f"{assignment.name}={value.upper()}"
    title = f"{assignment.name}={value} is not read: the names are in capitals"
    because = (
        f"NCCL compares them letter by letter and passes over what it does not know. {_sentence(variable.meaning)}"
    )
    return opinion(
        settings,
        (assignment,),
        RULE,
        0.9,
        title,
        because,
        (instead(settings, assignment, right), without(settings, assignment)),
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
