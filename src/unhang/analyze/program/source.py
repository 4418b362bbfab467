"""What the source says around a line: loops, conditions, handlers. Static facts that explain a dynamic difference."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

from unhang.analyze.program.may_differ import OWN, may_differ
from unhang.analyze.program.rank_conditions import Evaluation, RankView, Value, named_like_a_rank
from unhang.analyze.program.rank_names import kind_of_name
from unhang.analyze.program.trees import (
    SCOPES,
    File,
    Function,
    Node,
    Scopes,
    blocks_of,
    covers,
    file_of,
    inside,
    last_name,
    line_text,
    signal_handlers,
    tree_of,
)
from unhang.model import Frame
from unhang.model.lazy_pattern import lazy_pattern

_SOME_RANKS = 16
_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
step_names = lazy_pattern(r"\b(step|epoch|it|iter|iteration|i|batch_idx|last|global_step|every)\b|%", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Loop:
    """A for or while loop: its header line and its extent (1-based, inclusive)."""

    header: int
    first: int
    last: int

    def __contains__(self, line: int) -> bool:
        return self.first <= line <= self.last


@dataclass(frozen=True)
class Condition:
    """A test that must come out true for a line to run. `line`: where it stands; `text`: it, or its opposite, as it is written there."""

    path: str
    line: int
    text: str
    test: ast.expr = field(compare=False, repr=False)
    scopes: Scopes = field(compare=False, repr=False)
    names: File = field(compare=False, repr=False)

    def on(self, view: RankView) -> Value:
        """What it gives on a rank."""
        return Evaluation(self.names, view).of(self.test, self.scopes)

    def is_opposite_of(self, other: Condition) -> bool:
        """Whether both are the two outcomes of one test."""
        at = (self.path, self.line) == (other.path, other.line)
        return at and ast.unparse(negated(self.test)) == ast.unparse(other.test)

    @cached_property
    def _on_some_ranks(self) -> tuple[Value, ...]:
        return tuple(self.on(RankView(r, r, None)) for r in range(_SOME_RANKS))

    @property
    def depends_on_rank(self) -> bool:
        """Whether it speaks of the rank, and not merely of what every rank's number fulfils."""
        return self._on_some_ranks[0].by_rank and not all(v.passes for v in self._on_some_ranks)

    @property
    def only_on_rank_zero(self) -> bool:
        """Whether it lets only rank 0 (a main, master, chief process) through."""
        zero, *others = self._on_some_ranks
        return zero.by_rank and zero.passes is not False and all(v.passes is False for v in others)

    @cached_property
    def suspicion(self) -> int:
        """How likely it comes out differently on different ranks: 2 for rank or data, 0 for a step counter, else 1."""
        return OWN if self.depends_on_rank else may_differ(self.path, self.test, self.scopes, by_rank=False)


class Surroundings(NamedTuple):
    """The loops (outermost first) and conditions that decide whether a line runs, within its function."""

    loops: tuple[Loop, ...] = ()
    conditions: tuple[Condition, ...] = ()
    in_handler: bool = False
    fetches_next: bool = False
    text: str = ""
    function: str = "<module>"

    @property
    def tests(self) -> tuple[str, ...]:
        """The conditions as text."""
        return tuple(c.text for c in self.conditions)

    @property
    def depends_on_rank(self) -> bool:
        """Whether a condition around the line speaks of the rank."""
        return any(c.depends_on_rank for c in self.conditions)

    @property
    def only_on_rank_zero(self) -> bool:
        """Whether a condition lets only rank 0 through."""
        return any(c.only_on_rank_zero for c in self.conditions)

    @property
    def suspicion(self) -> int:
        """How likely the conditions come out differently on different ranks."""
        return max((c.suspicion for c in self.conditions), default=0)


def nodes_around(path: str, line: int) -> tuple[ast.AST, ...]:
    """The nodes around a line, outermost first: the module, classes, functions, statements."""
    tree = tree_of(path)
    return (tree, *_chain(tree, line)) if tree is not None else ()


