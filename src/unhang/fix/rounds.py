"""Loops whose rounds differ between ranks (they end together, begin alike, go as far on all), and a signal that came in one: all act on it after the round."""

from __future__ import annotations

import ast
import re

from unhang.analyze.program.source import is_up_to_the_rank, surroundings
from unhang.analyze.program.trees import covers, last_name, names_in
from unhang.fix.agreed import (
    agree_on,
    is_collective,
    is_plain,
    only_collectives,
    put,
    put_around,
    put_helper,
    reached_by_all,
    take_from_one,
)
from unhang.fix.alike import by_one_score
from unhang.fix.direction import EXCHANGES, give_zeros, gradient_guard, has_exchange, is_guarded
from unhang.fix.functions import AGREED, ANY_RANK, IN_FULL, IN_STEP, MOST, OF_ALL
from unhang.fix.program import LEAVES, Function, NoDiff, Program, Said, binds, called, calls_in, dotted, holds
from unhang.fix.whole_rounds import full_rounds, has_enough, skip_alike, trains_nothing
from unhang.model import Finding

_OF_TENSORS = ("item", "sum", "mean", "float", "double", "clone", "detach", "to", "cpu", "cuda", "numel")
AT_THE_LAST = "The loop ends on all ranks when the last of them is through; one that is through before gives its last item again, as a sampler that pads does"
AT_THE_FIRST = "The loop ends on all ranks together, as soon as one of them has no data left"
_SAYS_ROUNDS = re.compile(r"rank \d+ rounds")


def even_rounds(program: Program, finding: Finding, backend: str) -> Said:
    """Lets a loop end on all ranks at the same round.

    Raises:
        NoDiff: there is no `for` loop there, or it is not sure of which group the ranks are.
    """
    if finding.condition is not None:
        return agree_on(program, finding.condition, finding, backend)
    loop = next(iter(_loops_at(program, _lines_of(finding).get("loop", 0))), None)
    if loop is not None and (guard := gradient_guard(program, loop)) is not None:
        return _with_zeros(program, guard, finding, backend)
    if not is_collective(finding) or any(" in isend" in e.text or " in irecv" in e.text for e in finding.evidence):
        return _as_many_rounds(program, loop, finding, backend)
    if loop is not None and (table := _table_of(loop)) is not None:
        return _with_all_keys(program, loop, table, finding, backend)
    shown = full_rounds(program, loop) or skip_alike(program, loop, finding, backend) if loop is not None else None
    if shown is not None:
        return shown
    if loop is not None and (length := _length_of_padded(loop)) is not None:
        put_around(program, MOST, length, finding, backend)
        says = "Every rank makes as many rounds as the one with the most items; the others give empty pieces in theirs"
        return Said("end together", says)
    source = _what_ends(program, finding)
    if (split := _split_above(program, source)) is not None:
        program.insert_at(program.end(split) - 1, ", apply_padding=True")
        says = "Every rank gets as many items: the last one is given again, at the end of all that is gathered"
        return Said("end together", says)
    if loop is not None and trains_nothing(program, loop):
        put_around(program, IN_FULL, source, finding, backend)
        return Said("end together", AT_THE_LAST)
    put_around(program, IN_STEP, source, finding, backend)
    return Said("end together", AT_THE_FIRST)


def _loops_at(program: Program, line: int) -> list[ast.For]:
    return [n for n in ast.walk(program.tree) if isinstance(n, ast.For) and n.lineno == line]


def _with_zeros(program: Program, guard: ast.If, finding: Finding, backend: str) -> Said:
    """A parameter that has no gradient on one rank gives zeros there."""
    put_around(program, ANY_RANK if is_guarded(guard) else AGREED, guard.test, finding, backend)
    give_zeros(program, guard)
    return Said("decide together", "All ranks reduce a gradient as soon as one of them has it; the others give zeros")


