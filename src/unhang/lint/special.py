"""Values that a name or a well-known call gives, and small questions on expressions."""

from __future__ import annotations

import re
from functools import cache

from unhang.lint import known, sorts
from unhang.lint.ir import Attr, Call, Const, Expr, Op, Ref
from unhang.lint.values import (
    CHANCE,
    COMPARES,
    DATA,
    DIFFERS,
    DRAWN,
    LOCAL,
    LONGEST,
    LOSS,
    NO_PARAMS,
    NONE_BY_BATCH,
    OF_DATA,
    OWN_BATCH,
    PLAIN,
    RANK,
    UNEVEN,
    UNKNOWN,
    Effect,
    Given,
    Value,
    is_of_data,
    one_of,
)

_LOADER = re.compile(
    r"(?:\w+_)?(?:data_?)?loader|(?:\w+_)?dl|(?:train|val|valid|eval|test|data|batch|loader)_?iter(?:ator)?|(?:\w+_)?(?:mini_?|micro_?)?batches"
)
_MAKES_BATCHES = re.compile(r"batch|loader|fetch|pack|chunk|stream|progress|tqdm|iter")
_NEVER_ENDS = re.compile(r"cycle|infinite|endless|repeat|forever|even|pad|equal|balance|size|num|count|len")
ENDS = re.compile(r"Exit|SIGTERM|Sigterm|Interrupt|Preempt|Signal")  # an exception that ends a process well
_COLLECTED = re.compile(
    r"(?:\w+_)?(?:outputs?|preds|predictions|results|losses|scores|features|embeddings|samples|records|completions|rewards|detections|rollouts|examples)"
)
_IN_FLIGHT = re.compile(r"(?:ongoing|in_?flight|outstanding|unfinished)(?:_\w+)?")
_BATCH = re.compile(
    r"(?!(?:is|has|use|num|n|no|drop|should)_)"
    r"(?:\w+_)?(?:mini_?|micro_?)?batch|(?:gt_|\w+_)?(?:labels|targets)|(?:\w+_)?masks?|input_ids|samples"
)
_NUMBERED = re.compile(r"rank|size|dim|index|indices|(?:\b|_)ids?(?:\b|_)|layers?\b|range\(|group")
_CONSTANTS = {"zeros", "zeros_like", "ones", "ones_like", "empty", "empty_like", "full", "full_like"}
_RANKS_IN_ALL = {"world_size", "get_world_size", "num_processes", "num_replicas", "_world_size"}
COMPARISONS = {"==", "!=", "<", "<=", ">", ">=", "in"} | {"is", "is not", "not in"}


def is_numbered(text: str) -> bool:
    """Whether a set holds numbers, by what it is called: these come in the same order everywhere."""
    return _NUMBERED.search(text) is not None


def has_own_order(v: Value) -> bool:
    """Whether what is in it comes in another order on each rank."""
    return v.kind in ("set", "listing")


def is_share(v: Value) -> bool:
    """Whether it is this rank's part of the data, as many items as it has."""
    return bool(v.dep & UNEVEN) and v.kind == "share"


@cache
def makes_batches(name: str) -> bool:
    """Whether a function gives as many batches as there is data, by its name."""
    return _MAKES_BATCHES.search(name.lower()) is not None and _NEVER_ENDS.search(name.lower()) is None


def is_mask(index: Expr) -> bool:
    """Whether a boolean mask picks elements, by its name."""
    if isinstance(index, Call) and name_of(index) == "bool":
        return True
    names = (name for p in paths_in(index) for name in p.lower().split("."))
    return any(n.rstrip("s").endswith("mask") or n.startswith("mask_") for n in names)


@cache
def is_in_flight(name: str) -> bool:
    """Whether an attribute holds what has been begun and is not done: how far that is, each rank has for itself."""
    return _IN_FLIGHT.fullmatch(name.lower().lstrip("_")) is not None


def as_test(e: Expr, v: Value) -> Value:
    """A value where it decides. A plain one that was made of the batch, the clock or a path, and compared with nothing, is there on all ranks or on none."""
    if v.dep & NONE_BY_BATCH:
        return Value(LOSS, NO_PARAMS, sorts.TEST)
    if v.kind == "none with" and not v.dep:  # what a function gives that was given a parameter
        return Value(params=frozenset(v.sort[1:]), sort=("none test",))
    if v.sort == sorts.BLOCK_LENGTH or (v.sort == sorts.BLOCK and isinstance(e, Ref)):
        return Value(RANK, sort=sorts.BLOCK_LENGTH)
    if not isinstance(e, Ref | Call) or v.sort is not None:
        return v
    if v.dep & DIFFERS in (LOCAL, CHANCE):
        return v._replace(dep=v.dep & ~(LOCAL | CHANCE))
    return PLAIN if is_of_data(v) and not v.params else v


