"""Calls of Python and of libraries whose results are known."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unhang.lint import sorts
from unhang.lint.generators import fills_elsewhere
from unhang.lint.grids import own_gradients
from unhang.lint.ir import Call, Const, Expr, Leave, Op, Ref, nodes_in
from unhang.lint.picks import attribute_picked
from unhang.lint.samplers import is_counted, is_rounded_up, is_sampler
from unhang.lint.special import (
    is_numbered,
    is_own_seed,
    leaves_of,
    name_of,
    paths_in,
    value_of_name,
)
from unhang.lint.tensors import is_computed_by, is_inferred, of_builtin, own_widths, tensor_method
from unhang.lint.values import (
    DATA,
    DRAWN,
    LOCAL,
    LOSS,
    NO_PARAMS,
    NONE_BY_BATCH,
    OWN_BATCH,
    OWN_STATE,
    PLAIN,
    RANK,
    UNEVEN,
    UNKNOWN,
    Effect,
    Value,
    mixed,
)

if TYPE_CHECKING:
    from unhang.lint.operators import Operators

_NUMBERS = {"len", "int", "numel", "ord", "round", "min", "max", "sum", "bool", "count", "ndim", "shape", "device"}
_OF_A_PART = re.compile(
    r"(?:\w+_)?(?:tp|pp|cp|ep|sp|dp|mp|shard|replica|replicate|tensor|pipeline|expert|context|data|sequence)(?:_parallel)?_(?:cpu_|device_|process_)?group"
)
_KEEPS_ALONE = b"sync_on_compute"
_REDUCES = {"max", "amax", "min", "sum"}
_OF_ALL = re.compile(r"world|global|default|whole")


def _range(frame: Operators, node: Call, args: list[Value]) -> Value:
    start, stop = (args[0], args[1]) if len(args) > 1 else (PLAIN, args[0] if args else PLAIN)
    if stop.sort == sorts.MULTIPLE:
        return Value(0, stop.params, sorts.PADDED)
    if stop.group and not start.dep:  # of a stage of a pipeline: what it does later, it has done before
        return PLAIN
    if (start.dep ^ stop.dep) & RANK or stop.dep & UNEVEN or (start.dep & RANK and stop.kind == "rest"):
        return Value(UNEVEN, sort=("share", "range"))
    if (start.dep ^ stop.dep) & OWN_STATE:  # from where this rank's own file has ended, or as often as it has drawn
        return Value(UNEVEN, sort=sorts.ROUNDS)
    from_nothing = len(args) == 1 or start.const == 0
    if stop.dep & DATA and stop.sort != sorts.LENGTH and from_nothing:  # as many times as the batch says
        end = node.args[len(args) > 1]
        is_reduced = is_computed_by(frame.function, end, _REDUCES)  # no plain number that comes with it
        return Value(OWN_BATCH | LOSS * is_reduced, sort=("share", "range"))
    if stop.params and len(args) == 1 and not stop.dep:  # as many as the caller says
        return Value(0, stop.params, ("sized", stop.params))
    return Value(0, mixed(*args).params, sorts.BLOCK if start.dep & stop.dep & RANK else None)


def _islice(frame: Operators, node: Call, args: list[Value]) -> Value:
    if len(args) > 1 and args[0].sort == sorts.ENDLESS:
        return args[0]
    if len(args) > 1 and args[1].dep & RANK and not (len(args) > 2 and args[2].dep & RANK):
        return Value(UNEVEN, sort=("share", "islice"))
    return args[0] if args else PLAIN


def _environ(frame: Operators, node: Call, args: list[Value]) -> Value:
    name = args[0].const if args else None
    return value_of_name(name.lower()) if isinstance(name, str) else PLAIN


def _first(frame: Operators, node: Call, args: list[Value]) -> Value:
    return args[0] if args else PLAIN


def _super(frame: Operators, node: Call, args: list[Value]) -> Value:
    me = frame.env.get("self")
    return Value(sort=("super", *me.sort[1:])) if me is not None and me.kind == "obj" else PLAIN


def _getattr(frame: Operators, node: Call, args: list[Value]) -> Value:
    if len(args) > 1 and isinstance(args[1].const, str):
        found = frame.attribute(args[0], args[1].const)
        if len(args) > 2 and found.kind == "ext" and args[2].sort is not None:
            return args[2]
        return found
    return attribute_picked(args[0], args[1]) if len(args) == 2 else PLAIN


def items_of(frame: Operators, v: Value) -> int:
    """UNEVEN, if an object of the project gives each rank another number of items."""
    if v.kind != "obj":
        return 0
    project = frame.link.project
    of = (project.method(v.sort[1], v.sort[2], name) for name in ("__iter__", "__len__"))
    target = next((m for m in of if m is not None), None)
    returned = frame.link.summary(*target).returns if target is not None else PLAIN
    if not returned.dep & UNEVEN:
        return 0
    if returned.sort == sorts.ENDS_BY_RANK:
        return UNEVEN
    if returned.sort == sorts.FILTERED and not is_sampler(project, v.sort[1], v.sort[2]):
        return 0 if fills_elsewhere(project, v.sort[1], v.sort[2]) else UNEVEN
    return 0 if is_counted(project, v.sort[1], v.sort[2], True) else UNEVEN


def _loader(frame: Operators, node: Call, args: list[Value]) -> Value:
    plain = len(node.args) - len(node.names)
    of_sampler = [v for n, v in zip(node.names, args[plain:], strict=True) if n in ("sampler", "batch_sampler")]
    sources = [*args[:1], *of_sampler]
    is_uneven = any(items_of(frame, v) or v.dep & UNEVEN for v in sources)
    if is_uneven:
        return Value(UNEVEN, sort=("share", "loader"))
    collate = node.given("collate_fn")
    by = frame.value(collate).sort if isinstance(collate, Ref | Call) else None
    if (
        by is not None
        and by[0] == "obj"
        and (target := frame.link.project.method(by[1], by[2], "__call__")) is not None
    ):
        by = ("bound", *target)
    function = frame.link.project.function(*by[1:3]) if by is not None and by[0] in ("fn", "bound") else None
    ends = nodes_in(function.body) if function is not None else ()
    is_gone = any(isinstance(n, Leave) and n.kind == "return" and n.value == Const(None) for n in ends)
    if (parts := _drawn_parts(frame, node, args)) is not None:
        return Value(sort=("many", parts))
    if function is not None and (sort := own_widths(function)) is not None:
        return Value(sort=("many", sort))
    return Value(NONE_BY_BATCH if is_gone else 0, sort=("many", sorts.BATCH))


def _drawn_parts(frame: Operators, node: Call, args: list[Value]) -> tuple[Any, ...] | None:
    """The parts of each batch that a set of data makes up itself, where one of them was drawn with a seed of this rank; None: there is none."""
    v = args[0] if args and node.given("batch_size", 1) == Const(None) else PLAIN
    at = frame.link.project.method(v.sort[1], v.sort[2], "__iter__") if v.kind == "obj" else None
    gives = frame.link.summary(*at).gives if at is not None else PLAIN
    if gives.kind != "tuple" or not any(p.dep & DRAWN for p in gives.sort[1]):
        return None
    return ("tuple", tuple(Value(OWN_BATCH | p.dep & DRAWN) for p in gives.sort[1]))


def _len(frame: Operators, node: Call, args: list[Value]) -> Value:
    """How many there are; an object of the project says so itself."""
    sort = args[0].sort if args else None
    target = frame.link.project.method(sort[1], sort[2], "__len__") if sort is not None and sort[0] == "obj" else None
    if target is None:
        return of_builtin("len", len(node.args), args, mixed(*args))
    return Value(frame.link.summary(*target).returns.dep & UNEVEN)


def _dict(frame: Operators, node: Call, args: list[Value]) -> Value:
    """A copy of a dictionary has the same keys."""
    is_own = len(args) == 1 and args[0].sort == sorts.OWN_KEYS
    return args[0] if is_own else tensor_method("dict", PLAIN, "dict", args, mixed(*args))


def _hash(frame: Operators, node: Call, args: list[Value]) -> Value:
    """Each process hashes texts with a seed of its own; numbers have one hash everywhere."""
    is_number = bool(node.args) and (isinstance(args[0].const, int) or name_of(node.args[0]) in _NUMBERS)
    return (
        PLAIN
        if is_number or any(is_numbered(p.rpartition(".")[2]) for a in node.args for p in paths_in(a))
        else Value(LOCAL)
    )


def _set(frame: Operators, node: Call, args: list[Value]) -> Value:
    """A set; one of numbers comes in the same order everywhere."""
    held = of_builtin("set", len(node.args), args, mixed(*args))
    made = node.args[0] if node.args else None
    made = made.parts[0] if isinstance(made, Op) and made.op == "comp" else None
    is_number = isinstance(made, Op) and made.op in ("-", "*", "/", "//", "%")
    is_number = is_number or (made is not None and (name_of(made) in _NUMBERS or is_numbered(name_of(made))))
    return held._replace(sort=None) if held.sort == sorts.SET and is_number else held


def _ceil(frame: Operators, node: Call, args: list[Value]) -> Value:
    match node.args:
        case [Op(op="/", parts=[of, by])] if is_rounded_up("//", [Op("+", [of, by]), by]):
            return mixed(*args)._replace(sort=sorts.ROUNDED_UP)
    return mixed(*args)


def _subset(frame: Operators, node: Call, args: list[Value]) -> Value:
    return Value(UNEVEN, sort=("share", "subset")) if len(args) > 1 and args[1].dep & UNEVEN else PLAIN


def _clip(frame: Operators, node: Call, args: list[Value]) -> Value:
    """The norm of gradients of which each rank has a part is reduced over all of them."""
    of = node.args[0].func if node.args and isinstance(node.args[0], Call) else None
    owner = of.path.removesuffix(".parameters") if isinstance(of, Ref) and of.path.endswith(".parameters") else ""
    v = frame.ref(owner) if owner else PLAIN
    if v.sort == ("wrap", "fsdp2"):
        frame.emit(Effect("clip_grad_norm_", "", (frame.place(node, "clip_grad_norm_"),), "fsdp2"))
    elif v.kind == "param":
        frame.emit(Effect("call", "", (frame.place(node, "clip_grad_norm_"),), "", v.sort[1], "clipped"))
    return PLAIN


def _finite(frame: Operators, node: Call, args: list[Value]) -> Value:
    """Whether numbers are finite; those of gradients of which each rank has a part are its own."""
    made = tensor_method(f"torch.{name_of(node)}", PLAIN, name_of(node), args, mixed(*args))
    return own_gradients(frame, node) or made


def _of_graph(frame: Operators, node: Call, args: list[Value]) -> Value:
    """The nodes of this rank's own part of a graph: as many everywhere, unless somebody says otherwise."""
    return Value(UNEVEN, sort=("share", "part of a graph")) if node.given("force_even") == Const(False) else PLAIN