def scopes_at(path: str, line: int) -> Scopes:
    """The module, classes and functions around a line, outermost first."""
    return tuple(n for n in nodes_around(path, line) if isinstance(n, SCOPES))


def nearest(path: str, line: int, kind: type[Node]) -> Node | None:
    """The innermost node of a kind around a line."""
    return next((n for n in reversed(nodes_around(path, line)) if isinstance(n, kind)), None)


def frame_at(path: str, line: int) -> Frame:
    """A line of a file, with the function that it is in."""
    return Frame(path, line, surroundings(path, line).function)


def function_at(path: str, line: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The innermost function around a line."""
    return next((n for n in reversed(nodes_around(path, line)) if isinstance(n, Function)), None)


def loop_at(path: str, header: int) -> ast.For | ast.AsyncFor | ast.While | None:
    """The loop whose head stands at this line."""
    loops = (n for n in nodes_around(path, header) if isinstance(n, ast.For | ast.AsyncFor | ast.While))
    return next((n for n in loops if n.lineno == header), None)


def loop_around(path: str, line: int) -> ast.For | ast.AsyncFor | ast.While | None:
    """The innermost loop around a line in its function."""
    loops = surroundings(path, line).loops
    return loop_at(path, loops[-1].header) if loops else None


def endless_loop(frame: Frame) -> ast.While | None:
    """The innermost loop around a line in its function, where that is a `while` of which only a test within it leads out: `while True`."""
    node = loop_around(frame.file, frame.line)
    return node if isinstance(node, ast.While) and isinstance(node.test, ast.Constant) else None


def _chain(node: ast.AST, line: int) -> Iterator[ast.AST]:
    """The nodes around a line, outermost first."""
    for child in ast.iter_child_nodes(node):
        if covers(child, line):
            yield child
            yield from _chain(child, line)


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Continue | ast.Break | ast.Raise)


def _guards_before(body: list[ast.stmt], line: int) -> Iterator[ast.expr]:
    """Conditions of `if ...: return` that stand before the line in the same block."""
    for statement in body:
        if covers(statement, line) or statement.lineno > line:
            return
        if isinstance(statement, ast.If) and not statement.orelse and _leaves(statement.body):
            yield negated(statement.test)


def negated(test: ast.expr) -> ast.expr:
    """The opposite of a test, in the words that one would use."""
    match test:
        case ast.UnaryOp(op=ast.Not()):
            return test.operand
        case ast.Compare(ops=[op], left=left, comparators=sides) if (opposite := _OPPOSITES.get(type(op))) is not None:
            found: ast.expr = ast.Compare(left, [opposite()], sides)
        case _:
            found = ast.UnaryOp(ast.Not(), test)
    return ast.copy_location(found, test)


def _calls_on(node: ast.AST, line: int) -> bool:
    return any(covers(n, line) for n in inside(node, ast.Call))


def _tests_of(node: ast.AST, line: int) -> Iterator[ast.expr]:
    match node:
        case ast.If():
            if any(covers(s, line) for s in node.body):
                yield node.test
            elif any(covers(s, line) for s in node.orelse):
                yield negated(node.test)
        case ast.IfExp():
            first, second = (_calls_on(branch, line) for branch in (node.body, node.orelse))
            if first is not second:
                yield node.test if first else negated(node.test)
        case ast.BoolOp(op=op, values=[*conditions, last]) if _calls_on(last, line):
            yield from map(negated, conditions) if isinstance(op, ast.Or) else conditions
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            named = (d.func if isinstance(d, ast.Call) else d for d in node.decorator_list)
            yield from (ast.copy_location(ast.Name(n), d) for d in named if named_like_a_rank(n := last_name(d)))
    for block in blocks_of(node):
        if any(covers(s, line) for s in block):
            yield from _guards_before(block, line)


def _when_reduced(chain: list[ast.AST], line: int) -> Iterator[ast.expr]:
    """When gradients are reduced by a `backward` at the line, where that hangs on a test: `no_sync()` leaves it out."""
    for node in chain:
        choices = [i.context_expr for i in node.items] if isinstance(node, ast.With | ast.AsyncWith) else []
        names = {c.id for c in choices if isinstance(c, ast.Name)}
        assigned = (n for n in inside(chain[0] if names else None, ast.Assign) if n.lineno < line)
        choices += [n.value for n in assigned if not names.isdisjoint(map(last_name, n.targets))]
        for choice in choices:
            if isinstance(choice, ast.IfExp) and _has_no_sync(choice.body) is not _has_no_sync(choice.orelse):
                yield negated(choice.test) if _has_no_sync(choice.body) else choice.test
        for statement in (s for block in blocks_of(node) if any(covers(s, line) for s in block) for s in block):
            match statement:
                case ast.Expr(ast.Call(func=ast.Attribute(attr="set_requires_gradient_sync"), args=[test, *_])):
                    pass
                case ast.Assign(targets=[ast.Attribute(attr="require_backward_grad_sync")], value=test):
                    pass
                case _:
                    continue
            if statement.lineno < line and not isinstance(test, ast.Constant):
                yield test


def _has_no_sync(node: ast.AST) -> bool:
    return any(n.attr == "no_sync" for n in inside(node, ast.Attribute))


def _loop_of(node: ast.AST) -> Loop | None:
    if isinstance(node, ast.For | ast.AsyncFor | ast.While):
        last = max(getattr(s, "end_lineno", s.lineno) or s.lineno for s in node.body)
        return Loop(node.lineno, node.lineno, last)
    return None


def _fetches_next(chain: list[ast.AST], line: int) -> bool:
    for node in chain:
        if isinstance(node, ast.For | ast.AsyncFor) and covers(node.iter, line) and node.lineno == line:
            inner = [n for n in chain if n is not node and covers(n, line) and n in node.body]
            if not inner:
                return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("next", "anext"):
            return True
    return False


@lru_cache(maxsize=4096)
def surroundings(path: str, line: int) -> Surroundings:
    """What decides whether `line` of `path` runs. Empty where the source cannot be read."""
    whole = [*nodes_around(path, line)]
    if not whole:
        return Surroundings()
    starts = [i for i, n in enumerate(whole) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    chain = whole[starts[-1] :] if starts else whole
    function = str(getattr(chain[0], "name", "<module>"))
    in_lambda = any(isinstance(n, ast.Lambda) for n in chain)  # whoever has it may call it outside of the loop
    loops = tuple(loop for n in chain if not in_lambda and (loop := _loop_of(n)) is not None and line in loop)
    scopes, names = tuple(n for n in whole if isinstance(n, SCOPES)), file_of(path)
    tests = [test for node in chain for test in _tests_of(node, line)]
    if ".backward(" in (text := line_text(path, line)):
        tests += _when_reduced(chain, line)
    conditions = tuple(Condition(path, t.lineno, ast.unparse(t), t, scopes, names) for t in tests)
    handler = any(isinstance(node, ast.ExceptHandler) for node in chain)
    return Surroundings(loops, conditions, handler, _fetches_next(chain, line), text, function)


def condition_of(path: str, test: ast.expr) -> Condition:
    """A test of a file as a condition."""
    return Condition(path, test.lineno, ast.unparse(test), test, scopes_at(path, test.lineno), file_of(path))


def around(frame: Frame, since_ns: int = 0) -> Surroundings:
    """What decides whether the frame's line runs; empty where the file is another one than that which ran.

    It is another one if it was written after `since_ns`, or has another function there.
    """
    found, function = surroundings(frame.file, frame.line), frame.function.rpartition(".")[2]
    if not found.text or (function != found.function and (function == "<module>" or not function.startswith("<"))):
        return Surroundings()
    return Surroundings() if _written_ns(frame.file) > since_ns > 0 else found


def _written_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except (OSError, ValueError):
        return 0


def _ends_of(condition: Condition) -> list[ast.stmt]:
    """The last statements of the tests at a condition's line that have no other side."""
    tests = inside(tree_of(condition.path), ast.If)
    return [n.body[-1] for n in tests if n.lineno == condition.line and not n.orelse]


def raise_of(condition: Condition) -> ast.Raise | None:
    """The exception that is the other outcome of a condition, where it is one."""
    return next((s for s in _ends_of(condition) if isinstance(s, ast.Raise)), None)


def ends_rounds(condition: Condition, is_in_loop: bool) -> bool:
    """Whether no round of a loop goes on without what the condition guards: its other outcome raises, or leaves the loop.

    `is_in_loop`: it stands in the function of the loop.
    """
    ways = (ast.Raise, ast.Return, ast.Break) if is_in_loop else (ast.Raise,)
    return any(isinstance(s, ways) for s in _ends_of(condition))


def handles_signal(frame: Frame) -> bool:
    """Whether its file makes the frame's function the handler of a signal: it then runs at any line."""
    return frame.function in signal_handlers(frame.file)


def ends_block(frame: Frame) -> bool:
    """Whether an exception that stands at this line goes on from there: it is in a `finally`, or at the head of a `with`."""
    for node in nodes_around(frame.file, frame.line):
        if isinstance(node, ast.Try | ast.TryStar) and any(covers(n, frame.line) for n in node.finalbody):
            return True
        if isinstance(node, ast.With | ast.AsyncWith) and node.lineno <= frame.line < node.body[0].lineno:
            return True
    return False


def lines_that_call_the_same(frame: Frame) -> tuple[Frame, ...]:
    """The other lines, in the frame's function or class, that call what the frame's line calls, by the last part of its name."""
    scopes = scopes_at(frame.file, frame.line)
    place = next((n for n in scopes if isinstance(n, ast.ClassDef)), scopes[-1] if scopes else None)
    calls = [(n.lineno, last_name(n.func)) for n in inside(place, ast.Call)]
    names = {name for line, name in calls if line == frame.line}
    lines = sorted({line for line, name in calls if name in names and line != frame.line})
    return tuple(frame_at(frame.file, line) for line in lines)


def catches_stop_iteration(path: str, line: int) -> int | None:
    """The line of an `except StopIteration` in the loops around `line`, or None."""
    loops = surroundings(path, line).loops
    handlers = [h for h in inside(tree_of(path), ast.ExceptHandler) if loops and h.lineno in loops[0]]
    return next((h.lineno for h in handlers if h.type is not None and "StopIteration" in ast.unparse(h.type)), None)


def calls_only_on_rank_zero(path: str, line: int) -> tuple[Frame, ...]:
    """Other calls, under a rank-0 condition, of what the given line calls (`s.net(x)` -> every `s.net(...)`)."""
    calls = inside(tree_of(path), ast.Call)
    names = {ast.unparse(n.func) for n in calls if n.lineno == line}
    lines = {n.lineno for n in calls if ast.unparse(n.func) in names and n.lineno != line}
    return tuple(frame_at(path, n) for n in sorted(lines) if surroundings(path, n).only_on_rank_zero)


def is_up_to_the_rank(path: str, line: int, leaves_at: int) -> bool:
    """Whether the test at `line`, by which a rank leaves at `leaves_at`, is reckoned from the rank's number; not one that asks for one rank among other things."""
    tests = [c for c in surroundings(path, leaves_at).conditions if c.line == line] if leaves_at else []
    return any(c.depends_on_rank and not _names_one_rank(c.test) for c in tests)


def _names_one_rank(test: ast.expr) -> bool:
    """Whether it asks for the rank itself, `rank == 0`, `is_main`, and not for what is reckoned from it."""
    reckoned = {id(n) for of in inside(test, ast.BinOp) for n in ast.walk(of)}
    named = (n for n in ast.walk(test) if isinstance(n, ast.Name | ast.Attribute) and id(n) not in reckoned)
    return any(kind_of_name(last_name(n)) for n in named)
