"""Which rank of a circle of waits went past the call in which another one of the circle waits for it.

Since the last collective that both completed, neither has completed another call: they are in the same round of the same
function. The one that stands further on in it has left out the call in which the other waits, if that call is not new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unhang.analyze.align import StuckCollective
from unhang.analyze.callpath import Fork, Path, fork_of, user_path
from unhang.analyze.source import surroundings
from unhang.analyze.streams import stack_path
from unhang.analyze.waits_for import awaited_transfer
from unhang.model import CallState, Case, Frame, WaitEdge

_MOST_RANKS = 64


@dataclass(frozen=True)
class Overtaking:
    """`rank` left out the call in which `edge.waiter` waits for it; `passed` is the line of that call in the function of both."""

    rank: int
    edge: WaitEdge
    passed: Frame


@dataclass(frozen=True)
class _Made:
    """One call of a rank. `key`: what the collective is called on every rank, or the peer of a transfer."""

    time_ns: int
    path: Path
    is_open: bool
    key: tuple[int, int] | int


def overtakings(
    case: Case, stuck: Sequence[StuckCollective], edges: Sequence[WaitEdge], cycle: Sequence[int]
) -> tuple[Overtaking, ...]:
    """The ranks of the cycle that went past a call of others of it. Empty where one of them was itself overtaken.

    `edges`: all waits.
    """
    if len(cycle) > _MOST_RANKS:
        return ()
    histories = {rank: _history(case, rank) for rank in cycle}
    found = []
    for edge in edges:
        for rank in set(edge.targets) & set(cycle) if edge.waiter in histories else ():
            missed = _missed(case, stuck, edge, histories[edge.waiter], histories[rank])
            passed = _passed(histories[edge.waiter], histories[rank], missed, stack_path(case, rank) or ())
            if passed is not None:
                found.append(Overtaking(rank, edge, passed))
    is_clear = {o.rank for o in found}.isdisjoint(o.edge.waiter for o in found)
    return tuple(sorted(found, key=lambda o: (o.rank, o.edge.waiter))) if is_clear else ()


def _history(case: Case, rank: int) -> list[_Made]:
    """What the rank called, collectives and transfers, in the order of time."""
    table, evidence = case.calls, case.ranks.get(rank)
    rows = table.rank_rows(rank)
    made = []
    for row in range(rows.start, rows.stop):
        frames_id = int(table["frames"][row])
        path = user_path(table.stacks[frames_id]) if frames_id >= 0 else ()
        place = (int(table["group"][row]), int(table["seq"][row]))
        key = int(table["peer"][row]) if table["is_p2p"][row] else place
        made.append(_Made(int(table["created_ns"][row]), path, bool(table["state"][row] != CallState.COMPLETED), key))
    transfers = [c for c in evidence.pending if c.peer is not None] if evidence else []
    made.extend(_Made(c.started_ns, user_path(c.frames), c.ended_ns is None, c.peer or 0) for c in transfers)
    return sorted(made, key=lambda m: m.time_ns)


def _missed(
    case: Case, stuck: Sequence[StuckCollective], edge: WaitEdge, waiter: Sequence[_Made], rank: Sequence[_Made]
) -> Path:
    """The way to the call in which the rank's peer waits; empty where that call may be one that the peer alone makes.

    It is not, if more members of the group have made it than have not, or if both sides have met in it before.
    """
    if edge.kind == "p2p":
        call = awaited_transfer(case, edge.waiter)
        path = user_path(call.frames) if call is not None else ()
        has_met = any(m.key == edge.waiter and not m.is_open for m in rank)
        return path if has_met and any(m.path == path and not m.is_open for m in waiter) else ()
    for s in stuck if edge.kind == "collective" else ():
        if (s.group.name, s.seq) == (edge.group, edge.seq) and edge.waiter in s.calls and not s.is_mismatch:
            path = user_path(s.calls[edge.waiter].frames)
            has_met = any(m.path == path and not m.is_open for m in rank)
            made, left_out = len(s.calls), len(s.missing)
            return path if made > left_out or (made == left_out and has_met) else ()
    return ()


def _passed(waiter: Sequence[_Made], rank: Sequence[_Made], missed: Path, now: Path) -> Frame | None:
    """The line of the call that the rank left out, if both are in the same round; `now`: where it is."""
    completed = [{m.key for m in made if isinstance(m.key, tuple) and not m.is_open} for made in (waiter, rank)]
    met = next((m for m in reversed(rank) if m.key in completed[0] & completed[1]), None)
    for made in (waiter, rank):
        last = next((m for m in reversed(made) if not m.is_open), None)
        if (last.key if last else None) != (met.key if met else None):
            return None
    return line_passed(missed, now, met.path if met else ())


def line_passed(missed: Path, now: Path, met: Path) -> Frame | None:
    """The line, in the function that the two paths share, of a call that was left out by whoever is at `now`.

    `met`: the way to the last call before, the same on both sides. None where `now` does not come after `missed`, or where a
    condition leads to one of them or to the other.
    """
    missed, now = _from_one_frame_on(missed, now)
    fork = fork_of(missed, now) if missed and now else None
    if fork is None or fork.same_line or _are_alternatives(fork):
        return None
    return fork.left if _is_further(fork, _line_in(met, missed, fork)) else None


def _from_one_frame_on(left: Path, right: Path) -> tuple[Path, Path]:
    """The two paths without the outer frames that only one of them has: transfers are recorded with their inner frames alone."""
    if left and right and left[0] in right:
        return left, right[right.index(left[0]) :]
    if left and right and right[0] in left:
        return left[left.index(right[0]) :], right
    return left, right


def _are_alternatives(fork: Fork) -> bool:
    """Whether a condition leads to one of the lines or to the other."""
    left, right = (surroundings(f.file, f.line).tests for f in (fork.left, fork.right))
    return any(f"not ({a})" in other for mine, other in ((left, right), (right, left)) for a in mine)


def _line_in(met: Path, missed: Path, fork: Fork) -> int:
    """Where in the function of the fork the collective stands that both completed last; 0 if it was made before."""
    met, missed = _from_one_frame_on(met, missed)
    here = met[fork.depth] if len(met) > fork.depth and met[: fork.depth] == missed[: fork.depth] else None
    return here.line if here and (here.file, here.function) == (fork.left.file, fork.left.function) else 0


def _is_further(fork: Fork, met: int) -> bool:
    """Whether the right side of the fork comes after the left one, from the line on where both last met."""
    left, right = fork.left.line, fork.right.line
    if left > met and right > met:
        return left < right
    loops = surroundings(fork.left.file, left).loops
    is_round = any(met in loop and right in loop for loop in loops)
    return is_round and (left > met >= right or (right <= met and left <= met and left < right))
