"""Functions that a change adds to a file, in front of the one that needs them: they let all ranks agree."""

from __future__ import annotations

import ast

from unhang.fix.program import NoDiff, Program
from unhang.model import Finding

AGREED = '''\
def {name}(holds{parameter}):
    """Whether it holds on every rank: all of them go the same way."""
    flag = {torch}.tensor(float(bool(holds)){device})
    {dist}.all_reduce(flag, op={dist}.ReduceOp.MIN{group})
    return flag.item() > 0
'''
ANY_RANK = AGREED.replace("every rank", "at least one rank").replace("MIN", "MAX")
FROM_ONE = '''\
def {name}(value):
    """What rank {rank} has, on every rank."""
    box = [value]
    {dist}.broadcast_object_list(box, src={rank})
    return box[0]
'''
IN_STEP = '''\
def {name}(items{parameter}):
    """Ends on every rank as soon as one of them has no item left."""
    items, end = iter(items), object()
    while True:
        item = next(items, end)
        has_item = {torch}.tensor(float(item is not end){device})
        {dist}.all_reduce(has_item, op={dist}.ReduceOp.MIN{group})
        if has_item.item() == 0:
            return
        yield item
'''
MOST = '''\
def {name}(count{parameter}):
    """The most of what any rank has, on every rank."""
    most = {torch}.tensor(float(count){device})
    {dist}.all_reduce(most, op={dist}.ReduceOp.MAX{group})
    return int(most.item())
'''
OF_ALL = '''\
def {name}(values{parameter}):
    """The same keys on every rank, in one order; what a rank has not counts zero."""
    keys = [None] * {dist}.get_world_size({argument})
    {dist}.all_gather_object(keys, list(values){group})
    zero = next(iter(values.values()), {torch}.zeros(())) * 0
    return {{key: values.get(key, zero) for key in sorted(set().union(*keys))}}
'''


def put_helper(
    program: Program, text: str, wanted: str, node: ast.expr | ast.stmt, finding: Finding, backend: str
) -> tuple[str, str]:
    """Puts the function in front of the one that needs it; its name, and the group as a further argument.

    Raises:
        NoDiff: its name is taken, or the code does not name the group.
    """
    group = group_of(program, node, finding)
    return put(program, text, wanted, node, backend, group), f", {group}" if group else ""


def put(program: Program, text: str, wanted: str, node: ast.AST, backend: str, group: str, rank: int = 0) -> str:
    """The same, where the group is known; the name."""
    taken = program.names()
    name = wanted if wanted not in taken else f"{wanted}_on_all_ranks"
    if name in taken:
        raise NoDiff(f"the file uses the name {name!r} already")
    torch, dist = modules(program, is_torch_used="{torch}" in text)
    top = program.top_of(node)
    lines = text.format(
        name=name, torch=torch, dist=dist, rank=rank,
        parameter=", group" if group else "", group=", group=group" if group else "", argument="group" if group else "",
        device=', device="cuda"' if "nccl" in backend else "",
    )  # fmt: skip
    is_spaced = isinstance(top, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
    program.insert_before(top, (lines + ("\n\n" if is_spaced else "\n")).replace("\n", program.newline))
    return name


def group_of(program: Program, node: ast.AST, finding: Finding) -> str:
    """The group of the collectives there, as the code names it; empty for that of all ranks."""
    group = finding.process_group or {}
    if group.get("pg_desc") == "default_pg" or group.get("pg_name") in ("0", "default_pg"):
        return ""
    given = {
        program.text(k.value)
        for n in ast.walk(program.function_of(node))
        if isinstance(n, ast.Call)
        for k in n.keywords
        if k.arg == "group"
    }
    if not group and len(given) < 2:
        return given.pop() if given else ""
    if len(given) != 1:
        raise NoDiff(
            f"the calls are of the group {group.get('pg_desc') or group.get('pg_name')}, and the code there does not name it"
        )
    return given.pop()


def modules(program: Program, is_torch_used: bool = True) -> tuple[str, str]:
    """How the file names torch and torch.distributed, which it imports from now on."""
    named: dict[str, str] = {}
    for node in program.tree.body:
        if isinstance(node, ast.Import):
            for a in node.names:
                named.setdefault(a.name, a.asname or a.name)
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            named.update((f"torch.{a.name}", a.asname or a.name) for a in node.names)
    torch, dist = named.get("torch"), named.get("torch.distributed")
    missing = ["import torch"] if is_torch_used and not torch else []
    missing += [] if dist else ["import torch.distributed as dist"]
    imports = [n for n in program.tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    if missing and imports and not program.is_alone(imports[-1]):
        raise NoDiff("the file has no plain import after which the missing one could be added")
    text = "".join(f"{line}{program.newline}" for line in missing)
    if missing and imports:
        program.insert_after(imports[-1], text)
    elif missing:
        has_words = ast.get_docstring(program.tree) is not None
        program.insert_before(program.tree.body[has_words], f"{text}{program.newline}{program.newline}")
    return torch or "torch", dist or "dist"
