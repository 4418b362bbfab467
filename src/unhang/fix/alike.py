"""What all ranks should have alike before they decide: the step that is left out, the mask that a module keeps, the score that a program goes by."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from unhang.analyze.program.finite import asks_for_finite
from unhang.analyze.program.source import surroundings
from unhang.analyze.program.trees import covers, functions_named, inside, last_name
from unhang.fix.agreed import is_plain, put_around, put_helper, reached_by_all, test_of
from unhang.fix.direction import EXCHANGES, TRAINS, line_left_out
from unhang.fix.functions import ANY_RANK, MEAN, ON_ALL
from unhang.fix.program import NoDiff, Program, Said, called, calls_in, dotted
from unhang.model import Finding, Gate

_ENDS = ("exit", "_exit", "abort", "quit")


def skip_the_step(program: Program, gate: Gate, finding: Finding, backend: str) -> Said | None:
    """Lets all ranks leave out a step of the training whose loss is not finite on one of them, which ended that rank; None where it is another test."""
    node, is_opposite = _test_of(program, gate)
    if is_opposite or not isinstance(node, ast.If) or node.orelse or not asks_for_finite(node.test):
        return None
    last, loop = node.body[-1], program.parents[node]
    is_end = isinstance(last, ast.Raise) or any(called(c) in _ENDS for c in calls_in(last))
    if not is_end or not isinstance(loop, ast.For | ast.While) or node not in loop.body:
        return None
    behind = loop.body[loop.body.index(node) + 1 :]
    if not any(called(c) in TRAINS for s in behind for c in calls_in(s)):
        return None
    is_plain(program, node)
    reached_by_all(program, node.lineno)
    put_around(program, ANY_RANK, node.test, finding, backend)
    program.replace(last, "continue  # no rank trains on this step")
    return Said(
        "skip together", f"All ranks leave out a step that one of them cannot use (line {node.lineno}), and go on"
    )


def one_mask(program: Program, gate: Gate, finding: Finding, backend: str) -> Said | None:
    """Lets all ranks have one mask, where a test asks if it holds anywhere and it is made of what a module keeps, which is of one shape on all ranks."""
    node, _ = _test_of(program, gate)
    mask = _asked_mask(node.test) if node is not None else ""
    value = _set_before(program, node, mask) if node is not None and mask else None
    if node is None or not isinstance(value, ast.Compare) or _asks_for_some(value):
        return None
    kept = _kept_by_module(program, node)
    names = {name for n in ast.walk(value) if isinstance(n, ast.Name | ast.Attribute) and (name := dotted(n))}
    own = {name for name in names if name.startswith("self.")}
    if not own & kept or names - own - {"self"} or any(isinstance(n, ast.Call) for n in ast.walk(value)):
        return None
    reached_by_all(program, value.lineno)
    put_around(program, ON_ALL, value, finding, backend)
    return Said(
        "decide together",
        f"All ranks have one `{mask}` (line {value.lineno}): an entry counts where it does on every rank",
    )


def _asks_for_some(value: ast.Compare) -> bool:
    """Whether a mask asks where a rank has something at all, `count > 0`: of that one rank may have more than others."""
    match value:
        case ast.Compare(ops=[ast.Gt() | ast.NotEq()], comparators=[ast.Constant(value=0)]):
            return True
        case ast.Compare(ops=[ast.GtE()], comparators=[ast.Constant(value=1)]):
            return True
    return False


def _asked_mask(test: ast.expr) -> str:
    """`mask` of `mask.any()` and of its opposite."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _asked_mask(operand)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="any"), args=[], keywords=[]):
            return name
    return ""


def _kept_by_module(program: Program, node: ast.AST) -> set[str]:
    """The buffers of the module in one of whose methods a node stands."""
    around = program.parents.get(program.function_of(node))
    calls = [c for c in inside(around, ast.Call) if last_name(c.func) == "register_buffer" and c.args]
    given = [ast.literal_eval(c.args[0]) for c in calls if isinstance(c.args[0], ast.Constant)]
    return {f"self.{name!s}" for name in given}


