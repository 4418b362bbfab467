"""What objects keep of what their methods are given: a counter of bad epochs, an average, a flag that says stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unhang.lint.filling import note_keys
from unhang.lint.ir import Call, Expr, Ref
from unhang.lint.special import LENGTH, TEST, name_of
from unhang.lint.values import (
    AGREED,
    DIFFERS,
    LOSS,
    MAYBE,
    NO_PARAMS,
    OWN_BATCH,
    OWN_KEYS,
    RANK,
    UNEVEN,
    UNKNOWN,
    Value,
    either,
    mixed,
)

if TYPE_CHECKING:
    from unhang.lint.flow import Frame
    from unhang.lint.passing import Passing

_BARS = {"tqdm", "trange", "ProgressBar"}


def keep(frame: Frame, name: str, value: Value) -> Value:
    """What an attribute is worth that a method sets, also under conditions on what it was given; noted for those who call the method."""
    params = value.params.union(*(c.value.params for c, *_ in frame.conditions)) - {0}
    if not params or (value.sort is not None and value.sort[0] in ("param", "fn", "bound", "obj", "class")):
        return value
    is_flag = isinstance(value.const, bool) or value.sort == TEST
    kept = Value(value.dep, params, TEST if is_flag else None)
    old = frame.keeps.get(name)
    frame.keeps[name] = kept if old is None else either(old, kept)._replace(sort=TEST if is_flag else old.sort)
    return value._replace(params=value.params | params, const=UNKNOWN, sort=TEST if is_flag else value.sort)


def by_conditions(frame: Frame, value: Value) -> Value:
    """A flag that is set under conditions on what the function was given."""
    params = NO_PARAMS.union(*(c.value.params for c, *_ in frame.conditions))
    if not params or not isinstance(value.const, bool):
        return value
    return value._replace(params=value.params | params, const=UNKNOWN, sort=TEST)


def marks_of(frame: Frame) -> dict[tuple[int, str], Value]:
    """What a function sets on the objects that it is given, where that differs by what else it is given, or is agreed on."""
    marks = {}
    for at, parameter in enumerate(frame.function.parameters):
        if at or not frame.function.is_method:
            for path, v in frame.env.items():
                head, _, name = path.partition(".")
                if head == parameter and name in frame.marked and (v.dep & DIFFERS or v.params or v.sort == AGREED):
                    marks[at, name] = v
    return marks


def mark(frame: Passing, marks: dict[tuple[int, str], Value], given: dict[int, tuple[Expr, Value]]) -> None:
    """After a call, an object that was given to it has what was set there."""
    for (at, name), v in marks.items():
        of = given[at][0] if at in given else None
        by = mixed(*(given[i][1] for i in v.params if i in given))
        if isinstance(of, Ref) and (v.sort == AGREED or (v.dep | by.dep) & DIFFERS or by.params):
            sort = v.sort if v.sort in (AGREED, TEST) else None
            frame.assign(Ref(f"{of.path}.{name}"), Value((v.dep | by.dep) & DIFFERS, by.params, sort, v.zero), True)


def by_some(frame: Passing, sort: tuple[Any, ...], owner: str, alone: Value | None = None) -> None:
    """After a call of a method that some ranks alone make, its object has there what the method sets."""
    function = frame.link.project.function(sort[1], sort[2])
    causes = [c.value for c, *_ in frame.conditions] + ([alone] if alone is not None else [])
    by = next((c for c in causes if c.dep & RANK and c.zero is not None and not c.group), None)
    me = frame.ref(owner).sort if owner else None
    if me is None or me[0] != "obj" or function.name == "__init__":
        return
    for name in function.sets:
        path = f"{owner}.{name}"
        if by is None:
            if path in frame.env and frame.env[path].dep == RANK:
                del frame.env[path]
            continue
        set_there = frame.link.attribute(me, name) or Value()
        if set_there.sort in (None, TEST):
            is_flag = isinstance(set_there.const, bool) or set_there.sort == TEST
            frame.env[path] = Value(RANK, NO_PARAMS, TEST if is_flag else None)
            frame.link.of_first.add((frame.file, path))


def note_first(frame: Frame, path: str) -> None:
    """Remembers what is bound where the first rank alone comes, or where it does not."""
    causes = [c.value for c, *_ in frame.conditions] + (frame.stayed if "." in path else [])
    if not any(v.dep & RANK and v.zero is not None and not v.group for v in causes):
        frame.of_first.discard(path)
    elif "." not in path:
        frame.of_first.add(path)
    else:
        frame.link.of_first.add((frame.file, path))


def note_bar(frame: Frame, bar: Expr, made: Expr) -> None:
    """A progress bar that most ranks disable counts on the others only: `tqdm(..., disable=rank != 0)`, and then `bar.n`."""
    off = made.given("disable") if isinstance(made, Call) and name_of(made) in _BARS else None
    if off is not None and isinstance(bar, Ref):
        by = frame.value(off)
        if by.dep & RANK:
            frame.env[f"{bar.path}.n"] = Value(RANK, zero=by.zero)


def take_over(frame: Passing, owner: str, keeps: dict[str, Value], given: dict[int, tuple[Expr, Value]]) -> None:
    """After a call of a method, its object keeps what differs between ranks, if it was given that."""
    for name, kept in keeps.items():
        if kept.sort == OWN_KEYS:
            by = mixed(*(given[i][1] for i in kept.params if i in given))
            if by.dep & OWN_BATCH or any(given[i][1].sort == OWN_KEYS for i in kept.params if i in given):
                frame.env[f"{owner}.{name}"] = Value(UNEVEN, sort=OWN_KEYS)
                note_keys(frame, owner, name)
            elif owner == "self" and by.params:
                frame.keeps[name] = Value(0, by.params, OWN_KEYS)
            continue
        values = [given[i][1] for i in kept.params if i in given]
        by = mixed(*(v if v.sort != LENGTH else Value(0, v.params) for v in values))
        if owner == "self" and by.params:
            frame.keeps[name] = either(frame.keeps.get(name, Value()), Value(by.dep, by.params - {0}, kept.sort))
        if by.dep & (LOSS | MAYBE) or by.params:
            frame.env[f"{owner}.{name}"] = Value(
                by.dep & (LOSS | MAYBE), by.params if owner == "self" else NO_PARAMS, kept.sort
            )
