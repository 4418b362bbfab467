"""What an expression is worth, and what its calls do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unhang.lint import known
from unhang.lint.ir import Attr, Call, Const, Expr, Fn, Op, Ref
from unhang.lint.values import (
    DATA,
    DIFFERS,
    LOCAL,
    MAYBE,
    MOST_WAY,
    NO_PARAMS,
    PLAIN,
    RANK,
    UNEVEN,
    UNKNOWN,
    Conditional,
    Effect,
    Place,
    Summary,
    Value,
    either,
    mixed,
)  # fmt: skip

if TYPE_CHECKING:
    from unhang.lint.link import Link

# What these give differs as their arguments differ.
_PURE = {
    *(
        "int",
        "str",
        "bool",
        "float",
        "abs",
        "len",
        "min",
        "max",
        "tuple",
        "list",
        "set",
        "sorted",
        "any",
        "all",
        "sum",
        "range",
    ),
    *(
        "enumerate",
        "zip",
        "reversed",
        "iter",
        "next",
        "round",
        "divmod",
        "torch.tensor",
        "torch.as_tensor",
        "tqdm.tqdm",
        "tqdm.auto.tqdm",
    ),
    *("itertools.islice", "map", "filter", "repr", "hash", "copy.copy", "copy.deepcopy"),
}
_SAME_OBJECT = {
    "to",
    "cuda",
    "cpu",
    "train",
    "eval",
    "half",
    "float",
    "bfloat16",
    "double",
    "requires_grad_",
    "compile",
    "apply",
}
_PATHS = {"pathlib.Path", "os.path.join", "os.path.abspath", "str", "os.fspath", "os.path.dirname", "os.path.basename"}
_TENSOR_FACTS = {"shape", "dtype", "device", "ndim", "requires_grad", "size", "dim", "training", "is_cuda"}
_NUMBERS = ("torch.", "math.", "numpy.", "statistics.")
_UNIFYING_WORDS = ("reduce", "gather", "sync", "broadcast", "average", "across", "all_")
_STRIDED = {
    "t": "transposed",
    "transpose": "transposed",
    "permute": "permuted",
    "expand": "expanded",
    "expand_as": "expanded",
}
_RAGGED = {"nonzero", "masked_select", "unique", "unique_consecutive", "argwhere"}
_KEEPS_SHAPE = {
    "float",
    "to",
    "cuda",
    "half",
    "long",
    "int",
    "detach",
    "cpu",
    "squeeze",
    "unsqueeze",
    "flatten",
    "double",
    "type",
}
_DENSE = {"contiguous", "clone", "reshape", "repeat", "sum", "mean", "item", "tolist"}
_TENSOR_FIRST = {"all_reduce", "broadcast", "reduce"}
_OF_DATA = DATA | MAYBE


class Calls:
    """The part of a frame that evaluates. `env`: names (and attributes that were set here) -> values."""

    link: Link
    file: int
    path: str
    env: dict[str, Value]
    outer: dict[str, Value]
    effects: list[Effect]
    later: list[Conditional]
    no_sync: int
    unified: set[int]

    def emit(self, effect: Effect) -> None:
        """A collective is made here."""
        raise NotImplementedError

    def conditional_part(self, condition: Value, line: int, mark: int) -> None:
        """Effects from `mark` on are made only where a part of an expression is true."""
        raise NotImplementedError

    def found_in_call(self, name: str, full: str, node: Call, args: list[Value]) -> None:
        """The rules that look at single calls."""
        raise NotImplementedError

    def assign(self, target: Expr, value: Value, is_certain: bool = False) -> None:
        """Binds a name."""
        raise NotImplementedError

    # Values.

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
        value = env.get(head) or self.outer.get(head) or self.link.top(self.file, head)
        if not dot:
            return value
        prefix = head
        for name in rest.split("."):
            prefix = f"{prefix}.{name}"
            value = env.get(prefix) or self.attribute(value, name)
        return value

    def attribute(self, v: Value, name: str) -> Value:
        """An attribute of a value."""
        sort = v.sort
        if sort is not None:
            kind = sort[0]
            if kind == "ext":
                full = f"{sort[1]}.{name}"
                return Value(sort=("ext", full)) if not _is_a_rank(name, full) else _of_name(name)
            if kind == "mod":
                return self.link.of_module(sort[1], name)
            if kind in ("obj", "super", "class"):
                found = self.link.attribute(sort, name)
                if found is not None:
                    return found
            elif kind == "wrap":
                if name == "module":
                    return PLAIN
            elif kind in ("out", "of") and name not in _TENSOR_FACTS:
                return v
            elif kind == "param" and known.rank_kind(name) is None:
                return Value(0, v.params)
        if name in _TENSOR_FACTS:
            return PLAIN
        if name == "T":
            return Value(v.dep, v.params, ("odd", "transposed"))
        by_name = _of_name(name)
        if by_name.dep:
            return by_name
        return Value(v.dep & ~(RANK | UNEVEN), v.params) if v.dep or v.params else PLAIN

    def _op(self, e: Op) -> Value:
        op, parts = e.op, e.parts
        if op in ("and", "or"):
            return self._bool(op, parts)
        if op == "not":
            v = self.value(parts[0])
            const = UNKNOWN if v.const is UNKNOWN else not v.const
            return v._replace(sort=None, zero=None if v.zero is None else not v.zero, const=const)
        if op == "[]":
            return self._item(parts[0], parts[1])
        if op == "seq":
            values = [self.value(p) for p in parts]
            joined = mixed(*values)
            sorts = {v.sort for v in values} if values else {None}
            sort = ("tuple", tuple(values)) if len(values) <= 8 and (joined is not PLAIN or sorts != {None}) else None
            consts = [v.const for v in values]
            const = UNKNOWN if any(c is UNKNOWN for c in consts) else tuple(consts)
            return joined._replace(sort=sort, const=const)
        if op == "comp":
            return self._comprehension(parts)
        if op == "if":
            return self._either(parts)
        if op == ":=":
            v = self.value(parts[1])
            self.assign(parts[0], v)
            return v
        if op in _COMPARISONS:
            return self._compare(op, parts)
        values = [self.value(p) for p in parts]
        joined = mixed(*values)
        outs = [v.sort for v in values if v.sort is not None and v.sort[0] in ("out", "of")]
        if outs and op == "dict":
            outs = []
        if op == "str":
            joined = joined._replace(dep=joined.dep & ~RANK)
        if op == "%" and joined.dep & RANK and values[1].const is UNKNOWN:
            return Value(RANK, joined.params, ("modulo",))
        return joined._replace(sort=outs[0]) if outs else joined

    def _bool(self, op: str, parts: list[Expr]) -> Value:
        joined: list[Value] = []
        stops_at = op == "or"
        for part in parts:
            condition = mixed(*joined) if joined else PLAIN
            mark = len(self.effects)
            v = self.value(part)
            if len(self.effects) > mark and (condition.dep & DIFFERS or condition.params):
                self.conditional_part(condition, _line(part), mark)
            if v.const is not UNKNOWN:
                if bool(v.const) == stops_at:
                    return Value(const=v.const) if not joined else mixed(*joined)._replace(const=UNKNOWN)
                continue
            joined.append(v)
        if not joined:
            return Value(const=not stops_at)
        zeros = {v.zero for v in joined if v.dep & RANK}
        return mixed(*joined)._replace(zero=zeros.pop() if len(zeros) == 1 else None)

    def _compare(self, op: str, parts: list[Expr]) -> Value:
        a, b = self.value(parts[0]), self.value(parts[1])
        if a.const is not UNKNOWN and b.const is not UNKNOWN:
            return Value(const=UNKNOWN)
        if op in ("in", "not in") and isinstance(a.const, str):
            return Value(params=b.params)
        if op in ("is", "is not"):
            either_value = b if a.const is not UNKNOWN else a
            if (b if either_value is a else a).const is None and not either_value.dep & LOCAL:
                # Whether there is a rank at all is the same everywhere; whether rank 0 alone made the object is not.
                is_number = either_value.sort == ("rank",)
                return PLAIN if is_number or either_value.dep & _OF_DATA else mixed(a, b)
        joined = mixed(a, b)
        number = b if a.dep & RANK else a
        if joined.dep & RANK:
            if number.const in (-1, "-1", None) or (number.const == 0 and op in (">=", "<") and a.dep & RANK):
                return PLAIN
            is_zero = number.const in (0, "0") or (isinstance(number.const, tuple) and 0 in number.const)
            if is_zero:
                joined = joined._replace(zero=op in ("==", "in", "<=", "is"))
        return joined

    def _either(self, parts: list[Expr]) -> Value:
        test = self.value(parts[0])
        if test.const is not UNKNOWN:
            return self.value(parts[1] if test.const else parts[2])
        mark = len(self.effects)
        a = self.value(parts[1])
        if len(self.effects) > mark and test.dep & DIFFERS:
            self.conditional_part(test, _line(parts[1]), mark)
        b = self.value(parts[2])
        both = either(a, b)
        differs = a.const is UNKNOWN or a.const != b.const
        dep = test.dep & DIFFERS if differs else 0
        zero = test.zero if a.const is True and b.const is False else both.zero
        return both._replace(
            dep=both.dep | dep, params=both.params | (test.params if differs else NO_PARAMS), zero=zero
        )

    def _item(self, base: Expr, index: Expr) -> Value:
        v = self.value(base)
        if v.sort == ("ext", "os.environ") and isinstance(index, Const):
            return _of_name(str(index.value).lower())
        at = self.value(index)
        if v.sort is not None and v.sort[0] == "many":
            return v._replace(sort=v.sort[1])
        if v.sort is not None and v.sort[0] == "tuple":
            if isinstance(at.const, int) and -len(v.sort[1]) <= at.const < len(v.sort[1]):
                return v.sort[1][at.const]  # type: ignore[no-any-return]
            sorts = {x.sort for x in v.sort[1]}
            return v._replace(sort=sorts.pop() if len(sorts) == 1 else None)
        if v.sort is not None and v.sort[0] in ("out", "of"):
            return v
        if isinstance(index, Op) and index.op == ":":
            lower, upper, step = (self.value(p) for p in index.parts)
            if lower.dep & RANK and not upper.dep & RANK and _is_step(step):
                return Value(UNEVEN, sort=("share", "slice")) if lower.sort != ("modulo",) else PLAIN
            if isinstance(step.const, int) and step.const > 1:
                return Value(v.dep, v.params, ("odd", "strided"))
        if isinstance(index, Op) and index.op == "seq" and _is_column(index):
            return Value(v.dep, v.params, ("odd", "strided"))
        if (isinstance(index, Op) and index.op in _COMPARISONS) or (
            isinstance(index, Ref) and "mask" in index.path.lower()
        ):
            return Value(v.dep, v.params, ("ragged", "a boolean mask"))
        return Value(v.dep, v.params) if v.dep or v.params else PLAIN

    def _comprehension(self, parts: list[Expr]) -> Value:
        before, dep = dict(self.env), 0
        for loop in parts[1:]:
            assert isinstance(loop, Op)
            over = self.value(loop.parts[1])
            dep |= over.dep & UNEVEN
            self.assign(loop.parts[0], element(over), is_certain=True)
            for condition in loop.parts[2:]:
                self.value(condition)
        made = self.value(parts[0])
        self.env.clear()
        self.env.update(before)
        return Value(made.dep | dep, made.params, ("many", made.sort) if made.sort else None)

    # Calls.

    def call(self, node: Call) -> Value:
        """What a call gives, after it has taken effect."""
        func = node.func
        owner, base, name = "", PLAIN, ""
        if isinstance(func, Ref):
            owner, _, name = func.path.rpartition(".")
            callee = self.ref(func.path)
            if owner:
                base = self.ref(owner)
        elif isinstance(func, Attr):
            base, name = self.value(func.base), func.name
            callee = self.attribute(base, name)
        else:
            callee = self.value(func)
        args = [self.value(a) for a in node.args]
        full = self.link.full_of(callee)
        self.found_in_call(name, full, node, args)
        return self._called(node, callee, full, owner, base, name, args)

    def _called(
        self, node: Call, callee: Value, full: str, owner: str, base: Value, name: str, args: list[Value]
    ) -> Value:
        made = known.collective(full) if full else None
        if made is not None:
            return PLAIN if "use_local_synchronization" in node.names else self._collective(node, made, args, name)
        if full in known.WRAPPERS:
            return Value(sort=("wrap", known.WRAPPERS[full]))
        sort = callee.sort
        kind = sort[0] if sort is not None else ""
        if kind in ("fn", "bound") and sort is not None:
            return self._function(node, sort, args, name)
        if kind == "class" and sort is not None:
            return self._constructor(node, sort, args, name)
        if kind == "obj" and sort is not None:
            for method in ("__call__", "forward"):
                target = self.link.project.method(sort[1], sort[2], method)
                if target is not None:
                    return self._function(node, ("bound", *target), args, name)
        if kind == "wrap" and sort is not None:
            return self._wrapped(node, sort[1], "()", args, name)
        if kind in ("param", "attr_param") and sort is not None:
            return self._of_param(node, sort[1], "()", args, name)
        made = known.method(owner, name) if owner else None
        if made is not None and (base.sort is None or base.sort[0] not in ("ext", "wrap")):
            return self._collective(node, made, args, name)
        bsort = base.sort
        if bsort is not None:
            if bsort[0] == "wrap":
                if name in known.HIDDEN.get(bsort[1], ()):
                    return self._wrapped(node, bsort[1], name, args, name)
                made = known.of_sort(bsort[1], name)
                if made is not None:
                    return self._collective(node, made, args, name)
                if name == "prepare" or (bsort[1] == "fabric" and name.startswith("setup")):
                    return _prepared(node)
                if name in _SAME_OBJECT:
                    return base
            if bsort[0] == "param" and name not in _SAME_OBJECT and not _is_plain_method(name):
                self._of_param(node, bsort[1], name, args, name)
            if bsort[0] in ("out", "of") and name == "backward":
                return self._backward(node, bsort)
            if bsort[0] == "many" and name in ("values", "children", "parameters"):
                return base
            if bsort[0] == "rank" and name in ("item",):
                return base
        return self._other(node, callee, full, base, name, args)

    def _other(self, node: Call, callee: Value, full: str, base: Value, name: str, args: list[Value]) -> Value:
        """A call of which only the name is known."""
        special = _SPECIAL.get(full)
        if special is not None:
            return special(self, node, args)
        if full in known.LOCAL_SOURCES:
            return Value(LOCAL)
        if name == "backward" and args and args[0].sort is not None and args[0].sort[0] in ("out", "of"):
            return self._backward(node, args[0].sort)
        by_name = _of_name(name or full.rpartition(".")[2])
        if by_name.dep and not callee.dep & ~RANK:
            group = node.given("group", 0)
            return by_name._replace(group=self.group_of(group) if group is not None and "rank" in name else "")
        if name in known.IS_THERE and (base.dep & LOCAL or any(a.dep & LOCAL for a in args)):
            return Value(LOCAL)
        joined = mixed(base, *args)
        if full in _PURE:
            many = args[0].sort if args and args[0].sort is not None and full != "len" else None
            dep = joined.dep & ~UNEVEN if full in ("min", "max", "bool", "any", "all") else joined.dep
            keep = joined._replace(dep=dep)
            if full in ("enumerate", "zip"):
                values = tuple(args) if full == "zip" else (PLAIN, element(args[0]) if args else PLAIN)
                return keep._replace(
                    sort=("zip", tuple(element(a) for a in args)) if full == "zip" else ("many", ("tuple", values))
                )
            return keep._replace(sort=many, zero=args[0].zero if len(args) == 1 else None)
        if full in _PATHS or name in (
            "joinpath",
            "with_suffix",
            "format",
            "strftime",
            "isoformat",
            "resolve",
            "replace",
        ):
            return Value(joined.dep & LOCAL, joined.params)
        return self._tensor_method(full, base, name, args, joined)

    def _tensor_method(self, full: str, base: Value, name: str, args: list[Value], joined: Value) -> Value:
        if name in _STRIDED and (base.sort is None or base.sort[0] in ("out", "of", "many", "param")) and not full:
            return Value(base.dep, base.params, ("odd", _STRIDED[name]))
        if name in _RAGGED and (not full or full.startswith("torch.")):
            return Value(joined.dep, joined.params, ("ragged", name))
        if base.sort is not None and base.sort[0] in ("odd", "ragged"):
            keeps = name in _KEEPS_SHAPE or (base.sort[0] == "ragged" and name in _DENSE - {"sum", "mean", "item"})
            return Value(base.dep, base.params, base.sort if keeps else None)
        if any(word in name.lower() or word in full.lower() for word in _UNIFYING_WORDS):
            return PLAIN
        outs = [v.sort for v in (base, *args) if v.sort is not None and v.sort[0] in ("out", "of")]
        if full == "torch.nn.ModuleList" or full == "torch.nn.ModuleDict":
            return args[0] if args else PLAIN
        if outs and (not full or full.startswith(_NUMBERS)):
            keeps_graph = name not in known.NAN_TESTS and name not in ("item", "detach", "tolist", "numpy", "cpu")
            return Value(joined.dep & _OF_DATA, joined.params, outs[0] if keeps_graph else None)
        numeric = full.startswith(_NUMBERS) or (not full and base.dep & _OF_DATA)
        return Value(joined.dep & _OF_DATA if numeric else 0, NO_PARAMS)

    def _collective(self, node: Call, made: known.Collective, args: list[Value], name: str) -> Value:
        group = ""
        if made.group_at >= 0:
            given = node.given("group", made.group_at) or node.given("process_group") or node.given("pg")
            group = "" if given is None else self.group_of(given)
        if made.op in ("new_group", "device_mesh"):
            group = ""
        self.emit(Effect(made.op, group, (self.place(node, name),)))
        for at in made.unifies:
            expr = node.given("tensor" if at == 0 else "", at) or node.given("object_list")
            if isinstance(expr, Ref):
                old = self.ref(expr.path)
                if old.sort is not None and old.sort[0] == "param" and "." not in expr.path:
                    self.unified.add(old.sort[1])
                self.env[expr.path] = Value(
                    sort=old.sort if old.sort and old.sort[0] not in ("tuple", "of", "out") else None
                )
        if made.op == "new_group":
            return Value(sort=("group", name))
        return PLAIN

    def group_of(self, e: Expr) -> str:
        """The text of a group: empty for all ranks, `@2` for parameter 2."""
        if isinstance(e, Const):
            return "" if e.value is None else "?"
        v = self.value(e) if not isinstance(e, Call) else PLAIN
        if v.const is None:
            return ""
        if v.sort is not None and v.sort[0] == "param":
            return f"@{v.sort[1]}"
        if isinstance(e, Ref):
            return "" if e.path.endswith(("group.WORLD", "GroupMember.WORLD")) else e.path
        return f"{e.func.path}()" if isinstance(e, Call) and isinstance(e.func, Ref) else "?"

    def place(self, node: Call, name: str) -> Place:
        """Where a call stands."""
        text = node.func.path if isinstance(node.func, Ref) else name
        return Place(self.path, node.line, node.column, text or name or "call")

    def _wrapped(self, node: Call, wrapper: str, method: str, args: list[Value], name: str) -> Value:
        op = known.HIDDEN.get(wrapper, {}).get(method)
        if op is None:
            return PLAIN
        if not (op == "backward" and self.no_sync):
            self.emit(Effect(op, "", (self.place(node, name),), wrapper))
            if op == "forward":
                self.found_in_call("forward", "", node, args)
        return Value(DATA, NO_PARAMS, ("out", wrapper)) if op == "forward" else PLAIN

    def _of_param(self, node: Call, param: int, method: str, args: list[Value], name: str) -> Value:
        self.emit(Effect("call", "", (self.place(node, name),), "", param, method))
        outs = [v for v in args if v.sort is not None and v.sort[0] in ("out", "of")]
        if outs:  # a criterion on what a module gave
            return Value(mixed(*args).dep & _OF_DATA, NO_PARAMS, outs[0].sort)
        return Value(MAYBE, NO_PARAMS, ("of", param)) if method in ("()", "forward") else PLAIN

    def _backward(self, node: Call, sort: tuple[Any, ...]) -> Value:
        if not self.no_sync:
            place = self.place(node, "backward")
            if sort[0] == "out":
                self.emit(Effect("backward", "", (place,), sort[1]))
            else:
                self.emit(Effect("call", "", (place,), "", sort[1], "backward"))
        return PLAIN

    def _constructor(self, node: Call, sort: tuple[Any, ...], args: list[Value], name: str) -> Value:
        target = self.link.project.method(sort[1], sort[2], "__init__")
        if target is not None:
            parameters = self.link.project.function(*target).parameters
            self.link.note_constructor(sort, self._given(node, parameters, 1, args))
            self._function(node, ("bound", *target), args, name)
        return Value(sort=("obj", sort[1], sort[2]))

    def _function(self, node: Call, sort: tuple[Any, ...], args: list[Value], name: str) -> Value:
        """A call of a function of the project: its effects are the caller's."""
        file, at = sort[1], sort[2]
        function = self.link.project.function(file, at)
        summary = self.link.summary(file, at)
        if not summary.effects and not summary.conditional and summary.returns is PLAIN and not summary.unifies:
            return PLAIN
        offset = 1 if sort[0] == "bound" and function.is_method else 0
        given = self._given(node, function.parameters, offset, args)
        place = self.place(node, name)._replace(text=f"{name or function.name}()")
        for effect in summary.effects:
            self._take_over(effect, given, place, summary, function.defaults, len(function.parameters))
        for conditional in summary.conditional:
            self.link.settle(self, conditional, given, place)
        for i in summary.unifies:
            expr = given[i][0] if i in given else None
            if isinstance(expr, Ref):
                self.env[expr.path] = PLAIN
        return self._result(summary, given)

    def _given(
        self, node: Call, parameters: list[str], offset: int, args: list[Value]
    ) -> dict[int, tuple[Expr, Value]]:
        """Number of the parameter -> what is given for it."""
        plain = len(node.args) - len(node.names)
        given = {i + offset: (node.args[i], args[i]) for i in range(plain)}
        for k, name in enumerate(node.names):
            if name in parameters:
                given[parameters.index(name)] = node.args[plain + k], args[plain + k]
        return given

    def _take_over(
        self, effect: Effect, given: dict[int, tuple[Expr, Value]], place: Place, summary: Summary,
        defaults: list[Expr | None], count: int,
    ) -> None:  # fmt: skip
        way = (place, *effect.way)[:MOST_WAY]
        group = effect.group
        if group.startswith("@"):
            i = int(group[1:])
            if i in given:
                group = self.group_of(given[i][0])
            else:
                at = i - (count - len(defaults))
                default = defaults[at] if 0 <= at < len(defaults) else None
                group = "" if isinstance(default, Const) and default.value is None else "?"
        if effect.param < 0:
            self.emit(effect._replace(way=way, group=group))
            return
        if effect.param not in given:
            return
        v = given[effect.param][1]
        for made in self.link.made_by(v, effect.method):
            self.emit(made._replace(way=(*way, *made.way)[:MOST_WAY]))

    def _result(self, summary: Summary, given: dict[int, tuple[Expr, Value]]) -> Value:
        r = summary.returns
        joined = mixed(*(given[i][1] for i in r.params if i in given))
        sort = r.sort
        if sort is not None and sort[0] in ("param", "of"):
            v = given.get(sort[1], (None, PLAIN))[1]
            if sort[0] == "param":
                return v
            inner = v.sort
            sort = None
            if inner is not None and inner[0] == "wrap":
                sort = ("out", inner[1])
            elif inner is not None and inner[0] == "param":
                sort = ("of", inner[1])
        elif sort is not None and sort[0] in ("tuple", "zip"):
            sort = None
        dep = r.dep
        if dep & MAYBE:  # it is what a given module made of this rank's batch
            sorts = {v.sort[0] for _, v in given.values() if v.sort is not None}
            dep = dep & ~MAYBE | (DATA if "wrap" in sorts else MAYBE if "param" in sorts else 0)
        return Value(dep | (joined.dep & DIFFERS), joined.params, sort, r.zero, r.group, r.const)