def _split(frame: Operators, node: Call, args: list[Value]) -> Value:
    """`torch.split(items, math.ceil(len(items) / world))`: the last part is shorter."""
    is_cut = len(args) > 1 and args[0].sort != sorts.PADDED and args[1].sort == sorts.ROUNDED_UP
    return Value(sort=("parts",)) if is_cut else tensor_method("torch.split", PLAIN, "split", args, mixed(*args))


def _parts(frame: Operators, node: Call, args: list[Value]) -> Value:
    return Value(sort=sorts.PADDED if len(args) > 1 and args[1].sort == sorts.MULTIPLE else ("parts",))


def _walk(frame: Operators, node: Call, args: list[Value]) -> Value:
    """All files below a folder; where something is sorted, the folders may be so as well."""
    names = Value(sort=sorts.LISTING)
    is_sorted = not {"sort", "sorted"}.isdisjoint(frame.function.words)
    return PLAIN if is_sorted else Value(sort=("listing", ("tuple", (PLAIN, names, names))))


def _generator(frame: Operators, node: Call, args: list[Value]) -> Value:
    """A generator; each rank draws something else from it, where it has a seed of its own."""
    return Value(sort=sorts.DRAWS if any(map(is_own_seed, args)) else sorts.GENERATOR)


def drawn(frame: Operators, owner: str, base: Value, name: str, args: list[Value]) -> Value:
    """What a method of a generator gives."""
    if name in _SEEDS:
        base = Value(sort=sorts.DRAWS if any(map(is_own_seed, args)) else sorts.GENERATOR)
        if owner:
            frame.assign(Ref(owner), base, is_certain=True)
        return base
    return Value(DRAWN) if base.sort == sorts.DRAWS and name not in _STATES else PLAIN


