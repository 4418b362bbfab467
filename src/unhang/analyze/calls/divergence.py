"""The first call in which the ranks' programs differ, which may lie many calls before the one that is stuck.

Equal ops of equal size pair silently, whatever line they come from. So the call paths are compared as well: the divergence
is the first call from which on the two streams of calls stay different.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from unhang.analyze.calls.align import StuckCollective, calls_at, majority, signature
from unhang.analyze.calls.habits import Habits
from unhang.analyze.calls.left_out import MOSTLY, is_by_data, left_out, share_of_makers
from unhang.analyze.calls.positions import CallIndex
from unhang.analyze.calls.streams import Streams
from unhang.analyze.program.callpath import Fork, Path, fork_of, line_to_look_at, user_path
from unhang.analyze.program.may_differ import SAME
from unhang.analyze.program.rounds import (
    LeftLoop,
    counted_by_files,
    is_guarded_in,
    left_loop_between,
    passed_loop_between,
    ran_out,
    rounds_of,
)
from unhang.analyze.program.sides import ByCondition, are_roles, told_by_condition
from unhang.analyze.program.source import Condition, surroundings
from unhang.analyze.program.values import are_a_round_ahead
from unhang.analyze.program.ways_out import way_out_of
from unhang.model import Case, CollectiveCall, Frame, ProcessGroup


@dataclass(frozen=True)
class Divergence:
    """Where the programs of the `odd` ranks part from those of the `reference` ranks.

    `seq` is the first different position, `stuck_seq` the one that cannot complete. `differs`: op, size or path.
    `has_majority`: it is sure who is wrong, by majority or by habit. `by_condition`: where it is not, the rank condition that tells it.
    `skipped`: the odd ranks left out the reference's call and went on to what follows it. `reference_path` then is the way on which they made it before.
    `added`: they made a call more of a round that the program fixes. `of_roles`: each side has a program of its own.
    """

    group: ProcessGroup
    seq: int
    stuck_seq: int
    reference: tuple[int, ...]
    odd: tuple[int, ...]
    has_majority: bool
    by_condition: ByCondition | None
    reference_call: CollectiveCall
    odd_call: CollectiveCall
    reference_path: Path
    odd_path: Path
    fork: Fork | None
    differs: str
    skipped: bool
    left_loop: LeftLoop | None
    added: bool = False
    of_roles: bool = False

    @property
    def is_decided(self) -> bool:
        """Whether it is known which side is wrong."""
        return self.has_majority or self.by_condition is not None

    @property
    def culprits(self) -> tuple[int, ...]:
        """The odd ranks; all of them where nothing tells which side is wrong."""
        return self.odd if self.is_decided else tuple(sorted((*self.reference, *self.odd)))

    @property
    def location(self) -> Frame | None:
        """The line to look at: that of a rank condition, the skipped call's where one was skipped, else where the odd rank went."""
        if self.by_condition is not None:
            return self.by_condition.frame
        return line_to_look_at(self.reference_path, self.odd_path, self.fork, self.skipped)

    @property
    def own_side(self) -> Frame | None:
        """The odd ranks' own line of the call that they left out, where the others make it on another one."""
        return self.reference_path[-1] if self.skipped and self.made_path != self.reference_path else None

    @property
    def made_path(self) -> Path:
        """The way on which the reference ranks made their call."""
        return user_path(self.reference_call.frames) or self.reference_path

    @property
    def made_by_data(self) -> tuple[int, ...] | None:
        """The ranks whose call alone hangs on the data."""
        if is_by_data(self.fork, self.reference_path, self.odd_path):
            return self.reference
        return self.odd if is_by_data(self.fork, self.odd_path, self.reference_path) else None

    @property
    def in_library(self) -> tuple[Frame, Frame] | None:
        """The innermost library frames of the odd and of the reference's call, where the line to look at is one that both passed.

        The user's own line then tells nothing: what it called, a framework's loop, went two ways.
        """
        where = self.location
        if where is None or where not in self.odd_path or where not in self.reference_path:
            return None
        found = [_library_frame(call.frames or (), where) for call in (self.odd_call, self.reference_call)]
        return (found[0], found[1]) if found[0] and found[1] and found[0] != found[1] else None


_API = ("/torch/distributed/distributed_c10d.py", "/torch/distributed/c10d_logger.py")


def _library_frame(frames: Sequence[Frame], above: Frame) -> Frame | None:
    """The innermost frame of a call that stands below a line, without torch.distributed's own function."""
    below = frames[: frames.index(above)] if above in frames else ()
    return next((f for f in below if not f.file.endswith(_API)), None)


