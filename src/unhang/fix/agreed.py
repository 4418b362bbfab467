"""All ranks decide together: a condition that comes out by a rank's own data, and the rounds of a loop."""

from __future__ import annotations

import ast

from unhang.analyze.source import surroundings
from unhang.fix.program import NoDiff, Program, Said, binds, calls_in, dotted
from unhang.model import Finding, Gate

_P2P = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
_AGREED = '''\
def {agreed}(holds{parameter}):
    """Whether it holds on every rank: all of them go the same way."""
    flag = {torch}.tensor(float(bool(holds)){device})
    {dist}.all_reduce(flag, op={dist}.ReduceOp.MIN{group})
    return flag.item() > 0
'''
_IN_STEP = '''\
def {in_step}(items{parameter}):
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


def agree_on(program: Program, gate: Gate, finding: Finding, backend: str) -> Said:
    """Lets a branch be taken by all ranks or by none; returns what the change does.

    Raises:
        NoDiff: it is not sure that all ranks come to the condition, or of which group they are.
    """
    _is_collective(finding)
    node, is_opposite = _test_of(program, gate)
    _is_plain(program, node)
    test = node.test
    name, group = _helper(program, _AGREED, "agreed", node, finding, backend)
    text = program.text(test)
    if not is_opposite:
        new = f"{name}({text}{group})"
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        new = f"not {name}({program.text(test.operand)}{group})"
    else:
        new = f"not {name}(not ({text}){group})"
    program.replace(test, new)
    line = finding.location.line if finding.location else gate.line
    return Said("decide together", f"All ranks decide together whether line {line} runs")


def _test_of(program: Program, gate: Gate) -> tuple[ast.If | ast.IfExp | ast.While, bool]:
    """The statement with the condition, and whether the line runs where its test is false."""
    tests = [
        n
        for n in ast.walk(program.tree)
        if isinstance(n, ast.If | ast.IfExp | ast.While) and n.test.lineno == gate.line
    ]
    same = [n for n in tests if ast.unparse(n.test) == gate.text]
    if len(same) == 1:
        return same[0], False
    if len(tests) == 1 and not same:
        return tests[0], True
    raise NoDiff(f"the condition `{gate.text}` of line {gate.line} is no test of an `if` of its own")


def _is_plain(program: Program, node: ast.If | ast.IfExp | ast.While) -> None:
    parent = program.parents[node]
    if isinstance(parent, ast.If) and parent.orelse == [node] and program.text(node).startswith("elif"):
        raise NoDiff("the condition is an `elif`, which not all ranks may reach")
    if any(isinstance(n, ast.Await | ast.NamedExpr | ast.Yield) for n in ast.walk(node.test)):
        raise NoDiff("the condition sets or awaits something")
    for above in program.around(node):
        if isinstance(above, ast.ExceptHandler):
            raise NoDiff("the condition is in an `except` block, which not all ranks reach")


def even_rounds(program: Program, finding: Finding, backend: str) -> Said:
    """Lets a loop end on all ranks at the same round.

    Raises:
        NoDiff: there is no `for` loop there, or it is not sure of which group the ranks are.
    """
    if finding.condition is not None:
        return agree_on(program, finding.condition, finding, backend)
    _is_collective(finding)
    source = _what_ends(program, finding)
    name, group = _helper(program, _IN_STEP, "in_step", source, finding, backend)
    program.replace(source, f"{name}({program.text(source)}{group})")
    return Said("end together", "The loop ends on all ranks together, as soon as one of them has no data left")


def _what_ends(program: Program, finding: Finding) -> ast.expr:
    """The iterable that is at its end on one rank first."""
    lines = {e.source: e.line for e in finding.evidence if e.line}
    at = lines.get("loop") or (finding.location.line if finding.location else 0)
    if "handler" in lines:
        return _given_to_next(program, lines["handler"])
    loops = [n for n in ast.walk(program.tree) if isinstance(n, ast.For) and n.lineno <= at <= (n.end_lineno or 0)]
    heads = [n for n in loops if n.lineno == at]
    if not loops or ("loop" in lines and not heads):
        raise NoDiff(f"line {at} is not a `for` loop whose rounds could be agreed on")
    loop = (heads or loops)[-1]
    if any(c.depends_on_rank for c in surroundings(str(program.path), loop.lineno).conditions):
        raise NoDiff("the loop is for some ranks only")
    return loop.iter


def _given_to_next(program: Program, line: int) -> ast.expr:
    """What is iterated over by `next(iterator)` in the `try` whose handler stands at this line."""
    tries = [n for n in ast.walk(program.tree) if isinstance(n, ast.Try) and any(h.lineno == line for h in n.handlers)]
    for one in tries:
        nexts = [c for s in one.body for c in calls_in(s) if dotted(c.func) == "next" and len(c.args) == 1]
        if len(nexts) != 1 or not isinstance(nexts[0].args[0], ast.Name):
            break
        name, function = nexts[0].args[0].id, program.function_of(one)
        made = [n for n in ast.walk(function) if isinstance(n, ast.stmt) and name in binds(n) and not _has_block(n)]
        if len(made) == 1 and isinstance(made[0], ast.Assign) and len(made[0].targets) == 1:
            return made[0].value
    raise NoDiff("it is not certain what the exhausted iterator was made from")


def _has_block(node: ast.stmt) -> bool:
    return bool(getattr(node, "body", None))


def _is_collective(finding: Finding) -> None:
    op = str((finding.collective or {}).get("op", ""))
    if op in _P2P or any(
        e.source.endswith("waits") and (" in send" in e.text or " in recv" in e.text) for e in finding.evidence
    ):
        raise NoDiff("the ranks send to each other there: which side should change is yours to decide")


def _helper(
    program: Program, text: str, wanted: str, node: ast.expr | ast.If | ast.While, finding: Finding, backend: str
) -> tuple[str, str]:
    """Puts the function in front of the one that needs it; its name, and the group as a further argument."""
    taken = program.names()
    name = wanted if wanted not in taken else f"{wanted}_on_all_ranks"
    if name in taken:
        raise NoDiff(f"the file uses the name {name!r} already")
    group = _group(program, node, finding)
    torch, dist = modules(program)
    top = program.top_of(node)
    lines = text.format(
        agreed=name, in_step=name, torch=torch, dist=dist,
        parameter=", group" if group else "", group=", group=group" if group else "",
        device=', device="cuda"' if "nccl" in backend else "",
    )  # fmt: skip
    is_spaced = isinstance(top, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
    program.insert_before(top, (lines + ("\n\n" if is_spaced else "\n")).replace("\n", program.newline))
    return name, f", {group}" if group else ""


def _group(program: Program, node: ast.AST, finding: Finding) -> str:
    """The group of the collectives there, as the code names it; empty for that of all ranks."""
    group = finding.process_group or {}
    if not group or group.get("pg_desc") == "default_pg" or group.get("pg_name") in ("0", "default_pg"):
        return ""
    given = {
        program.text(k.value)
        for n in ast.walk(program.function_of(node))
        if isinstance(n, ast.Call)
        for k in n.keywords
        if k.arg == "group"
    }
    if len(given) != 1:
        raise NoDiff(
            f"the calls are of the group {group.get('pg_desc') or group.get('pg_name')}, and the code there does not name it"
        )
    return given.pop()


def modules(program: Program) -> tuple[str, str]:
    """How the file names torch and torch.distributed, which it imports from now on."""
    named: dict[str, str] = {}
    for node in program.tree.body:
        if isinstance(node, ast.Import):
            for a in node.names:
                named.setdefault(a.name, a.asname or a.name)
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            named.update((f"torch.{a.name}", a.asname or a.name) for a in node.names)
    torch, dist = named.get("torch"), named.get("torch.distributed")
    missing = [
        line for line, known in (("import torch", torch), ("import torch.distributed as dist", dist)) if not known
    ]
    imports = [n for n in program.tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    if missing and (not imports or not program.is_alone(imports[-1])):
        raise NoDiff("the file has no plain import after which the missing one could be added")
    if missing:
        program.insert_after(imports[-1], "".join(f"{line}{program.newline}" for line in missing))
    return torch or "torch", dist or "dist"
