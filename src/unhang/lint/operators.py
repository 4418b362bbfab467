"""What expressions are worth, but for their calls: operators, items and slices, comparisons."""

from __future__ import annotations

import re

from unhang.lint import sorts, special
from unhang.lint.comprehensions import comprehension
from unhang.lint.conditions import (
    asks_for_others,
    asks_if_there,
    implied,
    is_choice,
    is_defined,
    is_fixed,
    is_never_a_rank,
)
from unhang.lint.doubts import works
from unhang.lint.graphs import is_half, note_use, parts_graphs
from unhang.lint.ir import Attr, Call, Const, Expr, Fn, Op, Ref
from unhang.lint.names import Names
from unhang.lint.nones import as_asked_for
from unhang.lint.picks import picked
from unhang.lint.samplers import is_evened, is_filled_up, is_part_of, is_rounded_up, is_turn
from unhang.lint.special import (
    COMPARISONS,
    as_test,
    is_agreed,
    is_empty_test,
    is_mask,
    is_share,
    is_step,
    keeps_length,
    line_of,
    name_of,
    paths_in,
    value_of_name,
)
from unhang.lint.tensors import is_compared, is_cut
from unhang.lint.unnamed import part_messages
from unhang.lint.values import (
    CHANCE,
    DATA,
    DIFFERS,
    DRAWN,
    FAILED,
    HELD,
    LOCAL,
    LONGEST,
    LOSS,
    MAYBE_NONE,
    MISSING,
    NO_PARAMS,
    NONE_BY_BATCH,
    OF_DATA,
    OWN_BATCH,
    OWN_STATE,
    PLAIN,
    RANK,
    UNEVEN,
    UNKNOWN,
    Value,
    either,
    is_of_data,
    mixed,
)

_OWN_GROUP = re.compile(r"(?:pp|tp|dp|mp|ep|cp|sp|pipe|pipeline|model|data|tensor|slice)(?:_parallel)?_(?:group|ranks)")
_DEVICES = {"gpu", "gpu_id", "local_gpu", "proc_id"}  # each process has that of its number on the node
_NO_ITEMS, _NO_WORDS = Op("seq", []), Op("dict", [])


