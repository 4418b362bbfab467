"""What comprehensions gather, and whether some ranks gather more, or in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.lint import sorts
from unhang.lint.ir import Const, Expr, Op, Ref
from unhang.lint.keeping import has_all_gradients
from unhang.lint.special import element, has_own_order, is_held, is_numbered, is_share, paths_in
from unhang.lint.values import DATA, LOCAL, NO_PARAMS, RANK, UNEVEN, Value

if TYPE_CHECKING:
    from unhang.lint.operators import Operators


def comprehension(frame: Operators, parts: list[Expr]) -> Value:
    """What is gathered by `[made for each of over if it is good]`."""
    before, dep, sort, mark = dict(frame.env), 0, None, len(frame.effects)
    ragged, params, group = False, NO_PARAMS, ""
    for loop in parts[1:]:
        assert isinstance(loop, Op)
        over = frame.value(loop.parts[1])
        dep |= over.dep & UNEVEN
        ragged |= over.kind in ("ragged", "set", "listing")
        frame.assign(loop.parts[0], element(over), is_certain=True)
        if over.kind == "sized" or over.sort in (sorts.PICKED, sorts.OWN_KEYS):
            sort = over.sort
        if has_own_order(over) and not is_numbered(" ".join(paths_in(loop.parts[1]))):
            sort = over.sort  # it comes in the order of the set
        if over.sort == ("share", "range") and over.dep & DATA:  # as many as its batch says
            dep, sort = dep | UNEVEN, over.sort
        for condition in loop.parts[2:]:
            test = frame.value(condition)
            asked, params = test.dep, params | test.params
            if asked & (RANK | LOCAL) or is_in_share(frame, condition):  # those of this rank
                dep, sort, group = dep | UNEVEN, sort or ("share", "picked"), group or test.group
            sort = sorts.FILLED if asked & DATA and sort is None else sort
            if is_held(condition, loop.parts[0]) and not has_all_gradients(frame, loop.parts[1]):
                sort = sorts.PICKED
        if is_share(over) and sort is None:
            sort = over.sort  # as many as there are in it
    before_it = len(frame.effects)
    pair = parts[0].parts if isinstance(parts[0], Op) and parts[0].op == "dict" else []
    if len(pair) == 2 and ragged and not isinstance(pair[0], Const):  # a word of the batch
        key = frame.value(pair[0])
        by, sort = key.dep & DATA, sorts.OWN_KEYS if key.dep & DATA or key.params else sort
        dep |= UNEVEN if by else 0
        params |= key.params if not by else NO_PARAMS
    made = frame.value(pair[1] if len(pair) == 2 else parts[0])
    if dep & UNEVEN and len(frame.effects) > before_it and isinstance(parts[1], Op):
        frame.uneven_part(Value(UNEVEN, sort=sort), parts[1].parts[1], mark)
    frame.env.clear()
    frame.env.update(before)
    if is_share(Value(dep, sort=sort)) and made.sort is not None and sort != ("share", "range"):
        sort = None
    if sort is not None and (sort[0] in ("picked", "share", "filled", "set", "listing", "own keys") or not made.sort):
        params |= made.params | (sort[1] if sort[0] == "sized" else NO_PARAMS)
        return Value(made.dep | dep, params, sort, None, group)
    return Value(made.dep | dep, made.params | params, ("many", made.sort) if made.sort else None)


def is_in_share(frame: Operators, condition: Expr) -> bool:
    """`name in mine`, where these are this rank's part of all."""
    match condition:
        case Op(op="in", parts=[_, Ref(path=path)]):
            return is_share(frame.ref(path))
    return False
