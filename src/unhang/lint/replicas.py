"""Modules on the cores of a TPU, which have no wrapper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.lint import sorts
from unhang.lint.ir import Attr, Call, Ref
from unhang.lint.values import Value

if TYPE_CHECKING:
    from unhang.lint.operators import Operators


def replica(frame: Operators, v: Value) -> Value:
    """A module on the device of its core: what it gives is of this rank's batch, as with a wrapper."""
    if v.sort is None:
        return Value(sort=("wrap", "replica"))
    is_module = v.kind == "layer" or (v.kind == "obj" and frame.link.project.is_module(v.sort[1], v.sort[2]))
    return Value(sort=("wrap", "replica"), const=v.sort[:3]) if is_module else v


def is_for_core(frame: Operators, node: Call, base: Value, args: list[Value]) -> bool:
    """`create_model("resnet").to(device)`: what somebody makes, torch not among them, is put on the core of this rank: a module, whose batches are this rank's own."""
    made = node.func.base if isinstance(node.func, Attr) else None
    if not isinstance(made, Call) or base != Value() or not args or args[0].sort != sorts.CORE:
        return False
    full = frame.link.full_of(frame.ref(made.func.path)) if isinstance(made.func, Ref) else ""
    return bool(full) and full.partition(".")[0] not in ("torch", "numpy")