def _as_many_rounds(program: Program, loop: ast.For | None, finding: Finding, backend: str) -> Said:
    """A loop in which ranks send to each other goes on as long as any of them needs it."""
    over = loop.iter if loop is not None else None
    counts: set[str] = set()
    if isinstance(over, ast.Call) and called(over) == "range" and not over.keywords:
        within = [n for a in over.args for n in ast.walk(a)]
        is_plain = not any(isinstance(n, ast.Attribute | ast.Call | ast.Subscript) for n in within)
        counts = {n.id for n in within if isinstance(n, ast.Name)} if is_plain else set()
    if loop is None or len(counts) != 1 or loop not in program.block_of(loop):
        raise NoDiff("the ranks send to each other there: which side should change is yours to decide")
    name = counts.pop()
    if any(name in binds(s) for s in loop.body) or not program.is_alone(loop.body[0]):
        raise NoDiff(f"the loop changes {name}")
    reached_by_all(program, loop.lineno)
    most = put(program, MOST, loop, backend, "")
    program.insert_before(loop, f"{program.indent(loop)}{name} = {most}({name}){program.newline}")
    says = f"All ranks make as many rounds as the one that needs most: `{name}` of line {loop.lineno}"
    return Said("end together", says)


_OF_ONE_SIZE = ("zeros", "new_zeros", "full", "new_full", "empty", "new_empty")


def _length_of_padded(loop: ast.For) -> ast.expr | None:
    """`len(x)` of a loop over `range(0, len(x), size)` that only takes pieces of `x`, and exchanges tensors of one size, into which the pieces are put."""
    match loop.iter, loop.target:
        case (
            ast.Call(
                func=ast.Name(id="range"),
                args=[ast.Constant(value=0), ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=items)]) as length, _],
            ),
            ast.Name(id=start),
        ):
            pass
        case _:
            return None
    body = [n for s in loop.body for n in ast.walk(s)]
    pieces = [n for n in body if isinstance(n, ast.Subscript) and dotted(n.value) == items]
    of_items = [n for n in body if isinstance(n, ast.Name) and n.id == items]
    asked = [n for n in body if isinstance(n, ast.Attribute) and dotted(n.value) == items]  # its shape, its kind
    is_sliced = bool(pieces) and all(isinstance(n.slice, ast.Slice) and start in names_in(n.slice) for n in pieces)
    given = {
        a.id
        for n in body
        if isinstance(n, ast.Call) and EXCHANGES.fullmatch(called(n))
        for a in n.args
        if isinstance(a, ast.Name)
    }
    sets = [n for n in body if isinstance(n, ast.Assign) and len(n.targets) == 1 and dotted(n.targets[0]) in given]
    sized = {dotted(n.targets[0]) for n in sets if any(called(c) in _OF_ONE_SIZE for c in calls_in(n.value))}
    lists = {dotted(n.targets[0]) for n in sets if isinstance(n.value, ast.ListComp | ast.List)}
    is_padded = bool(given & sized) and given <= sized | lists
    return length if is_sliced and is_padded and len(of_items) == len(pieces) + len(asked) else None


def _table_of(loop: ast.For) -> ast.expr | None:
    """The table whose values a loop exchanges key by key: `for key, value in table.items()`, `for key in table`."""
    over = loop.iter
    if isinstance(over, ast.Call) and called(over) == "sorted" and len(over.args) == 1:
        over = over.args[0]
    if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) and over.func.attr in ("items", "keys"):
        over = over.func.value
        is_table = True
    else:
        parts = [n for s in loop.body for n in ast.walk(s) if isinstance(n, ast.Subscript)]
        looked_up = {ast.dump(n.value) for n in parts}
        keys = {n.slice.id for n in parts if isinstance(n.slice, ast.Name)}
        is_table = ast.dump(over) in looked_up and isinstance(loop.target, ast.Name) and loop.target.id in keys
    return over if is_table and isinstance(over, ast.Name | ast.Attribute) and has_exchange(loop.body) else None