def drawn_by(node: Call, args: list[Value]) -> Value | None:
    """What a function draws by the generator that it is given; None: that says nothing."""
    of = args[len(args) - len(node.names) + node.names.index("generator")]
    if of.sort == sorts.DRAWS:
        return Value(DRAWN)
    joined = mixed(*args)
    return Value(0, joined.params, sorts.DRAW) if of.kind == "param" and not joined.dep else None


def is_own_order(frame: Operators, full: str, node: Call) -> bool:
    """Whether an order is this rank's own: the generator of its process, by which it is drawn, has a seed of its own. What is shuffled in place has it too."""
    if "generator" in node.names or full.partition(".")[0] not in frame.link.own_seeds:
        return False
    of = node.args[0] if node.args else None
    if full.endswith("shuffle") and isinstance(of, Ref):
        old = frame.ref(of.path)
        frame.assign(of, old._replace(dep=old.dep | DRAWN, const=UNKNOWN), is_certain=True)
    return True


def _from_shard(frame: Operators, node: Call, args: list[Value]) -> Value:
    return Value(sort=sorts.INFERRED) if is_inferred(node) else PLAIN


def _members(frame: Operators, node: Call, args: list[Value]) -> Value:
    """The ranks of a group that is kept, or asked for: each rank has those of its own."""
    of = node.given("group", 0)
    path = of.func.path if isinstance(of, Call) and isinstance(of.func, Ref) else of.path if isinstance(of, Ref) else ""
    is_own = (
        isinstance(of, Call) or "." in path or (frame.parameter(path) >= 0 and _OF_A_PART.fullmatch(path) is not None)
    )
    return Value(RANK) if is_own and args[0].const is UNKNOWN and _OF_ALL.search(path.lower()) is None else PLAIN


