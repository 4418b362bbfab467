"""Rules on what a call is given: a source, a rank, an address, a group's limits, a handle, a loss."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from unhang.lint import known, sorts
from unhang.lint.grids import found_in_source
from unhang.lint.ir import Call, Const, Expr, Found, Function, If, Op, Ref, Set, calls_in, nodes_in
from unhang.lint.libraries import Collective
from unhang.lint.samplers import NUMBER
from unhang.lint.special import is_batch, is_none, name_of, value_of_name
from unhang.lint.values import DATA, LOCAL, LOSS, OWN_BATCH, PLAIN, RANK, Conditional, Value

if TYPE_CHECKING:
    from unhang.lint.link import Link
    from unhang.lint.operators import Operators

_STARTS_RANKS = {"spawn", "Popen", "start_processes", "Process", "run", "launch", "remote", "elastic_launch", "call"}
_SHARDS = re.compile(r"shard|fsdp|ddp|parallel")
_HERE = re.compile(r"localhost|127\.0\.0\.1")
_WHOLE_RANKS = ("global_rank", "world_rank", "dist_rank")
_CALLBACK = "transformers.TrainerCallback"
_SOURCE_AT = {
    "broadcast": 1, "broadcast_object_list": 1, "reduce": 1, "gather": 2, "gather_object": 2, "scatter": 2, "scatter_object_list": 2,
}  # fmt: skip


def value_given(node: Call, args: list[Value], name: str, at: int = -1) -> tuple[Expr, Value] | None:
    """The argument of this name, or at this position, and what it is worth."""
    e = node.given(name, at)
    return None if e is None else (e, args[next(i for i, a in enumerate(node.args) if a is e)])


def _source(frame: Operators, full: str, node: Call, args: list[Value]) -> None:
    """`broadcast(x, src=rank)`: every rank names itself. Under a condition on the rank it may name the one it is for."""
    last = full.rpartition(".")[2]
    at = _SOURCE_AT.get(last, -1)
    if known.collective(full) is None or not full.startswith("torch.distributed."):
        return
    given = value_given(node, args, "src" if last.startswith(("broadcast", "scatter")) else "dst", at)
    group = node.given("group", at + 1)
    if group is not None:
        found_in_source(frame, node, last, given[0] if given is not None else None, group)
        return
    if given is None or given[1].sort not in (("rank",), sorts.LOCAL_RANK) or not isinstance(given[0], Ref | Call):
        return
    if isinstance(given[0], Ref) and given[0].path in frame.function.parameters:  # of the caller's choice
        return
    if not frame.is_under(RANK) and not _is_one_way(frame.function, node):
        frame.found("LNT112", node, call=last)


def _is_one_way(function: Function, node: Call) -> bool:
    """Whether the other branch of a condition makes the same call: the rank that has the value names itself, the others name it."""
    for n in nodes_in(function.body):
        if isinstance(n, If):
            sides = [[c for c in calls_in(side) if c.func == node.func] for side in (n.body, n.orelse)]
            if all(sides) and any(c is node or c == node for side in sides for c in side):
                return True
    return False


def _init(frame: Operators, full: str, node: Call, args: list[Value]) -> None:
    """The number of a rank on its node, given as its number in the job; an address that each rank makes up."""
    if not full.startswith("torch.distributed."):
        return
    frame.has_limit |= node.given("timeout", 2) is not None
    rank, address = value_given(node, args, "rank", 4), value_given(node, args, "init_method", 1)
    if (
        address is not None
        and address[1].dep & LOCAL
        and not frame.is_special  # the caller makes it up, who starts the ranks
        and node.given("backend", 0) != Const("mpi")
        and node.given("world_size", 3) != Const(1)
    ):
        frame.found("LNT416", node, name="init_method")
    if rank is None or _is_one_node(frame.function, node):
        return
    whole = next((n for n in _WHOLE_RANKS if frame.env.get(n, Value()).dep & RANK), None)
    if rank[1].sort == sorts.LOCAL_RANK:
        frame.found("LNT415", node, whole="RANK")
    elif whole is not None and isinstance(rank[0], Ref) and rank[0].path in ("rank", "gpu", "local_rank"):
        frame.found("LNT415", node, whole=whole)


def _is_one_node(function: Function, node: Call) -> bool:
    """Whether all ranks are on this node, by where they meet."""
    places = [node.given("init_method", 1)] + [
        n.value for n in function.bindings
        if isinstance(n.targets[0], Op) and n.targets[0].parts[-1] == Const("MASTER_ADDR")
    ]  # fmt: skip
    is_here = any(isinstance(p, Const) and _HERE.search(str(p.value)) for p in places)
    return is_here or node.given("backend", 0) == Const("fake")


def found_in_environment(frame: Operators, name: object, value: Value, line: int) -> None:
    """The address of the rendezvous, made up by a process that is one of the ranks."""
    if name not in ("MASTER_PORT", "MASTER_ADDR") or not value.dep & LOCAL or value.params:  # who calls may give it
        return
    words = set(frame.function.words)
    nodes = list(nodes_in(frame.function.body))
    for n in nodes:
        match n:
            case Set(targets=[Op(op="[]", parts=[_, Const(value="WORLD_SIZE")]), *_], value=Const(value="1")):
                return
    starts = [n for n in nodes if isinstance(n, Call) and isinstance(n.func, Ref)]
    alone = [n for n in starts if n.func.path.endswith("init_process_group") and isinstance(n.given("rank", 4), Const)]  # type: ignore[union-attr]
    is_rank = ("init_process_group" in words and not alone) or any(
        known.rank_kind(p) for p in frame.function.parameters
    )
    if is_rank and not words & _STARTS_RANKS and not frame.is_under(RANK):
        frame.link.report(frame.path, Found("LNT416", line, 1, {"name": str(name)}))


def _constant(frame: Operators, full: str, node: Call, args: list[Value]) -> None:
    """A tensor that wants gradients, made for a batch without anything in it: a loss that no parameter is in."""
    if node.given("requires_grad") != Const(True) or not full.startswith("torch.") or not frame.link.wraps:
        return
    by_data = next((c for c, *_ in frame.conditions if c.value.dep & DATA and not c.value.dep & RANK), None)
    if by_data is not None:
        frame.found("LNT114", node, condition=by_data.text)
        return
    for cause, *_ in frame.conditions[-1:]:  # the caller knows whether it is of the batch
        for i in cause.value.params if cause.value.sort == sorts.TEST else ():
            found = Found("LNT114", node.line, node.column + 1, {"condition": cause.text})
            frame.later.append(Conditional(i, "", found, frame.path))


def _group(frame: Operators, full: str, node: Call, args: list[Value]) -> None:
    """A group that is made without the limit which the job's own was given."""
    made = known.collective(full)
    is_given = any(n in node.names for n in ("timeout", "pg_options", "backend_override", ""))
    is_given = is_given or (made is not None and made.op == "new_group" and node.given("", 1) is not None)
    if made is not None and made.op in ("new_group", "device_mesh") and not is_given:
        found = Found("LNT308", node.line, node.column + 1, {"call": full.rpartition(".")[2]})
        frame.link.without_limit[frame.path, node.line] = found


