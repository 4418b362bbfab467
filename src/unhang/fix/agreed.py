"""All ranks decide together (a condition on a rank's own data, the rounds of a loop, what one rank says for all)."""

from __future__ import annotations

import ast

from unhang.analyze.program.may_differ import OWN, is_drawn
from unhang.analyze.program.source import surroundings
from unhang.fix.direction import (
    asks_a_framework,
    counts_on_some,
    is_for_all_to_skip,
    line_left_out,
    runs_for_one,
    sized_by,
)
from unhang.fix.functions import AGREED, ANY_RANK, FROM_ONE, MOST, NAMES
from unhang.fix.program import NoDiff, Program, Said, calls_in, dotted, takes_what_it_finds
from unhang.model import Finding, Gate


def put_helper(
    program: Program, text: str, node: ast.expr | ast.stmt, finding: Finding, backend: str
) -> tuple[str, str]:
    """Puts the function in front of the one that needs it; its name, and the group as a further argument.

    Raises:
        NoDiff: its name is taken, or the code does not name the group.
    """
    group = group_of(program, node, finding)
    return put(program, text, node, backend, group), f", {group}" if group else ""


def put_around(program: Program, text: str, value: ast.expr, finding: Finding, backend: str) -> None:
    """Lets the function decide on an expression, for all ranks.

    Raises:
        NoDiff: see `put_helper`.
    """
    name, group = put_helper(program, text, value, finding, backend)
    program.replace(value, f"{name}({program.text(value)}{group})")


def put(program: Program, text: str, node: ast.AST, backend: str, group: str, rank: int = 0) -> str:
    """Puts the function there, where the group is known; the name."""
    taken = program.names()
    wanted = f"from_rank_{rank}" if rank else NAMES[text]
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
            named = {a.name: a.asname or a.name for a in node.names} | named
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            named.update((f"torch.{a.name}", a.asname or a.name) for a in node.names)
    torch, dist = named.get("torch"), named.get("torch.distributed")
    missing = ["import torch"] if is_torch_used and not torch else []
    alias = "torch_dist" if "dist" in program.names() else "dist"  # the program's own module, or a variable
    missing += [] if dist else [f"import torch.distributed as {alias}"]
    imports = [n for n in program.tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    if missing and imports and not program.is_alone(imports[-1]):
        raise NoDiff("the file has no plain import after which the missing one could be added")
    text = "".join(f"{line}{program.newline}" for line in missing)
    if missing and imports:
        program.insert_after(imports[-1], text)
    elif missing:
        has_words = ast.get_docstring(program.tree) is not None
        program.insert_before(program.tree.body[has_words], f"{text}{program.newline}{program.newline}")
    return torch or "torch", dist or alias


_P2P = ("send", "recv", "isend", "irecv", "batch_isend_irecv")


def agree_on(program: Program, gate: Gate, finding: Finding, backend: str, to_end: bool = False) -> Said:
    """Lets a branch be taken by all ranks or by none; returns what the change does. `to_end`: it ends the program, of all as soon as of one.

    Raises:
        NoDiff: it is not sure that all ranks come to the condition, or of which group they are.
    """
    only_collectives(finding)
    line = line_left_out(program, gate, finding)
    if (value := value_of(program, gate)) is not None:
        return _agree_on_value(program, program.once_bound(value), finding, backend)
    node, is_opposite = test_of(program, gate)
    is_plain(program, node)
    if count := sized_by(program, node, line):
        return _take_the_largest(program, node, count, finding, backend)
    test = _set_once(program, node)
    counter = "" if is_opposite else counts_on_some(program, test)
    is_asked = not is_opposite and asks_a_framework(node)
    raises = not is_opposite and isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise)
    is_enough = to_end or counter or is_asked or raises or _is_one_enough(program, node, is_opposite, line, backend)
    if is_asked or raises or not line:
        reached_by_all(program, node.lineno)
    is_one_draw = not (is_enough or is_opposite) and is_drawn(test) and not group_of(program, test, finding)
    put_around(program, FROM_ONE if is_one_draw else ANY_RANK if is_enough else AGREED, test, finding, backend)
    if is_one_draw:
        return Said(
            "decide together", f"All ranks go by the draw of rank 0 at line {test.lineno} of {program.path.name}"
        )
    if to_end:
        reached_by_all(program, node.lineno)
        says = f"All ranks end together, as soon as line {node.lineno} holds on one of them"
    elif counter:
        says = f"Line {line} runs on all ranks as soon as one comes to it: {counter} is switched off on some"
    elif raises:
        says = f"All ranks raise it together, as soon as line {node.lineno} holds on one of them"
    elif is_asked or not line:
        when = "as soon as it holds on one of them" if is_enough else "only if it holds on all of them"
        says = f"All ranks go by line {node.lineno} of {program.path.name} together, {when}"
    elif is_enough and isinstance(node, ast.If) and not is_opposite:
        says = f"Line {line} runs on all ranks as soon as one of them comes to it"
    else:
        says = f"All ranks decide together whether line {line} runs"
    return Said("decide together", says)


