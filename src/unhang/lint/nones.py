"""What is None on some ranks, and goes through functions that give something else then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unhang.lint.conditions import asked_for_itself
from unhang.lint.ir import Expr, Function
from unhang.lint.values import NO_PARAMS, UNKNOWN, Given, Summary, Value

if TYPE_CHECKING:
    from unhang.lint.divergence import Cause
    from unhang.lint.operators import Operators


def as_asked_for(frame: Operators, test: Expr, v: Value) -> Value:
    """What is None where a parameter is: `newest(folder) if folder else None`."""
    at = {frame.parameter(name) for name in asked_for_itself(test)}
    is_open = v.kind in ("", "none with") and len(at) == 1 and -1 not in at
    return v._replace(sort=("none with", *at)) if is_open else v


def given_with(function: Function, causes: Sequence[Cause], returned: Value) -> frozenset[int]:
    """The parameters of which a function gives back something else where they are None: it asks `folder is None`, or `not folder`."""
    at = frozenset(returned.sort[1:] if returned.kind == "none with" else ())
    for c in causes if returned.const is not UNKNOWN else ():
        is_plain = c.text.removeprefix("not ") in function.parameters and not c.value.dep
        at |= c.value.params if c.value.sort == ("none test",) or is_plain else NO_PARAMS
    return at


def as_given(result: Value, summary: Summary, given: Given) -> Value:
    """What a function gives that asks whether a parameter is there, and was given one of ours."""
    asked = [v.sort[1] for i, (_, v) in given.items() if i in summary.none_with and v.kind == "param"]
    return result._replace(sort=("none with", *asked)) if len(asked) == 1 and result.sort is None else result