def _with_all_keys(program: Program, loop: ast.For, table: ast.expr, finding: Finding, backend: str) -> Said:
    """All ranks go over the keys of all of them."""
    values = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    used = [n for s in loop.body for n in ast.walk(s) if isinstance(n, ast.Attribute) and dotted(n.value) in values]
    if any(n.attr not in _OF_TENSORS for n in used):
        raise NoDiff(
            "the values of the table are objects: what stands for one that a rank does not have is yours to decide"
        )
    reached_by_all(program, loop.lineno)
    name, group = put_helper(program, OF_ALL, loop, finding, backend)
    text = f"{name}({program.text(table)}{group})"
    if isinstance(program.parents[table], ast.Attribute):
        program.replace(table, text)
    else:
        program.insert_before(loop, f"{program.indent(loop)}{program.text(table)} = {text}{program.newline}")
    says = "All ranks go over the keys of all of them, in one order; what a rank does not have counts as zero"
    return Said("end together", says)


def _split_above(program: Program, source: ast.expr) -> ast.Call | None:
    """`split_between_processes(...)` without padding, from which a loop has its items."""
    for above in program.around(source):
        for item in above.items if isinstance(above, ast.With) else ():
            call = item.context_expr
            if (
                isinstance(call, ast.Call)
                and called(call) == "split_between_processes"
                and isinstance(item.optional_vars, ast.Name)
                and dotted(source) == item.optional_vars.id
                and len(call.args) == 1
                and not call.keywords
            ):
                return call
    return None


def same_rounds(program: Program, finding: Finding, backend: str) -> Said:
    """Lets all ranks make the same rounds of a loop that the program, not its data, made different.

    Raises:
        NoDiff: nothing tells what made them different, or it is not sure that all ranks come there.
    """
    only_collectives(finding)
    lines = _lines_of(finding)
    if "way out" in lines:
        return _leave_together(program, lines["way out"], finding, backend)
    if "first round" in lines:
        return _begin_alike(program, lines["first round"], finding, backend)
    if "rounds" in lines and "loop" in lines:
        return _count_alike(program, lines["loop"], finding, backend)
    if "loop" in lines and _goes_to_its_end(program, lines["loop"]):
        return even_rounds(program, finding, backend)
    raise NoDiff("the report names nothing that decides how many rounds a rank makes")


def _goes_to_its_end(program: Program, line: int) -> bool:
    """Whether nothing but what it goes over ends a loop."""
    loops = _loops_at(program, line)
    return len(loops) == 1 and not holds(loops[0].body, ast.Break | ast.Return | ast.Raise | ast.Try)


def _lines_of(finding: Finding) -> dict[str, int]:
    """The lines that the evidence names, by what they are."""
    return {e.source: e.line for e in finding.evidence if e.line}


def _leave_together(program: Program, line: int, finding: Finding, backend: str) -> Said:
    """Lets all ranks leave a loop as soon as one of them wants to; where all of something have to be done, only when it is so on every rank."""
    tests = [n for n in ast.walk(program.tree) if isinstance(n, ast.If | ast.While) and n.test.lineno == line]
    if len(tests) != 1:
        raise NoDiff(f"line {line} holds no test of its own that leaves the loop")
    node = tests[0]
    loop = node if isinstance(node, ast.While) else _loop_of(program, node)
    is_plain(program, node)
    reached_by_all(program, line)
    if isinstance(node, ast.If) and is_up_to_the_rank(str(program.path), line, node.body[-1].lineno):
        raise NoDiff(f"line {line} follows from the rank's number: only its work is up to that, not what it exchanges")
    if isinstance(node, ast.If) and not isinstance(node.body[-1], ast.Break | ast.Return):
        raise NoDiff(f"what the test of line {line} does is more than to leave the loop")
    if any(isinstance(n, ast.Continue) and n.lineno < node.lineno for n in ast.walk(loop)):
        raise NoDiff(f"a `continue` before line {line} may lead past the test")
    is_head = loop is node
    if not is_head and (says := by_one_score(program, node, finding, backend)) is not None:
        return says
    is_done = _nears_its_end(node.test) if is_head else _asks_for_all(node.test) or has_enough(loop, node.test)
    put_around(program, AGREED if is_head is not is_done else ANY_RANK, node.test, finding, backend)
    when = "when it is so on all of them" if is_done else "as soon as one of them is to leave it"
    return Said("decide together", f"All ranks leave the loop together, {when}")