def _take_the_largest(program: Program, node: ast.AST, count: str, finding: Finding, backend: str) -> Said:
    """Lets all ranks make as much room as the one that needs most."""
    assert isinstance(node, ast.If)
    reached_by_all(program, node.lineno)
    name, group = put_helper(program, MOST, node, finding, backend)
    program.insert_before(node, f"{program.indent(node)}{count} = {name}({count}{group}){program.newline}")
    return Said(
        "decide together", f"All ranks take the largest `{count}` before line {node.lineno}, and make room for as many"
    )


def value_of(program: Program, gate: Gate) -> ast.expr | None:
    """The value that a line sets or gives, where that is what decides, and no test."""
    found = [s for s in program.statements_at(gate.line) if isinstance(s, ast.Assign | ast.Expr)]
    values = [n for s in found for n in ast.walk(s.value) if isinstance(n, ast.expr) and ast.unparse(n) == gate.text]
    return values[0] if len(values) == 1 else None


def _agree_on_value(program: Program, value: ast.expr, finding: Finding, backend: str) -> Said:
    reached_by_all(program, value.lineno)
    if any(isinstance(n, ast.Await | ast.NamedExpr | ast.Yield) for n in ast.walk(value)):
        raise NoDiff("the value sets or awaits something")
    put_around(program, AGREED, value, finding, backend)
    return Said("decide together", f"All ranks take the value of line {value.lineno} of {program.path.name} together")


def _is_one_enough(
    program: Program, node: ast.If | ast.IfExp | ast.While, is_opposite: bool, line: int, backend: str
) -> bool:
    """Whether all go the way of the test as soon as it holds on one rank."""
    if is_opposite:
        return not takes_what_it_finds(node) and not is_for_all_to_skip(program, node, line, backend)
    return runs_for_one(program, node, line, backend)


def _set_once(program: Program, node: ast.If | ast.IfExp | ast.While) -> ast.expr:
    """The test; where that is a variable, set once, on which more depends in its function, what it is set to."""
    function, test = program.function_of(node), node.test
    if not isinstance(test, ast.Name) or isinstance(function, ast.Module):
        return test
    named = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == test.id]
    sets = [n for n in ast.walk(function) if isinstance(n, ast.Assign) and [*map(dotted, n.targets)] == [test.id]]
    stored = [n for n in named if not isinstance(n.ctx, ast.Load)]
    if len(sets) != 1 or len(stored) != 1 or len(named) < 3 or sets[0].lineno > node.lineno:
        return test
    reached_by_all(program, sets[0].lineno)
    return sets[0].value


def test_of(program: Program, gate: Gate) -> tuple[ast.If | ast.IfExp | ast.While, bool]:
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


def is_plain(program: Program, node: ast.If | ast.IfExp | ast.While) -> None:
    """Makes sure that all ranks may come to a test.

    Raises:
        NoDiff: it is not sure.
    """
    if program.is_elif(node):
        raise NoDiff("the condition is an `elif`, which not all ranks may reach")
    if any(isinstance(n, ast.Await | ast.NamedExpr | ast.Yield) for n in ast.walk(node.test)):
        raise NoDiff("the condition sets or awaits something")
    for above in program.around(node):
        if isinstance(above, ast.ExceptHandler):
            raise NoDiff("the condition is in an `except` block, which not all ranks reach")


