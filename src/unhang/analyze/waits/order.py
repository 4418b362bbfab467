"""Tells a different order of the same calls, and a call left out or added, from a different program."""

from __future__ import annotations

import ast
import re
from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from itertools import takewhile
from typing import NamedTuple

from unhang.analyze.calls.align import Signature, majority, signature
from unhang.analyze.calls.divergence import Divergence
from unhang.analyze.calls.positions import bare_op
from unhang.analyze.calls.streams import Streams, stack_of_call, stack_path
from unhang.analyze.program.callpath import Path, is_same_function, loops_on, user_path
from unhang.analyze.program.sets import unwrapped
from unhang.analyze.program.sides import Side, decided_by_condition, started_ns
from unhang.analyze.program.source import Condition, around, frame_at, loop_at
from unhang.analyze.program.trees import line_text
from unhang.analyze.situation import Situation
from unhang.analyze.waits.overtaking import Overtaking, overtakings
from unhang.model import Case, CollectiveCall, CollectiveTable, Frame, WaitEdge, grouped, user_frames

_LEAST_STRETCH = 3
_MOST_AHEAD = 16

_MOST_STRETCH = 128
ROUNDS = 4  # after so many a call is a habit

Tokens = Mapping[int, tuple[Signature, Path]]


class Shift(Enum):
    """How a rank's calls are shifted against its peers'; the value reads after the rank."""

    NONE = ""
    LEFT_OUT = "left out a call"
    SEVERAL = "left out several calls"
    ONE_MORE = "made one call more"
    EITHER = "left out a call or made one more"
    SWAPPED = "made two calls in the other order"


def shift_at(case: Case, d: Divergence) -> Shift:
    """The shift that explains a divergence in size.

    Calls that both sides issued ahead tell it by themselves: a shift, or two calls that are swapped. Else the past has to
    foretell the reference's call, and the odd one has to be the call that comes before or after it, unless the reference
    has made its next call already: a size that nothing foretold is just a wrong one.
    """
    streams = Streams(case, case.calls.groups.index(d.group), d.seq + _MOST_AHEAD)
    ref, odd = (tokens_of(case, streams.rows.get(ranks[0], {})) for ranks in (d.reference, d.odd))
    if _is_swapped(ref, odd, d.seq):
        return Shift.SWAPPED
    ahead = [i for i in range(_MOST_AHEAD) if d.seq + i + 1 in ref and d.seq + i + 1 in odd]
    if len(ahead) >= _LEAST_STRETCH and len({ref[d.seq + i] for i in ahead}) > 1:
        is_more = all(odd[d.seq + i + 1] == ref[d.seq + i] for i in ahead)
        is_left_out = all(odd[d.seq + i] == ref[d.seq + i + 1] for i in ahead)
    else:
        expected = predicted(ref, d.seq)
        is_regular = bool(expected) and expected[0] == ref.get(d.seq)
        is_more = is_regular and odd.get(d.seq) == ref.get(d.seq - 1)
        is_next = odd.get(d.seq) == ref.get(d.seq + 1) != ref.get(d.seq)
        is_left_out = (is_regular and expected[1:] == [odd.get(d.seq)]) or is_next
        if not (is_more or is_left_out) and is_regular and _is_later_in_round(ref, d.seq, odd.get(d.seq)):
            return Shift.SEVERAL
    if is_more and is_left_out:
        return Shift.EITHER
    return Shift.ONE_MORE if is_more else Shift.LEFT_OUT if is_left_out else Shift.NONE


def left_out_of_round(s: Situation, d: Divergence, frame: Frame | None) -> list[Condition]:
    """Where ranks left out calls of a round that all comes from one line: the conditions around it that may differ."""
    if frame is None or d.fork is not None or d.differs != "size":
        return []
    is_left_out = shift_at(s.case, d) in (Shift.LEFT_OUT, Shift.SEVERAL)
    return [c for c in around(frame, started_ns(s.case)).conditions if c.suspicion] if is_left_out else []


