"""Whether a variable exists: unknown names with the nearest real one, old names, names that are gone."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from unhang.model import Fix
from unhang.read.environment.settings import Assignment, Settings
from unhang.read.environment.tables import STRICT, Variable, beliefs, foreign, tables, variables
from unhang.rules.env.opinion import WITHOUT, Opinion, instead

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
    if foreign(name):
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
