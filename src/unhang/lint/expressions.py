"""What an expression is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unhang.lint import known, special
from unhang.lint.comparing import comparison
from unhang.lint.conditions import asks_for_others, asks_if_there, implied, is_choice, is_defined, is_never_a_rank
from unhang.lint.doubts import works
from unhang.lint.filling import comprehension
from unhang.lint.graphs import is_half, parts_graphs
from unhang.lint.ir import Attr, Call, Const, Expr, Fn, Function, Op, Ref
from unhang.lint.samplers import is_filled_up, is_part_of, is_rounded_up
from unhang.lint.special import (
    BATCH,
    BLOCK_LENGTH,
    CERTAIN,
    COLLECTED,
    COMPARISONS,
    COUNT,
    HALF,
    LENGTH,
    OWN_PATH,
    PADDED,
    PICKED,
    REST,
    ROUNDED_UP,
    TEST,
    as_test,
    is_a_rank,
    is_agreed,
    is_in_flight,
    line_of,
    name_of,
    paths_in,
    value_of_name,
)
from unhang.lint.values import (
    AGREED,
    CHANCE,
    DATA,
    DIFFERS,
    FILLED,
    HELD,
    LOCAL,
    LONGEST,
    LOSS,
    MAYBE_NONE,
    MISSING,
    NO_PARAMS,
    NONE_BY_BATCH,
    OWN_BATCH,
    OWN_KEYS,
    PLAIN,
    RANK,
    RAW,
    UNEVEN,
    UNKNOWN,
    Conditional,
    Effect,
    Kept,
    Needs,
    Raised,
    Value,
    either,
    mixed,
)  # fmt: skip

if TYPE_CHECKING:
    from unhang.lint.branches import Exit
    from unhang.lint.divergence import Cause
    from unhang.lint.link import Link

_TENSOR_FACTS = {"shape", "dtype", "device", "ndim", "requires_grad", "size", "dim", "training", "is_cuda"}
_NO_ITEMS, _NO_WORDS = Op("seq", []), Op("dict", [])
_OF_TOKENS = {"logits", "hidden_states", "last_hidden_state"}  # of an output: as long as the longest sequence


class Expressions:
    """The part of a frame that evaluates, without the calls. `env`: names (and attributes that were set here) -> values."""

    link: Link
    function: Function
    file: int
    at: int
    path: str
    env: dict[str, Value]
    outer: dict[str, Value]
    effects: list[Effect]
    needs: Needs
    forwards: int  # of wrapped modules so far
    own_reads: int  # of files that this rank has for itself, so far
    guesses: int  # how many calls around are of objects whose class was told by a name alone
    later: list[Conditional]
    conditions: list[tuple[Cause, int, int]]
    no_sync: int
    loops: int
    unified: set[int]
    wraps: dict[int, Value]
    keeps: dict[str, Value]
    puts: dict[Kept, bool]
    ways_out: list[Exit]
    alone: dict[int, Value]  # parameters that some ranks alone call
    uniform: set[str]
    fixed: set[str]
    alone_before: str  # the condition under which some ranks alone have read or written something
    raises: set[Raised]

    def parameter(self, name: str) -> int:
        """The number of the parameter that a name still is; -1: it is none, or was bound anew."""
        raise NotImplementedError

    def emit(self, effect: Effect) -> None:
        """A collective is made here."""
        raise NotImplementedError

    def ask(self, sort: tuple[Any, ...], name: str) -> None:
        """A property of an object is asked for."""
        raise NotImplementedError

    def ask_alike(self, owner: str, name: str) -> None:
        """A property is asked for of what nobody knows, which is called like its class."""
        raise NotImplementedError

    def item(self, base: Expr, index: Expr) -> Value:
        """`base[index]`."""
        raise NotImplementedError

    def of_one(self, sorts: tuple[tuple[Any, ...], ...], name: str) -> Value:
        """An attribute of one of several objects."""
        raise NotImplementedError

    def conditional_part(self, condition: Value, line: int, mark: int, *tests: Expr) -> None:
        """Effects from `mark` on are made only where a part of an expression is true."""
        raise NotImplementedError

    def uneven_part(self, over: Value, source: Expr, mark: int) -> None:
        """Effects from `mark` on are made for each of some items, of which each rank has another number."""
        raise NotImplementedError

    def found_in_call(self, name: str, full: str, node: Call, args: list[Value]) -> None:
        """The rules that look at single calls."""
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

    def ref(self, path: str) -> Value:
        """The value of a name, or of an attribute of one."""
        env = self.env
        found = env.get(path)
        if found is not None:
            return found
        head, dot, rest = path.partition(".")
        value = env.get(head) or self._from_outside(head) or self.link.top(self.file, head)
        if path.endswith(("args.should_save", "args.should_log")):  # of the arguments of transformers
            return Value(RANK, zero=True)
        if not dot or path.lower().endswith("lora.rank"):  # of a matrix
            return value if not dot else PLAIN
        prefix = head
        for name in rest.split("."):
            if name in self.link.meeting_properties and (value.sort is None or value.sort[0] == "param"):
                self.ask_alike(prefix, name)
            prefix = f"{prefix}.{name}"
            value = env.get(prefix) or self.attribute(value, name)
        if value.sort == ("rank",) and not value.group and head != prefix.rpartition(".")[0]:  # the rank in `self.gang`
            return value._replace(group=path.rpartition(".")[0])
        return value

    def _from_outside(self, name: str) -> Value | None:
        """A name of the function around this one; its parameters are not ours."""
        value = self.outer.get(name)
        if value is None or not (value.params or (value.sort is not None and value.sort[0] in ("param", "of"))):
            return value
        return value._replace(
            params=NO_PARAMS, sort=None if value.sort and value.sort[0] in ("param", "of") else value.sort
        )

    def attribute(self, v: Value, name: str) -> Value:
        """An attribute of a value."""
        sort = v.sort
        if sort == AGREED:
            return v
        if name in self.link.flags and not self.link.project.is_method(name):
            return Value(LOCAL, sort=TEST)
        if name == "module" and (sort is None or sort[0] in ("wrap", "param", "raw", "obj")):
            kept = self.link.attribute(sort, name) if sort is not None and sort[0] == "obj" else None
            return kept if kept is not None and kept.sort is not None and kept.sort[0] == "wrap" else Value(sort=RAW)
        if sort is not None:
            kind = sort[0]
            if kind == "one of":
                return self.of_one(sort[1], name)
            if kind == "ext":
                full = f"{sort[1]}.{name}"
                return Value(sort=("ext", full)) if not is_a_rank(name, full) else value_of_name(name)
            if kind == "mod":
                return self.link.of_module(sort[1], name)
            if kind in ("obj", "super", "class"):
                if name in self.link.meeting_properties:
                    self.ask(sort, name)
                found = self.link.attribute(sort, name)
                if found is None and kind == "class" and name == "apply":  # of an autograd function
                    at = self.link.project.method(sort[1], sort[2], "forward")
                    if at is not None and self.link.project.function(*at).has_context:
                        return Value(sort=("bound", *at))
                if found is not None:
                    if name in _TENSOR_FACTS:
                        return found._replace(dep=found.dep & ~DATA)
                    is_open = found.sort is None and not found.dep and is_in_flight(name)
                    return Value(LOCAL, sort=TEST) if is_open else found
            elif kind in ("out", "of") and name not in _TENSOR_FACTS:
                return v._replace(dep=v.dep | LONGEST) if name in _OF_TOKENS else v
            elif kind == "param" and known.rank_kind(name) is None and name not in _TENSOR_FACTS:
                return self.link.wrapper_of(self.file, name) or Value(v.dep & DATA, v.params)
        if name in _TENSOR_FACTS:
            if name == "shape" and (v.dep & DATA or v.params) and (sort is None or sort[0] not in ("out", "of")):
                part = LOSS if sort is None and v.dep & OWN_BATCH else 0
                return Value(v.dep & DATA | part, v.params, LENGTH if sort is None or sort[0] != "ragged" else None)
            return Value(0, v.params) if v.params else PLAIN
        if name == "T":
            return Value(v.dep, v.params, ("odd", "transposed"))
        by_name = value_of_name(name)
        if by_name.dep or (by_name.sort is not None and not v.dep and not v.params):
            return by_name
        if (
            (sort is None or sort[0] == "obj")
            and not v.dep
            and (kept := self.link.wrapper_of(self.file, name)) is not None
        ):
            return kept
        return Value(v.dep & ~(RANK | UNEVEN), v.params) if v.dep or v.params else PLAIN

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
            sorts = {v.sort for v in values} if values else {None}
            sort = ("tuple", tuple(values)) if len(values) <= 8 and (joined is not PLAIN or sorts != {None}) else None
            consts = [v.const for v in values]
            const = UNKNOWN if any(c is UNKNOWN for c in consts) or not consts else tuple(consts)
            return joined._replace(sort=sort, const=const)
        if op == "comp":
            return comprehension(self, parts)
        if op == "if":
            return self._either(parts)
        if op == ":=":
            v = self.value(parts[1])
            self.assign(parts[0], v)
            return v
        if op in COMPARISONS:
            return comparison(self, op, parts)
        values = [v if v.sort != LENGTH else Value(0, v.params) for v in map(self.value, parts)]
        if op == "dict" and len(parts) > 2:  # the state of a part of it says nothing of the rest
            values = [PLAIN if name_of(p) == "state_dict" else v for p, v in zip(parts, values, strict=True)]
        joined = mixed(*values)
        if op == "dict" and joined is PLAIN and (table := special.table_of(parts, values)) is not None:
            return Value(sort=table)
        if is_agreed(values):
            return Value(sort=AGREED)
        if is_filled_up(op, parts):
            return Value(sort=PADDED)
        if op == "+" and isinstance(parts[0], Ref) and is_part_of(parts[1], parts[0]):  # filled up with its first items
            return joined._replace(sort=PADDED)
        if op in ("+", "-") and any(v.sort == ("set",) for v in values):
            return joined._replace(sort=("set",))
        outs = [v.sort for v in values if v.sort is not None and v.sort[0] in ("out", "of")]
        if outs and op == "dict":
            outs = []
        if op == "str" or (op in ("/", "+") and OWN_PATH in (values[0].sort, values[-1].sort)):
            return special.text_of(values, joined)
        if op == "%" and joined.dep & RANK and values[1].const is UNKNOWN:
            return Value(RANK, joined.params, ("modulo",))
        if is_rounded_up(op, parts) or (op in ("+", "*") and any(v.sort == ROUNDED_UP for v in values)):
            return joined._replace(sort=ROUNDED_UP)
        return joined._replace(sort=outs[0]) if outs else special.as_multiple(op, parts, joined)

    def _not(self, part: Expr) -> Value:
        """What `not part` is worth."""
        v = self.value(part)
        is_asked = v.dep == LOCAL or v.dep & NONE_BY_BATCH or v.sort == BLOCK_LENGTH
        v = as_test(part, v) if is_asked else v
        if v.sort == BLOCK_LENGTH:
            return v
        const = UNKNOWN if v.const is UNKNOWN else not v.const
        if is_defined(part, v) and name_of(part) not in self.env:
            return Value(const=False, sort=CERTAIN)
        if v.sort in (COLLECTED, PICKED, FILLED, OWN_KEYS):
            by = {COLLECTED: OWN_BATCH, PICKED: HELD, FILLED: LOSS, OWN_KEYS: LOSS}
            return Value(by[v.sort], sort=TEST)
        if v.sort == COUNT and v.dep & OWN_BATCH:
            return v._replace(dep=v.dep | LOSS, sort=TEST)
        return v._replace(sort=None, zero=None if v.zero is None else not v.zero, const=const)

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
                    is_sure = not joined or bool(self.fixed) or v.sort == CERTAIN
                    return Value(const=v.const) if is_sure else mixed(*joined)._replace(const=UNKNOWN)
                continue
            joined.append(v)
            if not v.dep & DIFFERS and not is_never_a_rank(part) and not asks_for_others(part):
                self.uniform |= paths_in(part)
        if not joined:
            return Value(const=not stops_at)
        if op == "or" and any(is_choice(p, v) for p, v in zip(parts, joined, strict=False)):
            joined = [v._replace(dep=v.dep & ~(RANK | CHANCE), zero=None) for v in joined]
        if op == "and" and any(
            isinstance(p, Op) and p.op == "not" and is_choice(p.parts[0], v)
            for p, v in zip(parts, joined, strict=False)
        ):
            joined = [v._replace(dep=v.dep & ~CHANCE) for v in joined]
        zeros = {v.zero for v in joined if v.dep & RANK}
        asked = next((v.sort[1] for v in joined if v.sort is not None and v.sort[0] == "param"), None)
        sort: tuple[object, ...] | None = ("with", asked) if op == "and" and asked is not None else None
        sort = ("none test",) if all(v.sort == ("none test",) for v in joined) else sort
        if sort is None and (
            any(v.dep & (DATA | LOCAL | CHANCE) for v in joined) or all(v.sort == TEST for v in joined)
        ):
            sort = TEST
        return mixed(*joined)._replace(zero=zeros.pop() if len(zeros) == 1 else None, sort=sort)

    def _either(self, parts: list[Expr]) -> Value:
        test = self.value(parts[0])
        if test.const is not UNKNOWN:
            return self.value(parts[1] if test.const else parts[2])
        mark, needs, says = len(self.effects), self.needs, implied(self, parts[0])
        self.needs = needs | says[0]
        a = self.value(parts[1])
        if len(self.effects) > mark and test.dep & DIFFERS:
            self.conditional_part(test, line_of(parts[1]), mark, parts[0])
        self.needs = needs | says[1]
        b = self.value(parts[2])
        self.needs = needs
        if test.dep & RANK and test.zero is not None and works(parts[1:2]) != works(parts[2:3]):
            self.alone_before = min(paths_in(parts[0]), default="")
        both = either(a, b)
        if is_half(a, b) and parts_graphs(self, parts[0], test):
            both = both._replace(sort=HALF)
        if (
            (a.const is None) != (b.const is None)
            and asks_if_there(parts[0], parts[2] if a.const is None else parts[1])
            and ((a.dep | b.dep) & OWN_BATCH or any(special.is_batch(p.partition(".")[0]) for p in paths_in(parts[0])))
            and not self.link.project.is_sorted_by(parts[0])
        ):
            both = both._replace(dep=both.dep | MISSING)
        if (a.dep ^ b.dep) & UNEVEN and test.sort is not None and test.sort[0] == "param":  # of the caller's choice
            both = Value(both.dep & ~UNEVEN, both.params)
        differs = a.const is UNKNOWN or a.const != b.const
        dep = test.dep & DIFFERS if differs else 0
        dep |= UNEVEN if dep & RANK and any(p in (_NO_ITEMS, _NO_WORDS) for p in parts[1:]) else 0
        if dep & RANK and (a.const is None) != (b.const is None):
            dep |= MAYBE_NONE
        if dep & RANK and any(name_of(p) == "len" for p in parts[1:]):
            return Value(RANK, sort=REST)
        if dep & UNEVEN and both.sort in (None, ("many", BATCH)):
            both = both._replace(sort=("share", "side"))
        is_flag = (a.const is True and b.const is False) or (dep & MAYBE_NONE and b.const is None)
        params = both.params | (test.params if differs else NO_PARAMS)
        return both._replace(dep=both.dep | dep, params=params, zero=test.zero if is_flag else both.zero)

    def call(self, node: Call) -> Value:
        """What a call gives, after it has taken effect."""
        raise NotImplementedError
