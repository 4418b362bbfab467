"""Whether a rank is late because the program gives it work of its own: `if rank == 0: save()` between two calls that all make.

Rank 0 alone: work under such a condition is how programs are written, and no fault of a machine or of the data.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unhang.analyze.bindings import last_name
from unhang.analyze.callpath import Path, user_path
from unhang.analyze.source import surroundings
from unhang.analyze.trees import tree_of
from unhang.model import Case, Frame

if TYPE_CHECKING:
    from unhang.analyze.stragglers import Straggler

_MOST_CALLS, _MOSTLY = 200, 0.8
_SPEAKS = frozenset({"print", "info", "debug", "warning", "log", "write", "set_postfix", "update"})


def own_work(case: Case, late: Straggler) -> Frame | None:
    """The line at which rank 0 begins work of its own before most of the calls to which it comes last; None where the source shows none."""
    if late.rank != 0:
        return None
    table = case.calls
    group = table.groups.index(late.group)
    calls = table.calls(table.rows(rank=0, group=group)[-_MOST_CALLS:])
    waited = _waited_for(case, group, late)
    found = [
        _between(user_path(before.frames), user_path(here.frames))
        for before, here in itertools.pairwise(calls)
        if here.seq in waited
    ]
    lines = [f for f in found if f is not None]
    return max(set(lines), key=lines.count) if found and len(lines) >= _MOSTLY * len(found) else None


def _waited_for(case: Case, group: int, late: Straggler) -> set[int]:
    """The calls before which the others waited for rank 0 for at least half as long as they do as a rule."""
    table = case.calls
    created = {
        r: dict(zip(table["seq"][rows].tolist(), table["created_ns"][rows].tolist(), strict=True))
        for r in late.group.ranks or case.world
        if len(rows := table.rows(rank=r, group=group))
    }
    mine, others = created.pop(late.rank, {}), list(created.values())
    least_ns = late.median_lateness_s * 5e8
    return {
        seq for seq, ns in mine.items() if (them := [c[seq] for c in others if seq in c]) and ns - max(them) >= least_ns
    }


def _between(before: Path, here: Path) -> Frame | None:
    """The first line between two calls that only rank 0 runs, in the innermost function that both have on their way."""
    for left, right in reversed(list(zip(before, here, strict=False))):
        if (left.file, left.function) == (right.file, right.function):
            return _first_own(left, right)
    return None


def _first_own(left: Frame, right: Frame) -> Frame | None:
    loops = surroundings(right.file, right.line).loops
    if left.line < right.line:
        parts = [range(left.line, right.line + 1)]
    elif loops:  # once around
        parts = [range(left.line, loops[-1].last + 1), range(loops[-1].header, right.line + 1)]
    else:
        return None
    for line in (n for part in parts for n in part):
        if _is_own(right.file, line):
            return Frame(right.file, line, right.function)
    return None


def _is_own(path: str, line: int) -> bool:
    """Whether only rank 0 runs the line, or a function of the same file that it calls does something on rank 0 alone."""
    calls = list(_calls_at(path, line))
    if surroundings(path, line).only_on_rank_zero:
        return any(last_name(c.func) not in _SPEAKS for c in calls)
    names = {last_name(c.func) for c in calls}
    tree = tree_of(path)
    return tree is not None and any(
        surroundings(path, inner.lineno).only_on_rank_zero and last_name(inner.func) not in _SPEAKS
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name in names
        for inner in ast.walk(node)
        if isinstance(inner, ast.Call)
    )


def _calls_at(path: str, line: int) -> Iterator[ast.Call]:
    tree = tree_of(path)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and node.lineno == line:
            yield node