def reached_by_all(program: Program, line: int) -> None:
    """Makes sure that no condition of a rank's own stands around a line.

    Raises:
        NoDiff: one does.
    """
    if any(c.suspicion >= OWN for c in surroundings(str(program.path), line).conditions):
        raise NoDiff(f"not all ranks may come to line {line}")


def answer_alike(program: Program, finding: Finding, backend: str) -> Said:
    """Lets a method that a framework asks give the same answer on all ranks.

    Raises:
        NoDiff: the line is not the `return` of a method that a framework asks.
    """
    line = finding.line
    found = [s for s in program.statements_at(line) if isinstance(s, ast.Return) and s.value is not None]
    if len(found) != 1 or not any(e.source.endswith(" in the library") for e in finding.evidence):
        raise NoDiff("the report names no condition that decides who makes the call")
    only_collectives(finding)
    reached_by_all(program, line)
    answer = found[0].value
    assert answer is not None
    put_around(program, AGREED, answer, finding, backend)
    name = getattr(program.function_of(found[0]), "name", "it")
    return Said("decide together", f"All ranks give one answer in {name}()")


def order_alike(program: Program, finding: Finding, backend: str) -> Said:
    """Lets all ranks take their groups in the order of rank 0, where a loop goes over names of groups.

    Raises:
        NoDiff: there is no such loop, or it goes over the groups themselves, which cannot be sent.
    """
    line = finding.line
    calls = [c for s in program.statements_at(line) for c in calls_in(s)]
    groups = [k.value for c in calls for k in c.keywords if k.arg == "group" and isinstance(k.value, ast.Subscript)]
    for loop in (n for g in groups for n in program.around(g) if isinstance(n, ast.For)):
        keys = {n.id for g in groups for n in ast.walk(g.slice) if isinstance(n, ast.Name)}
        if isinstance(loop.target, ast.Name) and loop.target.id in keys and isinstance(loop.iter, ast.Name):
            take_from_one(program, loop.iter, loop.lineno, finding, backend, of_all=True)
            return Said("one says", f"Rank 0 says the order, `{loop.iter.id}`, and the others take it")
    raise NoDiff("the order of the groups is not that of a loop over their names")


def take_from_one(
    program: Program, value: ast.expr, line: int, finding: Finding, backend: str, of_all: bool = False, rank: int = 0
) -> None:
    """Lets one rank say a value, and the others take it.

    Raises:
        NoDiff: not all ranks come there, or it is for a part of them.
    """
    reached_by_all(program, line)
    if not of_all and group_of(program, value, finding):
        raise NoDiff("the calls are of a part of the ranks, and which of them should say it is yours to decide")
    name = put(program, FROM_ONE, value, backend, "", rank)
    program.replace(value, f"{name}({program.text(value)})")


def is_collective(finding: Finding) -> bool:
    """Whether the ranks wait for each other in collectives; else they send to each other."""
    waits = (e.text for e in finding.evidence if e.source.endswith("waits"))
    sends = any(" in send" in text or " in recv" in text for text in waits)
    return not sends and (finding.collective or {}).get("op") not in _P2P


def only_collectives(finding: Finding) -> None:
    """Makes sure that the ranks wait for each other in collectives.

    Raises:
        NoDiff: they send to each other.
    """
    if not is_collective(finding):
        raise NoDiff("the ranks send to each other there: which side should change is yours to decide")


_ROOTS = ("src", "dst", "group_src", "group_dst")


def root_alike(program: Program, finding: Finding, backend: str) -> Said:
    """Lets all ranks take the root that rank 0 names.

    Raises:
        NoDiff: the line does not show what names it, or not all ranks come there.
    """
    line = finding.line
    calls = [c for s in program.statements_at(line) for c in calls_in(s)]
    roots = [k.value for c in calls for k in c.keywords if k.arg in _ROOTS]
    if len(roots) != 1 or isinstance(roots[0], ast.Constant):
        raise NoDiff(f"line {line} does not show what names the root")
    value, function = roots[0], program.function_of(roots[0])
    sets = [n for n in ast.walk(function) if isinstance(n, ast.Assign) and dotted(value) in map(dotted, n.targets)]
    if dotted(value) and len(sets) == 1 and sets[0].lineno < line:
        value = sets[0].value
    take_from_one(program, value, value.lineno, finding, backend)
    return Said("one says", f"Rank 0 says the root, `{program.text(roots[0])}`, and the others take it")