def library_tests(d: Divergence) -> list[Condition]:
    """What a library asks of its data right before the call that one side made there: what most likely differs first."""
    frames = [f for f in d.in_library or () if "/torch/" not in f.file]
    found = (c for f in frames for c in reversed(surroundings(f.file, f.line).conditions))
    return sorted((c for c in found if c.suspicion), key=lambda c: -c.suspicion)


def _find_left_loop(
    case: Case, streams: Streams, seq: int, sides: tuple[tuple[int, ...], tuple[int, ...]], paths: tuple[Path, Path]
) -> LeftLoop | None:
    (reference, odd), (ref_path, odd_path) = sides, paths
    before_odd = streams.way_before(odd[0], seq, reference[0], ref_path)
    before_ref = streams.way_before(reference[0], seq, odd[0], odd_path)
    found = (
        left_loop_between(
            case, ref_path, odd_path, before_odd, reference, odd, streams.created_ns(reference[0], seq - 1)
        )
        or left_loop_between(case, odd_path, ref_path, before_ref, odd, reference, streams.created_ns(odd[0], seq - 1))
        or passed_loop_between(ref_path, odd_path, (before_ref, before_odd), reference, odd)
        or passed_loop_between(odd_path, ref_path, (before_ref, before_odd), odd, reference)
    )
    is_later = found is not None and are_a_round_ahead(case, found.stayers, found.leavers, found.frame, found.header)
    return None if is_later else found  # else they are in it again, a round of a loop around it later


def _split(
    stuck: StuckCollective,
    habits: Habits,
    fronts: Mapping[int, Sequence[int]],
    is_recorded: bool,
    awaited: Collection[int],
) -> tuple[tuple[int, ...], tuple[int, ...], bool] | None:
    """(those who are right, the others, whether that is sure): by majority, else those are wrong who left their habit.

    Up to the calls in which they wait: what they issued beyond has not happened. `is_recorded`: who belongs to the groups.
    Where it is not, one member that left no dump would undo a majority of one. Of a side that is `awaited` in another group
    the members that have not come yet may be no part. Those of them that made another call in its place, and those of whom
    nothing is known, may undo a majority.
    """
    if not stuck.is_mismatch:
        return None
    reference, others, is_sure = stuck.classes[0], stuck.classes[1:], stuck.has_majority
    is_narrow = not is_recorded and len(reference) <= sum(map(len, others)) + 1
    lead = len(reference) - sum(map(len, others))
    rows = {r: c.row for r, c in stuck.calls.items()} if not is_sure or is_narrow or lead <= len(stuck.missing) else {}
    is_open = is_sure and 0 < lead - len(stuck.unseen) <= habits.opponents(
        {r: rows[r] for r in reference if r in rows}, rows
    )
    if not is_sure or is_narrow or is_open:
        reached = {r: min(row, max(fronts.get(r) or (row,))) for r, row in rows.items()}
        not_come = 0 if set(awaited).isdisjoint(reference) else len(stuck.missing)
        is_sure, suspects = is_open and habits.are_known(rows) and not is_narrow, habits.departures(reached, not_come)
        wrong = [c for c in stuck.classes if not suspects.keys().isdisjoint(c)]
        if 0 < len(wrong) < len(stuck.classes):
            reference, others, is_sure = next(c for c in stuck.classes if c not in wrong), tuple(wrong), True
    return reference, tuple(sorted(r for c in others for r in c)), is_sure


