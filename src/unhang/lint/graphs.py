"""Constants in place of what other ranks have a graph for: the backward of an autograd function does not run there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from unhang.lint import known, sorts
from unhang.lint.divergence import asks_if_empty
from unhang.lint.ir import Attr, Call, Expr, File, Fn, Found, Function, If, Leave, Node, Op, Ref, Set, nodes_in
from unhang.lint.keeping import is_by_batch
from unhang.lint.special import name_of, paths_in
from unhang.lint.values import DIFFERS, RANK, Conditional, Effect, Value

if TYPE_CHECKING:
    from unhang.lint.operators import Operators

_ASKS_GRAPH = {"requires_grad", "grad_fn"}
_REDUCING = {("wrap", sort) for sort in ("ddp", "ddp without buffers", "apex", "fsdp", "fsdp2")}
_FACTS = {"shape", "device", "dtype", "size", "dim", "ndim", "numel", *(f"new_{of}" for of in ("zeros", "ones", "full", "empty", "tensor"))}  # fmt: skip
_SHAPED = {"zeros_like", "ones_like", "empty_like", "full_like", "expand_as", "view_as", "len", "isinstance"}
_WITHOUT = {"no_grad", "inference_mode"}


def have_graphs(files: Iterable[File]) -> bool:
    """Whether there are autograd functions whose backward makes collectives."""
    own = (f for file in files for f in file.functions if f.name == "backward" and f.has_context)
    return any(not known.MEETS.isdisjoint(f.words) for f in own)


def parts_graphs(frame: Operators, test: Expr, v: Value) -> bool:
    """Whether a condition is this rank's own: by what differs, or by its own entry of a list (`if counts[rank]`)."""
    is_own = isinstance(test, Op) and test.op == "[]" and bool(frame.value(test.parts[1]).dep & RANK)
    return is_own or bool(v.dep & DIFFERS)


def is_half(a: Value, b: Value) -> bool:
    """Whether one of two values is a constant, and the other is not."""
    return sorts.BARE in (a.sort, b.sort) and a.sort != b.sort


def added(frame: Operators, old: Value | None, value: Value) -> Value:
    """What a name is worth that held a constant, and gets more in those rounds in which the rank's batch has something."""
    if old is not None and old.sort == sorts.BARE and value.sort != sorts.BARE and frame.loops and is_by_batch(frame):
        return value._replace(sort=sorts.HALF)
    return value


def mark_half(frame: Operators, test: Expr, condition: Value, here: dict[str, Value], there: dict[str, Value]) -> None:
    """Names that hold a constant on some ranks, and on others what has a graph. Who asks for the graph takes care of that."""
    asked = {p.rpartition(".")[0] for p in paths_in(test) if p.rpartition(".")[2] in _ASKS_GRAPH}
    asked |= {p for n in nodes_in(test) if isinstance(n, Attr) and n.name in _ASKS_GRAPH for p in paths_in(n.base)}
    for name in asked & frame.env.keys():
        if frame.env[name].sort in (sorts.BARE, sorts.HALF):
            frame.env[name] = frame.env[name]._replace(sort=None)
    if parts_graphs(frame, test, condition):
        for name, value in frame.env.items():
            a, b = here.get(name), there.get(name)
            if a is not None and b is not None and is_half(a, b):
                frame.env[name] = value._replace(sort=sorts.HALF)


def note_bare(frame: Operators, value: Value) -> None:
    """A function gives back a constant where there is nothing in what it is given."""
    if frame.link.has_graphs and value.sort == sorts.BARE and frame.conditions:
        frame.is_bare_where_empty |= asks_if_empty(frame.conditions[-1][0])


def with_graph(frame: Operators, returned: Value, values: Sequence[Value]) -> Value:
    """What a function gives back, as to its graph. What an autograd function makes has one, whatever it is made of."""
    if frame.function.has_context and returned.sort == sorts.BARE:
        return returned._replace(sort=None)
    is_half = frame.is_bare_where_empty and any(v.sort != sorts.BARE for v in values)
    return returned._replace(sort=sorts.HALF) if is_half else returned


def note_graph(frame: Operators, s: Set, value: Value) -> None:
    """What an unknown call makes of a wrapped module, or of a parameter, has the graph of that; so has what is computed from it."""
    sort = None
    if value.sort is None and not value.dep and isinstance(s.value, Call) and s.value.args:
        for v in frame.last_given:
            if v.sort in _REDUCING:
                sort = ("out", v.sort[1])
            elif sort is None and v.sort and v.sort[0] == "param" and _is_module(frame, v.sort[1]):
                sort = ("of", v.sort[1])
    sort = sort or (graph_of(frame, s.value) if frame.graphs else None)
    for target in s.targets if sort or frame.graphs else ():
        for one in target.parts if isinstance(target, Op) and target.op == "seq" else [target]:
            if isinstance(one, Ref) and sort is not None:
                frame.graphs[one.path] = sort
            elif isinstance(one, Ref):
                frame.graphs.pop(one.path, None)