def metric(frame: Operators, node: Call) -> Value:
    """A metric of torchmetrics. It meets where it is computed, unless it, or each of which it is made, is told to keep to itself."""
    bound = [n.value for n in frame.function.bindings if any(a in n.targets for a in node.args)]
    told = {_meets_alone(frame, e) for a in (*node.args, *bound) for e in leaves_of(a)} - {None}
    is_alone = _is_told_alone(frame, node) or told == {True} or not frame.link.is_parallel
    return Value(sort=sorts.ALONE if is_alone else ("wrap", "metric"))


def is_own_metric(frame: Operators, sort: tuple[Any, ...]) -> bool:
    """Whether a method is one of a metric that the project writes itself, and that is told nowhere to keep to itself."""
    file, owner = sort[1], frame.link.project.function(sort[1], sort[2]).owner
    bases = frame.link.project.base_names(file, owner) if owner and frame.link.is_parallel else ()
    functions = (*frame.source.functions, *frame.link.project.files[file].functions)
    is_open = any(_KEEPS_ALONE in bytes(f.raw) for f in functions)
    return not is_open and any(b.startswith("torchmetrics.") for b in bases)


def _meets_alone(frame: Operators, e: Expr) -> bool | None:
    """Whether a metric of which another one is made keeps to itself; None: it is no metric."""
    if isinstance(e, Call):
        is_metric = isinstance(e.func, Ref) and frame.link.full_of(frame.ref(e.func.path)).startswith("torchmetrics.")
        return _is_told_alone(frame, e) if is_metric else None
    sort = frame.ref(e.path).sort if isinstance(e, Ref) else None
    return sort == sorts.ALONE if sort in (sorts.ALONE, ("wrap", "metric")) else None


def _is_told_alone(frame: Operators, node: Call) -> bool:
    """Whether a metric is told to keep to itself, or may be by what is not written out."""
    is_open = "" in node.names and any(_KEEPS_ALONE in bytes(f.raw) for f in frame.source.functions)
    return is_open or node.given("sync_on_compute") == Const(False)


_SEEDS, _STATES = {"manual_seed", "seed"}, {"shuffle", "get_state", "getstate", "initial_seed", "set_state", "setstate"}
ORDERS = {"torch.randperm", "numpy.random.permutation", "numpy.random.shuffle", "random.shuffle", "random.sample"}
SPECIAL: dict[str, Callable[[Operators, Call, list[Value]], Value]] = {
    "range": _range, "math.ceil": _ceil, "len": _len, "itertools.islice": _islice, "os.environ.get": _environ, "os.getenv": _environ, "os.environ.setdefault": _environ,
    **dict.fromkeys(("torch.isfinite", "torch.isnan", "torch.isinf"), _finite), "torch.nn.utils.clip_grad_norm_": _clip, "hash": _hash, "dict": _dict,
    "set": _set, "functools.partial": _first, "super": _super, "getattr": _getattr, "torch.compile": _first, "torch.nn.SyncBatchNorm.convert_sync_batchnorm": _first,
    "torch.distributed.get_process_group_ranks": _members, "torch.cuda.current_device": lambda f, n, a: Value(RANK, NO_PARAMS, sorts.LOCAL_RANK, False),
    **dict.fromkeys((f"torch.utils.data.{of}DistributedSampler" for of in ("", "distributed.")), lambda f, n, a: Value(sort=("many", sorts.BATCH))),
    **dict.fromkeys(("dgl.distributed.node_split", "dgl.distributed.edge_split"), _of_graph),
    "torch.distributed.device_mesh.DeviceMesh.from_group": lambda f, n, a: Value(sort=sorts.GRID_GROUP),
    "os.walk": _walk, "torch_xla.distributed.xla_multiprocessing.MpModelWrapper": lambda f, n, a: Value(sort=("wrap", "replica")),
    "torch_xla.core.xla_model.xla_device": lambda f, n, a: Value(sort=sorts.CORE), "torch.utils.data.DataLoader": _loader, "torch.utils.data.Subset": _subset,
    **dict.fromkeys(("random.Random", "numpy.random.default_rng", "numpy.random.RandomState", "torch.Generator"), _generator),
    **dict.fromkeys((f"torch.distributed.{of}.DTensor.from_local" for of in ("tensor", "_tensor")), _from_shard),
    "numpy.array_split": _parts, "torch.tensor_split": _parts, "torch.split": _split, "torch.nn.DataParallel": _first, "typing.cast": lambda f, n, a: a[1] if len(a) > 1 else PLAIN,
}  # fmt: skip