_COMPARISONS = {"==", "!=", "<", "<=", ">", ">=", "is", "is not", "in", "not in"}


def element(v: Value) -> Value:
    """An element of what is iterated over."""
    sort = v.sort
    if sort is None:
        return Value(v.dep & ~(RANK | UNEVEN | LOCAL), v.params) if v.dep or v.params else PLAIN
    if sort[0] == "many":
        return Value(v.dep & _OF_DATA, v.params, sort[1])
    if sort[0] == "zip":
        return Value(v.dep & _OF_DATA, v.params, ("tuple", sort[1]))
    if sort[0] == "tuple":
        sorts = {x.sort for x in sort[1]}
        return Value(v.dep & DATA, NO_PARAMS, sorts.pop() if len(sorts) == 1 else None)
    if sort[0] in ("out", "of"):
        return v
    return Value(v.dep & DATA)


def _of_name(name: str) -> Value:
    """What a name says that nothing else is known of."""
    kind = known.rank_kind(name)
    if kind is None:
        return PLAIN
    if kind in ("zero", "local zero"):
        return Value(RANK, zero=True)
    return Value(RANK, NO_PARAMS, ("rank",), False, "")


def value_of_name(name: str) -> Value:
    """The same, for names that are bound somewhere else."""
    return _of_name(name)


