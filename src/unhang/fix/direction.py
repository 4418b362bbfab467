"""Which way all ranks go by a condition: to the line as soon as one of them comes to it, or only if all of them do; and what has nothing to give gives nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from unhang.analyze.calls.framework_loops import ASKS
from unhang.analyze.program.may_differ import is_drawn
from unhang.analyze.program.trees import covers, functions_named, inside, last_name
from unhang.fix.program import Edit, NoDiff, Program, called, calls_in, dotted, holds, takes_what_it_finds
from unhang.model import Finding, Gate

EXCHANGES = re.compile(
    r"all_reduce|all_gather\w*|all_to_all\w*|reduce_scatter\w*|broadcast\w*|gather|gather_object|gather_for_metrics|barrier|reduce|full_tensor|redistribute|distribute_tensor"
)
_REQUESTS = re.compile(r"save|checkpoint|evaluat|validat|export|snapshot|report", re.IGNORECASE)
TRAINS = ("backward", "step", "optimizer_step", "manual_backward")
# Such a round is bad: no rank can use it.
_IS_BAD = re.compile(r"nan|inf$|isinf|finite|bad|overflow|corrupt|invalid|error|fail|broken", re.IGNORECASE)
# What takes a list without items.
_TAKES_NONE = frozenset(
    ("len", "list", "tuple", "set", "sum", "enumerate", "zip", "sorted", "reversed", "iter", "print", "str", "repr", "any", "all", "dict",
     "all_gather_object", "gather_object")
)  # fmt: skip


def line_left_out(program: Program, gate: Gate, finding: Finding) -> int:
    """The line that a finding names, in the file of its condition; where that is the condition itself, the line behind it that a rank came to. Else 0."""
    place = finding.location
    if place is None or place.file != gate.file:
        return 0
    if place.line != gate.line:
        return place.line
    at = f"({program.path.name}:"
    function = next(map(program.function_of, program.statements_at(gate.line)), None)
    last = getattr(function, "end_lineno", None) or 0
    came = [e.line or 0 for e in finding.evidence if e.source.endswith(" source") and at in e.text]
    guarded = [n for n in ast.walk(program.tree) if isinstance(n, ast.If) and n.test.lineno == gate.line]
    came.sort(key=lambda line: not any(covers(n, line) for n in guarded))
    return next((line for line in came if gate.line < line <= last), place.line)


def is_for_all_to_skip(program: Program, node: ast.If | ast.IfExp | ast.While, line: int, backend: str) -> bool:
    """Whether the opposite of a test leads to an exchange that a rank skips as it has nothing to give: then it is to run as soon as one rank has.

    Where a list without items is joined there, the join takes it from now on.

    Raises:
        NoDiff: what follows needs what only the other ranks have.
    """
    if not isinstance(node, ast.If) or node.orelse:
        return False
    skipped = _behind(program, node)
    if _is_bad(node.test):
        return False
    if missing := _missing_part(node.test):
        raise NoDiff(f"a rank that has no {missing} is to make the call, too, and to leave out what comes after it")
    if not _holds_exchange(skipped, line):
        if lacks := _given_what_lacks(node.test, skipped, line):
            raise NoDiff(f"a rank that has nothing in {lacks} is to take part in line {line}, with what counts nothing")
        if has_step(skipped) and _finds_nothing(node.test):
            raise NoDiff(
                "a rank that has nothing is to make the round, too, with a loss of zero: else all lose what they have"
            )
        return _is_request(node, skipped)
    if gradient_of(node.test):
        give_zeros(program, node)
        return True
    return _can_give_nothing(program, node.test, skipped, backend)


def _finds_nothing(test: ast.expr) -> bool:
    """Whether it holds where a round has nothing in it: `kept == 0`, `not mask.any()`, `len(rows) < 1`."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=ast.Call(func=ast.Attribute(attr="any"))):
            return True
        case ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant(value=0)]):
            return True
        case ast.Compare(ops=[ast.Lt()], comparators=[ast.Constant(value=1)]):
            return True
    return _is_of_all_empty(test)


def _missing_part(test: ast.expr) -> str:
    """What of the program's own objects a test finds missing, `self.logger is None`: on some ranks it always is."""
    asked = (n.left for n in inside(test, ast.Compare) if isinstance(n.ops[0], ast.Is))
    return next((dotted(a) for a in asked if isinstance(a, ast.Attribute) and dotted(a).startswith("self.")), "")


def _given_what_lacks(test: ast.expr, skipped: Sequence[ast.stmt], line: int) -> str:
    """What a test finds empty, where the call that is skipped then is given just that."""
    asked = {_emptied(test), *(dotted(c.args[0]) for c in inside(test, ast.Call) if called(c) == "len" and c.args)} - {
        ""
    }
    calls = [c for s in skipped for c in calls_in(s) if covers(c, line)]
    given = (dotted(a) for c in calls for a in (*c.args, *(k.value for k in c.keywords)))
    return next((name for name in given if name in asked), "")