def _set_before(program: Program, node: ast.stmt | ast.expr, name: str) -> ast.expr | None:
    """What a variable is set to, where its function sets it once, before the node."""
    function = program.function_of(node)
    sets = [n for n in ast.walk(function) if isinstance(n, ast.Assign) and [*map(dotted, n.targets)] == [name]]
    named = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name]
    stored = [n for n in named if not isinstance(n.ctx, ast.Load)]
    return sets[0].value if len(sets) == len(stored) == 1 and sets[0].lineno < node.lineno else None


# What a program goes by: one number for each rank, better or worse than before.
_SCORE = re.compile(
    r"(?:^|_)(?:loss|acc|accuracy|score|err|error|f1|auc|iou|miou|dice|map|mae|mse|rmse|ppl|perplexity|bleu|val|value|metric|reward)(?:_|$)",
    re.IGNORECASE,
)


_TOLD = ("step", "update", "check", "add", "append")


def one_score(program: Program, gate: Gate, finding: Finding, backend: str) -> Said | None:
    """Lets all ranks go by the mean of a score, where each decides by its own whether it is the best, or has become worse."""
    node, _ = _test_of(program, gate)
    return by_one_score(program, node, finding, backend) if node is not None else None


def _test_of(program: Program, gate: Gate) -> tuple[ast.If | ast.IfExp | ast.While | None, bool]:
    """See `test_of`; None where a value decides, and no test."""
    try:
        return test_of(program, gate)
    except NoDiff:
        return None, False


def by_one_score(program: Program, node: ast.If | ast.IfExp | ast.While, finding: Finding, backend: str) -> Said | None:
    """The same for a test; None where it does not go by a score that each rank computes for itself."""
    for name in _scores_in(node.test):
        value = _set_before(program, node, name)
        if not isinstance(value, ast.Call) or _brings_together(program, value):
            continue
        function = program.function_of(node)
        if any(isinstance(n, ast.Attribute | ast.Subscript) and dotted(n.value) == name for n in ast.walk(function)):
            continue
        reached_by_all(program, value.lineno)
        is_plain(program, node)
        shared = _shared_already(program, node, name) if isinstance(node.test, ast.Call) else None
        if shared is not None:
            used = next(a for a in node.test.args if dotted(a) == name)  # type: ignore[attr-defined]
            program.replace(used, shared)
            return Said(
                "decide together",
                f"All ranks go by `{shared}` at line {node.lineno}, which is the same on each; `{name}` is this rank's own",
            )
        put_around(program, MEAN, value, finding, backend)
        return Said(
            "decide together", f"All ranks go by the mean of `{name}` (line {value.lineno}), which is the same on each"
        )
    return _by_what_it_was_told(program, node, finding, backend)


def _by_what_it_was_told(
    program: Program, node: ast.If | ast.IfExp | ast.While, finding: Finding, backend: str
) -> Said | None:
    """The same where a test asks an object that was told the score in front of it: `stopper(loss)`, `scheduler.step(loss)`."""
    block = program.block_of(node) if isinstance(node, ast.stmt) and node in program.parents else []
    before = block[: block.index(node)] if isinstance(node, ast.stmt) and node in block else []
    for at, statement in enumerate(before):
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call) or not _asks_for(node.test, call, before[at + 1 :]):
            continue
        scores = [a.id for a in call.args if isinstance(a, ast.Name) and _SCORE.search(a.id)]
        sets = [s for s in before[:at] if isinstance(s, ast.Assign) and set(scores) & set(_targets(s))]
        if len(scores) != 1 or len(sets) != 1 or not isinstance(sets[0].value, ast.Call):
            continue
        if _brings_together(program, sets[0].value) or not program.is_alone(statement):
            continue
        reached_by_all(program, statement.lineno)
        is_plain(program, node)
        name, group = put_helper(program, MEAN, statement, finding, backend)
        same = f"{scores[0]} = {name}({scores[0]}{group})"
        program.insert_before(statement, f"{program.indent(statement)}{same}{program.newline}")
        return Said(
            "decide together",
            f"All ranks go by the mean of `{scores[0]}` (line {statement.lineno}), which is the same on each",
        )
    return None


