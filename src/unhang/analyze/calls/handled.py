"""Where an exception that one rank handled could be handled so that it still makes its calls: below all calls with others that its handler skips."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from unhang.analyze.calls.align import calls_at
from unhang.analyze.calls.streams import stack_path
from unhang.analyze.failures import is_communication_error
from unhang.analyze.program.callpath import Path, is_same_function, user_path
from unhang.analyze.program.source import Condition, condition_of, function_at, nearest, nodes_around, surroundings
from unhang.analyze.program.trees import blocks_of, covers, inside, last_name, line_text, parameters_of, tree_of
from unhang.analyze.program.ways_out import handled_by_all, how_handled
from unhang.analyze.situation import Situation
from unhang.model import Case, Frame, RaisedError, user_frames

_SELDOM = 5
_RETRIES = re.compile(r"retr|attempt|backoff|executable_batch_size", re.IGNORECASE)


class Skipped(NamedTuple):
    """A handler with calls that ranks make together in what it is around. `line`: what raised, in the innermost function that makes such calls.

    `below`: the line in the function that it called, where that is one of the program; `retries`: the decorator whose handler it is, as it is
    written over the function of `line`. `test`: what leads to the line, where that raises; `calls`: whether the line itself made such calls.
    """

    line: Frame
    below: Frame | None
    retries: str
    test: Condition | None
    calls: bool


def skipped_calls(case: Case, error: RaisedError) -> Skipped | None:
    """The innermost such place; None where the handler stands around no such call."""
    frames, handler = user_frames(error.frames), error.handler
    body = _tried(handler) if handler is not None else None
    if handler is None or body is None:
        return None
    first = next((i for i, f in enumerate(frames) if _is_in(f, handler, body)), None)
    way = frames[: first + 1] if first is not None else frames
    together = {f for stack, _ in _calls_with_others(case) for f in _under(stack, handler, body)}
    functions = {(f.file, f.function) for f in together}
    line = next((f for f in way if (f.file, f.function) in functions), None)
    if line is None:
        return None
    below = way[way.index(line) - 1] if way.index(line) else None
    return Skipped(line, below, _retries(line, handler), _raised_by(line), _often_from(case, line))


def _often_from(case: Case, line: Frame) -> bool:
    """Whether calls are made from a line in each round, not once as those with which DDP begins."""
    here = [(s, count) for s, count in _calls_with_others(case) if any(is_same_function(f, line) for f in s)]
    return _SELDOM * sum(count for s, count in here if line in s) > sum(count for _, count in here)


def _calls_with_others(case: Case) -> Iterator[tuple[Sequence[Frame], int]]:
    """Where ranks made collectives and transfers, innermost frame first, and how often."""
    counts = Counter(case.calls["frames"].tolist())
    yield from ((stack, counts[i]) for i, stack in enumerate(case.calls.stacks))
    sent = Counter(c.frames for e in case.ranks.values() for c in e.pending if c.peer is not None)
    yield from sent.items()


def raised_in_loss(error: RaisedError) -> tuple[Frame, str, str] | None:
    """(line, its text, the name of the output) of a `raise` in the loss function of a pipeline, which torch calls between transfers of a step."""
    at, caller = error.frames[:2] if len(error.frames) > 1 else (None, None)
    is_loss = caller is not None and "/distributed/pipelining/" in caller.file and caller.function == "_compute_loss"
    if at is None or not is_loss:
        return None
    raises, function = nearest(at.file, at.line, ast.Raise), function_at(at.file, at.line)
    names = [p for p in parameters_of(function) if p not in ("self", "cls")] if function is not None else []
    return (at, ast.unparse(raises), names[0]) if raises is not None and names else None


def _raised_by(line: Frame) -> Condition | None:
    """The test of the `if` that ends with the `raise` of a line."""
    raises, gate = nearest(line.file, line.line, ast.Raise), nearest(line.file, line.line, ast.If)
    if raises is None or gate is None or gate.body[-1] is not raises or gate.orelse:
        return None
    return condition_of(line.file, gate.test)


def _tried(handler: Frame) -> range | None:
    """The lines of the `try` that a handler belongs to."""
    tries = [n for n in inside(tree_of(handler.file), ast.Try) if any(covers(h, handler.line) for h in n.handlers)]
    if not tries:
        return None
    body = tries[-1].body
    return range(body[0].lineno, (body[-1].end_lineno or body[-1].lineno) + 1)


def _is_in(frame: Frame, handler: Frame, body: range) -> bool:
    return is_same_function(frame, handler) and frame.line in body


def _under(stack: Iterable[Frame], handler: Frame, body: range) -> list[Frame]:
    """The user's frames of a call that was made within a `try`, that of the `try` included."""
    mine = user_frames(tuple(stack))
    at = next((i for i, f in enumerate(mine) if _is_in(f, handler, body)), None)
    return list(mine[: at + 1]) if at is not None else []