def as_multiple(op: str, parts: list[Expr], v: Value) -> Value:
    """A number, where it is so many times the number of ranks."""
    match op, parts:
        case "*", [Op(op="//", parts=[_, by]), of] if by == of:
            return v._replace(sort=sorts.MULTIPLE)
        case "*", _ if any(name_of(p) in _RANKS_IN_ALL for p in parts):
            return v._replace(sort=sorts.MULTIPLE)
    return v


def sort_of_slice(upper: Value, step: Value) -> tuple[str, ...] | None:
    """What is left by a slice that is the same on all ranks."""
    if upper.sort == sorts.MULTIPLE:
        return sorts.PADDED
    return ("odd", "strided") if isinstance(step.const, int) and step.const > 1 else None


def is_empty_test(op: str, number: object) -> bool:
    """Whether a length is asked for being 0."""
    return (number == 0 and op in ("==", "!=", ">", "<=")) or (number == 1 and op in ("<", ">="))


@cache
def is_collected(name: str) -> bool:
    """Whether a list of this name holds what a rank has computed itself."""
    return _COLLECTED.fullmatch(name.lower().lstrip("_")) is not None


@cache
def is_batch(name: str) -> bool:
    """Whether a parameter of this name is of a rank's own batch."""
    return _BATCH.fullmatch(name.lower().lstrip("_")) is not None


def element(v: Value) -> Value:
    """An element of what is iterated over."""
    sort = v.sort
    if sort is None:
        return Value(v.dep & ~(RANK | UNEVEN | LOCAL), v.params) if v.dep or v.params else PLAIN
    if sort == ("many", ("widest",)):
        return Value(OWN_BATCH | LONGEST)
    if sort[0] == "many":
        return Value(
            v.dep & (OF_DATA | NONE_BY_BATCH) | (OWN_BATCH if sort[1] == sorts.BATCH else 0), v.params, sort[1]
        )
    if sort[0] == "zip":
        return Value(v.dep & OF_DATA, v.params, ("tuple", sort[1]))
    if sort[0] == "tuple":
        told = list(dict.fromkeys(x.sort for x in sort[1]))
        chosen = one_of([s for s in told if s is not None]) if None not in told else None
        return Value(v.dep & DATA, NO_PARAMS, told[0] if len(told) == 1 else chosen)
    if sort[0] in ("out", "of"):
        return v._replace(dep=v.dep & ~UNEVEN)
    if sort == sorts.OWN_KEYS and v.dep & ~UNEVEN == 0 and v.dep:
        return Value(OWN_BATCH, v.params)
    if sort[0] == "listing":
        return Value(v.dep & DATA, v.params, sort[1])
    if sort[0] == "share":  # one of this rank's items
        return Value(v.dep & DATA | OWN_BATCH, NO_PARAMS)
    return Value(v.dep & (DATA | DRAWN), v.params if sort[0] in ("sized", "param", "ragged", "own keys") else NO_PARAMS)


def sample(v: Value) -> Value:
    """An element of what is iterated over by a loop: one of the samples, where that is a part of a batch."""
    one = element(v)
    is_plain = v.kind in ("", "param")
    return one._replace(sort=sorts.SAMPLE) if is_plain and one.dep == OWN_BATCH else one


def is_agreed(values: list[Value]) -> bool:
    """Whether what is computed from these is the same on all ranks, because one of them was agreed on."""
    return any(v.sort == sorts.AGREED for v in values) and not any(v.dep or v.params for v in values)


@cache
def value_of_name(name: str) -> Value:
    """What a name says that nothing else is known of."""
    kind = known.rank_kind(name)
    if kind is None:
        return Value(sort=("many", sorts.BATCH)) if _LOADER.fullmatch(name.lower().lstrip("_")) else PLAIN
    if kind in ("zero", "local zero"):
        return Value(RANK, zero=True)
    if kind == "stage":
        return Value(RANK, NO_PARAMS, sorts.TEST, None, "smaller")
    group = "smaller" if kind == "other" else ""
    return Value(RANK, NO_PARAMS, sorts.LOCAL_RANK if kind == "local" else ("rank",), False, group)