def found_in_groups(frame: Operators) -> None:
    """The groups that are made where the job's own was given a limit, told once."""
    places = (e.way[-1] for e in frame.effects if e.op in ("new_group", "device_mesh"))
    for place in places if frame.has_limit else ():
        found = frame.link.without_limit.get((place.path, place.line))
        if found is not None:
            frame.link.report(place.path, found)
            return


def found_in_handles(frame: Operators) -> None:
    """`work = all_reduce(x, async_op=True)`, and no line of the function knows `work` again."""
    if not frame.handles or any(f.inside == frame.at for f in frame.source.functions):
        return
    nodes = list(nodes_in(frame.function.body))
    for name, call in frame.handles:
        bound = sum(isinstance(n, Set) and Ref(name) in n.targets for n in nodes)
        used = sum(isinstance(n, Ref) and n.path.partition(".")[0] == name for n in nodes)
        if used <= bound:
            text = call.func.path if isinstance(call.func, Ref) else "call"
            frame.found("LNT305", call, call=text.rpartition(".")[2])


def parameter_value(link: Link, file: int, function: Function, i: int, name: str) -> Value:
    """What a parameter is worth before anybody is known who calls the function."""
    if i == 0 and function.is_method and function.inside <= 0:
        kind = "class" if "classmethod" in function.decorators else "obj"
        return Value(sort=(kind, file, function.owner))
    if function.name == "__init__" and function.owner:
        given = link.given_to(file, function.owner, i)
        if given is not None:
            return given
    wrapper = known.WRAPPERS.get(link.project.resolved(file, function.annotated.get(name, "")))
    if wrapper is not None:
        return Value(sort=("wrap", wrapper))
    if (
        name == "model"
        and function.name.startswith("on_")
        and function.owner
        and _CALLBACK in link.project.base_names(file, function.owner)
    ):
        return Value(sort=("wrap", "hf model"))
    by_name = value_of_name("rank" if i == 0 and function.is_spawned else name)
    if by_name.zero and link.project.is_flag(function.name, name, i - function.is_method):
        return Value(0, frozenset((i,)), ("param", i))
    if by_name is not PLAIN or name[0] == "*":
        return by_name
    if name == NUMBER and function.owner and link.deals_out:
        return Value(OWN_BATCH, frozenset((i,)), ("param", i))
    is_data = is_batch(name) and function.name != "__init__" and is_none(function.default_of(i))
    return Value(OWN_BATCH if is_data else 0, frozenset((i,)), ("param", i))


