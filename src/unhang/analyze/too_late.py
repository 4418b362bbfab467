"""Ranks that came to a call when those that waited in it had given up, and the work for them alone that stands before it."""

from __future__ import annotations

import ast
from typing import NamedTuple

from unhang.analyze.bindings import last_name
from unhang.analyze.callpath import Path, user_path
from unhang.analyze.failures import is_timeout
from unhang.analyze.sides import view_of
from unhang.analyze.situation import Situation
from unhang.analyze.source import Condition, function_at, surroundings
from unhang.model import Case, CollectiveCall, Frame

_LEAST_SHARE = 0.5
_SAYS = ("print", "log", "info", "debug", "warning", "len", "str", "format")


class TooLate(NamedTuple):
    """`ranks` made `call`, which the `waiting` had made `waited_s` before and given up. `work`: the line of theirs alone before it, under `condition`."""

    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    call: CollectiveCall
    waited_s: float
    work: Frame | None
    condition: Condition | None


def too_late(s: Situation) -> TooLate | None:
    """Of a call that all members have made in the end, on one host: the fewer ranks that came behind the limit of the others."""
    errors = {r: e.error for r, e in s.case.ranks.items() if e.error is not None and is_timeout(e.error)}
    if not errors or s.divergence is not None or len({e.identity.host for e in s.case.ranks.values()}) > 1:
        return None
    gave_up = min(error.time_ns for error in errors.values())
    for stuck in s.stuck:
        calls = stuck.calls
        late = tuple(sorted(r for r, c in calls.items() if c.created_ns > gave_up))
        waiting = tuple(sorted(r for r in calls if r not in late))
        if (
            stuck.missing
            or stuck.is_mismatch
            or not late
            or len(late) >= len(waiting)
            or not errors.keys() <= {*waiting}
        ):
            continue
        waited_s = (gave_up - max(calls[r].created_ns for r in waiting)) / 1e9
        limit_ms = calls[waiting[0]].timeout_ms or 0
        if limit_ms and waited_s > _LEAST_SHARE * limit_ms / 1000:
            work = _alone_before(s.case, calls[late[0]], late)
            return TooLate(late, waiting, calls[late[0]], waited_s, *(work or (None, None)))
    return None


def _alone_before(case: Case, call: CollectiveCall, ranks: tuple[int, ...]) -> tuple[Frame, Condition] | None:
    """The first call in a block that these ranks alone enter, between their call before and this one."""
    here, before = user_path(call.frames), _path_before(case, call)
    for depth, frame in enumerate(here):
        last = before[depth] if before[:depth] == here[:depth] and len(before) > depth else None
        is_here = last is not None and (last.file, last.function) == (frame.file, frame.function)
        since = last.line if last is not None and is_here else 0
        function = function_at(frame.file, frame.line) if since != frame.line else None
        blocks = (
            sorted((n for n in ast.walk(function) if isinstance(n, ast.If)), key=lambda n: n.lineno) if function else ()
        )
        for block in blocks:
            first = block.body[0].lineno
            is_between = since < first < frame.line if since < frame.line else not frame.line <= first <= since
            found = _of_these(case, frame.file, first, ranks) if is_between else None
            if found is not None:
                return Frame(frame.file, _first_call(block) or first, frame.function), found
        if since != frame.line:
            return None
    return None


def _path_before(case: Case, call: CollectiveCall) -> Path:
    rows = case.calls.rank_rows(call.rank)
    return user_path(case.calls.call(call.row - 1).frames) if call.row > rows.start else ()


def _of_these(case: Case, path: str, line: int, ranks: tuple[int, ...]) -> Condition | None:
    """The condition on the rank around a line that these pass and no other does."""
    for c in surroundings(path, line).conditions:
        passes = {r: c.on(view_of(case, r)).passes for r in case.world} if c.depends_on_rank else {}
        if passes and all((p is not False) is (r in ranks) for r, p in passes.items()):
            return c
    return None


def _first_call(block: ast.If) -> int:
    calls = [n for s in block.body for n in ast.walk(s) if isinstance(n, ast.Call)]
    return min((c.lineno for c in calls if last_name(c.func) not in _SAYS), default=0)
