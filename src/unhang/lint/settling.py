"""Findings that a caller decides: by what it gives, they are found, left, or handed on to its own callers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unhang.lint.ir import Expr, Found, Ref
from unhang.lint.special import HALF, LENGTH, PICKED
from unhang.lint.tensors import OWN_WIDTH
from unhang.lint.values import (
    DATA,
    DIFFERS,
    DOUBT,
    FILLED,
    HELD,
    LOCAL,
    LONGEST,
    LOSS,
    MAYBE_NONE,
    MISSING,
    NONE_BY_BATCH,
    PLAIN,
    RANK,
    Conditional,
    Place,
    Value,
)

if TYPE_CHECKING:
    from unhang.lint.link import Link
    from unhang.lint.passing import Passing

_BY_BATCH = ("LNT107", "LNT108", "LNT115")
_ONE_RANK = Value(RANK, zero=True)


def part_of(frame: Passing, e: Expr, v: Value, name: str) -> Value:
    """What an attribute of what is given is worth, as far as the caller knows; a name says the same there and here."""
    told = isinstance(e, Ref) and f"{e.path}.{name}" in frame.env
    found = frame.ref(f"{e.path}.{name}") if told and isinstance(e, Ref) else PLAIN
    if not told and v.sort is not None and v.sort[0] == "obj" and "." not in name:
        found = frame.link.attribute(v.sort, name) or PLAIN
    return found if found.dep & RANK else PLAIN


def settle(frame: Passing, conditional: Conditional, given: dict[int, tuple[Expr, Value]], place: Place) -> None:
    """Decides a finding that depends on what this call gives."""
    link = frame.link
    if conditional.param not in given:
        return
    v = given[conditional.param][1]
    found = conditional.found
    if conditional.method.startswith(("part:", "missing:", "is set", "is ragged", "is half")):
        _settle_asked(frame, conditional, given, place)
    elif conditional.method == "is None":
        if found.code == "LNT111":
            if v.dep & (NONE_BY_BATCH | MISSING):
                link.report(conditional.path, found)
            elif v.sort is not None and v.sort[0] == "param":
                frame.later.append(conditional._replace(param=v.sort[1]))
        elif v.dep & MAYBE_NONE:
            is_told = v.zero is not None and not v.group  # it is there on the first rank, or on the others
            _report_given(link, conditional, place, doubt=DOUBT * (not is_told))
        elif v.sort is not None and v.sort[0] == "param":
            frame.later.append(conditional._replace(param=v.sort[1]))
    elif conditional.method:
        made = list(link.made_by(v, conditional.method))
        if made and made[0].param >= 0:
            frame.later.append(conditional._replace(param=made[0].param))
        elif not made and found.code in _BY_BATCH and (layer := frame.layers(v, conditional.method)):
            words = {**found.words, "op": layer[0].op, "hidden": layer[0].hidden}
            link.report(
                conditional.path, Found("LNT111", found.line, found.column, words, found.way, calls=found.calls)
            )
        elif made:
            words = {**found.words, "hidden": made[0].hidden, "op": made[0].op}
            link.report(conditional.path, Found(**{**_fields(found), "words": words}))
    elif found.code == "LNT114" and (v.dep & DATA or v.sort in (None, FILLED)):
        if v.dep & DATA and not v.dep & RANK:
            link.report(conditional.path, found)
    elif v.dep & (DATA if found.code == "LNT111" else DIFFERS) and v.sort != LENGTH:
        is_first = v.zero is not None and not v.dep & ~(RANK | MAYBE_NONE)
        is_told = is_first and not v.group
        _report_given(link, conditional, place, v, DOUBT * (not is_told))
    elif v.sort in (PICKED, FILLED):
        _report_given(link, conditional, place, Value(HELD if v.sort == PICKED else LOSS))
    elif v.sort is not None and v.sort[0] == "param":
        frame.later.append(conditional._replace(param=v.sort[1]))


def _settle_asked(frame: Passing, conditional: Conditional, given: dict[int, tuple[Expr, Value]], place: Place) -> None:
    """What is asked of a value other than whether it differs: an attribute of it, a part of a batch, a set, its size."""
    link, found, (e, v) = frame.link, conditional.found, given[conditional.param]
    parts = []
    if conditional.method.startswith("part:"):
        parts = [part_of(frame, e, v, name) for name in conditional.method[5:].split()]
        if v.sort is not None and v.sort[0] == "param" and not any(p.dep & RANK for p in parts):
            frame.later.append(conditional._replace(param=v.sort[1]))
        elif v.dep & DIFFERS != LOCAL:
            worth = v if v.dep & DIFFERS or len(parts) != 1 else parts[0]
            settle(frame, conditional._replace(method=""), {conditional.param: (e, worth)}, place)
    elif conditional.method.startswith("missing:"):
        if v.sort is not None and v.sort[0] == "param":
            frame.later.append(conditional._replace(param=v.sort[1]))
        elif isinstance(v.const, tuple) and v.const[0] == "obj":
            _settle_missing(link, conditional.method[8:], v.const)
    elif conditional.method == "is set":
        if v.sort == ("set",):
            link.report(conditional.path, found)
        elif v.sort is not None and v.sort[0] == "param":
            frame.later.append(conditional._replace(param=v.sort[1]))
    elif conditional.method == "is half":
        if v.sort == HALF:
            link.report(place.path, Found(found.code, place.line, place.column + 1, found.words))
        elif v.sort is not None and v.sort[0] == "param":
            frame.later.append(conditional._replace(param=v.sort[1]))
    elif conditional.method == "is ragged":
        if (v.sort is not None and v.sort[0] == "ragged") or (v.sort is None and v.dep & LONGEST):
            words = {**found.words, "how": OWN_WIDTH if v.sort is None else str(v.sort[1])}
            link.report(place.path, Found(found.code, place.line, place.column + 1, words))
        elif v.sort is not None and v.sort[0] == "param":
            frame.later.append(conditional._replace(param=v.sort[1]))


def _settle_missing(link: Link, which: str, inside: tuple[Any, ...]) -> None:
    """The forward of a wrapped module is given what some batches do not have."""
    target = link.project.method(inside[1], inside[2], "forward")
    if target is None:
        return
    parameters = link.project.function(*target).parameters
    for one in link.summary(*target).conditional:
        is_meant = one.param == int(which) + 1 if which.isdecimal() else parameters[one.param] == which
        if one.found.code == "LNT111" and one.method == "is None" and is_meant:
            link.report(one.path, one.found)


def _report_given(link: Link, conditional: Conditional, place: Place, v: Value = _ONE_RANK, doubt: int = DOUBT) -> None:
    """The caller decides, and decides by rank or by what else differs."""
    found = conditional.found
    code = (
        found.code
        if v.dep & RANK or found.code == "LNT111"
        else "LNT107"
        if v.dep & (LOSS | HELD)
        else "LNT115"
        if v.dep & DATA
        else "LNT106"
    )
    way = [(place.path, place.line, f"{place.text} is given a value that differs between ranks"), *found.way]
    link.report(place.path, Found(code, place.line, place.column + 1, found.words, way, calls=found.calls + doubt))


def _fields(found: Found) -> dict[str, Any]:
    return {name: getattr(found, name) for name in found.__struct_fields__}
