"""Whether a variable exists (unknown, old or gone names), and whether its value is one that its library understands."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import NamedTuple, TypeGuard

from unhang.model import EvidenceLine, Finding, Fix, Location
from unhang.read.environment import STRICT, Assignment, Settings, Variable, beliefs, tables, variables, whose_variable

# What is said of environment variables: why it is wrong, where it is set, what to do, how to take it back.

CAUSE = "misconfigured-env"
VALUE, HARMFUL, USELESS, AGAINST = "env-value", "env-harmful", "env-without-effect", "env-contradiction"
WITHOUT = ""
_SHOWN = 120


class Opinion(NamedTuple):
    """What is said of a variable, or of several that stand against each other.

    `rule`: by which; `fixes`: what to set instead of the first variable, or WITHOUT to take it out, or whole fixes.
    """

    rule: str
    confidence: float
    title: str
    because: str
    fixes: Sequence[str | Fix] = (WITHOUT,)

    def said_of(self, location: Location | None, evidence: Iterable[EvidenceLine], fixes: Iterable[Fix]) -> Finding:
        """The opinion as a finding on this place."""
        return Finding(
            rule=self.rule,
            cause=CAUSE,
            title=self.title,
            confidence=self.confidence,
            culprit_ranks=(),
            because=self.because,
            location=location,
            evidence=tuple(evidence),
            fixes=tuple(fixes),
        )


def shown(assignment: Assignment) -> str:
    """NAME=VALUE, for people."""
    value = assignment.value if assignment.value is not None else assignment.expression
    return f"{assignment.name}={value}" if len(value) <= _SHOWN else f"{assignment.name}={value[:_SHOWN]}..."


def finding_of(s: Settings, assignments: Sequence[Assignment], opinion: Opinion) -> Finding:
    """The opinion as a finding; the first of the variables is where the change belongs."""
    first = assignments[0]
    name = PurePath(s.path).name or s.path
    fixes = (
        without(s, first) if f == WITHOUT else instead(s, first, f) if isinstance(f, str) else f for f in opinion.fixes
    )
    location = Location(s.path, first.line, "") if first.line else None
    evidence = (
        EvidenceLine(f"{name}, {a.reported_by}" if first.line and a.reported_by else name, shown(a), a.line)
        for a in assignments
    )
    return opinion.said_of(location, evidence, fixes)


def without(s: Settings, a: Assignment, title: str = "", verify: str = "") -> Fix:
    """Takes the variable out."""
    checked = verify or f"unhang env{f' {s.path}' if a.line else ''}: no finding on {a.name}"
    title = title or f"{'Unset' if s.is_live else 'Take'} {a.name}{'' if s.is_live else ' out'}"
    if s.is_live:
        return Fix(title, checked, command=f"unset {a.name}", undo=f"export {shown(a)}")
    if s.form == "log":
        return Fix(title, checked, setting=f"no {a.name} where the job is started", undo=f"set {shown(a)} again")
    return Fix(title, checked, advice=f"- {shown(a)}    ({_place(s, a)})", undo="put the line back")


def instead(s: Settings, a: Assignment, change: str, title: str = "", verify: str = "") -> Fix:
    """Sets something else."""
    undo = f"export {shown(a)}" if s.is_live else f"back to {shown(a)} at {_place(s, a)}"
    return Fix(title or f"Set {change}", verify or f"unhang env: no finding on {a.name}", setting=change, undo=undo)


def _place(s: Settings, a: Assignment) -> str:
    """Where it is set, for people: a file and its line, or a process."""
    return f"{s.path}:{a.line}" if a.line else s.path


_UNKNOWN, _OLD = "env-unknown", "env-deprecated"
_MIN_FOR_TWO, _MIN_FOR_ONE = 12, 8
_TIME_LIMIT = re.compile(r"(?:TORCH_)?(?:NCCL|GLOO|DIST|DISTRIBUTED)_\w*TIMEOUT\w*")
# The old name is the only one that most installed versions know: no opinion.
_STILL_USUAL = frozenset({"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"})


def distance(a: str, b: str, most: int) -> int:
    """Edits (insert, delete, replace, swap of neighbours) between two names; `most` + 1 where there are more."""
    if abs(len(a) - len(b)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, before, row = before, row, [i]
        for j, y in enumerate(b, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, previous[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
    return row[-1]


@lru_cache(4096)
def nearest(name: str) -> str:
    """The real variable that was probably meant; "" where none is near enough."""
    known = variables()
    for candidate in (f"TORCH_{name}", name.removeprefix("TORCH_"), name.removeprefix("PYTORCH_")):
        if candidate != name and candidate in known:
            return candidate
    words = sorted(name.split("_"))
    same_words = [k for k in known if sorted(k.split("_")) == words]
    if same_words:
        return same_words[0]
    most = 2 if len(name) >= _MIN_FOR_TWO else 1 if len(name) >= _MIN_FOR_ONE else 0
    found = sorted((d, k) for k in known if (d := distance(name, k, most)) <= most and known[k].meaning)
    found = found or sorted((d, k) for k in known if (d := distance(name, k, most)) <= most)
    return found[0][1] if found and most else ""


def judge_name(s: Settings, a: Assignment, used_elsewhere: Collection[str]) -> Opinion | None:
    """On a name that no library reads, or reads no longer. `used_elsewhere`: names that the job's own code reads."""
    name = a.name
    variable = variables().get(name)
    if variable is not None:
        return _judge_real(s, a, variable)
    if name in used_elsewhere or name in s.mentions:
        return None
    nothing = f"{name} does nothing: neither NCCL nor torch reads it"
    if belief := beliefs().get(name):
        what = f"Use {belief.instead.split(' (')[0].split(';')[0]}" if belief.name else "Set it where it counts"
        fix = Fix(what, f"unhang env: no finding on {name}", setting=belief.instead, undo="-")
        because = f"It is set for {belief.meant}. No library reads a variable of that name, so the job runs as if it were not set; {belief.instead} is what does it."
        return Opinion(_UNKNOWN, 0.92, nothing, because, (fix, WITHOUT))
    if whose_variable(name):
        return None
    near = nearest(name)
    if _TIME_LIMIT.fullmatch(name) and not near:
        because = "The time limit of collectives is no variable: it is the timeout of init_process_group, and of every new_group its own."
        limit = "dist.init_process_group(timeout=datetime.timedelta(minutes=...))"
        return Opinion(_UNKNOWN, 0.85, nothing, because, (instead(s, a, limit, "Set it where it counts"), WITHOUT))
    versions = " and ".join(f"{t.library} {t.version}" for t in tables())
    if near:
        title = f"{name} does nothing: no library reads it; {near} is near"
        because = (
            f"The name is not in the tables of {versions}. {near}: {variables()[near].meaning or 'a real variable'}."
        )
        return Opinion(_UNKNOWN, 0.9, title, because, (f"{near}={a.value or '...'}", WITHOUT))
    if not name.startswith(STRICT):
        return None
    because = f"The name is not in the tables of {versions}, and no real name is near. It may belong to a plug-in, to another version, or to the job's own code."
    return Opinion(_UNKNOWN, 0.6, f"{name}: no library is known to read it", because)


def _judge_real(s: Settings, a: Assignment, variable: Variable) -> Opinion | None:
    name, now = variable.name, variable.now
    if name in _STILL_USUAL or not (now or variable.until):
        return None
    value = a.value if a.value is not None else "..."
    if variable.until and variable.library == "NCCL" and all(name not in table.names for table in tables()):
        what = f"; {now} is what there is today" if now else ""
        because = f"It was for: {variable.meaning}. Later versions do not read it."
        return Opinion("env-removed", 0.85, f"{name} has no effect in NCCL later than {variable.until}{what}", because)
    if not now or s.last(now) is not None:
        return None
    title, meaning = f"{name} is an old name: {now}", variables()[now].meaning
    if variable.library == "torch":
        because = f"Newer torch reads it with a warning, older torch knows only this name. {meaning}."
        new = instead(s, a, f"{now}={value}", verify="torch's warning that the name is deprecated is gone")
        both = instead(s, a, f"{name}={value} {now}={value}", "For old and new torch: set both")
        return Opinion(_OLD, 0.6, title, because, (new, both))
    return Opinion(_OLD, 0.5, title, f"It is still read, and {now} takes its place. {meaning}.", (f"{now}={value}",))


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