def is_sharded_later(function: Function, node: Call) -> bool:
    """Whether the module that a call gets is given to something that shards it after that: now it is whole on this rank."""
    later = (n for n in calls_in(function.body) if n.line > node.line)
    return any(_SHARDS.search(name_of(n).lower()) and node.args[0] in n.args for n in later)


def keeps_whole(frame: Operators, node: Call, op: str) -> bool:
    """Whether each rank has the whole state for which a call asks: nothing is sharded yet, or at all, or the function was replaced."""
    owner = node.func.path.rpartition(".")[0] if isinstance(node.func, Ref) else ""
    if owner and f"{owner}.get_state_dict" in frame.env:
        return True
    is_later = op == "state_dict" and bool(node.args) and is_sharded_later(frame.function, node)
    return is_later or (op == "state_dict" and frame.link.is_on_cpu)


def note_output(frame: Operators, node: Call, op: str, group: str) -> None:
    """What a collective leaves in its first argument that is each rank's own: a sum that one rank alone has, as many rows as others send."""
    out = node.args[0] if node.args else None
    if op == "reduce" and not group and isinstance(out, Ref):
        frame.env[out.path] = Value(LOSS, sort=sorts.TEST)
    if op == "all_to_all" and isinstance(out, Ref) and not is_none(node.given("output_split_sizes", 2)):
        frame.env[out.path] = Value(OWN_BATCH, sort=sorts.EXCHANGED, group=sorts.OF_OTHERS)


def of_result(name: str) -> Collective | None:
    """What a method of what a call gives is: `p.grad.norm().full_tensor()`. What was just made of local parts is often sharded without the others."""
    return known.METHODS.get(name) if name != "redistribute" else None


def name_at(node: Call) -> str:
    """The name that is the first argument; empty: it is something else."""
    return node.args[0].path if node.args and isinstance(node.args[0], Ref) else ""


ARGUMENTS: dict[str, Callable[[Operators, str, Call, list[Value]], None]] = {
    **dict.fromkeys(_SOURCE_AT, _source), **dict.fromkeys(("zeros", "tensor", "ones", "full"), _constant),
    "init_process_group": _init, **dict.fromkeys(("new_group", "init_device_mesh", "DeviceMesh"), _group),
}  # fmt: skip
