"""What methods and functions of tensors give: agreed, of this rank's batch, of a shape that is its own."""

from __future__ import annotations

from unhang.lint import known
from unhang.lint.special import OF_DATA
from unhang.lint.values import AGREED, NO_PARAMS, PLAIN, RAW, Value

_NUMBERS = ("torch.", "math.", "numpy.", "statistics.")
_UNIFYING_WORDS = ("reduce", "gather", "sync", "broadcast", "average", "across", "all_")
_STRIDED = {"t": "transposed", "transpose": "transposed", "permute": "permuted", "expand": "expanded", "expand_as": "expanded"}  # fmt: skip
_RAGGED = {"nonzero", "masked_select", "unique", "unique_consecutive", "argwhere"}
_KEEPS_SHAPE = {
    *("float", "to", "cuda", "half", "long", "int", "detach", "cpu", "squeeze", "unsqueeze", "flatten", "double", "type"),
}  # fmt: skip
FACTS = {
    *("dim", "ndimension", "stride", "is_floating_point", "get_device", "type", "is_contiguous", "keys", "element_size", "data_ptr"),
    *("size", "numel", "values", "items", "copy", "update", "pop"),
}  # fmt: skip
LISTS = {"torch.nn.ModuleList", "torch.nn.ModuleDict"}
_DENSE = {"contiguous", "clone", "reshape", "repeat", "sum", "mean", "item", "tolist"}


def tensor_method(full: str, base: Value, name: str, args: list[Value], joined: Value) -> Value:
    """What a method or function of tensors gives."""
    if base.sort == AGREED:
        return base
    if name in _STRIDED and (base.sort is None or base.sort[0] in ("out", "of", "many", "param")) and not full:
        return Value(base.dep, base.params, ("odd", _STRIDED[name]))
    if (name in _RAGGED and (not full or full.startswith("torch."))) or (full == "torch.where" and len(args) == 1):
        return Value(joined.dep, joined.params, ("ragged", name))
    if base.sort is not None and base.sort[0] in ("odd", "ragged"):
        keeps = name in _KEEPS_SHAPE or (base.sort[0] == "ragged" and name in _DENSE - {"sum", "mean", "item"})
        return Value(base.dep, base.params, base.sort if keeps else None)
    if any(word in name.lower() or word in full.lower() for word in _UNIFYING_WORDS):
        return Value(sort=AGREED)
    if "unwrap" in name:
        return Value(sort=RAW)
    outs = [v.sort for v in (base, *args) if v.sort is not None and v.sort[0] in ("out", "of")]
    if full in LISTS:
        return args[0] if args else PLAIN
    is_loss = any(word in full.lower() for word in ("loss", "crit"))
    if outs and (not full or is_loss or full.startswith(_NUMBERS)):
        keeps_graph = name not in known.NAN_TESTS and name not in ("item", "detach", "tolist", "numpy", "cpu")
        return Value(joined.dep & OF_DATA, joined.params, outs[0] if keeps_graph else None)
    numeric = full.startswith(_NUMBERS) or (not full and base.dep & OF_DATA)
    return Value(joined.dep & OF_DATA if numeric else 0, NO_PARAMS)
