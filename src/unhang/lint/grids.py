"""The grid of the ranks: meshes, and groups of which each rank is in one of several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.lint import sorts
from unhang.lint.ir import Call, Const, Expr, Found, Op, Ref, calls_in
from unhang.lint.special import name_of
from unhang.lint.values import PLAIN, RANK, Conditional, Value

if TYPE_CHECKING:
    from unhang.lint.operators import Operators


def made_group(frame: Operators, node: Call, op: str, name: str, args: list[Value]) -> Value:
    """A mesh, or a group that is made; in a loop over the members of several groups, one of them."""
    if op == "device_mesh":
        shape = node.given("mesh_shape", 1)
        is_grid = isinstance(shape, Op) and shape.op == "seq" and sum(p != Const(1) for p in shape.parts) > 1
        return Value(sort=sorts.GRID) if is_grid else PLAIN
    if name == "new_subgroups" and not node.given("group", 1):
        return Value(sort=("tuple", (Value(sort=sorts.PART_GROUP), PLAIN)))
    members = node.given("ranks", 0)
    if frame.loops and members is not None and _begins_anew(frame, members):
        return Value(sort=sorts.PART_GROUP)
    return Value(sort=("group", name))


def _begins_anew(frame: Operators, members: Expr) -> bool:
    """Whether these are ranks from a number on that the loop says: `range(start, start + size)`."""
    if isinstance(members, Ref):
        bound = [n.value for n in frame.function.bindings if members in n.targets]
        return len(bound) == 1 and not isinstance(bound[0], Ref) and _begins_anew(frame, bound[0])
    ranges = [n for n in calls_in(members) if name_of(n) == "range"]
    is_one = len(ranges) == 1 and isinstance(members, Call) and len(ranges[0].args) > 1
    return is_one and not isinstance(ranges[0].args[0], Const)


def group_of_mesh(sort: tuple[object, ...], args: list[Value]) -> Value:
    """`mesh["tp"].get_group()`, `mesh.get_group("tp")`: the group of this rank along one dimension of several."""
    return Value(sort=sorts.PART_GROUP) if sort == sorts.GRID_PART or args else PLAIN


def in_mesh(sort: tuple[object, ...], at: Value) -> Value:
    """`mesh["tp"]`: one dimension of several."""
    return Value(sort=sorts.GRID_PART) if sort == sorts.GRID and isinstance(at.const, str) else PLAIN


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