def graph_of(frame: Operators, e: Expr) -> tuple[Any, ...] | None:
    """The module, or the parameter, whose graph an expression has that is computed from such names: `loss.mean() / count`, `scaler.scale(loss)`."""
    match e:
        case Ref(path=path):
            return frame.graphs.get(path) or frame.graphs.get(path.partition(".")[0])
        case Attr(base=base):
            return graph_of(frame, base)
        case Op(parts=parts):
            return next((found for p in parts if (found := graph_of(frame, p)) is not None), None)
        case Call(func=func, args=args):
            return next((found for p in (func, *args) if (found := graph_of(frame, p)) is not None), None)
    return None


def _is_module(frame: Operators, i: int) -> bool:
    """Whether a parameter is called like a module."""
    names = frame.function.parameters
    return i < len(names) and any(word in names[i].lower() for word in ("model", "net", "module"))


def found_in_graph(frame: Operators, node: Call, args: list[Value], name: str) -> None:
    """An autograd function is given a constant by some ranks: these skip the collectives of its backward."""
    if any(d.rpartition(".")[2] in _WITHOUT for d in frame.function.decorators):
        return
    for v in args:
        found = Found("LNT117", node.line, node.column + 1, {"call": frame.place(node, name).text})
        if v.sort == sorts.HALF:
            frame.link.report(frame.path, found)
        elif v.kind == "param":
            frame.later.append(Conditional(v.sort[1], "is half", found, frame.path))


def found_in_backward(
    frame: Operators, node: Call, file: int, function: Function, args: list[Value], name: str
) -> None:
    """If it is the forward of an autograd function that runs, its backward will run where it is given a graph."""
    if not function.has_context or function.name != "forward":
        return
    backward = frame.link.project.method(file, function.owner, "backward")
    if backward is not None and any(e.param < 0 for e in frame.link.summary(*backward).effects):
        found_in_graph(frame, node, args, name)


def note_heads(frame: Operators, s: If) -> None:
    """Under a condition on the rank's batch alone, what a layer gave is used: elsewhere that layer gets no gradient."""
    if not frame.link.reduces_all or any(p.startswith("self.") for p in paths_in(s.test)):
        return
    body, leaves = frame.function.body, bool(s.body) and isinstance(s.body[-1], Leave)
    if any(isinstance(n, Fn) for n in nodes_in(body)) or (leaves and s not in body):
        return
    everywhere, under = Counter(_used(body)), body[body.index(s) + 1 :] if leaves else s.body
    for name, times in sorted(Counter(_used(under)).items()):
        if everywhere[name] == times and name != "self":
            words, at = {"condition": s.text, "collective": name}, frame.parameter(name)
            way = [(frame.path, s.line, f"the condition `{s.text}` depends on each rank's own batch")]
            found = Found("LNT111", s.line, 1, words, way, variant="unused")
            if at > 0:
                frame.later.append(Conditional(at, "is head", found, frame.path))
            elif layer := _layer_bound(frame, name):
                frame.link.report(frame.path, replace(found, words=words | {"collective": layer}))


def note_use(frame: Operators, sources: Iterable[Expr]) -> None:
    """`sum(p.sum() for p in self.head.parameters()) * 0`: the parameters of a layer, or of the whole module, get gradients though it does not run."""
    for e in sources if frame.link.needs_all else ():
        if (
            not isinstance(e, Call)
            or name_of(e) not in ("parameters", "named_parameters")
            or not isinstance(e.func, Ref)
        ):
            continue
        owner = e.func.path.rpartition(".")[0]
        v = frame.ref(owner)
        layer = "*" if owner == "self" else str(v.sort[-1]) if v.kind in ("layer", "obj") else ""
        if layer and frame._runs_layers():
            for op in ("module", "part", "pick"):
                frame.emit(Effect(op, "", (frame.place(e, owner),), "module", -1, layer, is_sure=False))


def head_of(frame: Operators, e: Expr) -> str:
    """The layer of this module that gave what a call is given, and nobody else is; empty: it is something else."""
    if isinstance(e, Ref):
        return _layer_bound(frame, e.path) if [*_used(frame.function.body)].count(e.path) == 1 else ""
    of = e.func.path if isinstance(e, Call) and isinstance(e.func, Ref) else ""
    v = frame.ref(of) if of.startswith("self.") else Value()
    is_module = v.kind == "obj" and frame.link.project.is_module(v.sort[1], v.sort[2])
    return of if v.kind == "layer" or is_module else ""


def _layer_bound(frame: Operators, name: str) -> str:
    """The layer that gave what a name of this function is, and is alone."""
    bound = [n.value for n in frame.function.bindings if any(Ref(name) in nodes_in(t) for t in n.targets)]
    return head_of(frame, bound[0]) if len(bound) == 1 and isinstance(bound[0], Call) else ""


def _used(part: object) -> Iterator[str]:
    """The names whose values are used: not those that are bound, or asked for their shape."""
    match part:
        case list():
            for one in part:
                yield from _used(one)
        case Set(targets=targets, value=value):
            yield from _used([value, *(t.parts for t in targets if isinstance(t, Op) and t.op == "[]")])
        case Ref(path=path):
            name, _, asked = path.partition(".")
            if asked.partition(".")[0] not in _FACTS:
                yield name
        case Call(func=func, args=args):
            yield from _used([func] if name_of(func) in _SHAPED else [func, *args])
        case Node():
            for name in part.__struct_fields__:
                yield from _used(getattr(part, name))