class Operators(Names):
    """The part of a frame that evaluates, without the calls."""

    def call(self, node: Call) -> Value:
        """What a call gives, after it has taken effect."""
        raise NotImplementedError

    def conditional_part(self, condition: Value, line: int, mark: int, *tests: Expr, middle: int | None = None, text: str = "") -> None:  # fmt: skip
        """Effects from `mark` on are made only where a part of an expression is true, those from `middle` on only where it is not."""
        raise NotImplementedError

    def uneven_part(self, over: Value, source: Expr, mark: int) -> None:
        """Effects from `mark` on are made for each of some items, of which each rank has another number."""
        raise NotImplementedError

    def assign(self, target: Expr, value: Value, is_certain: bool = False) -> None:
        """Binds a name."""
        raise NotImplementedError

    def value(self, e: Expr) -> Value:
        """What an expression is worth; its calls take effect."""
        kind = type(e)
        if kind is Ref:
            return self.ref(e.path)  # type: ignore[union-attr]
        if kind is Const:
            return Value(const=e.value)  # type: ignore[union-attr]
        if kind is Call:
            return self.call(e)  # type: ignore[arg-type]
        if kind is Op:
            return self._op(e)  # type: ignore[arg-type]
        if kind is Attr:
            return self.attribute(self.value(e.base), e.name)  # type: ignore[union-attr]
        assert isinstance(e, Fn)
        self.link.closures[self.file, e.at] = self.env
        return Value(sort=("fn", self.file, e.at))

    def _op(self, e: Op) -> Value:
        op, parts = e.op, e.parts
        if op in ("and", "or"):
            return self._bool(op, parts)
        if op == "not":
            return self._not(parts[0])
        if op == "[]":
            return self.item(parts[0], parts[1])
        if op == "seq":
            values = [self.value(p) for p in parts]
            joined = mixed(*values)
            told = {v.sort for v in values} if values else {None}
            sort = ("tuple", tuple(values)) if len(values) <= 8 and (joined is not PLAIN or told != {None}) else None
            consts = [v.const for v in values]
            const = UNKNOWN if any(c is UNKNOWN for c in consts) or not consts else tuple(consts)
            return joined._replace(sort=sort, const=const)
        if op == "comp":
            note_use(self, [p.parts[1] for p in parts[1:] if isinstance(p, Op)])
            return comprehension(self, parts)
        if op == "if":
            return self._either(parts)
        if op == ":=":
            v = self.value(parts[1])
            self.assign(parts[0], v)
            return v
        if op in COMPARISONS:
            return comparison(self, op, parts)
        values = [v if v.sort != sorts.LENGTH else Value(0, v.params) for v in map(self.value, parts)]
        if op == "dict" and len(parts) > 2:  # the state of a part of it says nothing of the rest
            values = [PLAIN if name_of(p) == "state_dict" else v for p, v in zip(parts, values, strict=True)]
        joined = mixed(*values)
        if op == "dict" and joined is PLAIN and (table := special.table_of(parts, values)) is not None:
            return Value(sort=table)
        if is_agreed(values):
            return Value(sort=sorts.AGREED)
        if is_filled_up(op, parts):
            return Value(sort=sorts.PADDED)
        if op == "+" and isinstance(parts[0], Ref) and is_part_of(parts[1], parts[0]):  # filled up with its first items
            return joined._replace(sort=sorts.PADDED)
        if op in ("+", "-") and any(v.sort == sorts.SET for v in values):
            return joined._replace(sort=sorts.SET)
        outs = [v.sort for v in values if v.kind in ("out", "of") and op != "dict"]
        is_text = op == "str" or (op == "%" and isinstance(values[0].const, str))
        if is_text or (op in ("/", "+") and sorts.OWN_PATH in (values[0].sort, values[-1].sort)):
            return special.text_of(values, joined)
        if op == "%" and joined.dep & RANK and values[1].const is UNKNOWN:
            return Value(RANK, joined.params, ("modulo",))
        if is_rounded_up(op, parts) or (op in ("+", "*") and any(v.sort == sorts.ROUNDED_UP for v in values)):
            return joined._replace(sort=sorts.ROUNDED_UP)
        return joined._replace(sort=outs[0]) if outs else special.as_multiple(op, parts, joined)

    def _not(self, part: Expr) -> Value:
        """What `not part` is worth."""
        v = self.value(part)
        is_asked = v.kind == "none with" or v.dep == LOCAL or v.dep & NONE_BY_BATCH
        is_asked = is_asked or v.sort in (sorts.BLOCK, sorts.BLOCK_LENGTH)
        v = as_test(part, v) if is_asked else v
        if v.sort in (sorts.BLOCK_LENGTH, ("none test",)):
            return v
        const = UNKNOWN if v.const is UNKNOWN else not v.const
        if is_defined(part, v) and name_of(part) not in self.env:
            return Value(const=False, sort=sorts.CERTAIN)
        if v.sort in (sorts.COLLECTED, sorts.PICKED, sorts.FILLED, sorts.OWN_KEYS) and const is UNKNOWN:
            by = {sorts.COLLECTED: OWN_BATCH, sorts.PICKED: HELD, sorts.FILLED: LOSS, sorts.OWN_KEYS: LOSS}
            return Value(by[v.sort], sort=sorts.TEST)
        if v.sort == sorts.COUNT and v.dep & OWN_BATCH:
            return v._replace(dep=v.dep | LOSS, sort=sorts.TEST)
        sort = v.sort if v.sort in (sorts.AGREED, sorts.TEST, sorts.DEALT) else None
        return v._replace(sort=sort, zero=None if v.zero is None else not v.zero, const=const)

    def _bool(self, op: str, parts: list[Expr]) -> Value:
        joined: list[Value] = []
        stops_at = op == "or"
        for part in parts:
            condition = mixed(*joined) if joined else PLAIN
            mark = len(self.effects)
            v = as_test(part, self.value(part))
            if len(self.effects) > mark and (condition.dep & DIFFERS or condition.params):
                self.conditional_part(condition, line_of(part), mark, *parts[: parts.index(part)])
            if v.const is not UNKNOWN:
                if bool(v.const) == stops_at:
                    is_sure = not joined or bool(self.fixed) or v.sort == sorts.CERTAIN
                    return Value(const=v.const) if is_sure else mixed(*joined)._replace(const=UNKNOWN)
                continue
            joined.append(v)
            if not v.dep & DIFFERS and not is_never_a_rank(part) and not asks_for_others(part):
                self.uniform |= paths_in(part)
        if not joined:
            return Value(const=not stops_at)
        zeros = {v.zero for v in joined if v.dep & RANK}
        if op == "or" and zeros != {False} and any(map(is_choice, parts, joined)):
            zeros, joined = set(), [v._replace(dep=v.dep & ~(RANK | CHANCE | DRAWN), zero=None) for v in joined]
        if op == "and" and any(
            isinstance(p, Op) and p.op == "not" and is_choice(p.parts[0], v)
            for p, v in zip(parts, joined, strict=False)
        ):
            joined = [v._replace(dep=v.dep & ~(CHANCE | DRAWN)) for v in joined]
        asked = next((v.sort[1] for v in joined if v.kind == "param"), None)
        sort: tuple[object, ...] | None = ("with", asked) if op == "and" and asked is not None else None
        sort = ("none test",) if all(v.sort == ("none test",) for v in joined) else sort
        if sort is None and (
            any(v.dep & (DATA | OWN_STATE | CHANCE) for v in joined)
            or {v.sort for v in joined if v.dep or v.params} == {sorts.TEST}
        ):
            sort = sorts.TEST
        return mixed(*joined)._replace(zero=zeros.pop() if len(zeros) == 1 else None, sort=sort)

    def _either(self, parts: list[Expr]) -> Value:
        test = self.value(parts[0])
        if test.const is not UNKNOWN:
            return self.value(parts[1] if test.const else parts[2])
        mark, needs, says, messages = len(self.effects), self.needs, implied(self, parts[0]), len(self.messages)
        self.needs = needs | says[0]
        a = self.value(parts[1])
        middle, self.needs = len(self.effects), needs | says[1]
        b = self.value(parts[2])
        if len(self.effects) > mark and test.dep & DIFFERS:
            self.conditional_part(test, line_of(parts[1]) or line_of(parts[2]), mark, parts[0], middle=middle)
        self.needs = needs
        part_messages(self, test, paths_in(parts[0]), messages)
        if test.dep & RANK and test.zero is not None and works(parts[1:2]) != works(parts[2:3]):
            self.alone_before = min(paths_in(parts[0]), default="")
        both = either(a, b)
        if is_half(a, b) and parts_graphs(self, parts[0], test):
            both = both._replace(sort=sorts.HALF)
        is_of_batch = (a.dep | b.dep) & OWN_BATCH or any(
            special.is_batch(p.partition(".")[0]) for p in paths_in(parts[0])
        )
        may_miss = (a.const is None) != (b.const is None) and asks_if_there(parts[0], parts[1 + (a.const is None)])
        if may_miss and is_of_batch and not self.link.project.is_sorted_by(parts[0]):
            both = both._replace(dep=both.dep | MISSING)
        both = both if test.dep or (a.const is None) == (b.const is None) else as_asked_for(self, parts[0], both)
        if (a.dep ^ b.dep) & UNEVEN and test.kind == "param":  # of the caller's choice
            both = Value(both.dep & ~UNEVEN, both.params)
        differs = a.const is UNKNOWN or a.const != b.const
        dep = test.dep & DIFFERS if differs else 0
        dep |= UNEVEN if dep & RANK and any(p in (_NO_ITEMS, _NO_WORDS) for p in parts[1:]) else 0
        if dep & RANK and (a.const is None) != (b.const is None):
            dep |= MAYBE_NONE
        elif dep in (LOCAL, DRAWN) and (a.const is None) != (b.const is None):
            return Value(dep, both.params, sorts.TEST)  # it is None on some ranks
        if dep & RANK and any(name_of(p) == "len" for p in parts[1:]):
            return Value(RANK, sort=sorts.TAKEN)
        if dep & UNEVEN and both.sort in (None, ("many", sorts.BATCH)):
            both = both._replace(sort=("share", "side"))
        is_flag = (a.const is True and b.const is False) or (dep & MAYBE_NONE and b.const is None)
        params = both.params | (test.params if differs else NO_PARAMS)
        return both._replace(dep=both.dep | dep, params=params, zero=test.zero if is_flag else both.zero)

    def _is_own_part(self, index: Expr) -> bool:
        """`x[:, rank * n : (rank + 1) * n]`: the columns of this rank."""
        cuts = [p for p in index.parts if isinstance(p, Op) and p.op == ":"] if isinstance(index, Op) else []
        is_one = isinstance(index, Op) and index.op == "seq" and bool(cuts)
        return is_one and any(all(self.value(end).dep & RANK for end in p.parts[:2]) for p in cuts)

    def _slice(self, v: Value, index: Op, base: Expr) -> Value | None:
        """A part of a list or tensor, from one place to another; None: nothing is known of it."""
        lower, upper, step = (self.value(p) for p in index.parts)
        if upper.sort == sorts.AGREED and not lower.dep:  # as many as all have agreed on
            return Value(sort=sorts.PADDED)
        is_even = v.sort == sorts.PADDED or upper.sort == sorts.MULTIPLE or (lower.dep & RANK and is_evened(self, base))
        if lower.dep & RANK and not upper.dep & RANK and is_step(step) and not (is_even and v.dep):
            of = sorts.OWN_EVEN if is_even else ("share", "slice")
            return Value(UNEVEN * (not is_even), sort=of) if lower.sort != ("modulo",) else PLAIN
        if lower.dep & RANK and upper.kind == "rest" and v.sort != sorts.PADDED:
            is_longer = upper.sort == sorts.TAKEN and lower.sort != sorts.ROUNDED_UP
            return Value(UNEVEN, sort=sorts.LONGER if is_longer else ("share", "rest"))
        if lower.dep & RANK and upper.dep & RANK:
            if lower.sort == upper.sort == sorts.ROUNDED_UP and v.sort != sorts.PADDED:
                return Value(UNEVEN, sort=("share", "rest"))
            return Value(v.dep, v.params, sorts.BLOCK if v.sort != sorts.PADDED else None)
        if (part := special.sort_of_slice(upper, step)) is not None:
            return Value(v.dep, v.params, part)
        return v if v.kind == "many" else None

    def item(self, base: Expr, index: Expr) -> Value:
        """`base[index]`."""
        v = self.value(base)
        if v.sort == ("ext", "os.environ") and isinstance(index, Const):
            return value_of_name(str(index.value).lower())
        at = self.value(index)
        if isinstance(base, Ref) and _OWN_GROUP.fullmatch(base.path.rpartition(".")[2]) and "." in base.path:
            return Value(RANK)  # a rank of the group that this one is in
        if v.sort in (sorts.OWN_KEYS, sorts.BESIDE):
            return PLAIN
        if v.sort == sorts.OF_DRAWN:
            return v
        if v.kind in ("table", "mesh"):
            return special.in_table(v.sort, at)
        if v.kind == "words":  # of a batch
            of_word: Value = dict(v.sort[1]).get(at.const, Value(OWN_BATCH))
            return of_word
        if v.sort == ("parts",):
            return Value(UNEVEN, sort=sorts.PART) if at.dep & RANK else PLAIN
        if at.dep & RANK and (is_cut(base) or self._is_own_part(index)):
            return Value(LOSS)  # what is computed of it, this rank alone knows
        is_slice = isinstance(index, Op) and index.op == ":"
        if v.kind == "many" and not is_slice:
            return picked(v._replace(sort=v.sort[1]), at)
        if v.kind == "tuple":
            if isinstance(at.const, int) and -len(v.sort[1]) <= at.const < len(v.sort[1]):
                return v.sort[1][at.const]  # type: ignore[no-any-return]
            told = {x.sort for x in v.sort[1]}
            return v._replace(sort=told.pop() if len(told) == 1 else None)
        if special.is_one_of_indices(base, at) and v.kind == "ragged":
            is_each = self.loops > 0 and self.function.name == "forward"  # for each expert
            return v if v.dep & DATA or is_each else Value(v.dep, v.params)
        if v.sort == sorts.LENGTH and at.const is not UNKNOWN:  # columns: as many everywhere
            return PLAIN if at.const != 0 else v
        is_own = v.sort == sorts.AGREED and bool(at.dep & RANK)  # this rank's part of what all have
        if v.kind in ("out", "of", "agreed", "length") and not is_own:
            return v if keeps_length(index) else v._replace(dep=v.dep & ~(LONGEST | UNEVEN))
        if is_slice and isinstance(index, Op) and (part := self._slice(v, index, base)) is not None:
            return part
        if isinstance(index, Op) and index.op == "seq" and special.is_column(index):
            return Value(v.dep, v.params, ("odd", "strided"))
        if is_share(at):
            return Value(UNEVEN, sort=at.sort)
        is_test = at.sort == sorts.TEST and bool(at.dep & DATA or at.params) if isinstance(index, Ref) else False
        if is_test or is_mask(index) or is_compared(self.function, index):
            return Value(v.dep, v.params, ("ragged", "a boolean mask"))
        dep = v.dep & ~LOCAL if isinstance(at.const, str) else v.dep  # another word of it may be the time
        if not v.dep and not v.params and v.sort in (None, sorts.TEST) and not is_slice:  # what is picked by an item
            is_plain = at.kind == "param" or at.sort == sorts.DRAW
            dep, v = at.dep & OWN_BATCH, Value(params=at.params) if is_plain else PLAIN
        dep |= at.dep & (DRAWN | (OWN_BATCH if at.sort == sorts.BATCH else 0))  # what is picked in an order of its own
        params = v.params | at.params if at.sort == sorts.DRAW else v.params
        return Value(dep, params) if dep or params else PLAIN


