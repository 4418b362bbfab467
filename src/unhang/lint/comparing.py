"""Comparisons: what they say of the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.lint.conditions import is_defined, is_device, is_fork_test
from unhang.lint.ir import Expr, Ref
from unhang.lint.special import (
    BATCH,
    BLOCK_LENGTH,
    CERTAIN,
    COUNT,
    LENGTH,
    OF_DATA,
    RANKS,
    TEST,
    is_agreed,
    is_empty_test,
    name_of,
)
from unhang.lint.values import (
    AGREED,
    CHANCE,
    DATA,
    FAILED,
    HELD,
    LOCAL,
    LOSS,
    MAYBE_NONE,
    NONE_BY_BATCH,
    OWN_BATCH,
    OWN_KEYS,
    PLAIN,
    RANK,
    UNKNOWN,
    Value,
    is_of_data,
    mixed,
)

if TYPE_CHECKING:
    from unhang.lint.expressions import Expressions


def is_fixed(frame: Expressions, e: Expr) -> bool:
    """Whether it is a parameter for which a caller has given this constant."""
    return isinstance(e, Ref) and e.path in frame.fixed


def comparison(frame: Expressions, op: str, parts: list[Expr]) -> Value:
    """What a comparison is worth: a condition on the rank, on the batch, or nothing that differs."""
    a, b = frame.value(parts[0]), frame.value(parts[1])
    if is_defined(parts[0], a) and name_of(parts[0]) not in frame.env and isinstance(b.const, str):
        return Value(const=op == "!=", sort=CERTAIN)  # a function is no text
    if a.const is not UNKNOWN and b.const is not UNKNOWN and not is_fixed(frame, parts[0]):
        return PLAIN
    if is_agreed([a, b]):
        return Value(sort=AGREED)
    if is_fork_test(op, parts) or (a.sort in RANKS and b.sort in RANKS):
        return PLAIN  # a rank and another one: who is a member, perhaps
    if op in ("in", "not in") and (isinstance(a.const, str) or (a.dep == LOCAL and not b.dep)):
        return Value(params=b.params)  # a process asks for its own number in a table of its own
    if LENGTH in (a.sort, b.sort) and not is_empty_test(op, b.const if a.sort == LENGTH else a.const):
        return Value(0, b.params if a.sort == LENGTH else a.params)
    if BLOCK_LENGTH in (a.sort, b.sort):
        is_asked = is_empty_test(op, b.const if a.sort == BLOCK_LENGTH else a.const)
        return Value(RANK, sort=BLOCK_LENGTH) if is_asked else Value(params=a.params | b.params)
    if COUNT in (a.sort, b.sort) and is_empty_test(op, b.const if a.sort == COUNT else a.const):
        return Value(a.dep | b.dep | LOSS, a.params | b.params, TEST)
    if op in ("is", "is not") and None in (a.const, b.const):
        tested = a if b.const is None else b
        if tested.dep & NONE_BY_BATCH:
            return Value(LOSS, sort=TEST)
        if tested.dep == LOCAL and tested.sort == TEST:  # what the handler of a signal leaves there
            return tested
        if tested.sort == BATCH:
            return Value(OWN_BATCH, sort=TEST)
        if tested.dep & FAILED:
            return Value(FAILED)
        if tested.const is None and is_fixed(frame, parts[0]):
            return Value(const=op == "is")
        if isinstance(parts[0], Ref) and parts[0].path.endswith(".grad"):
            frame.link.asks_grads.add((frame.file, frame.at))
            if frame.link.skips_layers:  # those of layers that this rank's batch did not touch have none
                return Value(HELD, sort=TEST)
        if tested.dep & MAYBE_NONE:
            return Value(RANK, zero=tested.zero if op == "is not" else None if tested.zero is None else not tested.zero)
        return Value(params=tested.params, sort=("none test",)) if tested.params else PLAIN
    if is_device(parts[0]) and b.const == 0:
        return Value(RANK, zero=op in ("==", "is"))
    if op in ("in", "not in") and b.sort == OWN_KEYS and b.dep & LOCAL:
        return Value(LOCAL, sort=TEST)
    if op in ("in", "not in") and b.dep & DATA:  # which keys there are is the same for all batches
        b = b._replace(dep=b.dep & ~DATA)
    joined = mixed(a, b)
    number = b if a.dep & RANK else a
    if joined.dep & RANK:
        if number.const in (-1, "-1", None) or (number.const == 0 and op in (">=", "<") and a.dep & RANK):
            return PLAIN
        is_zero = number.const in (0, "0") or (isinstance(number.const, tuple) and 0 in number.const)
        if is_zero and not joined.dep & OF_DATA:
            joined = joined._replace(zero=op in ("==", "in", "<=", "is"))
    is_open = joined.params and not joined.dep  # what the caller gives decides
    return joined._replace(sort=TEST) if is_open or is_of_data(joined) or joined.dep in (LOCAL, CHANCE) else joined