def _split_at(
    streams: Streams, calls: Mapping[int, CollectiveCall], seq: int
) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Members by what they called; only where all called the same, by the path that led there."""
    signatures = {r: signature(c) for r, c in calls.items()}
    if len(set(signatures.values())) > 1:
        return majority(signatures)
    paths = {r: streams.path(r, seq) for r in calls}
    return majority(paths) if all(paths.values()) else majority(signatures)


def _kind(reference: CollectiveCall, odd: CollectiveCall) -> str:
    if signature(reference)[0] != signature(odd)[0]:
        return "op"
    return "size" if signature(reference) != signature(odd) else "path"


def divergence_at(
    case: Case,
    index: CallIndex,
    habits: Habits,
    stuck: StuckCollective,
    fronts: Mapping[int, Sequence[int]],
    awaited: Collection[int] = (),
) -> Divergence | None:
    """The divergence that leads to a stuck collective, or None where its members agree as far as they got.

    `fronts`: the rows of the calls in which each rank waits; what it issued beyond them has not happened yet. `awaited`: the
    ranks for which somebody waits in another group.
    """
    split = _split(stuck, habits, fronts, all(g.ranks for g in case.groups), awaited)
    if split is None:
        return None
    streams = Streams(case, stuck.index, stuck.seq)
    seq, shift = min(streams.first_difference(split[0][0], odd, stuck.seq) for odd in split[1])
    calls = calls_at(index, stuck.index, seq)
    reference, odd, has_majority = _split_at(streams, calls, seq) if seq < stuck.seq else split
    if not has_majority and split[2]:
        sides = [tuple(r for r in side if r in calls) for side in split[:2]]
        if all(sides):
            reference, odd, has_majority = *sides, True
    # An earlier, silent difference may only name ranks that are also in the minority where the call is stuck: the root of a
    # broadcast stands on another line than its receivers and is no culprit for that.
    if not odd or (split[2] and not set(odd) <= set(split[1])):
        seq, shift, calls = stuck.seq, 0, dict(stuck.calls)
        reference, odd, has_majority = split
    if seq < stuck.seq and not shift and _of_two_roles(case, streams, seq, calls, (reference, odd)):
        found = _describe(case, stuck, streams, (stuck.seq, 0), dict(stuck.calls), (*split[:2], False))
        return replace(found, of_roles=True)
    found = _describe(case, stuck, streams, (seq, shift), calls, (reference, odd, has_majority))
    is_open = not shift and found.left_loop is None and found.by_condition is None and len(reference) <= len(odd)
    if is_open and (makers := found.made_by_data) is not None:
        again = _describe(case, stuck, streams, (seq, 0), calls, _by_usage(streams, seq, makers, (reference, odd)))
        if again.skipped or again.has_majority:
            return again
    if seq == stuck.seq or shift or found.is_decided or found.left_loop is not None:
        return found
    # Nor may one that tells nobody: equal calls from two lines are no fault by themselves.
    return _describe(case, stuck, streams, (stuck.seq, 0), dict(stuck.calls), split)


def _by_usage(
    streams: Streams, seq: int, makers: tuple[int, ...], sides: tuple[tuple[int, ...], tuple[int, ...]]
) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """As `_split`, of sides as large as each other and a call that hangs on data: those are wrong who did what both seldom do there."""
    others = next(side for side in sides if side != makers)
    share = share_of_makers(streams, makers[0], others[0], seq)
    is_seldom = share is not None and share <= 1 - MOSTLY
    return (others, makers, True) if is_seldom else (makers, others, share is not None and share >= MOSTLY)


def silent_divergence_at(case: Case, index: CallIndex, stuck: StuckCollective) -> Divergence | None:
    """The divergence by which a member is behind: it left a call out, or made one more, and its later calls paired silently.

    Only call paths show that, and only where the member's later calls fit its peers' again, shifted.
    """
    if stuck.is_mismatch or not stuck.waiting:
        return None
    streams = Streams(case, stuck.index, stuck.seq)
    peer = stuck.waiting[0]
    for member, last in stuck.missing.items():
        if not last or not (streams.has_paths(member) and streams.has_paths(peer)):
            continue
        for reference, other in ((peer, member), (member, peer)):
            seq, shift = streams.first_difference(reference, other, last)
            if not shift:
                continue
            calls = calls_at(index, stuck.index, seq)
            right, odd, has_majority = _split_at(streams, calls, seq)
            side = stuck.missing if other == member else stuck.calls
            if has_majority and other in odd and set(odd) <= set(side):
                return _describe(case, stuck, streams, (seq, shift), calls, (right, odd, has_majority))
    return None


def _beyond_round(streams: Streams, seq: int, reference: int, odd: int, fork: Fork | None) -> tuple[bool, bool]:
    """Whether the odd rank, which stays in a loop, made no round more, and whether it made a call more."""
    if fork is None or not streams.finished_round(reference, seq):
        return False, False
    is_guarded = surroundings(fork.left.file, fork.left.line).suspicion > 0
    is_added = streams.has_one_more(reference, odd, seq, is_guarded)
    return is_added or is_guarded, is_added


def _those_with_a_path_first(streams: Streams, ranks: tuple[int, ...], seq: int) -> tuple[int, ...]:
    """The same ranks; one that aborted may have left its calls without their frames."""
    return tuple(sorted(ranks, key=lambda r: (not streams.path(r, seq), r)))


def _of_two_roles(
    case: Case,
    streams: Streams,
    seq: int,
    calls: Mapping[int, CollectiveCall],
    sides: tuple[tuple[int, ...], tuple[int, ...]],
) -> bool:
    """Whether equal calls met that two roles of the program make, each on its own lines: no side leaves anything there, and none is the usual one later."""
    is_equal = len({signature(calls[r]) for side in sides for r in side}) == 1
    return is_equal and are_roles(case, sides, [streams.path(side[0], seq) or () for side in sides])


def _is_by_rounds(
    case: Case,
    streams: Streams,
    seq: int,
    loop: LeftLoop,
    sides: tuple[tuple[int, ...], tuple[int, ...]],
    paths: tuple[Path, Path],
    until_ns: int,
    has_majority: bool,
) -> bool:
    """Whether ranks left a loop since they made other rounds of it. `until_ns`: when the reference made its call."""
    (reference, odd), (ref_path, odd_path), fork = sides, paths, fork_of(*paths)
    is_gone = loop.leavers == odd
    stay, left = (ref_path, odd_path) if is_gone else (odd_path, ref_path)
    if fork is not None and any(surroundings(f.file, f.line).depends_on_rank for f in odd_path[fork.depth :]):
        return False  # it did not run out of data: a condition on its rank led it elsewhere
    below = (*ref_path[fork.depth + 1 :], *odd_path[fork.depth + 1 :]) if fork is not None else ()
    if fork is not None and fork.same_line and loop.frame in below:
        return False  # one line dispatched different orders: a loop within one of them is no loop of both
    if is_gone and streams.always_follows(reference[0], seq):
        return False  # in the middle of what the loop always does: a call was left out
    is_guarded = (is_gone or has_majority) and is_guarded_in(case, loop, stay)
    if is_guarded and (is_gone or not ran_out(case, reference, odd, until_ns, loop.head)):
        return False  # a round may have left the call out
    # Where the rounds are the same by what the loop goes over, something in it has to tell why they were not.
    is_told = way_out_of(case, stay, left, loop.leavers) is not None
    return (
        is_told
        or rounds_of(loop.frame, loop.header) != SAME
        or counted_by_files(loop.frame.file, loop.header) is not None
    )


def _describe(
    case: Case,
    stuck: StuckCollective,
    streams: Streams,
    where: tuple[int, int],
    calls: Mapping[int, CollectiveCall],
    split: tuple[tuple[int, ...], tuple[int, ...], bool],
) -> Divergence:
    (seq, shift), (reference, odd, has_majority) = where, split
    reference, odd = (_those_with_a_path_first(streams, ranks, seq) for ranks in (reference, odd))
    ref_path, odd_path = (streams.path(ranks[0], seq) or () for ranks in (reference, odd))
    same_program = shift <= 0 and fork_of(ref_path, odd_path) is not None
    ways = [{streams.path(r, seq) or () for r in ranks} for ranks in (reference, odd)]
    by_condition = None if has_majority else told_by_condition(case, (reference, odd), ways)
    if by_condition is not None and by_condition.odd == reference:
        reference, odd, ref_path, odd_path = odd, reference, odd_path, ref_path
    can_leave = same_program and by_condition is None
    left_loop = _find_left_loop(case, streams, seq, (reference, odd), (ref_path, odd_path)) if can_leave else None
    if left_loop is not None and not has_majority and left_loop.leavers == odd:
        # Without a majority those with the extra iterations are named: they wait for calls that nobody else makes.
        reference, odd, ref_path, odd_path = odd, reference, odd_path, ref_path
    fork = fork_of(ref_path, odd_path)
    sides, paths, until_ns = (reference, odd), (ref_path, odd_path), calls[reference[0]].created_ns
    has_left_out = False
    if left_loop is not None and not _is_by_rounds(case, streams, seq, left_loop, sides, paths, until_ns, has_majority):
        # Those who are behind the loop may have left the call out in one of its rounds.
        has_left_out = left_loop.leavers == odd and is_guarded_in(case, left_loop, ref_path)
        left_loop = None
    added = False
    if left_loop is not None and left_loop.stayers == odd:
        is_no_round, added = _beyond_round(streams, seq, reference[0], odd[0], fork)
        left_loop = None if is_no_round else left_loop
    skipped = by_condition is not None and by_condition.is_left_out
    if by_condition is None and shift <= 0 and not added:
        is_open = left_loop is None
        found = left_out(streams, (reference[0], odd[0]), seq, (ref_path, odd_path), is_open)
        skipped, ref_path = has_left_out or found[0], found[1]
        fork = fork_of(ref_path, odd_path)
    return Divergence(
        group=stuck.group,
        seq=seq,
        stuck_seq=stuck.seq,
        reference=tuple(sorted(reference)),
        odd=tuple(sorted(odd)),
        has_majority=has_majority,
        by_condition=by_condition,
        reference_call=calls[reference[0]],
        odd_call=calls[odd[0]],
        reference_path=ref_path,
        odd_path=odd_path,
        fork=fork,
        differs=_kind(calls[reference[0]], calls[odd[0]]),
        added=added,
        skipped=skipped,
        left_loop=left_loop,
    )