def most_suspicion(path: Path) -> int:
    """How likely the conditions on a way come out differently on the ranks."""
    return max((around(f).suspicion for f in path), default=0)


def tokens_of(case: Case, rows: Mapping[int, int]) -> Tokens:
    """What a rank called at each position, and from where."""
    calls = {seq: case.calls.call(row) for seq, row in rows.items()}
    return {seq: (signature(call), user_path(call.frames)) for seq, call in calls.items()}


def _is_swapped(ref: Tokens, odd: Tokens, seq: int) -> bool:
    """Whether two calls are in the other order, and what follows is alike again: else the order tells nothing."""
    theirs, mine = ([calls.get(s) for s in range(seq, seq + 3)] for calls in (ref, odd))
    return None not in theirs and theirs[0] != theirs[1] and mine == [theirs[1], theirs[0], theirs[2]]


def predicted(stream: Tokens, seq: int) -> list[Hashable]:
    """What followed, twice, the longest earlier stretch that is like the one before `seq`, the latest of them.

    A short one counts if both reach back to where the rank came to the place of this call.
    """
    lengths = {at: _common(stream, at, seq) for at in stream if at < seq}
    since = _calls_here(stream, seq)
    known = [
        (n, at)
        for at, n in lengths.items()
        if n >= _LEAST_STRETCH or (n >= since == _calls_here(stream, at) and _is_one_place(stream, at, seq))
    ]
    at = max(known)[1] if known else seq
    return [stream[s] for s in (at, at + 1) if s in stream and at < seq]


def _is_later_in_round(stream: Tokens, seq: int, call: Hashable) -> bool:
    """Whether a call comes later in a round of unlike calls, the last whole one of which was as the one before it."""
    lengths = {at: _common(stream, at, seq) for at in stream if at < seq}
    at = max(lengths, key=lambda at: (lengths[at], at), default=seq)
    around = [stream[s] for s in range(at, seq) if s in stream]
    return len({*around}) >= _LEAST_STRETCH and lengths.get(at, 0) >= seq - at == len(around) and call in around[1:]


def _common(stream: Tokens, left: int, right: int) -> int:
    """The length of the equal stretch before two positions."""
    n = 0
    while n < _MOST_STRETCH and stream.get(left - n - 1) == stream.get(right - n - 1) is not None:
        n += 1
    return n


def _calls_here(stream: Tokens, seq: int) -> int:
    """How many calls a rank made at the place of this call, one after the other, before it."""
    n = 0
    while n < _MOST_STRETCH and _is_one_place(stream, seq - n - 1, seq):
        n += 1
    return n


def _is_one_place(stream: Tokens, left: int, right: int) -> bool:
    """Whether two calls came from the same place."""
    return left in stream and right in stream and stream[left][1] == stream[right][1] != ()


_API = "torch/distributed/distributed_c10d.py"


def is_dispatch_race(d: Divergence) -> bool:
    """Whether one line, fed from a queue or by name, called different functions on the ranks.

    A line that names both functions runs them one after the other; that is no dispatch.
    """
    if d.fork is None or not d.fork.same_line:
        return False
    names = [p[d.fork.depth + 1].function for p in (d.reference_path, d.odd_path) if len(p) > d.fork.depth + 1]
    text = line_text(d.fork.left.file, d.fork.left.line)
    return len(names) == 2 and bool(text) and not any(f"{name}(" in text for name in names)


def is_of_size_alone(s: Situation, d: Divergence) -> bool:
    """Whether the ranks made the same call from the same place with other sizes, and no neighbouring call explains the size."""
    if d.differs != "size" or d.fork is not None:
        return False
    return shift_at(s.case, d) is Shift.NONE and functions_called(s, d) is None


_MOST_TURNS, _ROUNDS_BEFORE = 8, 3
_OF_DATA = re.compile(r"(?i)load|batch|data|range\(|epoch|step")


