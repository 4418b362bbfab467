"""Findings that a caller decides: by what it gives, they are found, left, or handed on to its own callers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from unhang.lint import sorts
from unhang.lint.divergence import parts_members
from unhang.lint.graphs import head_of
from unhang.lint.ir import Const, Expr, Found, Function, Ref
from unhang.lint.special import has_own_order
from unhang.lint.tensors import OWN_PART, OWN_WIDTH
from unhang.lint.values import (
    DATA,
    DIFFERS,
    DOUBT,
    DRAWN,
    HELD,
    LOCAL,
    LONGEST,
    LOSS,
    MAYBE_NONE,
    MISSING,
    NO_PARAMS,
    NONE_BY_BATCH,
    OWN_BATCH,
    PLAIN,
    RANK,
    TOLD,
    Conditional,
    Given,
    Place,
    Raised,
    Value,
    mixed,
)

if TYPE_CHECKING:
    from unhang.lint.link import Link
    from unhang.lint.passing import Passing

_BY_BATCH = ("LNT107", "LNT108", "LNT115")
_ONE_RANK = Value(RANK, zero=True)


def plain_length(v: Value) -> Value:
    """How many rows a batch has is the same everywhere."""
    return Value(0, v.params) if v.sort == sorts.LENGTH else v


def as_drawn(v: Value) -> Value:
    """What is drawn by a generator that a call is given."""
    return Value(DRAWN) if v.sort == sorts.DRAWS else v


def worth(function: Function, given: Given, i: int) -> Value:
    """What parameter `i` is worth in a call: what is given, or else a plain default."""
    default = function.default_of(i) if i not in given else None
    return given[i][1] if i in given else Value(const=default.value) if isinstance(default, Const) else PLAIN


def raised_by_call(raises: frozenset[Raised], given: Given) -> set[Raised]:
    """What a call raises, by what it is given; what all have agreed on all raise."""
    out: set[Raised] = set()
    for name, dep, params in raises:
        is_agreed = not dep & ~TOLD and params and params <= given.keys()
        if is_agreed and all(given[i][1].sort == sorts.AGREED for i in params):
            out.add((name, TOLD, NO_PARAMS))
        if dep == TOLD and params:
            continue
        by = mixed(*(plain_length(given[i][1]) for i in params if i in given))
        if (dep | by.dep) & (DIFFERS | TOLD) or by.params:
            out.add((name, (dep | by.dep) & (DIFFERS | TOLD), by.params))
    return out


def part_of(frame: Passing, e: Expr, v: Value, name: str) -> Value:
    """What an attribute of what is given is worth, as far as the caller knows; a name says the same there and here."""
    told = isinstance(e, Ref) and f"{e.path}.{name}" in frame.env
    found = frame.ref(f"{e.path}.{name}") if told and isinstance(e, Ref) else PLAIN
    if not told and v.kind == "obj" and "." not in name:
        found = frame.link.attribute(v.sort, name) or PLAIN
    return found if found.dep & RANK else PLAIN


def settle(frame: Passing, conditional: Conditional, given: Given, place: Place) -> None:
    """Decides a finding that depends on what this call gives, or hands it on to our own callers."""
    if conditional.param in given:
        e, v = given[conditional.param]
        if not _is_settled(frame, conditional, e, v, place) and v.kind == "param":
            frame.later.append(conditional._replace(param=v.sort[1]))


def _is_settled(frame: Passing, conditional: Conditional, e: Expr, v: Value, place: Place) -> bool:
    """Reports what is found for sure; False: that is for the callers to say, if it is anything."""
    link, found = frame.link, conditional.found
    is_so: bool
    kind, _, asked = conditional.method.partition(":")
    if kind == "part":
        parts = [part_of(frame, e, v, name) for name in asked.split()]
        if v.kind == "param" and not any(p.dep & RANK for p in parts):
            return False
        if v.dep & DIFFERS != LOCAL:
            worth = v if v.dep & DIFFERS or len(parts) != 1 else parts[0]
            settle(frame, conditional._replace(method=""), {conditional.param: (e, worth)}, place)
        return True
    if kind == "missing":
        if v.kind != "param" and isinstance(v.const, tuple) and v.const[0] == "obj":
            _settle_missing(link, asked, v.const)
        return False
    if kind == "is set":
        is_so = has_own_order(v)
        found = replace(found, variant="listing" if v.kind == "listing" else "")
    elif kind == "is drawn":
        is_so = bool(v.dep & DRAWN) and not v.group
    elif kind == "is one of":
        is_so = v.sort == sorts.PART_GROUP
    elif kind == "is half":
        is_so = v.sort == sorts.HALF
        found = replace(found, line=place.line, column=place.column + 1)
    elif kind == "is head":
        layer = head_of(frame, e) if frame.function.name == "forward" else ""
        found = replace(found, words=found.words | {"collective": layer})
        is_so = bool(layer)
    elif kind == "is empty":
        is_so = v.kind == "ragged" or (v.sort in (None, sorts.COUNT) and v.dep & OWN_BATCH > 0)
    elif kind == "is ragged":
        is_so = v.kind == "ragged" or v.sort == sorts.PART or bool(v.sort is None and v.dep & LONGEST)
        how = str(v.sort[1]) if v.kind == "ragged" else OWN_PART if v.sort == sorts.PART else OWN_WIDTH
        words = {**found.words, "how": how}
        found = replace(found, line=place.line, column=place.column + 1, words=words)
    elif kind == "is None" and found.code == "LNT111":
        is_so = bool(v.dep & (NONE_BY_BATCH | MISSING)) or (v.sort == sorts.TEST and v.dep in (LOCAL, DRAWN))
    elif kind == "is None":
        if v.dep & MAYBE_NONE:
            is_told = v.zero is not None and not v.group  # it is there on the first rank, or on the others
            _report_given(link, conditional, place, doubt=DOUBT * (not is_told))
        return bool(v.dep & MAYBE_NONE)
    else:
        return _is_settled_by_call(frame, conditional, v) if kind else _is_settled_by_value(link, conditional, v, place)
    if is_so:
        link.report(place.path if kind in ("is half", "is ragged") else conditional.path, found)
    return is_so


def _is_settled_by_call(frame: Passing, conditional: Conditional, v: Value) -> bool:
    """A finding that is one if a method of what is given makes collectives."""
    found = conditional.found
    made = list(frame.link.made_by(v, conditional.method))
    if "rank" in found.words.get("by", ""):  # who is a member of a smaller group may be the condition
        made = [e for e in made if not e.group or e.param >= 0 or parts_members(found.words["parted"], e.group)]
    if made and made[0].param >= 0:
        frame.later.append(conditional._replace(param=made[0].param))
        return True
    if not made and found.code in _BY_BATCH:
        made, found = frame.layers(v, conditional.method), replace(found, code="LNT111", variant="")
    if made:
        words = {**found.words, "op": made[0].op, "hidden": made[0].hidden}
        frame.link.report(conditional.path, replace(found, words=words))
    return True


def _is_settled_by_value(link: Link, conditional: Conditional, v: Value, place: Place) -> bool:
    """A finding that is one if what is given differs between ranks."""
    code = conditional.found.code
    if code == "LNT114" and (v.dep & DATA or v.sort in (None, sorts.FILLED)):
        if v.dep & DATA and not v.dep & RANK:
            link.report(conditional.path, conditional.found)
        return True
    if v.dep & (DATA if code == "LNT111" else DIFFERS) and v.sort != sorts.LENGTH:
        is_first = v.zero is not None and not v.dep & ~(RANK | MAYBE_NONE)
        is_told = is_first and not v.group
        _report_given(link, conditional, place, v, DOUBT * (not is_told))
        return True
    if v.sort in (sorts.PICKED, sorts.FILLED):
        _report_given(link, conditional, place, Value(HELD if v.sort == sorts.PICKED else LOSS))
        return True
    return False


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
    if v.dep & RANK or found.code == "LNT111":
        code = found.code
    elif v.dep & DATA:
        code = "LNT107" if v.dep & (LOSS | HELD) else "LNT115"
    else:
        code = "LNT106"
    way = [(place.path, place.line, f"{place.text} is given a value that differs between ranks"), *found.way]
    link.report(place.path, Found(code, place.line, place.column + 1, found.words, way, calls=found.calls + doubt))
