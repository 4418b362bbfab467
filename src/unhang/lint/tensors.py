"""What methods and functions of tensors give: agreed, of this rank's batch, of a shape that is its own."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from unhang.lint import known, sorts
from unhang.lint.grids import is_agreed_in_part
from unhang.lint.ir import Attr, Call, Const, Expr, Function, Leave, Op, Ref, calls_in, nodes_in
from unhang.lint.special import COMPARISONS, element, has_own_order, is_agreed, name_of, paths_in
from unhang.lint.values import (
    CHANCE,
    DATA,
    DRAWN,
    HELD,
    LOCAL,
    LONGEST,
    LOSS,
    MAYBE,
    NO_PARAMS,
    OF_DATA,
    OWN_BATCH,
    PLAIN,
    RANK,
    UNEVEN,
    Value,
    mixed,
)

_NUMBERS = ("torch.", "math.", "numpy.", "statistics.")
_UNIFYING_WORDS = ("reduce", "gather", "sync", "broadcast", "bcast", "average", "across", "all_")
AGREEING = {"all_reduce", "all_gather", "broadcast"}
_STRIDED = {"t": "transposed", "transpose": "transposed", "permute": "permuted", "expand": "expanded", "expand_as": "expanded"}  # fmt: skip
_RAGGED = {"nonzero", "masked_select", "unique", "unique_consecutive", "argwhere"}
_KEEPS_SHAPE = {
    *("float", "to", "cuda", "half", "long", "int", "detach", "cpu", "squeeze", "unsqueeze", "flatten", "double", "type"),
}  # fmt: skip
_OF_LISTS = {"torch.cat", "torch.stack", "torch.tensor", "torch.as_tensor", "torch.FloatTensor", "torch.LongTensor"}
_OF_BYTES = {
    "torch.ByteTensor",
    "torch.tensor",
    "torch.frombuffer",
    "numpy.frombuffer",
    "torch.from_numpy",
    "bytearray",
}
OWN_WIDTH = "padded to the longest of this rank's own sequences"
OF_SHARE = "one row for each item of this rank's own share"
OWN_PART = "one row longer on some ranks where the rows do not divide evenly"
_PICKLED = ("ragged", "pickle.dumps")
_SPREADS = {"std", "var", "mean", "norm"}
_EACH = {"abs", "square", "pow", "sqrt", "exp", "log", "detach", "float", "double", "cpu", "cuda"}  # of each element
_CUTS = {"chunk", "array_split", "tensor_split"}
_COUNTS = {"any", "sum", "count_nonzero"}
_TESTS = {
    "any",
    "all",
    "item",
    "isnan",
    "isfinite",
    "isinf",
    "equal",
    "allclose",
    "bool",
    "sum",
    "max",
    "min",
    "count_nonzero",
}
FACTS = {
    *("dim", "ndimension", "stride", "is_floating_point", "get_device", "type", "is_contiguous", "keys", "element_size", "data_ptr"),
    *("size", "numel", "values", "items", "copy", "update", "pop"),
}  # fmt: skip
LISTS = {"torch.nn.ModuleList", "torch.nn.ModuleDict"}
_PARTS = {"chunk", "split", "tensor_split", "view", "reshape", "to", "cuda", "tolist"}
_NOTHING = Const(None)
_BY_ONE = (Op(":", [_NOTHING, Const(-1), _NOTHING]), Op(":", [Const(1), _NOTHING, _NOTHING]))
_SEQUENCES = {
    "attention_mask",
    "input_ids",
    "position_ids",
    "token_type_ids",
    "completion_mask",
    "completion_ids",
    "prompt_ids",
    "prompt_mask",
}
_KEEPS_SHARE = {
    "map",
    "filter",
    "shuffle",
    "select_columns",
    "remove_columns",
    "with_format",
    "rename_column",
    "decode",
}
_SIZES = ("size", "numel")
_LAST_BLOCKS = (("share", "rest"), sorts.LONGER)
_DENSE = {"contiguous", "clone", "reshape", "repeat", "sum", "mean", "item", "tolist"}


def is_padded_to_a_length(functions: Iterable[Function]) -> bool:
    """Whether a file has its tokenizer pad to a fixed length."""
    calls = (n for f in functions for n in calls_in(f.body) if "padding" in n.names)
    return any(c.given("padding") == Const("max_length") for c in calls)


def is_padded_alone(function: Function, e: Expr, line: int) -> bool:
    """Whether a tensor is as long as the longest sequence of this rank: a mask of tokens, or tokens moved by one."""
    if isinstance(e, Ref):
        bound = [n for n in function.bindings if e in n.targets and n.line < line]
        last = max(bound, key=lambda n: n.line, default=None)
        return last is not None and is_padded_alone(function, last.value, last.line)
    if (
        isinstance(e, Call)
        and isinstance(e.func, Attr)
        and e.func.name in _KEEPS_SHAPE | _DENSE - {"sum", "mean", "item", "reshape"}
    ):
        return is_padded_alone(function, e.func.base, line)
    if not isinstance(e, Op) or e.op != "[]":
        return False
    index = e.parts[1]
    if isinstance(index, Op) and index.op == "seq":
        return any(p == by_one for p in index.parts[1:] for by_one in _BY_ONE)
    return isinstance(index, Const) and index.value in _SEQUENCES


def own_widths(function: Function) -> tuple[object, ...] | None:
    """What the batches of a collate function are, where it pads something to the longest sequence of each; None: it does not."""
    ends = [n.value for n in nodes_in(function.body) if isinstance(n, Leave) and n.kind == "return" and n.value]
    if len(ends) != 1:
        return None
    parts = ends[0].parts if isinstance(ends[0], Op) and ends[0].op in ("seq", "dict") else [ends[0]]
    values = [Value(OWN_BATCH | (LONGEST if _is_padded_here(function, p) else 0)) for p in parts]
    if not any(v.dep & LONGEST for v in values):
        return None
    if isinstance(ends[0], Op) and ends[0].op == "dict":
        half = len(parts) // 2
        words = [p.value if isinstance(p, Const) else None for p in parts[:half]]
        return "words", tuple(zip(words, values[half:], strict=True))
    return ("tuple", tuple(values)) if isinstance(ends[0], Op) else ("widest",)


def _is_padded_here(function: Function, e: Expr) -> bool:
    if isinstance(e, Ref):
        bound = [n.value for n in function.bindings if e in n.targets]
        return len(bound) == 1 and _is_padded_here(function, bound[0])
    return isinstance(e, Call) and name_of(e) == "pad_sequence"


def is_cut(e: Expr) -> bool:
    """Whether a tensor is cut into parts: `x.chunk(world, dim=1)`."""
    return isinstance(e, Call) and name_of(e) in ("chunk", "tensor_split") and bool(e.args)


def is_compared(function: Function, e: Expr) -> bool:
    """Whether it is a comparison, or a name that is bound to nothing else: a mask, where it picks elements."""
    if isinstance(e, Op):
        return e.op in COMPARISONS
    bound = [n.value for n in function.bindings if e in n.targets] if isinstance(e, Ref) else []
    return bool(bound) and all(isinstance(v, Op) and v.op in ("==", "!=", "<", "<=", ">", ">=") for v in bound)


def is_computed_by(function: Function, e: Expr, names: set[str], steps: int = 3) -> bool:
    """Whether methods of one of these names are in what an expression is computed from, in this function."""
    if any(isinstance(n.func, Attr) or "." in n.func.path for n in calls_in(e) if name_of(n) in names):  # type: ignore[union-attr]
        return True
    told = [Ref(p) for p in paths_in(e)] if steps else []
    bound = (n.value for n in function.bindings if any(t in n.targets for t in told))
    return any(is_computed_by(function, value, names, steps - 1) for value in bound)


def is_inferred(node: Call) -> bool:
    """`DTensor.from_local(shard, p.device_mesh, p.placements)`: its shape is not that of `p`, where the last shard of that is shorter."""
    mesh, placed = node.given("device_mesh", 1), node.given("placements", 2)
    if not isinstance(mesh, Ref) or not isinstance(placed, Ref) or node.given("shape", 4) is not None:
        return False
    of, _, name = placed.path.rpartition(".")
    return name == "placements" and bool(of) and mesh.path == f"{of}.device_mesh" and "" not in node.names


@cache
def agrees_by_name(name: str) -> bool:
    """Whether a function says in its name that ranks agree in it."""
    return any(word in name.lower() for word in _UNIFYING_WORDS)


def tensor_method(full: str, base: Value, name: str, args: list[Value], joined: Value) -> Value:
    """What a method or function of tensors gives."""
    if is_agreed_in_part(base) and name in ("item", "bool", "any", "cpu", "clone"):
        return base
    if base.sort == sorts.AGREED or (is_agreed(args) and full.startswith(_NUMBERS)):
        return Value(sort=sorts.AGREED)
    if name in _STRIDED and (base.kind in ("", "out", "of", "many", "param")) and not full:
        return Value(base.dep, base.params, ("odd", _STRIDED[name]))
    if (name in _RAGGED and (not full or full.startswith("torch."))) or (full == "torch.where" and len(args) == 1):
        return Value(joined.dep, joined.params, ("ragged", name))
    first = args[0].sort if args else None
    if full in _OF_LISTS and first in (sorts.FILLED, sorts.OWN_KEYS):
        return Value(joined.dep & ~UNEVEN, joined.params, ("ragged", "a list of what this rank has met"))
    if full in ("torch.cat", "torch.concat") and first is not None and first[0] == "many" and first[1][0] == "ragged":
        return Value(joined.dep, joined.params, first[1])
    if full == "pickle.dumps" or (full in _OF_BYTES and first == _PICKLED):
        return Value(0, NO_PARAMS, _PICKLED)
    if base.kind in ("odd", "ragged"):
        is_copied = name == "flatten" and base.sort[1] in ("transposed", "permuted", "expanded")
        keeps = (name in _KEEPS_SHAPE and not is_copied) or (
            base.sort[0] == "ragged" and name in _DENSE - {"sum", "mean", "item"}
        )
        return Value(base.dep, base.params, base.sort if keeps else None)
    is_local = (full.startswith("torch.") and not full.startswith("torch.distributed")) or (
        name == "gather" and len(args) > 1
    )
    if not is_local and (agrees_by_name(name) or agrees_by_name(full)):
        return Value(sort=sorts.AGREED)
    if "unwrap" in name:
        return Value(sort=sorts.RAW)
    outs = [v.sort for v in (base, *args) if v.kind in ("out", "of")]
    if full in LISTS:
        of = args[0].sort if args else None
        is_known = of is not None and of[0] == "many" and of[1][0] in ("layer", "obj", "wrap", "many")
        return args[0] if is_known else Value(sort=("many", ("layer", full)))
    is_numeric = not full or full.startswith(_NUMBERS)
    if outs and (is_numeric or any(word in full.lower() for word in ("loss", "crit"))):
        keeps_graph = name not in known.NAN_TESTS and name not in ("item", "detach", "tolist", "numpy", "cpu")
        longest = base.dep & LONGEST if name in _KEEPS_SHAPE or name in ("log_softmax", "softmax") else 0
        return Value(joined.dep & OF_DATA | longest, joined.params, outs[0] if keeps_graph else sorts.TEST)
    counts = args[0] if args and not full else args[1] if len(args) > 1 else Value()
    if name in _CUTS and counts.dep & DATA and counts.sort in (None, sorts.COUNT, sorts.TEST):
        return Value(OWN_BATCH | LOSS, NO_PARAMS, ("share", "range"))
    if name == "tensor_split" and any(a.sort == sorts.MULTIPLE for a in args):
        return Value(joined.dep, joined.params, sorts.PADDED)
    if not outs and (name.startswith("pad") or (base.sort == sorts.PADDED and name in _PARTS)):
        return Value(joined.dep, joined.params, sorts.PADDED)
    if is_numeric and name in _TESTS and joined.dep & DATA:
        is_count = (name in _COUNTS and base.sort != sorts.BATCH) or (base.sort == sorts.COUNT and name == "item")
        is_count &= not joined.dep & DRAWN
        loss = LOSS if name in known.NAN_TESTS and joined.dep & OWN_BATCH else 0  # no batch has that by itself
        return Value(joined.dep & (OF_DATA | DRAWN) | loss, joined.params, sorts.COUNT if is_count else sorts.TEST)
    if is_numeric and name in _SPREADS and joined.dep & OWN_BATCH:
        return Value(joined.dep & (OF_DATA | DRAWN) | LOSS, NO_PARAMS)
    if is_numeric and joined.params and not joined.dep and name in _TESTS | _SPREADS | _EACH:
        return Value(0, joined.params, sorts.TEST if name in _TESTS else None)
    if base.dep & LONGEST and name in _KEEPS_SHAPE | {"contiguous", "clone"}:
        return base
    is_of_data = is_numeric and (full or base.dep & (OF_DATA | DRAWN))
    return Value(joined.dep & (OF_DATA | DRAWN) if is_of_data else base.dep & CHANCE, NO_PARAMS)


def _part_of(full: str, base: Value, name: str, args: list[Value]) -> Value | None:
    """What is asked of losses by their words, of a mask, of a part of rows, of numbers that somebody gave; None: something else is."""
    if name == "repeat" and not full and any(v.dep & DRAWN or v.params for v in args):
        by = mixed(*args)
        how = ("ragged", "as many copies as this rank has drawn") if by.dep & DRAWN else sorts.REPEATED
        return Value(base.dep & OF_DATA, by.params, how)
    if base.sort == sorts.OWN_KEYS and name in ("items", "keys"):
        return base
    if name in ("contiguous", "clone") and base.sort == sorts.PART:
        return base
    if full == "torch.bincount" and args and args[0].kind == "ragged":
        return Value(OWN_BATCH, sort=sorts.COUNT)
    if name == "tolist" and not full and base.kind == "param" and not base.dep:
        return Value(0, base.params)
    if name in ("items", "values") and not args and base.dep & (LOSS | MAYBE) and base.kind in ("", "out", "of"):
        one = Value(base.dep & (LOSS | MAYBE), base.params, base.sort)  # of losses by their words
        dep = one.dep | base.dep & UNEVEN
        return one._replace(dep=dep) if name == "values" else Value(dep, one.params, ("many", ("tuple", (PLAIN, one))))
    return None


def fact_of(full: str, base: Value, name: str, args: list[Value], in_forward: bool) -> Value | None:
    """What is asked of a tensor, a list or a share: how long it is, whether there is anything in it; None: something else is asked."""
    first = args[0] if args else PLAIN
    is_ragged = base.kind == "ragged"
    if (part := _part_of(full, base, name, args)) is not None:
        return part
    if (full == "len" and first.sort == sorts.BLOCK) or (name == "numel" and base.sort in (sorts.BLOCK, *_LAST_BLOCKS)):
        return Value(0, base.params | first.params, sorts.BLOCK_LENGTH)
    if base.dep & CHANCE and not args and name in ("any", "all", "item"):
        return Value(CHANCE, NO_PARAMS, sorts.TEST if name != "item" else None)
    if name in known.COUNTS and is_ragged and base.dep & RANK and not in_forward:
        return PLAIN  # who is a member
    if name in known.COUNTS and (is_ragged or (in_forward and not args and name in ("any", "item"))):
        return Value(LOSS if is_ragged and name == "numel" else OWN_BATCH, sort=sorts.TEST)
    if in_forward and name == "sum" and not args and not full and base.sort in (None, sorts.TEST):
        return Value(OWN_BATCH, base.params, sorts.COUNT)
    if name in ("items", "keys", "values") and base.dep & UNEVEN:
        return Value(UNEVEN, sort=sorts.OWN_KEYS if base.sort == sorts.OWN_KEYS else None)
    if base.kind == "listing" and name == "items":
        return Value(sort=("listing", ("tuple", (PLAIN, Value(sort=base.sort[1])))))
    is_same = base.sort == sorts.BESIDE or (base.kind in ("set", "listing", "param") and not base.dep)
    if is_same and name in ("items", "keys", "values"):
        return base
    if full in ("torch.is_floating_point", "torch.is_complex", "torch.is_tensor"):
        return PLAIN
    is_shard = name == "shard" or full.endswith(".split_dataset_by_node")
    if is_shard and any(a.dep & RANK for a in args):  # the first shards may have one item more
        return (
            Value(sort=sorts.PADDED)
            if sorts.PADDED in (base.sort, first.sort)
            else Value(UNEVEN, sort=("share", "shard"))
        )
    if not full and name in _KEEPS_SHARE and base.dep & UNEVEN and base.kind == "share":
        return base if name != "filter" else Value(UNEVEN, sort=sorts.FILTERED)
    if full == "len":
        if first.dep & DRAWN:
            return PLAIN if first.sort != sorts.OF_DRAWN else Value(DRAWN)
        if first.sort == sorts.BESIDE or (first.sort == sorts.OWN_KEYS and first.dep & LOCAL):
            return Value(LOCAL)
        if first.kind == "ragged":
            return Value(DATA, sort=sorts.TEST)
        if first.sort == sorts.PADDED:
            return Value(sort=sorts.MULTIPLE)
        if first.sort == sorts.PICKED:
            return Value(HELD, NO_PARAMS, sorts.LENGTH)
        if first.sort in (sorts.FILLED, sorts.OWN_KEYS):
            return Value(LOSS, NO_PARAMS, sorts.LENGTH)
        if first.sort == sorts.COLLECTED:
            return Value(DATA, NO_PARAMS, sorts.LENGTH)
        if first.sort == sorts.SAMPLE:
            return Value(OWN_BATCH, first.params, sorts.COUNT)
        if first.dep & OWN_BATCH and first.sort in (None, sorts.EXCHANGED):  # a part of the batch
            return Value(first.dep & (DATA | LOCAL) | LOSS, first.params, sorts.LENGTH, group=first.group)
        if first.dep & (DATA | LOCAL):
            return Value(first.dep & (DATA | LOCAL), first.params, sorts.LENGTH)
    if not full and base.dep & DRAWN and name in FACTS:
        return PLAIN if base.sort != sorts.OF_DRAWN or name not in _SIZES else Value(DRAWN)
    if not full and base.dep & DATA and name in FACTS:
        return Value(DATA, base.params, sorts.LENGTH, group=base.group) if name in _SIZES and not is_ragged else PLAIN
    return element(first) if full == "next" and args else None


def of_builtin(full: str, plain: int, args: list[Value], joined: Value) -> Value:
    """What a function gives that differs as its arguments do. `plain`: how many of them have no name."""
    is_by_one = full == "min" and plain == 2 and (args[0].dep ^ args[1].dep) & RANK
    if is_by_one and sorts.MULTIPLE not in (args[0].sort, args[1].sort):
        return joined._replace(sort=sorts.REST)
    if full in ("min", "max") and is_agreed([Value(0, a.params) if a.sort == sorts.LENGTH else a for a in args]):
        return Value(sort=sorts.AGREED)
    of = args[0] if args and full != "len" else PLAIN
    is_one = full in ("min", "max", "bool", "any", "all", "sum")
    many = None if of.kind in ("param", "wrap", "obj") or (is_one and has_own_order(of)) else of.sort
    dep = joined.dep & ~UNEVEN if is_one else joined.dep
    keep = joined._replace(dep=dep)
    if full == "sorted":
        many = None if has_own_order(of) else many
    elif full in ("set", "frozenset") and of.kind != "share":
        many = sorts.SET
    given = [element(a) for a in args[:plain]]
    if full == "zip":
        return keep._replace(sort=("zip", tuple(given)))
    if full == "enumerate" and not has_own_order(of):
        return keep._replace(sort=("many", ("tuple", (PLAIN, *given[:1]))))
    return keep._replace(sort=many, zero=args[0].zero if len(args) == 1 else None)