def in_turns(s: Situation, d: Divergence) -> tuple[Frame, str] | None:
    """Where one line of a loop made calls of several sizes by turns, in each round before, and both sizes are among them: the head, and what it goes over.

    What goes over data is no such loop: there one round may make several calls.
    """
    if not all(
        _took_turns(s.case.calls, call.row, {d.odd_call.row, d.reference_call.row})
        for call in (d.odd_call, d.reference_call)
    ):
        return None
    _, frame, loop = next(reversed(loops_on(d.odd_path)), (0, None, None))
    head = loop_at(frame.file, loop.header) if frame and loop else None
    over = ast.unparse(unwrapped(head.iter)) if isinstance(head, ast.For) else ""
    return (frame_at(frame.file, loop.header), over) if frame and loop and over and not _OF_DATA.search(over) else None


def _took_turns(table: CollectiveTable, row: int, parted: set[int]) -> bool:
    """Whether a rank's calls from there, before one, had the same few sizes in turn again and again; those of the `parted` calls among them."""
    first = table.rank_rows(table["rank"].item(row)).start
    same = (table["frames"][first:row] == table["frames"][row]) & (table["group"][first:row] == table["group"][row])
    sizes = table["in_sizes"][first:row][same][-_MOST_TURNS * _ROUNDS_BEFORE :].tolist()
    wanted = {table["in_sizes"].item(r) for r in parted}
    return any(
        sizes[-n:] * _ROUNDS_BEFORE == sizes[-n * _ROUNDS_BEFORE :] and wanted <= set(sizes[-n:])
        for n in range(2, _MOST_TURNS + 1)
    )


def functions_called(s: Situation, d: Divergence) -> tuple[str, str] | None:
    """The functions of torch.distributed that the odd ranks and the others called, if they are not the same one.

    A backend may record several functions as one op: for gloo `reduce_scatter_tensor` is an all_reduce.
    """
    odd, reference = _function_called(s, d.odd_call), _function_called(s, d.reference_call)
    return (odd, reference) if odd and reference and odd != reference else None


def _function_called(s: Situation, call: CollectiveCall) -> str:
    """The function that the program called; "" where that is not known. The last call of a rank also has its stack."""
    frames = call.frames
    if not frames and call.row == s.case.calls.rank_rows(call.rank).stop - 1:
        stack = stack_of_call(s.case, call.row)
        frames = stack.frames if stack else ()
    below = takewhile(lambda frame: not frame.is_user, frames or ())
    return next((f.function for f in reversed(list(below)) if f.file.endswith(_API)), "")


def is_thread_race(s: Situation, d: Divergence) -> bool:
    """Whether a call that differs came from another thread than the rank's other calls on the group, or both sides use it from two threads."""
    table = s.case.calls
    group = table.groups.index(d.group)
    calls = (d.odd_call, d.reference_call)
    begins = {path[0].function for path in (d.odd_path, d.reference_path) if path}
    are_apart = len(begins) == 2 and all(_begin_apart(s, c.rank, group, begins) for c in calls)
    if are_apart or {_by_main_thread(s, c, group) for c in calls} == {True, False}:
        return not any("autograd" in c.thread for c in calls)
    for call in calls:
        if "autograd" in call.thread:
            continue
        rows = table.rows(rank=call.rank, group=group)
        names = [table.threads[int(table["thread"][row])] for row in rows if int(row) != call.row]
        if names and call.thread not in names and not all("autograd" in n for n in names):
            return True
    return False


def _by_main_thread(s: Situation, call: CollectiveCall, group: int) -> bool | None:
    """Whether the thread that made the rank's first call of all made this one, of a rank that uses the group from other threads, too; else None.

    The thread of autograd is the main one's own: it makes its calls while that one waits in `backward`.
    """
    table = s.case.calls
    by = [table.threads[int(n)] for n in table["thread"][table.rank_rows(call.rank)]]
    first = next((name for name in by if "autograd" not in name), "")
    used = {table.threads[int(n)] for n in table["thread"][table.rows(rank=call.rank, group=group)]}
    return call.thread == first if first in used and sum("autograd" not in name for name in used) > 1 else None