def is_none(e: Expr | None) -> bool:
    """Whether an argument is not given, or None."""
    return e is None or (isinstance(e, Const) and e.value is None)


def given_of(node: Call, parameters: list[str], offset: int, args: list[Value]) -> Given:
    """Number of the parameter -> what is given for it."""
    plain = len(node.args) - len(node.names)
    given = {i + offset: (node.args[i], args[i]) for i in range(plain)}
    for k, name in enumerate(node.names):
        if name in parameters:
            given[parameters.index(name)] = node.args[plain + k], args[plain + k]
    return given


def is_a_rank(name: str, full: str) -> bool:
    """Whether an attribute of an outside object is the number of a rank, by its name."""
    return not full.startswith(("torch.", "deepspeed.")) and known.rank_kind(name) is not None


def is_step(v: Value) -> bool:
    """Whether it may be the step of a slice by ranks."""
    return v.const is UNKNOWN or (isinstance(v.const, int) and v.const > 1)


def text_of(values: list[Value], joined: Value, has_numbers: bool = True) -> Value:
    """A text or a path that is made of these. `has_numbers`: numbers are written into it."""
    is_own = any(
        v.sort == sorts.OWN_PATH or ((has_numbers or v.sort in sorts.RANKS) and v.dep & RANK and not v.group)
        for v in values
    )
    return joined._replace(dep=joined.dep & ~RANK, sort=sorts.OWN_PATH if is_own else None)


def is_bare(full: str, name: str, node: Call) -> bool:
    """Whether a call makes a tensor of constants that wants no gradient."""
    of_torch = full.startswith("torch.") and full[6:] in _CONSTANTS
    return (of_torch or (not full and name[4:] in _CONSTANTS and name[:4] == "new_")) and is_none(
        node.given("requires_grad")
    )


def is_own_seed(v: Value) -> bool:
    """Whether a generator with this seed draws something else on each rank."""
    return bool(v.dep & (RANK | LOCAL)) and not v.group and v.zero is not True


def is_own_path(values: list[Value]) -> bool:
    """Whether one of these is the path of a file that this rank, process or node has for itself."""
    return any(v.sort == sorts.OWN_PATH or v.dep & LOCAL for v in values)


def table_of(parts: list[Expr], values: list[Value]) -> tuple[object, ...] | None:
    """A dictionary of functions, classes or objects, by their words; None: there is something else in it."""
    half = len(parts) // 2
    keys, told = parts[:half], [v.sort for v in values[half:]]
    if not half or len(parts) % 2 or not all(isinstance(k, Const) for k in keys):
        return None
    known_sorts = [s for s in told if s is not None]
    is_told = all(s[0] in ("fn", "bound", "class", "obj") or s in COMPARES for s in known_sorts)
    if len(known_sorts) < half or not is_told:
        return None
    return ("table", tuple((k.value, s) for k, s in zip(keys, known_sorts, strict=True) if isinstance(k, Const)))


def in_table(sort: tuple[object, ...], key: Value) -> Value:
    """What such a dictionary has under a key: one of all, if nobody knows the key; of a mesh, one dimension of several."""
    if sort[0] == "mesh":
        return Value(sort=sorts.GRID_PART) if sort == sorts.GRID and isinstance(key.const, str) else PLAIN
    rows: tuple[tuple[object, tuple[object, ...]], ...] = sort[1]  # type: ignore[assignment]
    told = [s for word, s in rows if key.const is UNKNOWN or word == key.const]
    return Value(sort=one_of(told)) if told else PLAIN


def is_one_of_indices(base: Expr, at: Value) -> bool:
    """`torch.where(mask)[0]`, `mask.nonzero(as_tuple=True)[0]`: as many as there are."""
    is_where = isinstance(base, Call) and (
        (name_of(base) == "where" and len(base.args) == 1) or "as_tuple" in base.names
    )
    return is_where and isinstance(at.const, int)


def is_column(index: Op) -> bool:
    """`[:, 0]`: all of the first dimension, one of a later."""
    match index.parts:
        case [Op(op=":", parts=[Const(value=None), Const(value=None), Const(value=None)]), *others]:
            return any(isinstance(p, Const) and isinstance(p.value, int) for p in others)
    return False


def keeps_length(index: Expr) -> bool:
    """Whether an index leaves a sequence about as long as it was: slices alone."""
    parts = index.parts if isinstance(index, Op) and index.op == "seq" else [index]
    return all(isinstance(p, Op) and p.op == ":" for p in parts)