def _targets(statement: ast.Assign) -> list[str]:
    return [dotted(n) for t in statement.targets for n in (t.elts if isinstance(t, ast.Tuple) else [t])]


def _asks_for(test: ast.expr, call: ast.Call, between: Sequence[ast.stmt]) -> bool:
    """Whether a test asks the object that a call was made on; or for the learning rate, of what a scheduler was told."""
    of = dotted(call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr in _TOLD else call.func)
    names = {dotted(n) for n in ast.walk(test) if isinstance(n, ast.Name | ast.Attribute)} - {""}
    if of and any(name.startswith(f"{of}.") for name in names):
        return True
    rates = {
        name for s in between if isinstance(s, ast.Assign) and "lr" in ast.unparse(s.value) for name in _targets(s)
    }
    return called(call) == "step" and bool(rates & names)


def _scores_in(test: ast.expr) -> list[str]:
    """The variables that a test compares, or gives to what decides."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _scores_in(operand)
        case ast.Compare(left=left, ops=[ast.Lt() | ast.Gt() | ast.LtE() | ast.GtE()], comparators=[right]):
            found = [left, right]
        case ast.Call(args=args):
            found = args
        case _:
            found = []
    return [n.id for n in found if isinstance(n, ast.Name) and _SCORE.search(n.id)]


def _brings_together(program: Program, call: ast.Call) -> bool:
    """Whether a call leads to an exchange, by its own name or in the function of the program that it calls."""
    if any(EXCHANGES.fullmatch(called(c)) for c in calls_in(call)):
        return True
    functions = functions_named(str(program.path.parent), called(call))
    return any(EXCHANGES.fullmatch(last_name(c.func)) for _, f in functions for c in inside(f, ast.Call))


def _shared_already(program: Program, node: ast.stmt | ast.expr, name: str) -> str | None:
    """The variable that holds the same of all ranks, where the program has brought it together before the test."""
    for one in ast.walk(program.function_of(node)):
        match one:
            case ast.Assign(targets=[ast.Name(id=shared)], value=ast.Call(args=[ast.Name(id=given)]) as call) if (
                given == name and one.lineno < node.lineno and _brings_together(program, call)
            ):
                own = surroundings(str(program.path), one.lineno).conditions
                if not own and _set_before(program, node, shared) is not None:
                    return shared
    return None


_OF_THE_STEP = re.compile(r"opt|scaler|loss|backward|sched", re.IGNORECASE)


def moved_up(program: Program, gate: Gate, finding: Finding, backend: str) -> Said | None:
    """Lets every rank make a call that a `continue` before it leaves out, where nothing of the call hangs on the round: it is made in front of the test."""
    node, is_opposite = _test_of(program, gate)
    line = line_left_out(program, gate, finding)
    if not isinstance(node, ast.If) or not is_opposite or not isinstance(node.body[-1], ast.Continue) or node.orelse:
        return None
    block = program.block_of(node)
    call = next((s for s in block[block.index(node) + 1 :] if covers(s, line)), None)
    match call:
        case ast.Expr(value=ast.Call(func=ast.Attribute() as func, args=[], keywords=[])) if program.is_alone(call):
            pass
        case _:
            return None
    if _OF_THE_STEP.search(ast.unparse(func)):
        return None
    reached_by_all(program, node.lineno)
    program.remove_lines(call)
    program.insert_before(node, f"{program.indent(node)}{program.text(call)}{program.newline}")
    return Said(
        "move it up", f"Every rank makes the call of line {line}: it stands in front of the test that leaves the round"
    )
