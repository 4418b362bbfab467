"""Loops whose rounds the program shares out or leaves out by itself: as many on every rank, and all ranks leave out the same ones."""

from __future__ import annotations

import ast
import re

from unhang.analyze.program.may_differ import OPEN, OWN
from unhang.analyze.program.rank_names import kind_of_name
from unhang.analyze.program.source import surroundings
from unhang.analyze.program.trees import WITHOUT_GRAPH, inside, last_name, names_in
from unhang.fix.agreed import put_around, reached_by_all, value_of
from unhang.fix.direction import EXCHANGES, has_step
from unhang.fix.functions import AGREED, ANY_RANK
from unhang.fix.program import NoDiff, Program, Said, called, calls_in, dotted, holds
from unhang.model import Finding, Gate

_WORLD = re.compile(r"(?:get_)?world(?:_size)?|num_(?:processes|replicas|ranks)|n_ranks", re.IGNORECASE)


def full_rounds(program: Program, loop: ast.For) -> Said | None:
    """Lets a loop that goes over `range(rank, n, world)` make as many rounds on every rank, where the program cuts what is gathered to its size afterwards."""
    match loop:
        case ast.For(
            target=ast.Name(id=name),
            iter=ast.Call(func=ast.Name("range"), args=[first, end, step], keywords=[]) as over,
        ) if kind_of_name(_name(first)) == "rank" and _WORLD.fullmatch(_name(step)):
            pass
        case _:
            return None
    makes = any(EXCHANGES.fullmatch(last_name(c.func)) for s in loop.body for c in calls_in(s))
    if not makes or holds(loop.body, ast.Continue | ast.Break | ast.Return) or not _is_cut_behind(program, loop):
        return None
    reached_by_all(program, loop.lineno)
    if not isinstance(end, ast.Name | ast.Attribute):
        return None
    n, world = program.text(end), program.text(step)
    whole = f"range({program.text(first)}, -(-{n} // {world}) * {world}, {world})"
    program.replace(over, f"(min({name}, {n} - 1) for {name} in {whole})")
    return Said(
        "end together",
        f"Every rank makes as many rounds: the last item is taken again, and cut off behind the loop of line {loop.lineno}",
    )


def _name(value: ast.expr) -> str:
    """The last name of a variable, an attribute or a call."""
    return last_name(value.func if isinstance(value, ast.Call) else value)


def _is_cut_behind(program: Program, loop: ast.For) -> bool:
    """Whether what the loop fills is cut to a length behind it: `torch.cat(parts)[:n]`."""
    filled = {dotted(n.target) for s in loop.body for n in ast.walk(s) if isinstance(n, ast.AugAssign)}
    for call in (c for s in loop.body for c in calls_in(s) if last_name(c.func) in ("append", "extend")):
        filled |= {dotted(call.func.value)} if isinstance(call.func, ast.Attribute) else set()
    block = program.block_of(loop)
    for node in (n for s in block[block.index(loop) + 1 :] for n in ast.walk(s)):
        match node:
            case ast.Subscript(value=of, slice=ast.Slice(lower=None, upper=ast.expr(), step=None)):
                if filled & {dotted(n) for n in ast.walk(of)} - {""}:
                    return True
    return False


def skip_alike(program: Program, loop: ast.For, finding: Finding, backend: str) -> Said | None:
    """Lets all ranks leave out the same rounds of a loop, where a test of a rank's own data leads past the line that the others came to once more."""
    line = _line_of_call(program, loop, finding)
    gates = [
        s
        for s in loop.body
        if isinstance(s, ast.If) and isinstance(s.body[-1], ast.Continue) and not s.orelse and s.lineno < line
    ]
    if len(gates) != 1 or not line <= (loop.end_lineno or 0):
        return None
    gate = gates[0]
    around = surroundings(str(program.path), gate.body[-1].lineno).conditions
    is_of_item = bool(names_in(loop.target) & names_in(gate.test))
    if not around or around[-1].suspicion < (OPEN if is_of_item else OWN) or around[-1].depends_on_rank:
        return None
    reached_by_all(program, loop.lineno)
    if (counts := _counts_rounds(program, loop, line)) is not None:
        program.insert_before(
            gate.body[-1], f"{program.indent(gate.body[-1])}{counts}  # counts on every rank{program.newline}"
        )
        return Said(
            "every rank calls", f"`{counts}` counts the rounds that are left out, too: so all ranks come to it as often"
        )
    put_around(program, ANY_RANK, gate.test, finding, backend)
    return Said("skip together", f"All ranks leave out a round as soon as line {gate.lineno} holds on one of them")


def _line_of_call(program: Program, loop: ast.For, finding: Finding) -> int:
    """The last line of a loop that the calls of a rank led through; 0 if none did."""
    name = getattr(program.function_of(loop), "name", "<module>")
    steps = re.compile(rf"(?<![\w.]){re.escape(name)}:(\d+)")
    found = (int(n) for e in finding.evidence if e.source.endswith(" calls") for n in steps.findall(e.text))
    return max((n for n in found if loop.lineno < n <= (loop.end_lineno or 0)), default=0)