def runs_for_one(program: Program, node: ast.If | ast.IfExp | ast.While, line: int, backend: str) -> bool:
    """Whether a test asks if a rank has something for the exchange in its block: all are to make it as soon as one rank has.

    Raises:
        NoDiff: the block needs what only the ranks have that come to it.
    """
    if not isinstance(node, ast.If) or node.orelse or _is_bad(node.test):
        return False
    if not _holds_exchange(node.body, line):
        return _is_request(node, node.body) or _is_of_an_event(node, line)
    if gradient_of(node.test):
        give_zeros(program, node)
        return True
    given = {name for s in node.body for c in _exchanges(s) for a in c.args for name in _names(a)}
    asked = _made_from(program, node, _names(node.test), of_counts=True)
    return bool(asked & _made_from(program, node, given)) and _can_give_nothing(program, node.test, node.body, backend)


def _is_of_an_event(node: ast.If, line: int) -> bool:
    """Whether a test measures one thing (`loss > 3 * usual`), and the call behind it takes others, which every rank has: it may run on all.

    A test of what may be missing (`if batch:`) is none, nor one by chance: then all of them would run as soon as one does.
    """
    calls = [c for s in node.body for c in ast.walk(s) if isinstance(c, ast.Call) and c.lineno == line]
    measured = [a for c in ast.walk(node.test) if isinstance(c, ast.Call) for a in c.args]
    measured += [n for c in ast.walk(node.test) if isinstance(c, ast.Compare) for n in (c.left, *c.comparators)]
    tested = {dotted(n) for m in measured for n in ast.walk(m) if isinstance(n, ast.Name | ast.Attribute)} - {"self"}
    used = {dotted(n) for s in node.body for n in ast.walk(s) if isinstance(n, ast.Name | ast.Attribute)}
    return bool(calls and tested - {""}) and tested.isdisjoint(used) and not is_drawn(node.test)


def counts_on_some(program: Program, test: ast.expr) -> str:
    """A progress bar that a test asks for its count, or whether it is on, and that is switched off on some ranks: there the test never holds."""
    asked = {
        dotted(n.value)
        for n in ast.walk(test)
        if isinstance(n, ast.Attribute) and n.attr in ("n", "last_print_n", "disable")
    }
    for node in (n for n in ast.walk(program.tree) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)):
        bar = next((name for t in node.targets if (name := dotted(t)) in asked), "")
        off = next((k.value for k in getattr(node.value, "keywords", ()) if k.arg == "disable"), None)
        if bar and off is not None and not isinstance(off, ast.Constant):
            return bar
    return ""


_MADE_OF_SIZE = ("zeros", "ones", "empty", "full", "new_zeros", "new_empty", "pad", "resize_", "range", "arange")


def sized_by(program: Program, node: ast.If | ast.IfExp | ast.While, line: int) -> str:
    """The count that a test holds against a size, where what follows it makes room for so many, and exchanges that: all ranks are to have the largest.

    Empty where the test asks for something else.
    """
    if not isinstance(node, ast.If) or node.orelse or not isinstance(node.test, ast.Compare):
        return ""
    is_guard, orders = isinstance(node.body[-1], ast.Return | ast.Continue), (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
    left, op, right = node.test.left, node.test.ops[0], node.test.comparators[0]
    is_less = isinstance(op, ast.Lt | ast.LtE)
    count = left if is_less is is_guard else right
    runs = _behind(program, node) if is_guard else node.body
    if not isinstance(op, orders) or not isinstance(count, ast.Name) or not _holds_exchange(runs, line):
        return ""
    made = [c for s in runs for c in calls_in(s) if called(c) in _MADE_OF_SIZE]
    return count.id if any(count.id in _names(a) for c in made for a in c.args) else ""


def _is_request(node: ast.If, runs: Sequence[ast.stmt]) -> bool:
    """Whether a rank wants something of all that is no step of the training, a save or an evaluation, and that any of them can make."""
    made = {called(c) for s in runs for c in calls_in(s)}
    is_request = any(map(_REQUESTS.search, made)) and not made & {*TRAINS}
    return is_request and not _asks_if_there(node.test) and not takes_what_it_finds(node)


def _asks_if_there(test: ast.expr) -> bool:
    """Whether it asks if something is there, or is among others."""
    return holds([test], ast.Is | ast.IsNot | ast.In | ast.NotIn)


def gradient_guard(program: Program, loop: ast.For) -> ast.If | None:
    """The one test of a loop that lets a round go without its exchange where a parameter has no gradient."""
    tests = (n for s in loop.body for n in ast.walk(s) if isinstance(n, ast.If) and not n.orelse)
    found = [n for n in tests if gradient_of(n.test)]
    is_one = len(found) == 1 and any(_exchanges_of(program, found[0]))
    return found[0] if is_one else None


def _exchanges_of(program: Program, node: ast.If) -> Iterator[ast.Call]:
    """What a test guards: in its block, else behind it."""
    return (c for s in (node.body if is_guarded(node) else _behind(program, node)) for c in _exchanges(s))


def is_guarded(node: ast.If) -> bool:
    """Whether what a test asks for, `is not None`, is used in its block; else behind it."""
    return isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.IsNot)


