"""Whether a variable exists: unknown names with the nearest real one, old names, names that are gone."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from unhang.analyze.env_finding import instead, opinion, without
from unhang.model import Finding, Fix
from unhang.read.environment.settings import Assignment, Settings
from unhang.read.environment.tables import STRICT, Variable, beliefs, foreign, tables, variables

UNKNOWN, OLD, GONE = "env-unknown", "env-deprecated", "env-removed"
MIN_FOR_TWO, MIN_FOR_ONE = 12, 8
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
    most = 2 if len(name) >= MIN_FOR_TWO else 1 if len(name) >= MIN_FOR_ONE else 0
    found = sorted((d, k) for k in known if (d := distance(name, k, most)) <= most and known[k].meaning)
    found = found or sorted((d, k) for k in known if (d := distance(name, k, most)) <= most)
    return found[0][1] if found and most else ""


def judge_name(settings: Settings, assignment: Assignment, used_elsewhere: Collection[str]) -> Finding | None:
    """A finding on a name that no library reads, or reads no longer. `used_elsewhere`: names that the job's own code reads."""
    name = assignment.name
    variable = variables().get(name)
    if variable is not None:
        return _judge_real(settings, assignment, variable)
    if name in used_elsewhere or name in settings.mentions:
        return None
    if belief := beliefs().get(name):
        fix = Fix(
            f"Use {belief.instead.split(' (')[0].split(';')[0]}" if belief.name else "Set it where it counts",
            f"unhang env: no finding on {name}",
            setting=belief.instead,
            undo="-",
        )
        title = f"{name} does nothing: neither NCCL nor torch reads it"
        because = f"It is set for {belief.meant}. No library reads a variable of that name, so the job runs as if it were not set; {belief.instead} is what does it."
        return opinion(settings, (assignment,), UNKNOWN, 0.92, title, because, (fix, without(settings, assignment)))
    if foreign(name):
        return None
    if _TIME_LIMIT.fullmatch(name) and not nearest(name):
        title = f"{name} does nothing: neither NCCL nor torch reads it"
        because = "The time limit of collectives is no variable: it is the timeout of init_process_group, and of every new_group its own."
        fix = instead(
            settings,
            assignment,
            "dist.init_process_group(timeout=datetime.timedelta(minutes=...))",
            "Set it where it counts",
        )
        return opinion(settings, (assignment,), UNKNOWN, 0.85, title, because, (fix, without(settings, assignment)))
    if near := nearest(name):
        title = f"{name} does nothing: no library reads it; {near} is near"
        because = (
            f"The name is not in the tables of {_versions()}. {near}: {variables()[near].meaning or 'a real variable'}."
        )
        fixes = (instead(settings, assignment, f"{near}={assignment.value or '...'}"), without(settings, assignment))
        return opinion(settings, (assignment,), UNKNOWN, 0.9, title, because, fixes)
    if not name.startswith(STRICT):
        return None
    because = f"The name is not in the tables of {_versions()}, and no real name is near. It may belong to a plug-in, to another version, or to the job's own code."
    return opinion(settings, (assignment,), UNKNOWN, 0.6, f"{name}: no library is known to read it", because)


def _versions() -> str:
    return " and ".join(f"{t.library} {t.version}" for t in tables())


def _judge_real(settings: Settings, assignment: Assignment, variable: Variable) -> Finding | None:
    name, now = variable.name, variable.now
    if name in _STILL_USUAL or not (now or variable.until):
        return None
    value = assignment.value if assignment.value is not None else "..."
    current = {n for table in tables() for n in table.names}
    if variable.until and name not in current and variable.library == "NCCL":
        what = f"; {now} is what there is today" if now else ""
        title = f"{name} has no effect in NCCL later than {variable.until}{what}"
        because = f"It was for: {variable.meaning}. Later versions do not read it."
        fixes = (without(settings, assignment),)
        return opinion(settings, (assignment,), GONE, 0.85, title, because, fixes)
    if not now or settings.last(now) is not None:
        return None
    title = f"{name} is an old name: {now}"
    if variable.library == "torch":
        because = f"Newer torch reads it with a warning, older torch knows only this name. {variables()[now].meaning}."
        fix = instead(
            settings, assignment, f"{now}={value}", verify="torch's warning that the name is deprecated is gone"
        )
        both = instead(settings, assignment, f"{name}={value} {now}={value}", "For old and new torch: set both")
        return opinion(settings, (assignment,), OLD, 0.6, title, because, (fix, both))
    because = f"It is still read, and {now} takes its place. {variables()[now].meaning}."
    return opinion(
        settings, (assignment,), OLD, NOTE_ONLY, title, because, (instead(settings, assignment, f"{now}={value}"),)
    )


NOTE_ONLY = 0.5