def _retries(line: Frame, handler: Frame) -> str:
    """The decorator over the function of a line that comes from where the handler stands, as it is written."""
    function = function_at(line.file, line.line)
    makers = {n.name for n in nodes_around(handler.file, handler.line) if isinstance(n, ast.FunctionDef)}
    found = [
        ast.unparse(d)
        for d in (function.decorator_list if function is not None else ())
        if last_name(d.func if isinstance(d, ast.Call) else d) in makers
    ]
    return f"@{found[0]}" if len(found) == 1 else ""


class BegunAnew(NamedTuple):
    """A function that a rank left in the middle of a loop, and that was called anew at `at`; `by`: the decorator that did it, where one did.

    `before`: the statement of a round right before that in which the others wait; `text`: what it is.
    """

    function: str
    by: str
    at: Frame
    before: Frame
    text: str


def begun_anew(frames: Sequence[Frame], left: Path, frame: Frame, header: int, has_data: bool) -> BegunAnew | None:
    """For ranks that are in front of a loop in which others still are, in the same function: an exception led out of it, and it was called once more.

    `frames`: of the call of those who stay, innermost first, through the frame; `header`: the head of the loop. `has_data`: its loader has not
    ended on those who left.
    """
    stay, function = user_path(frames), function_at(frame.file, frame.line)
    depth = stay.index(frame) if frame in stay else -1
    if depth < 0 or len(left) <= depth or stay[:depth] != left[:depth] or function is None:
        return None
    mine, first = left[depth], min((x.header for x in surroundings(frame.file, header).loops), default=header)
    if not is_same_function(mine, frame) or mine.line >= first:
        return None
    above = next((f for f in frames[frames.index(frame) + 1 :] if "/torch/" not in f.file), None)
    by = next((d for d in function.decorator_list if _RETRIES.search(ast.unparse(d))), None)
    before = _before(frame)
    if above is None or before is None:
        return None
    if by is None and not (_is_tried(above) and (has_data or above not in stay[: depth - 1])):
        return None
    at = Frame(frame.file, by.lineno, function.name) if by is not None else above
    line = Frame(frame.file, before.lineno, frame.function)
    return BegunAnew(function.name, f"@{ast.unparse(by)}" if by is not None else "", at, line, ast.unparse(before))


def _is_tried(at: Frame) -> bool:
    """Whether a line is tried again and again: in a `try` in a loop."""
    around = nodes_around(at.file, at.line)
    tries = [n for n in around if isinstance(n, ast.Try) and any(covers(s, at.line) for s in n.body)]
    return bool(tries) and any(isinstance(n, ast.For | ast.While) for n in around)


def _before(frame: Frame) -> ast.stmt | None:
    """The simple statement right before the one at a line, in its block."""
    for node in reversed(nodes_around(frame.file, frame.line)):
        for block in blocks_of(node):
            at = next((i for i, s in enumerate(block) if covers(s, frame.line)), 0)
            if at:
                return block[at - 1] if isinstance(block[at - 1], ast.Assign | ast.Expr) else None
    return None