def _is_a_rank(name: str, full: str) -> bool:
    return not full.startswith(("torch.", "deepspeed.")) and known.rank_kind(name) is not None


def _is_step(v: Value) -> bool:
    return v.const is UNKNOWN or (isinstance(v.const, int) and v.const > 1)


def _is_column(index: Op) -> bool:
    """`[:, 0]`: all of the first dimension, one of a later."""
    first = index.parts[0] if index.parts else None
    is_all = (
        isinstance(first, Op) and first.op == ":" and all(isinstance(p, Const) and p.value is None for p in first.parts)
    )
    return is_all and any(isinstance(p, Const) and isinstance(p.value, int) for p in index.parts[1:])


def _is_plain_method(name: str) -> bool:
    return name.startswith("__") or name in ("append", "items", "keys", "get", "format", "join", "split", "parameters")


def _line(e: Expr) -> int:
    todo = [e]
    while todo:
        one = todo.pop()
        if isinstance(one, Call):
            return one.line
        if isinstance(one, Op):
            todo += one.parts
    return 0


def _prepared(node: Call) -> Value:
    """`accelerator.prepare(model, optimizer, loader)`: what is called a model is wrapped."""
    wrapped = Value(sort=("wrap", "ddp"))
    plain = [a for a, n in zip(node.args, range(len(node.args) - len(node.names)), strict=False)]
    values = []
    for e in plain:
        last = e.path.rpartition(".")[2].lower() if isinstance(e, Ref) else ""
        values.append(wrapped if "model" in last or last in ("net", "network", "unet", "module") else PLAIN)
    if len(values) == 1:
        return values[0]
    return Value(sort=("tuple", tuple(values)))