_NEAR = re.compile(r"(?:^|_)(?:[ar]?tol|tolerance|eps|epsilon|residual|error|err)(?:_|$)", re.IGNORECASE)


def _nears_its_end(test: ast.expr) -> bool:
    """Whether a loop goes on until a quantity is near enough to where it is to be: who left it sooner would have a worse result."""
    is_order = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE)
    parts = list(ast.walk(test)) if is_order else []
    is_real = any(isinstance(n, ast.Constant) and isinstance(n.value, float) for n in parts)
    return is_real or any(_NEAR.search(last_name(n)) for n in parts if isinstance(n, ast.Name | ast.Attribute))


def _asks_for_all(test: ast.expr) -> bool:
    """Whether a test holds when all of something is so: `done.all()`."""
    is_of_all = any(isinstance(n, ast.Call) and last_name(n.func) == "all" for n in ast.walk(test))
    return is_of_all and not holds([test], ast.Not)


def _loop_of(program: Program, node: ast.AST) -> ast.AST:
    found = next((n for n in program.around(node) if isinstance(n, ast.For | ast.While)), None)
    if found is None:
        raise NoDiff("the test is in no loop of its function")
    return found


def _begin_alike(program: Program, line: int, finding: Finding, backend: str) -> Said:
    """Lets all ranks begin a loop where rank 0 does."""
    found = [n for n in ast.walk(program.tree) if isinstance(n, ast.Assign) and n.lineno == line]
    if len(found) != 1 or len(found[0].targets) != 1 or not isinstance(found[0].targets[0], ast.Name):
        raise NoDiff(f"line {line} does more than to set one variable")
    take_from_one(program, found[0].value, line, finding, backend)
    return Said("one says", f"Rank 0 says what `{found[0].targets[0].id}` is, and the others take it")


def _count_alike(program: Program, line: int, finding: Finding, backend: str) -> Said:
    """Lets all ranks make as many rounds as rank 0 does."""
    loops = _loops_at(program, line)
    over = loops[0].iter if len(loops) == 1 else None
    if isinstance(over, ast.Call) and called(over) in ("range", "trange") and over.args and not over.keywords:
        over = over.args[0 if len(over.args) == 1 else 1]
    if not isinstance(over, ast.Name | ast.Attribute):
        raise NoDiff(f"line {line} is not a `for` loop over a list or a number of rounds")
    rank = next((int(e.source.split()[1]) for e in finding.evidence if _SAYS_ROUNDS.fullmatch(e.source)), 0)
    take_from_one(program, over, line, finding, backend, rank=rank)
    return Said("one says", f"Rank {rank} says `{program.text(over)}` before the loop, and the others take it")


def _what_ends(program: Program, finding: Finding) -> ast.expr:
    """The iterable that is at its end on one rank first."""
    lines = _lines_of(finding)
    at = lines.get("loop") or (finding.line)
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
        made = [
            n for n in ast.walk(function) if isinstance(n, ast.stmt) and name in binds(n) and not hasattr(n, "body")
        ]
        if len(made) == 1 and isinstance(made[0], ast.Assign) and len(made[0].targets) == 1:
            return made[0].value
    raise NoDiff("it is not certain what the exhausted iterator was made from")


def after_the_round(program: Program, finding: Finding, backend: str) -> Said:
    """Lets the handler only note that the signal came; what it did, all ranks do at the end of a round of the loop.

    Raises:
        NoDiff: the handler is not registered once, in the function with the loop, or the loop may be left before its end.
    """
    line = finding.line
    register, handler = _registered(program, line)
    loop = _loop_of_rounds(program, finding, register)
    if holds(loop.body, LEAVES):
        raise NoDiff(f"the loop of line {loop.lineno} may leave a round before its end")
    reached_by_all(program, loop.lineno)
    if "came" in program.names():
        raise NoDiff("the file uses the name 'came' already")
    number, does = register.args
    name, group = put_helper(program, ANY_RANK, loop, finding, backend)
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