def _begin_apart(s: Situation, rank: int, group: int, begins: set[str]) -> bool:
    """Whether a rank's calls on a group come by ways that begin in both of these functions, each in a thread of its own as far as threads are told."""
    table, threads = s.case.calls, dict[str, set[int]]()
    for row in table.rows(rank=rank, group=group):
        stack = int(table["frames"][row])
        path = user_path(table.stacks[stack]) if stack >= 0 else ()
        if path and path[0].function in begins:
            threads.setdefault(path[0].function, set()).add(int(table["thread"][row]))
    known = [{n for n in used if table.threads[n]} for used in threads.values()]
    return len(threads) == len(begins) and not set.intersection(*known)


def receive_first(s: Situation, ranks: Sequence[int]) -> Path:
    """The line at which all of these ranks wait in a receive before any of them has sent in that group; else nothing.

    No rank is told from the others then: it is the order in the program that they share. Nothing is said where calls are lost.
    """
    table, lines = s.case.calls, set[Path]()
    if not (table.wrapped_ranks | table.active_ranks).isdisjoint(ranks):
        return ()
    for rank in ranks:
        rows, fronts = table.rank_rows(rank), s.recorded.fronts.get(rank, ())
        transfers = [row for row in range(rows.start, rows.stop) if table["is_p2p"][row]]
        first = [row for row in transfers if fronts and table["group"][row] == table["group"][fronts[0]]][:1]
        if not first or first != [*fronts] or bare_op(table.call(first[0]).op) != "recv":
            return ()
        lines.add(user_path(table.call(first[0]).frames))
    return lines.pop() if len(lines) == 1 else ()


_NEVER = 1 << 62


def out_of_order(s: Situation, edges: Sequence[WaitEdge]) -> tuple[int, ...]:
    """The minority that issued the two calls of a cycle in another order than the others; empty without a majority.

    Witnesses are the members of both groups that issued one of the calls: "first" is one that has the first call and not
    the second yet, or had it before the second.
    """
    positions = sorted({(e.group, e.seq or 0) for e in edges if e.kind == "collective"})
    if len(positions) != 2 or any(e.kind != "collective" for e in edges):
        return ()
    first, second = (_issued(s, group, seq) for group, seq in positions)
    members = [{r for g in s.case.groups if g.name == name for r in g.ranks} for name, _ in positions]
    witnesses = set.intersection(*members) & (first.keys() | second.keys())
    order = {r: first.get(r, _NEVER) < second.get(r, _NEVER) for r in witnesses}
    if not order:
        return ()
    _, other, has_majority = majority(order)
    return other if has_majority else ()


def _issued(s: Situation, group: str, seq: int) -> dict[int, int]:
    """Rank -> its own count of calls when it issued this one."""
    for stuck in s.stuck:
        if (stuck.group.name, stuck.seq) == (group, seq):
            return {rank: call.record_id for rank, call in stuck.calls.items()}
    return {}


def left_out(s: Situation, cycle: tuple[int, ...]) -> tuple[Overtaking, ...]:
    """The calls that ranks of a circle left out, where more than the recorded calls tells where each of them is."""
    if not all(is_seen_elsewhere(s, r) for r in cycle):
        return ()
    return overtakings(s.case, s.stuck, s.waits.edges, cycle)


def is_seen_elsewhere(s: Situation, rank: int) -> bool:
    """Whether more than the recorded calls tells what the rank does."""
    evidence = s.case.ranks.get(rank)
    return evidence is not None and bool(evidence.stacks or evidence.pending)


