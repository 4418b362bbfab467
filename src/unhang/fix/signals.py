"""A signal's handler that makes a call with others: it only notes the signal, and all ranks do the rest together after a round."""

from __future__ import annotations

import ast

from unhang.analyze.trees import covers
from unhang.fix.agreed import reached_by_all
from unhang.fix.helpers import ANY_RANK, put_helper
from unhang.fix.program import Function, NoDiff, Program, Said, dotted
from unhang.model import Finding

_LEAVES = ast.Continue | ast.Break | ast.Return


def after_the_round(program: Program, finding: Finding, backend: str) -> Said:
    """Lets the handler only note that the signal came; what it did, all ranks do at the end of a round of the loop.

    Raises:
        NoDiff: the handler is not registered once, in the function with the loop, or the loop may be left before its end.
    """
    line = finding.location.line if finding.location else 0
    register, handler = _registered(program, line)
    loop = _loop_of_rounds(program, finding, register)
    if any(isinstance(n, _LEAVES) for s in loop.body for n in ast.walk(s)):
        raise NoDiff(f"the loop of line {loop.lineno} may leave a round before its end")
    reached_by_all(program, loop.lineno)
    if "came" in program.names():
        raise NoDiff("the file uses the name 'came' already")
    number, does = register.args
    name, group = put_helper(program, ANY_RANK, "any_rank", loop, finding, backend)
    statement, last = program.parents[register], loop.body[-1]
    assert isinstance(statement, ast.Expr)
    end = program.newline
    program.insert_before(statement, f"{program.indent(statement)}came = []  # what came since the last round{end}")
    program.replace(does, "lambda number, _: came.append(number)")
    indent = program.indent(last)
    program.insert_after(
        last,
        f"{indent}if {name}(came{group}):{end}"
        f"{indent}    came.clear(){end}"
        f"{indent}    {program.text(does)}({program.text(number)}, None){end}",
    )
    return Said(
        "after the round",
        f"The handler only notes the signal; at the end of a round all ranks call {handler.name}() together",
    )


def _registered(program: Program, line: int) -> tuple[ast.Call, Function]:
    """`signal.signal(...)` with the function that the line is in, and that function."""
    functions = {n.name: n for n in ast.walk(program.tree) if isinstance(n, Function) and covers(n, line)}
    found = [
        n
        for n in ast.walk(program.tree)
        if isinstance(n, ast.Call)
        and dotted(n.func) == "signal.signal"
        and len(n.args) == 2
        and not n.keywords
        and isinstance(n.args[1], ast.Name)
        and n.args[1].id in functions
    ]
    if len(found) != 1 or not isinstance(program.parents[found[0]], ast.Expr):
        raise NoDiff("it is not certain where the handler is registered")
    handler = functions[dotted(found[0].args[1])]
    frame = handler.args.args[-1].arg if handler.args.args else ""
    if any(isinstance(n, ast.Name) and n.id == frame for n in ast.walk(handler)):
        raise NoDiff("the handler needs the frame that it interrupted")
    return found[0], handler


def _loop_of_rounds(program: Program, finding: Finding, register: ast.Call) -> ast.For | ast.While:
    """The innermost loop that the signal came into, in the function that registers the handler or anywhere if the module does."""
    function = program.function_of(register)
    here = f"{program.path.name}:"
    for line in (e.line for e in finding.evidence if e.line and e.source.endswith("stack") and e.text.startswith(here)):
        for statement in program.statements_at(line):
            *inside, outer = program.around(statement)
            loops = [n for n in inside if isinstance(n, ast.For | ast.While)]
            if loops and (outer is function or isinstance(function, ast.Module)):
                return loops[0]
    raise NoDiff("the loop that the signal came into is not in the function that registers the handler")
