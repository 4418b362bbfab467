"""Which rank of a circle of waits went past the call in which another one of the circle waits for it.

Since the last collective that both completed, neither has completed another call: they are in the same round of the same
function. The one that stands further on in it has left out the call in which the other waits, if that call is not new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unhang.analyze.calls.align import StuckCollective
from unhang.analyze.calls.streams import stack_path
from unhang.analyze.program.callpath import Fork, Path, fork_of, is_same_function, user_path
from unhang.analyze.program.source import around, surroundings
from unhang.analyze.waits.sends import awaited_transfer
from unhang.model import CallState, Case, CollectiveCall, Frame, WaitEdge

_MOST_RANKS = 64


@dataclass(frozen=True)
class Overtaking:
    """`rank` left out the call in which `edge.waiter` waits for it; `passed` is the line of that call in the function of both.

    `decided`: the line on the way to the call, from there on, under the condition that most likely came out differently.
    """

    rank: int
    edge: WaitEdge
    passed: Frame
    decided: Frame


@dataclass(frozen=True)
class _Made:
    """One call of a rank. `key`: what the collective is called on every rank, or the peer of a transfer.

    `path`: the program's frames; `whole`: those of libraries, too.
    """

    time_ns: int
    path: Path
    whole: Path
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
            histories_of_both, now = (histories[edge.waiter], histories[rank]), stack_path(case, rank) or ()
            passed = _passed(*histories_of_both, missed, now) or _passed_below(
                case, rank, *histories_of_both, missed, now
            )
            if passed is not None:
                found.append(Overtaking(rank, edge, passed, _decided(passed, missed)))
    is_clear = {o.rank for o in found}.isdisjoint(o.edge.waiter for o in found)
    return tuple(sorted(found, key=lambda o: (o.rank, o.edge.waiter))) if is_clear else ()


def _decided(passed: Frame, missed: Path) -> Frame:
    """A line below the one that was passed, where more than the conditions of that may differ around it: the function was entered and left early."""
    below = missed[missed.index(passed) :] if passed in missed else (passed,)
    return max(below, key=lambda f: around(f).suspicion)


def _history(case: Case, rank: int) -> list[_Made]:
    """What the rank called, collectives and transfers, in the order of time."""
    table, evidence = case.calls, case.ranks.get(rank)
    rows = table.rank_rows(rank)
    made = []
    for row in range(rows.start, rows.stop):
        frames_id = int(table["frames"][row])
        frames = table.stacks[frames_id] if frames_id >= 0 else ()
        place = (int(table["group"][row]), int(table["seq"][row]))
        key = int(table["peer"][row]) if table["is_p2p"][row] else place
        is_open = bool(table["state"][row] != CallState.COMPLETED)
        made.append(_Made(int(table["created_ns"][row]), user_path(frames), frames[::-1], is_open, key))
    transfers = [c for c in evidence.pending if c.peer is not None] if evidence else []
    made.extend(
        _Made(c.started_ns, user_path(c.frames), c.frames[::-1], c.ended_ns is None, c.peer or 0) for c in transfers
    )
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


def _passed(
    waiter: Sequence[_Made], rank: Sequence[_Made], missed: Path, now: Path, is_whole: bool = False
) -> Frame | None:
    """The line of the call that the rank left out, if both are in the same round; `now`: where it is. `is_whole`: the paths are."""
    completed = [{m.key for m in made if isinstance(m.key, tuple) and not m.is_open} for made in (waiter, rank)]
    met = next((m for m in reversed(rank) if m.key in completed[0] & completed[1]), None)
    for made in (waiter, rank):
        last = next((m for m in reversed(made) if not m.is_open), None)
        if (last.key if last else None) != (met.key if met else None):
            return None
    return line_passed(missed, now, (met.whole if is_whole else met.path) if met else ())


def _passed_below(
    case: Case, rank: int, waiter: Sequence[_Made], made: Sequence[_Made], missed: Path, now: Path
) -> Frame | None:
    """The same where a framework called what made the call, and stands further on with the other rank: the line below it that decides."""
    below = missed[len(now) :] if now and missed[: len(now)] == now else ()
    call = next((m for m in waiter if m.is_open and m.path == missed), None)
    evidence = case.ranks.get(rank)
    stack = evidence.main_stack if evidence else None
    if not below or call is None or stack is None:
        return None
    if _passed(waiter, made, call.whole, stack.frames[::-1], is_whole=True) is None:
        return None
    return next((f for f in reversed(below) if any(c.suspicion > 0 for c in around(f).conditions)), below[-1])


def line_passed(missed: Path, now: Path, met: Path) -> Frame | None:
    """The line, in the function that the two paths share, of a call that was left out by whoever is at `now`.

    `met`: the way to the last call before, the same on both sides. None where `now` does not come after `missed`, or where a
    condition leads to one of them or to the other.
    """
    missed, now = _from_one_frame_on(missed, now)
    fork = fork_of(missed, now) if missed and now else None
    if fork is None or fork.same_line or _are_alternatives(fork) or _may_be_a_round_later(fork, now, met):
        return None
    return fork.left if _is_further(fork, _line_in(met, missed, fork)) else None


def _may_be_a_round_later(fork: Fork, now: Path, met: Path) -> bool:
    """Whether whoever is at `now` was there at the last call too, in a loop that the other side is not in: it has passed nothing."""
    met = _from_one_frame_on(met, now)[0]
    own = [loop for loop in surroundings(fork.right.file, fork.right.line).loops if fork.left.line not in loop]
    deeper = (surroundings(f.file, f.line).loops for f in now[fork.depth + 1 :])
    return met == now and (bool(own) or any(deeper))


def _from_one_frame_on(left: Path, right: Path) -> tuple[Path, Path]:
    """The two paths without the outer frames that only one of them has: transfers are recorded with their inner frames alone."""
    if left and right and left[0] in right:
        return left, right[right.index(left[0]) :]
    if left and right and right[0] in left:
        return left[left.index(right[0]) :], right
    return left, right


def _are_alternatives(fork: Fork) -> bool:
    """Whether a condition leads to one of the lines or to the other."""
    left, right = (surroundings(f.file, f.line).conditions for f in (fork.left, fork.right))
    return any(a.is_opposite_of(b) for a in left for b in right)


def _line_in(met: Path, missed: Path, fork: Fork) -> int:
    """Where in the function of the fork the collective stands that both completed last; 0 if it was made before."""
    met, missed = _from_one_frame_on(met, missed)
    here = met[fork.depth] if len(met) > fork.depth and met[: fork.depth] == missed[: fork.depth] else None
    return here.line if here and is_same_function(here, fork.left) else 0


def _is_further(fork: Fork, met: int) -> bool:
    """Whether the right side of the fork comes after the left one, from the line on where both last met."""
    left, right = fork.left.line, fork.right.line
    if left > met and right > met:
        return left < right
    loops = surroundings(fork.left.file, left).loops
    is_round = any(met in loop and right in loop for loop in loops)
    return is_round and (left > met >= right or (right <= met and left <= met and left < right))


@dataclass(frozen=True)
class LeftOut:
    """The call that a rank went past before it failed; `passed` is its line in the function of both."""

    call: CollectiveCall
    passed: Frame
    waiting: tuple[int, ...]


def left_out_before(case: Case, stuck: Sequence[StuckCollective], rank: int, now: Path) -> LeftOut | None:
    """The call in which most others wait and which the rank had passed when it failed at `now`, if it was in the same round.

    What it failed with may then be what the call would have prevented. Nothing is said of a failure inside an `except`: it
    may have jumped there.
    """
    table = case.calls
    for s in stuck:
        if s.is_mismatch or rank not in s.missing or len(s.waiting) < 2:
            continue
        call = s.calls[s.waiting[0]]
        absent = [r for r in s.missing if not (r in s.unseen and _failed_at(case, r, user_path(call.frames)))]
        if len(s.missing) + len(s.calls) <= 2 * len(absent):
            continue
        mine, theirs = table.rank_rows(rank), table.rank_rows(call.rank)
        at = next((r for r in range(theirs.start, theirs.stop) if _place(case, r) == (s.index, s.seq)), theirs.start)
        if at == theirs.start or mine.start == mine.stop or _place(case, at - 1) != _place(case, mine.stop - 1):
            continue  # they did not both make the call before it, or the rank made others since
        missed, met = user_path(call.frames), _kind(case, at - 1)[-1]
        if any(surroundings(f.file, f.line).in_handler for f in now) or _is_behind_in_call(met, missed, now):
            continue
        if met and now[: len(met)] == met:
            continue  # it may still have been in the line that made its last call: DDP sends its buffers before the forward
        passed = line_passed(missed, now, met)
        if passed is None and _is_one_round([_kind(case, r) for r in range(theirs.start, at + 1)], now):
            passed = line_passed(missed, now, ())
        if passed is not None:
            return LeftOut(call, passed, s.waiting)
    return None


def _is_behind_in_call(met: Path, missed: Path, now: Path) -> bool:
    """Whether a rank failed right behind its last call, in the function that made it, before it came back to that in which the others wait."""
    forks = [next((i for i, (a, b) in enumerate(zip(p, now, strict=False)) if a != b), 0) for p in (met, missed)]
    inner, outer = forks
    is_same = inner > outer and is_same_function(met[inner], now[inner])
    return is_same and met[inner].line < now[inner].line


def _failed_at(case: Case, rank: int, path: Path) -> bool:
    """Whether the exception of a rank came out of a call on this path: it was in it, though its calls are not known.

    A traceback may begin further inside than a recorded path.
    """
    error = case.ranks[rank].error if rank in case.ranks else None
    own = user_path(error.frames) if error is not None else ()
    return bool(own) and path[-len(own) :] == own


def _place(case: Case, row: int) -> tuple[int, int] | None:
    table = case.calls
    return None if table["is_p2p"][row] else (int(table["group"][row]), int(table["seq"][row]))


def _kind(case: Case, row: int) -> tuple[int, int, Path]:
    """What kind of call a row is: the sizes may change from round to round."""
    table = case.calls
    frames = int(table["frames"][row])
    return int(table["op"][row]), int(table["dtype"][row]), user_path(table.stacks[frames]) if frames >= 0 else ()


def _is_one_round(kinds: Sequence[tuple[int, int, Path]], now: Path) -> bool:
    """Whether the last call always followed on the one before it, at the same line, and never began a round with it.

    That is so where another call always lies between it and the next round. Once is enough, if a call from the line of the
    failure came after both.
    """
    *before, met, missed = kinds
    if not before or met == missed or met[-1] != missed[-1]:
        return False
    pairs = list(zip(before, [*before[1:], met], strict=True))
    own = set(now) - set(missed[-1])
    has_come_here = met in before and any(own & set(kind[-1]) for kind in before[before.index(met) :])
    return (
        sum(pair == (met, missed) for pair in pairs) > (0 if has_come_here else 1)
        and all(after == missed for kind, after in pairs if kind == met)
        and all(after != met for kind, after in pairs if kind == missed)
    )
