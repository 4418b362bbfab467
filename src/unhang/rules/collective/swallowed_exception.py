"""Rule: an exception was caught on one rank, which then went on alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from unhang.analyze.align import calls_at
from unhang.analyze.callpath import Path, user_path
from unhang.analyze.failures import is_communication_error
from unhang.analyze.situation import Situation
from unhang.analyze.source import surroundings
from unhang.analyze.streams import stack_path
from unhang.model import EvidenceLine, Finding, Fix, Frame, RaisedError, user_frames
from unhang.model.example import Fires, Quiet, raised
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import make_case

_AHEAD = {
    1: ["all_reduce[8]@main:10", "barrier@main:14 !"],
    **{r: ["all_reduce[8]@main:10", "all_reduce[8]@main:10 !"] for r in (0, 2, 3)},
}
_WAITED_FOR = {
    1: ["all_reduce[8]@main:2>step:6"],
    **{r: ["all_reduce[8]@main:2>step:6", "all_reduce[8]@main:2>step:6 !"] for r in (0, 2, 3)},
}
_CAUGHT = raised("ValueError: bad image@main:2>step:6", at_s=15, handled=True, handler=Frame("train.py", 8, "step"))


def swallowed_by(s: Situation, ranks: Sequence[int]) -> RaisedError | None:
    """The first exception that one of the ranks handled before it parted from its peers, apart from transport errors."""
    handled = [error for rank in ranks if rank in s.case.ranks for error in s.case.ranks[rank].handled]
    found = [error for error in handled if not is_communication_error(error) and _matters(s, error)]
    return min(found, key=lambda e: e.time_ns, default=None)


def _matters(s: Situation, error: RaisedError) -> bool:
    """Whether the exception came before the difference, and from the user's code rather than from a probe in a library."""
    d = s.divergence
    limit = max(d.odd_call.created_ns, d.reference_call.created_ns) if d else 0
    return bool(user_frames(error.frames)) and (not limit or error.time_ns <= limit)


