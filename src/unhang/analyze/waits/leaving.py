"""How ranks left their peers: by an exception that they handled, at the end of a loop, or at the end of their program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from unhang.analyze.activity import POLLING_SHARE, activity_of
from unhang.analyze.calls.align import StuckCollective
from unhang.analyze.calls.divergence import Divergence
from unhang.analyze.calls.framework_loops import left_framework
from unhang.analyze.calls.handled import passes, swallowed_by
from unhang.analyze.calls.streams import stack_path
from unhang.analyze.failures import early_leavers, is_communication_error
from unhang.analyze.program.callpath import Path, is_same_function, user_path
from unhang.analyze.program.rounds import guards_in, loop_that_differs
from unhang.analyze.program.sides import ByCondition, Side, decided_by_condition
from unhang.analyze.program.source import Loop, catches_stop_iteration, ends_block, surroundings
from unhang.analyze.program.values import differing
from unhang.analyze.situation import Situation
from unhang.analyze.waits.open_calls import all_meet_by_files
from unhang.analyze.waits.order import is_dispatch_race, is_thread_race
from unhang.analyze.waits.polling import asks_store
from unhang.analyze.waits.transfers import LeftTransfers, left_out_transfer, left_transfers
from unhang.model import (
    CallState,
    CollectiveCall,
    Frame,
    PendingCall,
    RaisedError,
    RankEvidence,
    ThreadStack,
    WaitEdge,
    grouped,
    user_frames,
)

_MOST_COMPARED = 8
_OF_GROUPS = ("init_process_group", "destroy_process_group", "new_group")
_GOES_ON = ("user", "lock", "outside", "data", "spinning", "gil", "device")
_AT_WORK = ("user", "data", "spinning", "gil")
_ENDS_OF_DATA = ("StopIteration", "StopAsyncIteration", "GeneratorExit", "Empty")
_MOST_IDLE_SHARE = 0.1  # a look costs some


@dataclass(frozen=True)
class EndedBefore:
    """Ranks that came to the end of their program before a call in which the others wait for them.

    `call`: of one that waits. `path`: of the one call that those have made more often; None where it is not known, or not one.
    `by_condition`: what a condition on the rank around it tells.
    """

    ended: tuple[int, ...]
    waiting: tuple[int, ...]
    call: CollectiveCall
    path: Path | None
    by_condition: ByCondition | None

    @property
    def odd(self) -> tuple[int, ...]:
        """Those who went another way: by a condition on the rank, or since fewer wait than have ended; else nobody."""
        if self.by_condition:
            return self.by_condition.odd
        return self.waiting if len(self.waiting) < len(self.ended) else ()

    @property
    def shows_a_call(self) -> bool:
        """Whether it tells more than that ranks ended: a call that one side made, and who is odd, or that it is not the awaited one."""
        is_another = self.path is not None and self.path != user_path(self.call.frames)
        is_even = len(self.waiting) == len(self.ended)
        return bool(self.path) and (bool(self.odd) or (is_even and is_another))


def ended_before(s: Situation) -> EndedBefore | None:
    """The first call that lacks none but ranks which came to the end of their program."""
    gone = {e.rank for e in early_leavers(s.case) if e.exit and e.exit.kind == "exit" and not e.exit.code}
    for stuck in s.stuck if gone and s.divergence is None else ():
        if stuck.missing and not stuck.is_mismatch and stuck.waiting and gone.issuperset(stuck.missing):
            return _described(s, stuck)
    return None


def cannot_end(s: Situation) -> tuple[int, ...]:
    """Ranks that nobody waits for and that do not end: those in the end of their program, else those that wait for themselves.

    These stand alone, all others having ended well, and each of their threads waits for another one of the same process: a queue
    whose workers have nothing to do, an event that nobody is left to set. Or the main thread sleeps and looks, again and again,
    whether something has come true. All ranks do where each of them asks a store so, or looks for files of which each has made its own:
    nobody is left to write there. While another rank still works on its own, the job is not at its end, and who ends earlier holds nobody up.
    """
    if any(e.targets for e in s.waits.edges):
        return ()
    in_shutdown = (r for r, a in s.activities.items() if a.kind == "shutdown")
    ending = tuple(r for r in in_shutdown if s.case.ranks[r].main_stack is not None)
    if ending and not any(_destroys(s.case.ranks[r]) for r in ending) and any(_is_at_work(s, r) for r in s.case.ranks):
        return ()
    ended = {e.rank for e in early_leavers(s.case) if e.exit and not e.exit.code}
    alone = tuple(r for r in sorted(s.case.ranks) if r not in ended)
    if ending or not alone or not ended.union(alone).issuperset(s.case.world):
        return ending
    if not ended and not (len(alone) > 1 and (all(_asks_store(s, r) for r in alone) or all_meet_by_files(s))):
        return ()
    return alone if all(_waits_for_itself(s.case.ranks[r]) for r in alone) else ()


def _destroys(evidence: RankEvidence) -> bool:
    """Whether it ends its groups, for which it may need the others."""
    return any(f.function == "destroy_process_group" for f in evidence.main_frames)


def _is_at_work(s: Situation, rank: int) -> bool:
    """Whether a rank uses a processor in its own code, or by a child that it waits for."""
    kind, state = s.activities[rank].kind, s.case.ranks[rank].state
    if state is None:
        return False
    share = state.children_share if kind == "outside" else state.cpu_share if kind in _AT_WORK else None
    return (share or 0) > _MOST_IDLE_SHARE


def _asks_store(s: Situation, rank: int) -> bool:
    activity = s.activities[rank]
    return activity.is_polled and activity.frame is not None and asks_store((at := _in_loop(s, rank)).file, at.line)


def _in_loop(s: Situation, rank: int) -> Frame:
    """The innermost line of the rank that is in a loop."""
    stack = s.case.ranks[rank].main_stack
    mine = user_frames(stack.frames) if stack else ()
    return next((f for f in mine if surroundings(f.file, f.line).loops), mine[0])


def _waits_for_itself(evidence: RankEvidence) -> bool:
    """Whether all threads of the process wait within it; the main one may look for something instead."""
    shares = (evidence.state.cpu_share, evidence.state.children_share) if evidence.state else ()
    own = [t for t in evidence.stacks if t.process_id is None or t.process_id == evidence.identity.pid]
    most = POLLING_SHARE if activity_of(evidence).is_polled else _MOST_IDLE_SHARE
    is_idle = not any(share and share > most for share in shares)
    return is_idle and bool(evidence.main_stack) and all(_is_idle(evidence, t) for t in own)


def _is_idle(evidence: RankEvidence, thread: ThreadStack) -> bool:
    activity = activity_of(evidence, thread=thread)
    return activity.kind == "lock" or (thread.is_main and activity.is_polled)


def _described(s: Situation, stuck: StuckCollective) -> EndedBefore:
    ended, waiting = tuple(sorted(stuck.missing)), stuck.waiting
    mine, theirs = _ways(s, stuck.index, waiting[0]), _ways(s, stuck.index, ended[0])
    is_whole = s.case.calls.wrapped_ranks.isdisjoint((*ended, *waiting))
    more = mine - theirs
    path = next(iter(more)) if is_whole and more.total() == 1 and not theirs - mine else None
    own = user_path(stuck.calls[waiting[0]].frames)
    is_alone = path is None and is_whole and bool(own) and not theirs[own]  # a way that those that ended never went
    by_condition = None
    if path or is_alone:
        path = path or own
        others = tuple(f for f in dict.fromkeys(chain.from_iterable(theirs)) if f not in path)
        by_condition = decided_by_condition(s.case, Side(waiting, path), Side(ended, others))
        if by_condition is not None and theirs[path] and not by_condition.is_left_out:
            by_condition = None  # those that ended have passed it before
        if is_alone and (by_condition is None or by_condition.is_left_out):
            path = by_condition = None
    return EndedBefore(ended, waiting, stuck.calls[waiting[0]], path, by_condition)


def _ways(s: Situation, group: int, rank: int) -> Counter[Path]:
    """How often the rank came to a call of the group on each way."""
    table = s.case.calls
    frames = table["frames"][table.rows(rank=rank, group=group, is_p2p=0)].tolist()
    return Counter(user_path(table.stacks[i]) if i >= 0 else () for i in frames)


def destroyed_before(s: Situation) -> tuple[int, PendingCall, WaitEdge] | None:
    """A rank that destroyed a group in which another one waits for it, and its program goes on; not one that an exception led there."""
    for edge in s.waits.edges if s.divergence is None else ():
        for rank in edge.targets if edge.kind == "collective" else ():
            evidence = s.case.ranks.get(rank)
            call = next((c for c in reversed(evidence.pending) if c.kind in _OF_GROUPS), None) if evidence else None
            if evidence is None or call is None or call.kind != "destroy_process_group" or call.group != edge.group:
                continue
            failed = s.primary_failure is not None and s.primary_failure.time_ns <= (call.ended_ns or 0)
            was_led = evidence.error or evidence.held or swallowed_by(s, (rank,))
            if call.ended_ns and call.frames and not failed and not was_led and s.activities[rank].kind in _GOES_ON:
                return rank, call, edge
    return None


def ended_after_error(s: Situation) -> tuple[int, RaisedError] | None:
    """A rank that others wait for and that came to its end, led there by an exception that it handled after its last call with them.

    Handled in a function through which the others came to the call, or that called it; not one that it has handled before, or
    that another rank has handled there.
    """
    for evidence in early_leavers(s.case) if s.divergence is None else ():
        last, end = _last_call(s, evidence.rank), evidence.exit
        missed = next((x for x in s.stuck if evidence.rank in x.missing and x.waiting), None)
        if last is None or missed is None or end is None or end.kind != "exit":
            continue
        error = max(evidence.handled, key=lambda e: e.time_ns, default=None)
        way = user_path(missed.calls[missed.waiting[0]].frames)
        if error is None or error.handler is None or not last.created_ns < error.time_ns <= end.time_ns:
            continue
        is_own = not is_communication_error(error) and error.type not in _ENDS_OF_DATA and user_frames(error.frames)
        if is_own and passes(way, error.handler) and not _is_usual(s, error):
            return evidence.rank, error
    return None


def _is_usual(s: Situation, error: RaisedError) -> bool:
    """Whether such an exception has been handled more than once at this place."""
    all_handled = (e for evidence in s.case.ranks.values() for e in evidence.handled)
    return sum((e.type, e.handler) == (error.type, error.handler) for e in all_handled) > 1


@dataclass(frozen=True)
class Parted:
    """Ranks that an exception led away from their peers: one that they hold on to, see `RankEvidence.held`, or have handled."""

    ranks: tuple[int, ...]
    error: RaisedError
    is_held: bool


def parted_with_exception(s: Situation) -> Parted | None:
    """The ranks that stand in an `except`, a `finally` or an `__exit__` with an exception that no other rank holds there.

    Of those that parted from their peers, or closed a circle of waits: where all hold it, it is how the program runs. So it is
    where the rank has already completed calls from within its `except`.
    """
    d = s.divergence
    concerned = {*d.odd, *(() if d.has_majority else d.reference)} if d else {r for c in s.waits.cycles for r in c}
    late = {r.rank for r in s.late} if d is None else set()
    held = ((rank, e.held) for rank, e in s.case.ranks.items() if e.held and not is_communication_error(e.held))
    raised = ((e.type, user_frames(e.frames)[:1], rank) for rank, e in held)
    for ranks in grouped(((kind, line), rank) for kind, line, rank in raised if line).values():
        error = s.case.ranks[ranks[0]].held
        is_apart = all(r in concerned or (r in late and _is_on_its_way(s, r)) for r in ranks)
        if error and is_apart and 2 * len(ranks) <= len(s.case.world) and not any(_goes_on_there(s, r) for r in ranks):
            return Parted(tuple(sorted(ranks)), error, is_held=True)
    return None


def _is_on_its_way(s: Situation, rank: int) -> bool:
    """Whether the exception that the rank holds will go on: a `finally` or the end of a `with` holds it, no `except`."""
    held = s.case.ranks[rank].held
    return held is not None and held.handler is not None and ends_block(held.handler)


def _goes_on_there(s: Situation, rank: int) -> bool:
    """Whether the rank has completed a call from the `except` that holds its exception. Other blocks run without one too."""
    held, table = s.case.ranks[rank].held, s.case.calls
    if held is None or held.handler is None or ends_block(held.handler):
        return False
    there = {i for i, stack in enumerate(table.stacks) if held.handler in stack}
    rows = table.rank_rows(rank)
    done = table["state"][rows] == CallState.COMPLETED
    return any(int(i) in there for i in table["frames"][rows][done])


def caught_in_circle(s: Situation) -> Parted | None:
    """A rank of a circle of sends and receives, or of waits for a store, that caught an exception in the function from which its peers wait for it.

    Not where all of the circle did, and not where they stand in the same call of the same line: then their order is at fault.
    """
    for cycle in s.waits.cycles if s.divergence is None and s.judges_waits else ():
        edges = {r: s.waits.edges_of(r)[0] for r in cycle}
        handled = {r: e for r in cycle if (e := swallowed_by(s, (r,))) is not None and e.handler is not None}
        ways = {(e.kind, e.what.split(" ")[0], stack_path(s.case, r)) for r, e in edges.items()}
        if len(handled) != 1 or len(ways) < 2 or not any(e.kind in ("p2p", "store") for e in edges.values()):
            continue
        (rank, error), *_ = handled.items()
        waits = [e for r, e in edges.items() if rank in e.targets]
        paths = [stack_path(s.case, e.waiter) or () for e in waits]
        if paths and all(error.handler and passes(path, error.handler) for path in paths):
            return Parted((rank,), error, is_held=False)
    return None


def other_transfers(s: Situation) -> LeftTransfers | None:
    """Transfers that a rank still waits for, see `left_transfers`; but for a number of them that an exception explains, which the same rank caught amid them."""
    found, caught = left_transfers(s), caught_in_circle(s)
    if found is not None and found.other is not None and any(left_out_transfer(s, c) for c in s.waits.cycles):
        return None  # of two in a row the one between them was left out
    if found is None or found.other is None or caught is None:
        return found
    is_its_own = caught.ranks == (found.other.rank,) and caught.error.time_ns >= found.other.since_ns > 0
    return None if is_its_own else found


def exhausted_by(s: Situation, d: Divergence) -> tuple[int | None, str] | None:
    """(line of the handler, name) of an iterator that has ended on the odd ranks and not on the others."""
    if d.fork is None or d.fork.same_line or d.left_loop is not None:
        return None
    for name, ours, theirs in differing(s.case, d.odd, d.reference, d.fork.right):
        if ours.startswith("exhausted") and not theirs.startswith("exhausted"):
            handler = catches_stop_iteration(d.fork.right.file, d.fork.right.line)
            return handler, name
    return None


def made_other_rounds(s: Situation) -> bool:
    """Whether the ranks made another number of rounds of the same loop, which `uneven-inputs` then says."""
    d = s.divergence
    if d is None and ended_after_error(s) is not None:
        return False
    if d is None:
        return ended_in_loop(s) is not None or other_transfers(s) is not None
    was_led = swallowed_by(s, d.odd) or parted_with_exception(s)
    if (
        is_dispatch_race(d)
        or is_thread_race(s, d)
        or was_led
        or (s.primary_failure is not None and s.primary_failure.kind == "exception")
    ):
        return False
    return d.left_loop is not None or exhausted_by(s, d) is not None or left_framework(s) is not None


def lead_of_waiting(s: Situation, leaver: RankEvidence) -> int:
    """How many more ranks wait for the call than came to a normal end without it; a rank that called exit chose to leave."""
    leads = [1]
    for stuck in s.stuck if leaver.exit is not None and leaver.exit.kind == "exit" else ():
        if leaver.rank in stuck.missing:
            ended = [r for r in stuck.missing if (e := s.case.ranks.get(r)) and e.exit and e.exit.kind == "exit"]
            leads.append(len(stuck.calls) - len(ended))
    return min(leads)


def _last_call(s: Situation, rank: int) -> CollectiveCall | None:
    rows = s.case.calls.rows(rank=rank, is_p2p=0)
    return s.case.calls.call(int(rows[-1])) if len(rows) else None


def ended_in_loop(s: Situation) -> tuple[RankEvidence, CollectiveCall, Frame, Loop] | None:
    """A rank whose program came to its end after a call in a loop that a waiting peer is still in."""
    for evidence in early_leavers(s.case):
        end = evidence.exit
        if end is None or end.kind != "exit" or end.frames or end.code:  # data that ran out is no failure
            continue
        last = _last_call(s, evidence.rank)
        for stuck in s.stuck:
            waiting = [c for r, c in stuck.calls.items() if r in stuck.waiting and evidence.rank in stuck.missing]
            if last is not None and waiting:
                found = _shared_loop(s, stuck.waiting, waiting[0], last)
                if found is not None and _times(s, evidence.rank, waiting[0]):
                    return evidence, waiting[0], *found
    return None


def _times(s: Situation, rank: int, like: CollectiveCall) -> int:
    """How often a rank made this call, from this place."""
    table, path = s.case.calls, user_path(like.frames)
    rows = table.rows(rank=rank, group=table.groups.index(like.group), is_p2p=0).tolist()
    stacks = [i for i, stack in enumerate(table.stacks) if user_path(stack) == path]
    return sum(int(table["frames"][row]) in stacks for row in rows)


def made_as_often(s: Situation, rank: int, stuck: StuckCollective) -> bool:
    """Whether a missing rank has made the call as often as those that wait in it: they made another one more, before."""
    calls = [stuck.calls[r] for r in stuck.waiting if stuck.calls[r].frames]
    is_whole = s.case.calls.wrapped_ranks.isdisjoint({rank, *stuck.waiting})
    if not calls or not is_whole:
        return False
    return all(_times(s, rank, c) >= _times(s, c.rank, c) > 0 for c in calls[:_MOST_COMPARED])


def _shared_loop(
    s: Situation, stayers: Sequence[int], waiting: CollectiveCall, last: CollectiveCall
) -> tuple[Frame, Loop] | None:
    """The loop that held the last call of one that ended, and in which those that wait made a round more."""
    mine, theirs = user_path(waiting.frames), user_path(last.frames)
    gone: list[tuple[Frame, Loop]] = []
    for a, b in zip(mine, theirs, strict=False):
        if not is_same_function(a, b):
            break
        gone[:0] = ((a, loop) for loop in reversed(surroundings(a.file, a.line).loops) if b.line in loop)
        if a.line != b.line:
            break
    if not gone:
        return None
    frame, loop = loop_that_differs(s.case, stayers, gone)
    # Where a condition decides over the call, a round may have left it out.
    return None if any(True for _ in guards_in(frame, loop.header, mine)) else (frame, loop)