class MadeAlone(NamedTuple):
    """A call that ranks of a circle alone make, since a condition on the rank leads there. `line`: the user's, `gate`: that of the condition, which a library may hold.

    `is_first`: no other member has ever made that call.
    """

    ranks: tuple[int, ...]
    call: CollectiveCall
    line: Frame
    gate: Frame
    condition: Condition
    is_first: bool


def made_alone(s: Situation, cycle: tuple[int, ...]) -> MadeAlone | None:
    """The call of a group that a few alone have ever made under a condition, or to which such a condition leads from where the ways part."""
    return _never_made_by_others(s, cycle) or _led_by_rank(s, cycle)


def _never_made_by_others(s: Situation, cycle: tuple[int, ...]) -> MadeAlone | None:
    """By a condition on the rank, of a single one; or by one on data, of at most half, where the others went round without that call."""
    last = {e.waiter: e.seq or 0 for e in s.waits.edges}
    for stuck in s.stuck:
        ranks, others = stuck.waiting, [r for r in stuck.group.ranks if r not in stuck.waiting]
        ways = {user_path(stuck.calls[r].frames) or stack_path(s.case, r) for r in ranks if r in cycle}
        if len(ways) != 1 or not set(ranks) <= set(cycle) or len(ranks) > max(1, len(others)):
            continue
        call, way = stuck.calls[ranks[0]], ways.pop() or ()
        if any(_has_called_in(s.case, r, call, way[-1] if way else None) for r in others):
            continue
        went_round = all(last.get(r, 0) >= ROUNDS for r in others)
        stacks = s.case.ranks[ranks[0]].stacks if ranks[0] in s.case.ranks else ()
        for frame in (*reversed(way), *(f for t in stacks for f in user_frames(t.given))):
            conditions = around(frame, started_ns(s.case)).conditions
            by_rank = [c for c in conditions if c.depends_on_rank and len(ranks) == 1]
            by_data = [c for c in conditions if c.suspicion > 1 and went_round]
            if tests := by_rank or by_data:
                return MadeAlone(ranks, call, frame, frame, tests[-1], is_first=True)
    return None


def _led_by_rank(s: Situation, cycle: tuple[int, ...]) -> MadeAlone | None:
    """Of a circle whose ranks stand in two places: the one to which a condition on the rank leads, in the program or in a library."""
    stacks = ((rank, s.case.ranks[rank].main_stack if rank in s.case.ranks else None) for rank in cycle)
    places = grouped((tuple(reversed(stack.frames)) if stack else (), rank) for rank, stack in stacks)
    if len(places) != 2 or () in places:
        return None
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*places, strict=False)))
    one, other = (Side(tuple(ranks), way[shared:]) for way, ranks in places.items())
    found = decided_by_condition(s.case, one, other)
    if found is None or found.is_left_out:
        return None
    side, against = (one, other) if found.odd == one.ranks else (other, one)
    line = next((f for f in side.frames[side.frames.index(found.frame) :] if f.is_user), None)
    rows = s.recorded.fronts.get(side.ranks[0], ())
    if line is None or not rows or s.case.calls["is_p2p"][rows[0]]:
        return None
    call = s.case.calls.call(rows[0])
    if any(_has_called_in(s.case, r, call, side.frames[0]) for r in against.ranks):
        return None  # it may come to that call later, on its own way
    return MadeAlone(side.ranks, call, line, found.frame, found.condition, is_first=False)


def _has_called_in(case: Case, rank: int, like: CollectiveCall, at: Frame | None) -> bool:
    """Whether a rank has made a call of the same group from the function of a frame; any call, where there is no frame."""
    table = case.calls
    stacks = {int(i) for i in table["frames"][table.rows(rank=rank, group=table.groups.index(like.group))]}
    if at is None or -1 in stacks:
        return bool(stacks)
    frames = (f for i in stacks if i >= 0 for f in table.stacks[i])
    return any(is_same_function(f, at) for f in frames)