class SwallowedException(Rule):
    """An exception was caught and printed on one rank, which then went on alone.

    What it detects:
        The rank that parted from its peers had handled an exception before: it printed or logged it inside an `except` block.
        Or the one that they wait for did so, in the function in which they wait, and has left that function.

    Why it hangs:
        The exception skipped the collectives of that step on this rank only. From then on it is ahead of its peers. A barrier
        inside the `except` block meets other calls in the same way.

    How to confirm:
        The finding shows the exception, where it was raised and where it was caught.

    How to fix:
        Let the exception end the rank (the launcher ends the others), or let all ranks decide together to skip the step.

    Sources:
        A re-identification trainer whose train step returned a dummy loss after an exception.
    """

    id = "swallowed-exception"
    cause = "code-divergence"
    EXAMPLES: ClassVar = (
        Fires(
            make_case(_AHEAD, handled={1: raised("ValueError: bad image@main:9>load:30", at_s=-5, handled=True)}),
            (1,),
            30,
        ),
        Fires(
            make_case(_WAITED_FOR, stacks={1: "main:2>get:9"}, handled={1: _CAUGHT}),
            (1,),
            6,
        ),
        Quiet(
            make_case(_WAITED_FOR, stacks={1: "main:2>step:5"}, handled={1: _CAUGHT}),
            "it is still in the function in which it handled the exception: it is late there, for whatever reason",
        ),
        Quiet(
            make_case(_AHEAD, handled={0: raised("ValueError: bad image@main:9>load:30", at_s=-5, handled=True)}),
            "a rank that did not part from its peers may handle what it likes",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if the odd or late rank handled an exception before."""
        if s.primary_failure is not None and s.primary_failure.kind == "exception":
            return
        ranks = s.divergence.odd if s.divergence else tuple(r.rank for r in s.late if r.activity.kind != "frozen")[:1]
        error = swallowed_by(s, ranks)
        if error is None:
            return
        if s.divergence is not None or _in_its_handler(s, ranks[0]):
            yield _finding(s, ranks, error)
        elif _left_after(s, ranks[0], error):
            yield replace(_finding(s, ranks, error), confidence=0.85)


def _in_its_handler(s: Situation, rank: int) -> bool:
    return any(surroundings(f.file, f.line).in_handler for f in stack_path(s.case, rank) or ())


def _left_after(s: Situation, rank: int, error: RaisedError) -> bool:
    """Whether the exception was handled in the function in which the peers wait, after the last call with them, and the rank has left it.

    Had it gone on as they did, it would have made the call before it left the function.
    """
    now, handler = stack_path(s.case, rank), error.handler
    if not now or handler is None or _passes(now, handler):
        return False
    for stuck in s.stuck:
        if rank in stuck.missing and len(stuck.waiting) > len(stuck.missing):
            last = calls_at(s.index, stuck.index, stuck.missing[rank]).get(rank)
            paths = [user_path(stuck.calls[r].frames) for r in stuck.waiting]
            is_shared = all(_passes(p, handler) for p in paths)
            if is_shared and last is not None and last.created_ns < error.time_ns:
                return True
    return False


def _passes(path: Path, frame: Frame) -> bool:
    """Whether a path leads through the function of a frame."""
    return any((f.file, f.function) == (frame.file, frame.function) for f in path)


def _waits_in_handler(s: Situation) -> Frame | None:
    d = s.divergence
    path = d.odd_path if d else ()
    return next((f for f in reversed(path) if surroundings(f.file, f.line).in_handler), None)


def _finding(s: Situation, ranks: tuple[int, ...], error: RaisedError) -> Finding:
    frame = user_frames(error.frames)[0]
    handler = _waits_in_handler(s)
    who = w.name_ranks(ranks)
    head = f"{error.type}: {error.message.splitlines()[0] if error.message else ''}"[:140]
    finding = Finding(
        rule=SwallowedException.id,
        cause=SwallowedException.cause,
        title=f"{who} caught {head} at {w.place(frame)} and went on without its peers",
        confidence=0.95,
        culprit_ranks=ranks,
        victim_ranks=s.others(ranks),
        because=f"The exception was handled at {w.place(error.handler)}; it skipped the collectives of that step on {who} only.",
        process_group=w.group_of(s.divergence.group) if s.divergence else None,
        collective=w.collective_of(s.divergence.reference_call, s.divergence.seq) if s.divergence else None,
        location=w.location_of(frame),
        evidence=tuple(_evidence(s, ranks, error)),
        fixes=(
            Fix(
                "Do not continue alone: re-raise",
                patch=f"at {w.place(error.handler)}: `raise` at the end of the except block; the launcher then ends all ranks at once",
                verify="unhang run -- <the same command>: outcome crash, with this exception as the first failure",
                undo="revert the edit",
            ),
            Fix(
                "To skip a bad step, decide together",
                patch="ok = torch.tensor(float(no_error)); dist.all_reduce(ok, op=dist.ReduceOp.MIN)\nif ok.item() == 0: skip on every rank",
                verify="the step is skipped on all ranks",
                undo="revert the edit",
            ),
        ),
    )
    if handler is None:
        return finding
    return replace(
        finding,
        cause="user-exception",
        title=f"{who} raised {head} at {w.place(frame)} and then waits in a collective inside its except block",
        because=f"The exception is held back by the call at {w.place(handler)}: the other ranks issue other calls there, so it is never reported.",
    )


def _evidence(s: Situation, ranks: tuple[int, ...], error: RaisedError) -> Iterable[EvidenceLine]:
    yield EvidenceLine(f"rank {ranks[0]} handled exception", f"{error.type}: {error.message[:300]}")
    for frame in user_frames(error.frames)[:4]:
        yield EvidenceLine(f"rank {ranks[0]} traceback", str(frame), frame.line)
    if error.handler is not None:
        yield EvidenceLine(f"rank {ranks[0]} handler", str(error.handler), error.handler.line)
    if s.divergence is not None:
        d = s.divergence
        yield w.path_line(d.odd[0], f"#{d.seq} {w.name_call(d.odd_call)}", d.odd_path or user_path(d.odd_call.frames))
        yield w.path_line(d.reference[0], f"#{d.seq} {w.name_call(d.reference_call)}", d.reference_path)