def _range(frame: Calls, node: Call, args: list[Value]) -> Value:
    start, stop = (args[0], args[1]) if len(args) > 1 else (PLAIN, args[0] if args else PLAIN)
    if (start.dep ^ stop.dep) & RANK or stop.dep & UNEVEN:
        return Value(UNEVEN, sort=("share", "range"))
    return Value(0, mixed(*args).params)


def _islice(frame: Calls, node: Call, args: list[Value]) -> Value:
    if len(args) > 1 and args[1].dep & RANK and not (len(args) > 2 and args[2].dep & RANK):
        return Value(UNEVEN, sort=("share", "islice"))
    return args[0] if args else PLAIN


def _environ(frame: Calls, node: Call, args: list[Value]) -> Value:
    name = args[0].const if args else None
    return _of_name(name.lower()) if isinstance(name, str) else PLAIN


def _partial(frame: Calls, node: Call, args: list[Value]) -> Value:
    return args[0] if args else PLAIN


def _super(frame: Calls, node: Call, args: list[Value]) -> Value:
    me = frame.env.get("self")
    return (
        Value(sort=("super", *me.sort[1:])) if me is not None and me.sort is not None and me.sort[0] == "obj" else PLAIN
    )


def _getattr(frame: Calls, node: Call, args: list[Value]) -> Value:
    if len(args) > 1 and isinstance(args[1].const, str):
        found = frame.attribute(args[0], args[1].const)
        if len(args) > 2 and found.sort is not None and found.sort[0] == "ext" and args[2].sort is not None:
            return args[2]
        return found
    return PLAIN


def _same(frame: Calls, node: Call, args: list[Value]) -> Value:
    return args[0]._replace(zero=args[0].zero) if args else PLAIN


_SPECIAL: dict[str, Callable[[Calls, Call, list[Value]], Value]] = {
    "range": _range, "itertools.islice": _islice, "os.environ.get": _environ, "os.getenv": _environ, "os.environ.setdefault": _environ,
    "functools.partial": _partial, "super": _super, "getattr": _getattr, "torch.compile": _same, "torch.nn.SyncBatchNorm.convert_sync_batchnorm": _same,
    "torch.nn.DataParallel": _same, "typing.cast": lambda f, n, a: a[1] if len(a) > 1 else PLAIN,
}  # fmt: skip
