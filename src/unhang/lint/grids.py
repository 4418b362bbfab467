"""The grid of the ranks: meshes, groups of which each rank is in one of several, and gradients of which each rank has a part of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unhang.lint import known, sorts
from unhang.lint.ir import Call, Const, Expr, Found, Loop, Op, Ref, calls_in, nodes_in
from unhang.lint.special import is_none, name_of
from unhang.lint.values import HELD, PLAIN, RANK, Conditional, Value

if TYPE_CHECKING:
    from unhang.lint.operators import Operators

_GIVES_ALL = ("parameters", "named_parameters")


def made_group(frame: Operators, node: Call, op: str, name: str, args: list[Value]) -> Value:
    """A mesh, or a group that is made; in a loop over the members of several groups, one of them."""
    if op == "device_mesh":
        shape = node.given("mesh_shape", 1)
        is_grid = isinstance(shape, Op) and shape.op == "seq" and sum(p != Const(1) for p in shape.parts) > 1
        return Value(sort=sorts.GRID) if is_grid else PLAIN
    _found_in_members(frame, node, args)
    if name == "new_subgroups" and not node.given("group", 1):
        return Value(sort=("tuple", (Value(sort=sorts.PART_GROUP), PLAIN)))
    members = node.given("ranks", 0)
    if frame.loops and members is not None and _begins_anew(frame, members):
        return Value(sort=sorts.PART_GROUP)
    if name == "new_group" and (is_none(members) or _are_all(frame, members)):
        return Value(sort=sorts.OF_ALL)
    return Value(sort=("group", name))


def _are_all(frame: Operators, members: Expr | None) -> bool:
    """Whether these are all ranks: `range(world)`, as a list perhaps."""
    match members:
        case Call(func=Ref(path="list" | "tuple" | "sorted"), args=[of]):
            return _are_all(frame, of)
        case Call(func=Ref(path="range"), args=[Ref(path=path)]):
            bound = [v for n in frame.function.bindings for t, v in n.pairs() if t == Ref(path)]
            return len(bound) == 1 and name_of(bound[0]) == "get_world_size" and not getattr(bound[0], "args", [])
        case Call(func=Ref(path="range"), args=[Call(args=[]) as size]):
            return name_of(size) == "get_world_size"
        case Ref():
            bound = [v for n in frame.function.bindings for t, v in n.pairs() if t == members]
            return len(bound) == 1 and not isinstance(bound[0], Ref) and _are_all(frame, bound[0])
    return False


def _begins_anew(frame: Operators, members: Expr) -> bool:
    """Whether these are ranks from a number on that the loop says: `range(start, start + size)`."""
    if isinstance(members, Ref):
        bound = [n.value for n in frame.function.bindings if members in n.targets]
        return len(bound) == 1 and not isinstance(bound[0], Ref) and _begins_anew(frame, bound[0])
    ranges = [n for n in calls_in(members) if name_of(n) == "range"]
    is_one = len(ranges) == 1 and isinstance(members, Call) and len(ranges[0].args) > 1
    return is_one and not isinstance(ranges[0].args[0], Const)


def _found_in_members(frame: Operators, node: Call, args: list[Value]) -> None:
    """A group of this rank's own members: every rank makes one group, each another one. A group of itself alone does no harm."""
    of = node.args[0] if args and not frame.loops and (args[0].dep & RANK or args[0].sort == sorts.BLOCK) else None
    if of is None or (isinstance(of, Op) and of.op == "seq" and len(of.parts) == 1):
        return
    if not frame.is_special and "use_local_synchronization" not in node.names:
        frame.found("LNT104", node, variant="own", call="new_group()")


def group_of_mesh(sort: tuple[object, ...] | None, name: str, args: list[Value]) -> Value | None:
    """`mesh["tp"].get_group()`, `mesh.get_group("tp")`: the group of this rank along one dimension of several; None: something else is asked."""
    if sort not in (sorts.GRID, sorts.GRID_PART) or name != "get_group":
        return None
    return Value(sort=sorts.PART_GROUP) if sort == sorts.GRID_PART or args else PLAIN


def is_over_group(frame: Operators, node: Call) -> bool:
    """Whether a module is sharded over a mesh that is made of a group: over the members of that alone."""
    mesh = node.given("mesh") or node.given("device_mesh")
    return isinstance(mesh, Ref) and frame.ref(mesh.path).sort == sorts.GRID_GROUP


def found_in_source(frame: Operators, node: Call, last: str, source: Expr | None, group: Expr | None) -> None:
    """`broadcast(x, src=0, group=group)`: the first rank of all is no member of the other groups."""
    if group is None or source != Const(0) or frame.is_under(RANK):
        return
    v = frame.value(group) if not isinstance(group, Call) else frame.call(group)
    found = Found("LNT112", node.line, node.column + 1, {"call": last}, variant="member")
    if v.sort == sorts.PART_GROUP:
        frame.link.report(frame.path, found)
    elif v.kind == "param":
        frame.later.append(Conditional(v.sort[1], "is one of", found, frame.path))


