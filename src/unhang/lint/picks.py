"""Layers of a module, or loaders, that are picked by a number or a word: which one it is, each rank may have drawn for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.lint import sorts
from unhang.lint.ir import Call, Const, Expr, Found, Function, Op, Ref, calls_in
from unhang.lint.special import name_of
from unhang.lint.values import DRAWN, OWN_BATCH, RANK, Conditional, Value

if TYPE_CHECKING:
    from unhang.lint.operators import Operators
    from unhang.lint.project import Project


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


def part_by_class(frame: Operators, node: Call, of: Value, mark: int) -> None:
    """What is made from `mark` on by a method of an object that is of one class on the first rank, and of another one elsewhere, whose method makes nothing."""
    if of.kind != "one of" or not of.dep & RANK or of.group or len(frame.effects) == mark:
        return
    name, project = name_of(node), frame.link.project
    methods = [(s, project.method(s[1], s[2], name)) for s in of.sort[1] if s[0] == "obj"]
    told = [(s[2], [e for e in frame.link.summary(*at).effects if e.is_sure]) for s, at in methods if at is not None]
    makers = [cls for cls, made in told if made]
    if len(told) == len(of.sort[1]) and len(makers) < len(told):
        owner = node.func.path.rpartition(".")[0] if isinstance(node.func, Ref) else "it"
        text = f"isinstance({owner}, {makers[0]})"
        frame.conditional_part(Value(RANK, zero=of.zero), node.line, mark, text=text)


def batch_drawn(frame: Operators, of: Value, name: str, given: Value) -> Value:
    """What a method of one of several objects gives, which this rank has drawn: a batch of a size of its own, where each of them is made with one."""
    if not of.dep & DRAWN or not given.dep & OWN_BATCH:
        return given
    project = frame.link.project
    owners = {(file, project.function(file, at).owner) for _, file, at in project.methods_called(name)}
    is_own = any(_takes_size(project, file, cls) for file, cls in owners if cls)
    return Value(given.dep | DRAWN, sort=sorts.OF_DRAWN) if is_own else given


def _takes_size(project: Project, file: int, cls: str) -> bool:
    """`DataLoader(items, self.batch_size)`, after `self.batch_size = config["batch_size"]`."""
    making = project.method(file, cls, "__init__")
    function = project.function(*making) if making is not None else None
    if function is None or "DataLoader" not in function.words:
        return False
    loaders = [n for n in calls_in(function.body) if name_of(n) == "DataLoader"]
    sizes = [size for n in loaders if (size := n.given("batch_size", 1)) is not None]
    bound = [v for n in function.bindings for t, v in n.pairs() if t in sizes]
    return any(_is_entry(function, e) for e in (*sizes, *bound))


def _is_entry(function: Function, e: Expr) -> bool:
    """`config["batch_size"]`, `config.batch_size`, of a parameter."""
    match e:
        case Op(op="[]", parts=[Ref(path=path), Const(value=str())]):
            return path in function.parameters
        case Ref(path=path):
            head, _, last = path.partition(".")
            return bool(last) and head != "self" and head in function.parameters
    return False