def comparison(frame: Operators, op: str, parts: list[Expr]) -> Value:
    """What a comparison is worth: a condition on the rank, on the batch, or nothing that differs."""
    a, b = frame.value(parts[0]), frame.value(parts[1])
    if is_defined(parts[0], a) and name_of(parts[0]) not in frame.env and isinstance(b.const, str):
        return Value(const=op == "!=", sort=sorts.CERTAIN)  # a function is no text
    if a.const is not UNKNOWN and b.const is not UNKNOWN and not is_fixed(frame, parts[0]):
        return PLAIN
    if is_agreed([a, b]):
        return Value(sort=sorts.AGREED)
    # `os.getpid() != self.pid`: whether this is another process than before.
    is_fork = op in ("==", "!=") and any(name_of(p) == "getpid" for p in parts)
    if is_fork or (a.sort in sorts.RANKS and b.sort in sorts.RANKS):
        return PLAIN  # a rank and another one: who is a member, perhaps
    if op in ("in", "not in") and (isinstance(a.const, str) or (a.dep == LOCAL and not b.dep)):
        return Value(params=b.params)  # a process asks for its own number in a table of its own
    if sorts.LENGTH in (a.sort, b.sort) and not is_empty_test(op, b.const if a.sort == sorts.LENGTH else a.const):
        return Value(0, b.params if a.sort == sorts.LENGTH else a.params)
    if sorts.BLOCK_LENGTH in (a.sort, b.sort):
        is_asked = is_empty_test(op, b.const if a.sort == sorts.BLOCK_LENGTH else a.const)
        return Value(RANK, sort=sorts.BLOCK_LENGTH) if is_asked else Value(params=a.params | b.params)
    if sorts.COUNT in (a.sort, b.sort) and is_empty_test(op, b.const if a.sort == sorts.COUNT else a.const):
        return Value(a.dep | b.dep | LOSS, a.params | b.params, sorts.TEST)
    if op in ("is", "is not") and None in (a.const, b.const):
        tested = a if b.const is None else b
        if tested.dep & NONE_BY_BATCH:
            return Value(LOSS, sort=sorts.TEST)
        if tested.dep in (LOCAL, DRAWN) and tested.sort == sorts.TEST:  # what the handler of a signal leaves there
            return tested
        if tested.sort == sorts.BATCH:
            return Value(OWN_BATCH, sort=sorts.TEST)
        if tested.kind == "none with" and not tested.dep:
            return as_test(parts[0], tested)
        if tested.dep & FAILED:
            return Value(FAILED)
        if tested.const is None and is_fixed(frame, parts[0]):
            return Value(const=op == "is")
        if isinstance(parts[0], Ref) and parts[0].path.endswith(".grad"):
            frame.link.asks_grads.add((frame.file, frame.at))
            if frame.link.skips_layers:  # those of layers that this rank's batch did not touch have none
                return Value(HELD, sort=sorts.TEST)
        if tested.dep & MAYBE_NONE:
            return Value(RANK, zero=tested.zero if op == "is not" else None if tested.zero is None else not tested.zero)
        return Value(params=tested.params, sort=("none test",)) if tested.params else PLAIN
    if name_of(parts[0]) in _DEVICES and isinstance(parts[0], Ref) and b.const == 0:
        return Value(RANK, zero=op in ("==", "is"))
    if op in ("in", "not in") and b.sort == sorts.OWN_KEYS and b.dep & LOCAL:
        return Value(LOCAL, sort=sorts.TEST)
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
    is_test = joined.params and not joined.dep  # what the caller gives decides
    is_test = is_test or is_of_data(joined) or joined.dep in (LOCAL, CHANCE, DRAWN)
    return joined._replace(sort=sorts.TEST if is_test else sorts.DEALT if is_turn(frame, op, parts, joined) else None)
