"""What the source says around a line: loops, conditions, handlers. Static facts that explain a dynamic difference."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from unhang.model import Frame
from unhang.model.lazy_pattern import lazy_pattern

_MOST_BYTES = 2_000_000
_RANK_NAMES = lazy_pattern(
    r"\b(global_|local_|world_|node_|dp_|tp_|pp_)?rank\b|get_rank|is_main|is_master|\bmaster\b|main_process|rank_zero|"
    r"global_zero|process_index|is_chief|\bRANK\b|LOCAL_RANK",
    re.IGNORECASE,
)
_RANK_ZERO = lazy_pattern(
    r"rank\w*(\(\))?\s*(==|<=)\s*0\b|rank\w*(\(\))?\s*<\s*1\b|\bnot\s+[\w.]*rank\b|is_main|is_master|\bmaster\b|"
    r"main_process|rank_zero|global_zero|is_chief|RANK[\"'\])]*\s*==\s*[\"']?0",
    re.IGNORECASE,
)
_DATA_NAMES = lazy_pattern(
    r"nan|inf\b|isinf|finite|bad|skip|overflow|found|loss|grad|none|len\(|exists|isfile|isdir|empty|valid|error|fail|any\(|all\(",
    re.IGNORECASE,
)
_STEP_NAMES = lazy_pattern(r"\b(step|epoch|it|iter|iteration|i|batch_idx|last|global_step|every)\b|%", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Loop:
    """A for or while loop: its header line and its extent (1-based, inclusive)."""

    header: int
    first: int
    last: int
    is_for: bool

    def __contains__(self, line: int) -> bool:
        return self.first <= line <= self.last


class Surroundings(NamedTuple):
    """The loops (outermost first) and conditions that decide whether a line runs, within its function."""

    loops: tuple[Loop, ...] = ()
    tests: tuple[str, ...] = ()
    in_handler: bool = False
    fetches_next: bool = False
    text: str = ""
    function: str = "<module>"

    @property
    def depends_on_rank(self) -> bool:
        """Whether a condition around the line speaks of the rank."""
        return any(_RANK_NAMES.search(t) for t in self.tests)

    @property
    def only_on_rank_zero(self) -> bool:
        """Whether a condition lets only rank 0 (a main, master, chief process) through."""
        return any(_RANK_ZERO.search(t) for t in self.tests)

    @property
    def suspicion(self) -> int:
        """How likely the conditions come out differently on different ranks: rank or data against step counters."""
        score = 0
        for test in self.tests:
            if _RANK_NAMES.search(test) or _DATA_NAMES.search(test):
                score = max(score, 2)
            elif not _STEP_NAMES.search(test):
                score = max(score, 1)
        return score


@lru_cache(maxsize=64)
def _tree(path: str) -> tuple[ast.Module, tuple[str, ...]] | None:
    lines = linecache.getlines(path)
    if not lines or sum(map(len, lines)) > _MOST_BYTES:
        return None
    try:
        return ast.parse("".join(lines)), tuple(lines)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def line_text(path: str, line: int) -> str:
    """The source line, stripped, or an empty string where it cannot be read."""
    parsed = _tree(path)
    return parsed[1][line - 1].strip() if parsed and 0 < line <= len(parsed[1]) else ""


def _covers(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return first is not None and last is not None and first <= line <= last


def _chain(node: ast.AST, line: int) -> Iterator[ast.AST]:
    """The nodes around a line, outermost first."""
    for child in ast.iter_child_nodes(node):
        if _covers(child, line):
            yield child
            yield from _chain(child, line)


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Continue | ast.Break | ast.Raise)


def _guards_before(body: list[ast.stmt], line: int) -> Iterator[str]:
    """Conditions of `if ...: return` that stand before the line in the same block."""
    for statement in body:
        if _covers(statement, line) or statement.lineno > line:
            return
        if isinstance(statement, ast.If) and not statement.orelse and _leaves(statement.body):
            yield f"not ({ast.unparse(statement.test)})"


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block


def _tests_of(node: ast.AST, line: int) -> Iterator[str]:
    if isinstance(node, ast.If):
        inside = any(_covers(s, line) for s in node.body)
        otherwise = any(_covers(s, line) for s in node.orelse)
        text = ast.unparse(node.test)
        if inside or node.lineno == line:
            yield text
        elif otherwise:
            yield f"not ({text})"
    elif isinstance(node, ast.IfExp):
        yield ast.unparse(node.test)
    for block in _blocks(node):
        if any(_covers(s, line) for s in block):
            yield from _guards_before(block, line)


def _loop_of(node: ast.AST) -> Loop | None:
    if isinstance(node, ast.For | ast.AsyncFor | ast.While):
        last = max(getattr(s, "end_lineno", s.lineno) or s.lineno for s in node.body)
        return Loop(node.lineno, node.lineno, last, not isinstance(node, ast.While))
    return None


def _fetches_next(chain: list[ast.AST], line: int) -> bool:
    for node in chain:
        if isinstance(node, ast.For | ast.AsyncFor) and _covers(node.iter, line) and node.lineno == line:
            inner = [n for n in chain if n is not node and _covers(n, line) and n in node.body]
            if not inner:
                return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("next", "anext"):
            return True
    return False


@lru_cache(maxsize=4096)
def surroundings(path: str, line: int) -> Surroundings:
    """What decides whether `line` of `path` runs. Empty where the source cannot be read."""
    parsed = _tree(path)
    if parsed is None:
        return Surroundings()
    chain = list(_chain(parsed[0], line))
    starts = [i for i, n in enumerate(chain) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
    chain = chain[starts[-1] :] if starts else [parsed[0], *chain]
    function = str(getattr(chain[0], "name", "<module>"))
    loops = tuple(loop for node in chain if (loop := _loop_of(node)) is not None and line in loop)
    tests = tuple(text for node in chain for text in _tests_of(node, line))
    handler = any(isinstance(node, ast.ExceptHandler) for node in chain)
    return Surroundings(loops, tests, handler, _fetches_next(chain, line), line_text(path, line), function)


def catches_stop_iteration(path: str, line: int) -> int | None:
    """The line of an `except StopIteration` in the loops around `line`, or None."""
    parsed = _tree(path)
    loops = surroundings(path, line).loops
    if parsed is None or not loops:
        return None
    for node in ast.walk(parsed[0]):
        if not isinstance(node, ast.ExceptHandler) or node.type is None or node.lineno not in loops[0]:
            continue
        if "StopIteration" in ast.unparse(node.type):
            return node.lineno
    return None


def calls_only_on_rank_zero(path: str, line: int) -> tuple[Frame, ...]:
    """Other calls, under a rank-0 condition, of what the given line calls (`s.net(x)` -> every `s.net(...)`)."""
    parsed = _tree(path)
    if parsed is None:
        return ()
    calls = [n for n in ast.walk(parsed[0]) if isinstance(n, ast.Call)]
    names = {ast.unparse(n.func) for n in calls if n.lineno == line}
    lines = {n.lineno for n in calls if ast.unparse(n.func) in names and n.lineno != line}
    return tuple(
        Frame(path, n, surroundings(path, n).function) for n in sorted(lines) if surroundings(path, n).only_on_rank_zero
    )
