"""Layers of a module that are picked by a number or a word: which one runs, each rank may have drawn for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.lint import sorts
from unhang.lint.ir import Call, Found, Op, Ref
from unhang.lint.special import name_of
from unhang.lint.values import DRAWN, Conditional, Value

if TYPE_CHECKING:
    from unhang.lint.operators import Operators


def picked(one: Value, by: Value) -> Value:
    """`self.heads[k]`: one of several layers, picked by what this rank has drawn, or somebody gives."""
    if one.kind not in ("layer", "obj") or not (by.dep & DRAWN or by.params):
        return one
    return one._replace(dep=one.dep | by.dep & DRAWN, params=one.params | by.params)


def attribute_picked(of: Value, by: Value) -> Value:
    """`getattr(self, name)` of a module."""
    is_open = of.kind == "obj" and bool(by.dep & DRAWN or by.kind == "param")
    return Value(by.dep & DRAWN, by.params, sorts.PICKED_LAYER) if is_open else Value()


def found_in_pick(frame: Operators, node: Call, layer: Value) -> None:
    """A layer runs that was picked: the others run another one, where each rank has drawn for itself."""
    is_layer = layer.kind == "layer" or layer.sort == sorts.PICKED_LAYER
    is_layer = is_layer or (layer.kind == "obj" and frame.link.project.is_module(*layer.sort[1:3]))
    if not is_layer or not frame._runs_layers():
        return
    base = node.func.parts[0] if isinstance(node.func, Op) and node.func.op == "[]" else None
    text = f"{base.path}[...]" if isinstance(base, Ref) else frame.place(node, name_of(node)).text
    way = [(frame.path, node.line, f"which layer `{text}` is depends on what each rank draws with a seed of its own")]
    found = Found("LNT414", node.line, node.column + 1, {"condition": text, "collective": text}, way, variant="picked")
    if layer.dep & DRAWN:
        frame.link.report(frame.path, found)
    else:
        frame.later += [Conditional(i, "is drawn", found, frame.path) for i in sorted(layer.params)]