def gradient_of(test: ast.expr) -> str:
    """The gradient that a test asks to be there, or not to be: `p.grad is not None`."""
    match test:
        case ast.Compare(left=left, ops=[ast.IsNot() | ast.Is()], comparators=[ast.Constant(value=None)]):
            return name if (name := dotted(left)).endswith(".grad") else ""
    return ""


def give_zeros(program: Program, node: ast.If) -> None:
    """Lets a parameter without a gradient give zeros, where all ranks go on behind a test for it.

    Raises:
        NoDiff: the block stands on the line of its condition.
    """
    gradient = gradient_of(node.test)
    first, end = node.body[0], program.newline
    if first.lineno == node.lineno:
        raise NoDiff("the block stands on the line of its condition")
    indent = program.indent(first if is_guarded(node) else node)
    zeros = f"{indent}if {gradient} is None:{end}{indent}    {gradient} = torch.zeros_like({gradient.removesuffix('.grad')}){end}"
    if is_guarded(node):
        program.insert_before(first, zeros)
    else:
        program.insert_after(node, zeros)


def asks_a_framework(node: ast.If | ast.IfExp | ast.While) -> bool:
    """Whether a test leads to a line that asks a framework for something: `control.should_log = True`."""
    block = node.body if isinstance(node, ast.If) else []
    sets = (n for s in block if isinstance(s, ast.Assign) for n in s.targets)
    return any(isinstance(n, ast.Attribute) and n.attr in ASKS for n in sets)


def _behind(program: Program, node: ast.If) -> list[ast.stmt]:
    """What does not run where a test leaves the function or the round."""
    leave = node.body[-1]
    at: ast.stmt = node
    found: list[ast.stmt] = []
    ways = {ast.Return: (ast.FunctionDef, ast.AsyncFunctionDef), ast.Continue: (ast.For, ast.While)}
    until = ways.get(type(leave))
    if until is None:
        return []
    for above in program.around(node):
        block = program.block_of(at)
        found += block[block.index(at) + 1 :]
        if isinstance(above, until) or not isinstance(above, ast.stmt):
            break
        at = above
    return found


def _holds_exchange(statements: Sequence[ast.stmt], line: int) -> bool:
    """Whether the line is an exchange in these statements, and they hold no step of the training."""
    if has_step(statements):
        return False
    return any(c.lineno <= line <= (c.end_lineno or 0) for s in statements for c in _exchanges(s))


def has_exchange(statements: Sequence[ast.stmt]) -> bool:
    """Whether statements make calls with other ranks, or a step of the training."""
    return has_step(statements) or any(True for s in statements for _ in _exchanges(s))


def has_step(statements: Sequence[ast.stmt]) -> bool:
    """Whether statements make a step of the training."""
    return any(called(c) in TRAINS for s in statements for c in calls_in(s))


def _exchanges(statement: ast.stmt) -> Iterator[ast.Call]:
    return (c for c in calls_in(statement) if EXCHANGES.fullmatch(called(c)))


def _names(node: ast.AST) -> set[str]:
    return {name for n in ast.walk(node) if (name := dotted(n))} - {"self", "dist", "torch"}


def _made_from(program: Program, node: ast.stmt, names: set[str], of_counts: bool = False) -> set[str]:
    """These names of a function, and those from which it sets them. `of_counts`: only by counting or choosing among them."""
    sets = [n for n in ast.walk(program.function_of(node)) if isinstance(n, ast.Assign)]
    within = {id(n) for s in getattr(node, "body", ()) for n in ast.walk(s)}
    before = [n for n in sets if n.lineno < node.lineno or id(n) in within]
    sets = [n for n in before if not of_counts or _counts(n.value)]
    found: set[str] = set()
    while new := names - found:
        found |= new
        names = {name for n in sets if new & set(map(dotted, n.targets)) for name in _names(n.value)}
    return found


def _counts(value: ast.expr) -> bool:
    is_count = isinstance(value, ast.Call) and last_name(value.func) in ("sum", "len", "numel", "size", "count_nonzero")
    return is_count or isinstance(value, ast.ListComp)


