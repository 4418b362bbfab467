"""Takes a call that every rank must make out of a condition on the rank, and leaves under it what one rank alone does with the result."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from unhang.fix.program import LEAVES, Block, NoDiff, Program, Said, binds, called, calls_in, dotted, loads

IsRank = Callable[[ast.expr], bool]
_WRITES = re.compile(
    r"print|open|save|dump|write|mkdir|makedirs|remove|unlink|rename|log|info|warning|log_metrics|tqdm"
)
_COLLECTIVES = re.compile(
    r"all_reduce|all_gather\w*|gather|gather_object|gather_for_metrics|broadcast\w*|barrier|reduce_scatter\w*|wait_for_everyone"
)
_BUILTINS = frozenset(
    ("print", "len", "sum", "str", "repr", "float", "int", "bool", "list", "dict", "tuple", "set", "zip", "map", "sorted",
    "max", "min", "range", "format", "join", "items", "values", "keys", "append", "item", "enumerate", "no_grad")
)  # fmt: skip
_CONDITIONAL = ast.IfExp | ast.BoolOp | ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass
class _Move:
    """What goes out of the condition. `gate`: the statement before which it is put; `tests`: conditions that stay around it.

    `levels`: for each block on the way in, the statements before the one that holds the call.
    """

    program: Program
    gate: ast.If
    whole: ast.stmt
    tests: list[str] = field(default_factory=list)
    uses: set[str] = field(default_factory=set)
    levels: list[Block] = field(default_factory=list)
    taken: list[ast.stmt] = field(default_factory=list)
    behind: list[ast.stmt] = field(default_factory=list)


def hoist(program: Program, line: int, gate_line: int, makers: Callable[[str], bool], is_rank: IsRank) -> Said:
    """Makes the change; returns what it does. `makers`: whether a call of this name leads to a collective.

    Raises:
        NoDiff: the change is not sure.
    """
    statement, call = _made_at(program, line, makers)
    move = _way_out(program, statement, gate_line, makers, is_rank)
    expression = None
    if move.whole is statement and not _goes_whole(statement, call):
        _is_always_made(program, statement, call)
        expression = call
    elif _prints(move.whole):
        raise NoDiff("the statement also prints or writes, which only one rank should do")
    moving: ast.AST = expression or move.whole
    move.uses |= loads([moving])
    absent = _may_be_absent(move.gate.test)
    if missing := {n for n in absent if any(f"{use}.".startswith(f"{n}.") for use in move.uses)}:
        raise NoDiff(f"the call needs {min(missing)}, which only some ranks have")
    _with_what_it_needs(move)
    _with_those_behind(move, expression)
    _make(move, expression)
    what = f"call {called(call)}()" if called(call) else f"make the call of line {line}"
    return Said("every rank calls", f"Let every rank {what}: move it out of the condition")


def _made_at(program: Program, line: int, makers: Callable[[str], bool]) -> tuple[ast.stmt, ast.Call]:
    """The statement and the call on a line that leads to the collective."""
    found = [(s, c) for s in program.statements_at(line) for c in calls_in(s)]
    sure = [(s, c) for s, c in found if makers(called(c))]
    if not sure:
        sure = [(s, c) for s, c in found if called(c) not in _BUILTINS and not _WRITES.fullmatch(called(c))]
        if len(sure) > 1:
            raise NoDiff(f"line {line} makes several calls, and which of them is the collective is not known")
    if not sure:
        raise NoDiff(f"line {line} makes no call that could be moved")
    innermost = [(s, c) for s, c in sure if not any(o is not c and o in ast.walk(c) for _, o in sure)]
    if len({id(s) for s, _ in sure}) > 1 or len(innermost) > 1:
        raise NoDiff(f"line {line} makes several collectives")
    return sure[0]


def _goes_whole(statement: ast.stmt, call: ast.Call) -> bool:
    """Whether the call is all that the statement does, but for keeping its result."""
    value = getattr(statement, "value", None)
    if isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign):
        return value is call or (isinstance(statement, ast.Assign) and not _prints(statement))
    return not isinstance(statement, ast.Return | ast.Raise | ast.Assert)


def _prints(node: ast.AST) -> bool:
    return any(_WRITES.fullmatch(called(c)) for c in calls_in(node))


def _is_always_made(program: Program, statement: ast.stmt, call: ast.Call) -> None:
    node: ast.AST = call
    while node is not statement:
        child, node = node, program.parents[node]
        if isinstance(node, _CONDITIONAL) and not (isinstance(node, ast.BoolOp) and node.values[0] is child):
            raise NoDiff("the call is in a part of the expression that may not be evaluated")


def _way_out(
    program: Program, statement: ast.stmt, gate_line: int, makers: Callable[[str], bool], is_rank: IsRank
) -> _Move:
    """From the call to the condition on the rank, over the blocks between."""
    chain = [statement, *(n for n in program.around(statement) if isinstance(n, ast.stmt | ast.ExceptHandler))]
    for inside, node in enumerate(chain):
        if isinstance(node, ast.If) and node.test.lineno == gate_line and inside:
            return _within(program, chain[: inside + 1], makers, is_rank)
        if isinstance(node, ast.stmt) and node in program.parents and not isinstance(node, ast.FunctionDef):
            block = program.block_of(node)
            before = [s for s in block[: block.index(node)] if isinstance(s, ast.If) and s.test.lineno == gate_line]
            if before:
                return _behind(program, before[0], chain[: inside + 1], is_rank)
    raise NoDiff(f"the condition of line {gate_line} does not enclose the call")


def _within(program: Program, chain: Sequence[ast.AST], makers: Callable[[str], bool], is_rank: IsRank) -> _Move:
    gate = chain[-1]
    assert isinstance(gate, ast.If)
    for above in program.around(gate):  # the outermost condition on the rank is the one to leave
        if isinstance(above, ast.If) and is_rank(above.test):
            raise NoDiff("several conditions on the rank enclose the call")
    if program.is_elif(gate):
        raise NoDiff("the condition is an `elif`")
    in_else = chain[-2] in gate.orelse
    other = gate.body if in_else else gate.orelse
    if any(makers(called(c)) for s in other for c in calls_in(s)):
        raise NoDiff("the other ranks make a collective of their own there")
    return _collected(program, gate, chain, [], is_rank)


def _behind(program: Program, gate: ast.If, chain: Sequence[ast.AST], is_rank: IsRank) -> _Move:
    if gate.orelse or not isinstance(gate.body[-1], LEAVES):
        raise NoDiff("the condition does not leave the function or the loop")
    top = chain[-1]
    assert isinstance(top, ast.stmt)
    block = program.block_of(top)
    return _collected(program, gate, chain, [block[block.index(gate) + 1 : block.index(top)]], is_rank)


def _collected(program: Program, gate: ast.If, chain: Sequence[ast.AST], levels: list[Block], is_rank: IsRank) -> _Move:
    """The move with its blocks from the outermost inward, and with the conditions of them that are no condition on the rank."""
    whole = next(c for c in reversed(chain) if not isinstance(c, ast.If) or c is chain[0])
    assert isinstance(whole, ast.stmt)
    move = _Move(program, gate, whole, levels=levels)
    for inner, outer in reversed([*pairwise(chain[chain.index(whole) :])]):
        if not isinstance(outer, ast.If):
            raise NoDiff("a loop or a `with` under the condition holds the call together with other work")
        block = outer.body if inner in outer.body else outer.orelse
        assert isinstance(inner, ast.stmt)
        move.levels.append(block[: block.index(inner)])
        kept = _without_rank(move.program, outer.test, is_rank)
        if block is outer.orelse:
            if is_rank(outer.test) and isinstance(outer.test, ast.BoolOp):
                raise NoDiff("the call is in the `else` of a condition on the rank and on something else")
            kept = f"not ({kept})" if kept else ""
        if kept:
            move.tests.append(kept)
            move.uses |= loads([outer.test])
    return move


def _without_rank(program: Program, test: ast.expr, is_rank: IsRank) -> str:
    """What of a condition is left where its part on the rank is taken out; empty: nothing."""
    if not is_rank(test):
        return program.text(test)
    if isinstance(test, ast.BoolOp):
        parts = [_without_rank(program, v, is_rank) for v in test.values]
        if isinstance(test.op, ast.Or) and not all(parts):
            return ""
        kept = [f"({p})" if " or " in p and len(parts) > 1 else p for p in parts if p]
        return (" and " if isinstance(test.op, ast.And) else " or ").join(kept)
    return ""


def _may_be_absent(test: ast.expr) -> set[str]:
    """What a condition asks to be there: `self.ema is not None and ...`, or the thing itself."""
    parts = test.values if isinstance(test, ast.BoolOp) else [test]
    asked = [p.left for p in parts if isinstance(p, ast.Compare) and isinstance(p.ops[0], ast.IsNot | ast.Is)]
    return {name for p in (*asked, *parts) if isinstance(p, ast.Name | ast.Attribute) and (name := dotted(p))}


def _with_what_it_needs(move: _Move) -> None:
    """Takes along the statements that what is moved needs.

    Raises:
        NoDiff: one of them writes, or holds blocks, or a statement that stays would see another value.
    """
    stays: list[ast.stmt] = []
    for statement in (s for level in reversed(move.levels) for s in reversed(level)):
        sets = binds(statement)
        if not (sets & _roots(move.uses) or _touches(statement, move.uses)):
            stays.append(statement)
            continue
        if hasattr(statement, "body"):
            raise NoDiff(f"line {statement.lineno} prepares what the call needs in a block of its own")
        if _prints(statement):
            raise NoDiff(f"line {statement.lineno} prepares what the call needs, and also writes")
        move.taken.insert(0, statement)
        move.uses |= loads([statement])
    ahead = {name for s in move.taken for name in binds(s)}
    if any(loads([s]) & ahead and s.lineno < t.lineno for s in stays for t in move.taken):
        raise NoDiff("a statement that stays under the condition would see a later value")


def _with_those_behind(move: _Move, expression: ast.Call | None) -> None:
    """Takes along the other collectives of the block, behind the first: the ranks that come to that one only would wait for them.

    Raises:
        NoDiff: one of them needs what stays under the condition, or does more.
    """
    block = move.gate.body if move.whole in move.gate.body else []
    behind = block[block.index(move.whole) + 1 :] if block else []
    kept = {name for s in (*block[: len(block) - len(behind)], *behind) if s not in move.taken for name in binds(s)}
    for statement in behind:
        if not any(_COLLECTIVES.fullmatch(called(c)) for c in calls_in(statement)):
            continue
        needs = _roots(loads([statement])) & (kept - binds(statement) - binds(move.whole))
        if expression is not None or hasattr(statement, "body") or _prints(statement) or needs:
            raise NoDiff(f"line {statement.lineno} makes another collective, and needs more of that block")
        move.behind.append(statement)


def _roots(names: set[str]) -> set[str]:
    """The names themselves, and everything that they are attributes of."""
    return {".".join(name.split(".")[: i + 1]) for name in names for i in range(name.count(".") + 1)}


def _touches(statement: ast.stmt, names: set[str]) -> bool:
    """Whether it calls a method of something that is needed: `net.train()` before `net(x)`."""
    for call in calls_in(statement):
        base = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if base and any(name == base or (name.startswith(f"{base}.") and "." in base) for name in names):
            return isinstance(statement, ast.Expr)
    return False


def _make(move: _Move, expression: ast.Call | None) -> None:
    program, gate = move.program, move.gate
    indent = program.indent(gate)
    step = _step(program, gate)
    inner = indent + (step if move.tests else "")
    comment = "  # on every rank: it leads to a collective call"
    tests = " and ".join(f"({t})" if " or " in t and len(move.tests) > 1 else t for t in move.tests)
    text = f"{indent}if {tests}:{program.newline}" if tests else ""
    text += "".join(program.moved(s, inner) for s in move.taken)
    removed: list[ast.stmt] = list(move.taken)
    if expression is not None:
        name = f"{called(expression)}_result"
        if name in program.names():
            raise NoDiff(f"the file uses the name {name!r} already")
        if "\n" in program.text(expression):
            raise NoDiff("the call spans several lines")
        text += f"{inner}{name} = {program.text(expression)}{comment}{program.newline}"
        program.replace(expression, name)
    else:
        text += "".join(program.moved(s, inner) for s in (move.whole, *move.behind))
        removed += [move.whole, *move.behind]
    if not program.is_alone(gate):
        raise NoDiff(f"line {gate.lineno} holds several statements")
    program.insert_before(gate, text)
    _remove(program, removed, gate)


def _step(program: Program, gate: ast.If) -> str:
    first = gate.body[0]
    inner, outer = program.indent(first), program.indent(gate)
    return inner.removeprefix(outer) if first.lineno != gate.lineno and inner != outer else "    "


def _remove(program: Program, gone: list[ast.stmt], gate: ast.If) -> None:
    """Takes statements out, and blocks that they leave empty.

    Raises:
        NoDiff: an `else` is left without its `if`, or a line is shared with what stays.
    """
    left = list(gone)
    while True:
        parents = [program.parents[s] for s in left]
        inside = [p for p in parents if isinstance(p, ast.If) and (p is gate or gate in program.around(p))]
        empty = next((p for p in inside if all(s in left for s in p.body)), None)
        if empty is None:
            break
        if empty.orelse and not all(s in left for s in empty.orelse):
            raise NoDiff("the condition would be left without a body")
        left = [s for s in left if program.parents[s] is not empty] + [empty]
    for statement in left:
        parent = program.parents[statement]
        block = program.block_of(statement)
        if all(s in left for s in block) and statement is not gate and not isinstance(parent, ast.Module):
            raise NoDiff("a block would be left empty")
        program.remove_lines(statement)
