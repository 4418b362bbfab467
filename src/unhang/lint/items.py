"""What is taken out of something: an item, a slice, an attribute of one of several."""

from __future__ import annotations

import re
from typing import Any

from unhang.lint import special
from unhang.lint.expressions import Expressions
from unhang.lint.ir import Const, Expr, Op, Ref
from unhang.lint.special import (
    BESIDE,
    BLOCK,
    COMPARISONS,
    LENGTH,
    PADDED,
    REST,
    ROUNDED_UP,
    TEST,
    is_mask,
    is_share,
    is_step,
    keeps_length,
    value_of_name,
)
from unhang.lint.values import AGREED, DATA, LOCAL, LONGEST, OWN_BATCH, OWN_KEYS, PLAIN, RANK, UNEVEN, UNKNOWN, Value

_OWN_GROUP = re.compile(r"(?:pp|tp|dp|mp|ep|cp|sp|pipe|pipeline|model|data|tensor|slice)(?:_parallel)?_(?:group|ranks)")


class Items(Expressions):
    """The part of a frame that takes something out of what it has."""

    def of_one(self, sorts: tuple[tuple[Any, ...], ...], name: str) -> Value:
        """An attribute of one of several objects; of methods, the one that makes collectives."""
        found = [v for s in sorts if (v := self.attribute(Value(sort=s), name)).sort is not None or v.dep]
        bound = [v.sort for v in found if v.sort is not None and v.sort[0] == "bound"]
        if bound:
            return Value(sort=self.link.maker(bound))
        return found[0] if found else PLAIN

    def item(self, base: Expr, index: Expr) -> Value:
        """`base[index]`."""
        v = self.value(base)
        if v.sort == ("ext", "os.environ") and isinstance(index, Const):
            return value_of_name(str(index.value).lower())
        at = self.value(index)
        if isinstance(base, Ref) and _OWN_GROUP.fullmatch(base.path.rpartition(".")[2]) and "." in base.path:
            return Value(RANK)  # a rank of the group that this one is in
        if v.sort in (OWN_KEYS, BESIDE):
            return PLAIN
        if v.sort is not None and v.sort[0] == "table":
            return special.in_table(v.sort, at)
        if v.sort is not None and v.sort[0] == "words":  # of a batch
            of_word: Value = dict(v.sort[1]).get(at.const, Value(OWN_BATCH))
            return of_word
        if v.sort == ("parts",):
            return Value(UNEVEN, sort=("share", "part")) if at.dep & RANK else PLAIN
        is_slice = isinstance(index, Op) and index.op == ":"
        if v.sort is not None and v.sort[0] == "many" and not is_slice:
            return v._replace(sort=v.sort[1])
        if v.sort is not None and v.sort[0] == "tuple":
            if isinstance(at.const, int) and -len(v.sort[1]) <= at.const < len(v.sort[1]):
                return v.sort[1][at.const]  # type: ignore[no-any-return]
            sorts = {x.sort for x in v.sort[1]}
            return v._replace(sort=sorts.pop() if len(sorts) == 1 else None)
        if special.is_one_of_indices(base, at) and v.sort is not None and v.sort[0] == "ragged":
            is_each = self.loops > 0 and self.function.name == "forward"  # for each expert
            return v if v.dep & DATA or is_each else Value(v.dep, v.params)
        if v.sort == LENGTH and at.const is not UNKNOWN:  # columns: as many everywhere
            return PLAIN if at.const != 0 else v
        is_own = v.sort == AGREED and bool(at.dep & RANK)  # this rank's part of what all have
        if v.sort is not None and v.sort[0] in ("out", "of", "agreed", "length") and not is_own:
            return v if keeps_length(index) else v._replace(dep=v.dep & ~LONGEST)
        if is_slice and isinstance(index, Op):
            lower, upper, step = (self.value(p) for p in index.parts)
            if lower.dep & RANK and not upper.dep & RANK and is_step(step) and v.sort != ("padded",):
                return Value(UNEVEN, sort=("share", "slice")) if lower.sort != ("modulo",) else PLAIN
            if lower.dep & RANK and upper.sort == REST and v.sort != PADDED:
                return Value(UNEVEN, sort=("share", "rest"))
            if lower.dep & RANK and upper.dep & RANK and lower.sort == upper.sort == ROUNDED_UP and v.sort != PADDED:
                return Value(UNEVEN, sort=("share", "rest"))
            if lower.dep & RANK and upper.dep & RANK:
                return Value(v.dep, v.params, BLOCK if v.sort != PADDED else None)
            if (part := special.sort_of_slice(upper, step)) is not None:
                return Value(v.dep, v.params, part)
            if v.sort is not None and v.sort[0] == "many":
                return v
        if isinstance(index, Op) and index.op == "seq" and special.is_column(index):
            return Value(v.dep, v.params, ("odd", "strided"))
        if is_share(at):
            return Value(UNEVEN, sort=at.sort)
        is_test = at.sort == TEST and bool(at.dep & DATA or at.params) if isinstance(index, Ref) else False
        if is_test or is_mask(index) or (isinstance(index, Op) and index.op in COMPARISONS):
            return Value(v.dep, v.params, ("ragged", "a boolean mask"))
        dep = v.dep & ~LOCAL if isinstance(at.const, str) else v.dep  # another word of it may be the time
        if not v.dep and not v.params and v.sort in (None, TEST) and not is_slice:  # what is picked by an item
            is_plain = at.sort is not None and at.sort[0] == "param"
            dep, v = at.dep & OWN_BATCH, Value(params=at.params) if is_plain else PLAIN
        return Value(dep, v.params) if dep or v.params else PLAIN