def _counts_rounds(program: Program, loop: ast.For, line: int) -> str | None:
    """`local_sgd.step()` at a line: it counts rounds, and averages the weights at some of them."""
    made = {
        dotted(item.optional_vars)
        for above in program.around(loop)
        if isinstance(above, ast.With)
        for item in above.items
        if item.optional_vars is not None
        and isinstance(item.context_expr, ast.Call)
        and last_name(item.context_expr.func) == "LocalSGD"
    }
    for statement in program.statements_at(line):
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=of, attr="step"), args=[], keywords=[])) if (
                dotted(of) in made
            ):
                return program.text(statement)
    return None


def last_alike(program: Program, gate: Gate, finding: Finding, backend: str) -> Said | None:
    """Lets the generator that tells a loop which round is the last make as many rounds on every rank; None where the value does not come from one.

    Raises:
        NoDiff: the loop decides by what it goes over, and this does not show where that ends.
    """
    value = value_of(program, gate)
    around = program.around(value) if value is not None else ()
    loop = next((n for n in around if isinstance(n, ast.For)), None)
    names = (
        [dotted(n) for n in (loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target])] if loop else []
    )
    if loop is None or not isinstance(value, ast.Name) or value.id not in names:
        return None
    made = loop.iter
    wanted = last_name(made.func) if isinstance(made, ast.Call) else ""
    found = [n for n in ast.walk(program.tree) if isinstance(n, ast.FunctionDef) and n.name == wanted]
    heads = [n for f in found for n in ast.walk(f) if isinstance(n, ast.While)]
    yields = [n.value for f in found for n in ast.walk(f) if isinstance(n, ast.Yield) and n.value is not None]
    if len(heads) != 1 or len(yields) != 1 or holds(heads[0].body, ast.Break | ast.Return):
        raise NoDiff("each rank decides by the rounds of its own loop, and these are not as many")
    given = yields[0].elts if isinstance(yields[0], ast.Tuple) else [yields[0]]
    at = names.index(value.id)
    if at >= len(given) or not _are_opposite(heads[0].test, given[at]):
        raise NoDiff("each rank decides by the rounds of its own loop, and these are not as many")
    reached_by_all(program, loop.lineno)
    put_around(program, ANY_RANK, heads[0].test, finding, backend)
    put_around(program, AGREED, given[at], finding, backend)
    return Said(
        "end together",
        f"All ranks make as many rounds of {wanted}() as the one that needs most, and end it at the same one",
    )


_OPPOSITE = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}


def _are_opposite(one: ast.expr, other: ast.expr) -> bool:
    """Whether a test holds exactly where another does not."""
    match one, other:
        case ast.Compare(left=a, ops=[op], comparators=[b]), ast.Compare(left=c, ops=[against], comparators=[d]):
            same = ast.dump(a) == ast.dump(c) and ast.dump(b) == ast.dump(d)
            return same and _OPPOSITE.get(type(op)) is type(against)
        case ast.UnaryOp(op=ast.Not(), operand=operand), _:
            return ast.dump(operand) == ast.dump(other)
        case _, ast.UnaryOp(op=ast.Not(), operand=operand):
            return ast.dump(operand) == ast.dump(one)
    return False


_EVALUATES = re.compile(r"eval|valid|test|extract|embed|encod|predict|infer|score|index", re.IGNORECASE)


def trains_nothing(program: Program, loop: ast.For) -> bool:
    """Whether a loop only looks at its items, without a graph: what is left out there is missing from its result."""
    function = program.function_of(loop)
    around = [n for n in program.around(loop) if isinstance(n, ast.With)]
    kept = [i.context_expr for n in (*around, *inside(loop, ast.With)) for i in n.items] + [
        *getattr(function, "decorator_list", ())
    ]
    without = any(called(c) in WITHOUT_GRAPH for k in kept for c in inside(k, ast.Call)) or any(
        dotted(k).endswith(WITHOUT_GRAPH) for k in kept
    )
    return without and bool(_EVALUATES.search(getattr(function, "name", ""))) and not has_step(loop.body)


def has_enough(loop: ast.AST, test: ast.expr) -> bool:
    """Whether a test holds once a loop has collected enough: `have >= want`, where each round adds to `have` what it found. A counter of rounds is none."""
    match test:
        case ast.Compare(left=ast.Name(id=name), ops=[ast.GtE() | ast.Gt()]):
            adds = [n for n in inside(loop, ast.AugAssign) if dotted(n.target) == name]
            sets = [n for n in inside(loop, ast.Assign) if name in map(dotted, n.targets)]
            return bool(adds) and not sets and not any(isinstance(n.value, ast.Constant) for n in adds)
        case ast.Compare(left=ast.Call(func=ast.Name(id="len"), args=[of]), ops=[ast.GtE() | ast.Gt()]):
            grows = [
                c
                for c in inside(loop, ast.Call)
                if isinstance(c.func, ast.Attribute) and c.func.attr in ("append", "extend", "add", "update")
            ]
            return any(isinstance(c.func, ast.Attribute) and dotted(c.func.value) == dotted(of) for c in grows)
    return False