def is_held(condition: Expr, of: Expr) -> bool:
    """`p.grad is not None`, for each `p`: what this rank has."""
    match condition, of:
        case Op(op="is not", parts=[Ref(path=path), Const(value=None)]), Ref(path=name):
            return path.startswith(f"{name}.")
    return False


def is_plain_method(name: str) -> bool:
    """Whether a method is one of plain data, by its name."""
    return name.startswith("__") or name in ("append", "items", "keys", "get", "format", "join", "split", "parameters")


def paths_in(e: Expr) -> set[str]:
    """The names in an expression, with their attributes."""
    match e:
        case Ref():
            return {e.path}
        case Op():
            return set().union(*map(paths_in, e.parts))
        case Call():
            return paths_in(e.func).union(*map(paths_in, e.args))
        case Attr():
            return paths_in(e.base)
    return set()


def variable_asked(e: Expr) -> str | None:
    """The variable of the environment that is asked for: `os.environ["RANK"]`, `os.getenv("RANK", 0)`; None: something else is."""
    match e:
        case Op(op="[]", parts=[Ref(path="os.environ"), Const(value=str() as name)]):
            return name
        case Call(func=Ref(path="os.environ.get" | "os.getenv"), args=[Const(value=str() as name), *_]):
            return name
    return None


def leaves_of(e: Expr) -> list[Expr]:
    """What a list or a dictionary is made of, one within another, without the keys; of a comprehension, its items."""
    if not isinstance(e, Op) or e.op not in ("seq", "dict", "comp"):
        return [e]
    return [
        leaf
        for part in (e.parts[:1] if e.op == "comp" else e.parts)
        for leaf in leaves_of(part)
        if not isinstance(leaf, Const)
    ]


def line_of(e: Expr) -> int:
    """The line of the first call in it, 0: there is none."""
    todo = [e]
    while todo:
        one = todo.pop()
        if isinstance(one, Call):
            return one.line
        if isinstance(one, Op):
            todo += one.parts
    return 0


def prepared(node: Call, args: list[Value]) -> Value:
    """`accelerator.prepare(model, optimizer, loader)`: what is called a model is wrapped; Fabric's `setup` is given a module first."""
    wrapped = Value(sort=("wrap", "ddp"))
    plain = [a for a, n in zip(node.args, range(len(node.args) - len(node.names)), strict=False)]
    values = []
    for n, e in enumerate(plain):
        e = e.func if isinstance(e, Call) else e
        last = e.path.rpartition(".")[2].lower() if isinstance(e, Ref) else ""
        is_first = n == 0 and name_of(node) in ("setup", "setup_module")
        is_model = is_first or "model" in last or last in ("net", "network", "unet", "module")
        kept = Value(sort=args[n].sort) if args[n].kind == "many" else PLAIN  # a loader gives what it gave
        values.append(wrapped if is_model else kept)
    if len(values) == 1:
        return values[0]
    return Value(sort=("tuple", tuple(values)))


def of_parameters(effect: Effect) -> Effect:
    """What callers can know of its needs."""
    if all(isinstance(of, int) for of, _ in effect.needs):
        return effect
    return effect._replace(needs=frozenset(n for n in effect.needs if isinstance(n[0], int)))


def shared_sort(value: Value, i: int) -> tuple[object, ...] | None:
    """What a part of a returned tuple is: outputs of a module stay outputs; `initialize` gives the engine first."""
    is_kept = value.kind in ("out", "of", "ragged", "length", "agreed", "padded")
    return value.sort if is_kept or (value.sort == ("wrap", "engine") and i == 0) else None


def called_name(e: Expr) -> str:
    """The last name of what a call calls; empty: it is no call."""
    return name_of(e.func) if isinstance(e, Call) else ""


def name_of(e: Expr) -> str:
    """The last name of a name or call."""
    e = e.func if isinstance(e, Call) else e
    return e.path.rpartition(".")[2] if isinstance(e, Ref) else e.name if isinstance(e, Attr) else ""


def names_raised(e: Expr) -> list[str]:
    """The last names of what a `raise` may raise: `raise failure or ValueError("others failed")`."""
    if isinstance(e, Op) and e.op in ("or", "if"):
        made = [name for part in e.parts if isinstance(part, Call | Op) for name in names_raised(part)]
        return made or [""]
    return [name_of(e)]


def ends_process(e: Expr) -> bool:
    """Whether it ends the process."""
    return isinstance(e, Call) and isinstance(e.func, Ref) and e.func.path in known.ENDS_PROCESS