_AGREED_IN = "agreed in "
# Words of names, and the dimension of the job's grid that each means.
DIMENSIONS = {
    "tensor": "tp", "tp": "tp", "pipeline": "pp", "pp": "pp", "context": "cp", "cp": "cp", "data": "dp", "dp": "dp", "expert": "ep", "ep": "ep",
}  # fmt: skip
_OF_NAME = {w: d for w, d in DIMENSIONS.items() if d != "ep"} | {"tmp": "tp", "pipe": "pp", "model": "mp", "mp": "mp"}


def _along(group: str) -> frozenset[str]:
    """Along which dimensions of the job's grid the members of a group lie, by the last word of its name; empty: that is not known."""
    last = group.partition("(")[0].rpartition(".")[2].lower()
    found = {_OF_NAME[w] for w in re.findall(r"[a-z]+", last) if w in _OF_NAME}
    if "mp" in found:  # `tensor_model_parallel` is one dimension of the two
        found = found - {"mp"} if found & {"tp", "pp"} else found - {"mp"} | {"tp", "pp"}
    return frozenset(found)


def agreed_in(frame: Operators, group: str, old: Value) -> Value:
    """What ranks have agreed on; in one part of the grid alone, whether this rank's own gradients are finite is still the affair of that part."""
    is_own = not known.NAN_TESTS.isdisjoint(frame.function.words) or old.group.startswith(_AGREED_IN)
    if not group or not is_own or not _along(group) or not _asks_gradients(frame):
        return Value(sort=sorts.AGREED)
    told = old.group if old.group.startswith(_AGREED_IN) else _AGREED_IN
    return Value(HELD, sort=sorts.TEST, group=f"{told} {group}")


def _asks_gradients(frame: Operators) -> bool:
    if "grads" not in frame.function.notes:
        paths = (n.path for n in nodes_in(frame.function.body) if isinstance(n, Ref))
        frame.function.notes["grads"] = any(".grad" in p or p.rpartition(".")[2] in ("grad", "grads") for p in paths)
    return bool(frame.function.notes["grads"])


def is_agreed_in_part(v: Value) -> bool:
    """Whether the ranks of one part of the grid alone have agreed on it."""
    return v.group.startswith(_AGREED_IN)


def reaches_further(v: Value, group: str) -> bool:
    """Whether a group has members that did not take part in the agreement: other parts of the model. What copies of it have, is the same."""
    agreed = frozenset[str]().union(*map(_along, v.group.removeprefix(_AGREED_IN).split()))
    return bool((_along(group) - agreed) & {"tp", "pp"})


def own_gradients(frame: Operators, node: Call) -> Value | None:
    """Whether a call looks into gradients of this rank's own part of the parameters: `torch.isfinite(p.grad)`; None: it does something else."""
    of = node.args[0] if node.args else None
    name, _, last = of.path.partition(".") if isinstance(of, Ref) else ("", "", "")
    if last != "grad":
        return None
    is_own = any(_is_own_part(frame, over) for over in _gone_through(frame, name))
    return Value(HELD, sort=sorts.TEST) if is_own else None


def _gone_through(frame: Operators, name: str) -> Iterator[Expr]:
    """What loops and comprehensions with a target of this name go through."""
    for n in nodes_in(frame.function.body):
        match n:
            case Loop(target=Op() | Ref() as target, over=over) if Ref(name) in nodes_in(target):
                yield over
            case Op(op="comp", parts=[_, *loops]):
                for loop in loops:
                    if isinstance(loop, Op) and Ref(name) in nodes_in(loop.parts[0]):
                        yield loop.parts[1]


def _is_own_part(frame: Operators, e: Expr, steps: int = 2) -> bool:
    """`parts[rank]`, or a name for that; the parameters of what FSDP wraps."""
    match e:
        case Op(op="[]", parts=[_, index]):
            return bool(frame.value(index).sort == ("rank",))
        case Call(func=Ref(path=path)) if name_of(e) in _GIVES_ALL:
            return bool(frame.ref(path.rpartition(".")[0]).sort == ("wrap", "fsdp"))
        case Ref() if steps:
            own = [
                f
                for f in frame.source.functions
                if f is frame.function or (f.owner and f.owner == frame.function.owner)
            ]
            bound = [n.value for f in own for n in f.bindings if e in n.targets]
            return bool(bound) and all(_is_own_part(frame, v, steps - 1) for v in bound)
    return False
