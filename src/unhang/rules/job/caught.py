"""The rule on an exception that was caught on one rank, or that waits in a block which it passes."""

from __future__ import annotations

from collections.abc import Iterator

from unhang.analyze.align import calls_at
from unhang.analyze.callpath import user_path
from unhang.analyze.leaving import (
    Parted,
    caught_in_circle,
    ended_after_error,
    parted_with_exception,
    passes,
    swallowed_by,
)
from unhang.analyze.situation import Situation
from unhang.analyze.source import ends_block, surroundings
from unhang.analyze.streams import stack_path
from unhang.analyze.trees import line_text
from unhang.model import EvidenceLine, Frame, RaisedError, user_frames
from unhang.rules import wording as w
from unhang.rules.advice import gate_of
from unhang.rules.base import Found, rule
from unhang.rules.remedies import of_handled

_HOST_WAITS = ("lock", "outside", "data", "gil", "device")


@rule("swallowed-exception")
def swallowed_exception(s: Situation) -> Found | None:
    """The odd or late rank handled an exception before."""
    if s.primary_failure is not None and s.primary_failure.kind == "exception":
        return None
    if (ended := ended_after_error(s)) is not None:
        return _went_on(s, ended[:1], ended[1], 0.95, has_ended=True)
    parted = parted_with_exception(s) or caught_in_circle(s)
    if parted is not None:
        return _holds(s, parted) if parted.is_held else _went_on(s, parted.ranks, parted.error, 0.85)
    ranks = s.divergence.odd if s.divergence else tuple(r.rank for r in s.late if r.activity.kind != "frozen")[:1]
    error = swallowed_by(s, ranks)
    if error is None:
        return None
    if s.divergence is not None or (_in_its_handler(s, ranks[0]) and not _stands_on_its_host(s, ranks[0])):
        return _went_on(s, ranks, error, 0.95)
    return _went_on(s, ranks, error, 0.85) if _left_after(s, ranks[0], error) else None


def _in_its_handler(s: Situation, rank: int) -> bool:
    return any(surroundings(f.file, f.line).in_handler for f in stack_path(s.case, rank) or ())


def _stands_on_its_host(s: Situation, rank: int) -> bool:
    """Whether a late rank waits for a lock, a process or the like: then that keeps it, in a handler or not."""
    found = next((late.activity for late in s.late if late.rank == rank), None)
    if found is None:
        return False
    enters = found.frame is not None and line_text(found.frame.file, found.frame.line).startswith(
        ("with", "async with")
    )
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


def _holds(s: Situation, parted: Parted) -> Found:
    """The exception is still on its way: it waits in the block that it passes, where no peer comes."""
    ranks, error, d = parted.ranks, parted.error, s.divergence
    frame, held = user_frames(error.frames)[0], error.handler
    edge = next(iter(s.waits.edges_of(ranks[0])), None)
    words = {
        "who": w.name_ranks(ranks),
        "head": _head(error),
        "line": w.place(frame),
        "block": _block(held),
        "held": w.place(held),
        "lead": w.lead(held),
        "waits": w.verb(ranks, "waits", "wait"),
        "call": edge.what.split(" #")[0] if edge else "a call",
    }
    return Found(
        0.95,
        ranks,
        _handled(s, ranks, error),
        words,
        "holds",
        ("no call there",),
        s.others(ranks),
        w.location_of(frame),
        w.group_of(d.group) if d else None,
        w.collective_of(d.reference_call, d.seq) if d else None,
        "user-exception",
    )


def _block(held: Frame | None) -> str:
    """What holds the exception."""
    if held is None:
        return "in a handler"
    if ends_block(held):
        is_with = line_text(held.file, held.line).startswith(("with", "async with"))
        return "at the end of a `with`" if is_with else "in a `finally`"
    return "in an `except`" if surroundings(held.file, held.line).in_handler else "in a handler"


def _head(error: RaisedError) -> str:
    return f"{error.type}: {error.message.splitlines()[0] if error.message else ''}"[:140]


def _went_on(
    s: Situation, ranks: tuple[int, ...], error: RaisedError, confidence: float, has_ended: bool = False
) -> Found:
    frame, d = user_frames(error.frames)[0], s.divergence
    holder = next((f for f in reversed(d.odd_path if d else ()) if surroundings(f.file, f.line).in_handler), None)
    has_left = d is not None and d.seq < d.stuck_seq and not _in_its_handler(s, ranks[0])
    waits_there = holder is not None and not has_left
    fixes, gate = (("no call there", "re-raise"), None) if waits_there else of_handled(s.case, error)
    words = {
        "who": w.name_ranks(ranks),
        "head": _head(error),
        "line": w.place(frame),
        "handler": w.place(error.handler),
        "lead": w.lead(error.handler),
        "held": w.place(holder),
    }
    return Found(
        confidence,
        ranks,
        _handled(s, ranks, error),
        words,
        "ended" if has_ended else "waits in handler" if waits_there else "called in handler" if holder else "went on",
        fixes,
        s.others(ranks),
        w.location_of(frame),
        w.group_of(d.group) if d else None,
        w.collective_of(d.reference_call, d.seq) if d else None,
        "user-exception" if waits_there or has_ended else "",
        condition=gate_of(gate),
    )


def _handled(s: Situation, ranks: tuple[int, ...], error: RaisedError) -> Iterator[EvidenceLine]:
    yield EvidenceLine(f"rank {ranks[0]} handled exception", f"{error.type}: {error.message[:300]}")
    for frame in user_frames(error.frames)[:4]:
        yield EvidenceLine(f"rank {ranks[0]} traceback", str(frame), frame.line)
    if error.handler is not None:
        yield EvidenceLine(f"rank {ranks[0]} handler", str(error.handler), error.handler.line)
    if s.divergence is not None:
        d = s.divergence
        yield w.path_line(d.odd[0], f"#{d.seq} {w.name_call(d.odd_call)}", d.odd_path or user_path(d.odd_call.frames))
        yield w.path_line(d.reference[0], f"#{d.seq} {w.name_call(d.reference_call)}", d.reference_path)