def swallowed_by(s: Situation, ranks: Sequence[int]) -> RaisedError | None:
    """The first exception that one of the ranks handled before it parted from its peers, apart from transport errors.

    Not one that was handled beside the way to the call (a sample that cannot be read, say), where a condition on the data leads
    past that: this is then where they part.
    """
    found, d = handled_before(s, ranks), s.divergence
    if d is not None and d.skipped and d.has_majority and d.made_by_data == d.reference:
        found = [
            e for e in found if e.handler is None or any(passes(p, e.handler) for p in (d.reference_path, d.odd_path))
        ]
    return min(found, key=lambda e: e.time_ns, default=None)


def handled_before(s: Situation, ranks: Sequence[int]) -> list[RaisedError]:
    """The exceptions that the ranks handled before they parted from their peers, apart from transport errors."""
    handled = [error for rank in ranks if rank in s.case.ranks for error in s.case.ranks[rank].handled]
    common = handled_by_all(s.case)
    own = [error for error in handled if how_handled(error) not in common]
    return [error for error in own if not is_communication_error(error) and came_before(s, error)]


def passes(path: Path, frame: Frame) -> bool:
    """Whether a path leads through the function of a frame."""
    return any(is_same_function(f, frame) for f in path)


def came_before(s: Situation, error: RaisedError) -> bool:
    """Whether the exception came before the difference, and from the user's code rather than from a probe in a library."""
    d = s.divergence
    limit = max(d.odd_call.created_ns, d.reference_call.created_ns) if d else 0
    return bool(user_frames(error.frames)) and (not limit or error.time_ns <= limit)


WITH = ("with", "async with")
_HOST_WAITS = ("lock", "outside", "data", "gil", "device")


def led_away(s: Situation, rank: int, error: RaisedError) -> float:
    """How sure it is that an exception which it handled keeps a late rank from its peers: 0 where it stands elsewhere, for another reason."""
    if in_its_handler(s, rank) and not _stands_on_its_host(s, rank):
        return 0.95
    return 0.85 if _left_after(s, rank, error) else 0.0


def in_its_handler(s: Situation, rank: int) -> bool:
    """Whether the rank's main thread stands in an `except`, or below one."""
    return any(surroundings(f.file, f.line).in_handler for f in stack_path(s.case, rank) or ())


def _stands_on_its_host(s: Situation, rank: int) -> bool:
    """Whether a late rank waits for a lock, a process or the like: then that keeps it, in a handler or not."""
    found = next((late.activity for late in s.late if late.rank == rank), None)
    if found is None:
        return False
    enters = found.frame is not None and line_text(found.frame.file, found.frame.line).startswith(WITH)
    return found.kind in _HOST_WAITS or (found.kind == "user" and enters)


def _left_after(s: Situation, rank: int, error: RaisedError) -> bool:
    """Whether the exception was handled in the function in which the peers wait, after the last call with them, and the rank has left it.

    Had it gone on as they did, it would have made the call before it left the function.
    """
    now, handler = stack_path(s.case, rank), error.handler
    if not now or handler is None or passes(now, handler):
        return False
    for stuck in s.stuck:
        if rank in stuck.missing and len(stuck.waiting) > len(stuck.missing):
            last = calls_at(s.index, stuck.index, stuck.missing[rank]).get(rank)
            is_shared = all(passes(user_path(stuck.calls[r].frames), handler) for r in stuck.waiting)
            if is_shared and last is not None and last.created_ns < error.time_ns:
                return True
    return False


def caught_elsewhere(error: RaisedError, raised: Frame) -> Frame | None:
    """The line of the `except` that caught an exception, where that stands in another function: there the rank went another way than its peers."""
    if error.handler is None or (error.handler.file, error.handler.function) == (raised.file, raised.function):
        return None
    clause = _clause_of(error)
    return replace(error.handler, line=clause.lineno) if clause is not None else None


def leaves_by(error: RaisedError) -> str:
    """How the handler of an exception leaves the round, or the function: its last statement; `continue` where it goes on behind it, or is not known."""
    clause = _clause_of(error)
    last = clause.body[-1] if clause is not None else None
    return ast.unparse(last) if isinstance(last, ast.Return | ast.Break) else "continue"


def _clause_of(error: RaisedError) -> ast.ExceptHandler | None:
    at = error.handler
    return nearest(at.file, at.line, ast.ExceptHandler) if at is not None else None