def _is_bad(test: ast.expr) -> bool:
    words = (last_name(n) for n in ast.walk(test) if isinstance(n, ast.Name | ast.Attribute))
    is_unlike_itself = isinstance(test, ast.Compare) and ast.dump(test.left) in map(ast.dump, test.comparators)
    return is_unlike_itself or any(_IS_BAD.search(word) for word in words)


def _emptied(test: ast.expr) -> str:
    """What a test asks to have items: `not xs`, `len(xs) == 0`, `xs`; empty where it asks for something else."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _emptied(operand)
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Gt() | ast.NotEq()], comparators=[ast.Constant(value=0)]):
            return _emptied(left)
        case ast.Call(func=ast.Name(id="len"), args=[of]) | ast.Call(func=ast.Attribute(value=of, attr="numel")):
            return dotted(of)
        case ast.Name() | ast.Attribute():
            return dotted(test)
    return ""


def _is_of_all_empty(test: ast.expr) -> bool:
    """`all(len(x) == 0 for x in xs)`, and its opposite: there are as many items as ever, without anything in them."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _is_of_all_empty(operand)
        case ast.Call(func=ast.Name(id="all" | "any"), args=[ast.GeneratorExp(elt=elt) | ast.ListComp(elt=elt)]):
            return any(called(c) in ("len", "numel", "size") for c in calls_in(elt))
    return False


def _can_give_nothing(program: Program, test: ast.expr, runs: Sequence[ast.stmt], backend: str) -> bool:
    """Whether statements run as well on a rank that came to them only since another one did.

    Raises:
        NoDiff: they need items that this rank has not.
    """
    if _asks_if_there(test):
        return False
    device = ', device="cuda"' if "nccl" in backend else ""
    _count_those_that_have(program, runs)
    if not (name := _emptied(test)):
        return _is_of_all_empty(test) or bool(_asks_for_size(test))
    for node in (n for s in runs for n in ast.walk(s) if dotted(n) == name and n in program.parents):
        parent = program.parents[node]
        while isinstance(parent, ast.GeneratorExp | ast.ListComp | ast.comprehension | ast.Starred):
            node, parent = parent, program.parents[parent]
        if isinstance(parent, ast.For) or (isinstance(parent, ast.Call) and called(parent) in _TAKES_NONE):
            continue
        if isinstance(parent, ast.Call) and _sends_objects(program, parent):
            continue
        is_join = isinstance(parent, ast.Call) and dotted(parent.func) == "torch.cat"
        if isinstance(parent, ast.Call) and is_join and len(parent.args) == 1 and not parent.keywords:
            some = f"len({name})" if holds([test], ast.Call) else name
            program.replace(parent, f"({program.text(parent)} if {some} else torch.zeros(0{device}))")
        elif not isinstance(parent, ast.Assign | ast.Expr | ast.Attribute):
            raise NoDiff(
                f"line {parent.lineno if hasattr(parent, 'lineno') else test.lineno} needs items of {name}, and a rank that has none has to give zeros there"
            )
    return True


def _sends_objects(program: Program, call: ast.Call) -> bool:
    """Whether a function of the program sends what it is given as an object: of that a rank may have none."""
    named = functions_named(str(program.path.parent), called(call))
    sent = [last_name(c.func) for c in inside(named[0][1], ast.Call)] if len(named) == 1 else []
    made = [name for name in sent if EXCHANGES.fullmatch(name)]
    return bool(made) and all(name.endswith("_object") for name in made)


_OF_SOME = ("mean", "max", "min", "median", "std", "var", "amax", "amin")


def _count_those_that_have(program: Program, runs: Sequence[ast.stmt]) -> None:
    """Lets a mean over the ranks' means leave out the ranks that have nothing, whose own mean is no number.

    Raises:
        NoDiff: what is exchanged is a mean, or a largest item, of nothing, and is used in another way.
    """
    for call in (c for s in runs for c in _exchanges(s)):
        given = {n.id for a in call.args for n in ast.walk(a) if isinstance(n, ast.Name)}
        sets = [
            n.value
            for s in runs
            for n in ast.walk(s)
            if isinstance(n, ast.Assign) and given & set(map(dotted, n.targets))
        ]
        inner = [called(c) for value in (*call.args, *sets) for c in ast.walk(value) if isinstance(c, ast.Call)]
        if not any(name in _OF_SOME for name in inner):
            continue
        above = program.parents[call]
        if not isinstance(above, ast.Attribute) or above.attr != "mean" or not set(inner) & {"mean"}:
            raise NoDiff(
                f"line {call.lineno} exchanges a mean or a largest item, which a rank that has none cannot give"
            )
        end = program.end(above)
        program.edits.append(Edit(end - len("mean"), end, "nanmean"))


def _asks_for_size(test: ast.expr) -> bool:
    """Whether it compares a number: what is too small to be worth an exchange."""
    return any(
        isinstance(n, ast.Compare) and isinstance(n.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE) for n in ast.walk(test)
    )
