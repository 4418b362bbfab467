"""The recorded calls in which each rank waits, and the other side of each send and receive.

A device executes what its rank has issued in order. So of many open calls a rank waits in the first one (in those that have
started, where the dump tells), and its later calls have been issued but have not arrived.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

from unhang.analyze.calls.positions import (
    bare_op,
    is_complete,
    of_both_kinds,
    own_words,
    reported_completed,
    run_starts,
)
from unhang.model import CallState, CollectiveTable, different, grouped
from unhang.numeric import np, npt


def is_open(table: CollectiveTable) -> npt.NDArray[np.bool_]:
    """`[N]`: calls that have not completed. The entry that tracks a batch of sends and receives is none itself."""
    found: npt.NDArray[np.bool_] = ~is_complete(table) & ~tracks_a_batch(table)
    return found


def tracks_a_batch(table: CollectiveTable) -> npt.NDArray[np.bool_]:
    """`[N]`: entries that are no call, but track a batch of sends and receives."""
    tracks = np.array(["coalesced" in op for op in table.ops] or [False])
    found: npt.NDArray[np.bool_] = table["is_p2p"] & tracks[table["op"]]
    return found


def are_sends(table: CollectiveTable) -> npt.NDArray[np.bool_]:
    """`[O]`: which of the table's ops are sends."""
    return np.array([bare_op(op) == "send" for op in table.ops] or [False])


def fronts(table: CollectiveTable, old_counts: Collection[int] = ()) -> dict[int, tuple[int, ...]]:
    """Rank -> rows of the calls in which it waits: those that have started, else the first open one and its batch.

    Without rows where the rank waits in a call that is not in its dump any more. `old_counts`: ranks whose own word is older
    than their entries, and tells of no such call; nor does it tell whether the transfers in a dump of open calls are done.
    """
    if table.is_empty:
        return {}
    rows = np.flatnonzero(is_open(table))
    if not len(rows):
        return {}
    rows = rows[np.lexsort((table["record_id"][rows], table["rank"][rows]))]
    rank = table["rank"][rows]
    starts = run_starts(rank)
    of_rank = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(rows))))
    has_started = table["state"][rows] != CallState.SCHEDULED
    any_started = np.logical_or.reduceat(has_started, starts)[of_rank]
    first = rows[starts][of_rank]
    with_first = np.logical_and.reduce([table[n][rows] == table[n][first] for n in ("group", "seq", "is_p2p")])
    is_front = np.where(any_started, has_started, with_first)
    found = grouped(zip(rank[is_front].tolist(), rows[is_front].tolist(), strict=True))
    said = _say_that_theirs_is_lost(table) - set(rank[any_started].tolist()) - {*old_counts}
    cut = _begin_with_the_end_of_a_batch(table)
    lost = said | cut | _may_have_lost_theirs(table, set(rank[~any_started].tolist()))
    lost |= {r for r in table.active_ranks.intersection(old_counts, found) if table["is_p2p"][found[r][0]]}
    return {r: () if r in lost else tuple(found[r]) for r in sorted(found.keys() | said | cut)}


def _begin_with_the_end_of_a_batch(table: CollectiveTable) -> frozenset[int]:
    """Ranks of whose first batch but the entry that tracks it is left, and open: they wait in transfers that are overwritten."""
    first_R = run_starts(table["rank"])
    is_cut_R = tracks_a_batch(table)[first_R] & (table["state"][first_R] != CallState.COMPLETED)
    return frozenset(table["rank"][first_R[is_cut_R]].tolist())


def _may_have_lost_theirs(table: CollectiveTable, ranks: Collection[int]) -> frozenset[int]:
    """Those of the ranks whose ring buffer is full of calls that have not completed: the first of them may be overwritten.

    How much a buffer holds is told by the dumps that hold completed calls too, and not from the first one on.
    """
    begin_R = run_starts(table["rank"])
    end_R = np.append(begin_R[1:], len(table)) - 1
    rank_R = table["rank"][begin_R]
    span_R = table["record_id"][end_R] - table["record_id"][begin_R] + 1
    is_active_R = np.isin(rank_R, list(table.active_ranks))
    is_partial_R = is_active_R | np.isin(rank_R, list(table.wrapped_ranks))
    most = int(span_R[is_partial_R & ~is_active_R].max(initial=0))
    if not most:
        return frozenset()
    is_open_R = np.logical_and.reduceat(table["state"] != CallState.COMPLETED, begin_R)
    found = is_partial_R & is_open_R & (span_R >= most) & np.isin(rank_R, list(ranks))
    return frozenset(rank_R[found].tolist())


def _say_that_theirs_is_lost(table: CollectiveTable) -> frozenset[int]:
    """Ranks with a partial dump that say that a call of a group is open which is before all that is left of the group."""
    key, enqueued, completed = own_words(table)
    key_N = table["rank"].astype(np.int64) * max(1, len(table.groups)) + table["group"]
    present, first = np.unique(key_N, return_index=True)
    at = np.minimum(np.searchsorted(present, key), max(0, len(present) - 1))
    is_there = present[at] == key if len(present) else np.zeros(len(key), dtype=bool)
    row = first[at] if len(present) else np.zeros(len(key), dtype=np.int64)
    is_kept = is_there & ((table["seq"][row] <= completed + 1) | (table["state"][row] == CallState.COMPLETED))
    lost = key[(enqueued > completed) & ~is_kept] // max(1, len(table.groups))
    return frozenset(lost.tolist()) & (table.wrapped_ranks | table.active_ranks)


def stalled(table: CollectiveTable, fronts: Mapping[int, Sequence[int]]) -> frozenset[int]:
    """Ranks that wait for their own device: it has not begun the first open call, and every call before that has completed.

    Told only where the dumps record when calls begin, and where the call before it in its group is not overwritten (it may
    be open), or the rank itself says that it has completed, and of no group says what may mean another open call. If that
    is so on the greater part of the ranks, something that is not recorded keeps them all, and none is named.
    """
    if table.is_empty:
        return frozenset()
    if not (table["state"] == CallState.STARTED).any():
        return frozenset()
    first = np.array(
        [f[0] for f in fronts.values() if f and table["state"][f[0]] == CallState.SCHEDULED], dtype=np.int64
    )
    progress = table.progress
    is_unclear = of_both_kinds(table)[progress["group"]] & (progress["enqueued"] != progress["completed"])
    said = reported_completed(table, first) >= np.maximum(table["seq"][first] - 1, 0)
    said &= ~np.isin(table["rank"][first], progress["rank"][is_unclear])
    found = set()
    for row, is_said in zip(first.tolist(), said.tolist(), strict=True):
        rank = int(table["rank"][row])
        rows = table.rank_rows(rank)
        before = slice(rows.start, row)
        same = [table[name][before] == table[name][row] for name in ("group", "is_p2p")]
        is_timed = rank in table.active_ranks or bool(table["started_ns"][rows].any())
        if is_timed and (is_said or rank not in table.wrapped_ranks or bool((same[0] & same[1]).any())):
            found.add(rank)
    return frozenset(found) if 2 * len(found) <= len(different(table["rank"])) else frozenset()


_Completed = Mapping[tuple[int, int], int]  # (group, sequence number) -> row


@dataclass
class _Channel:
    """The sends and receives between two ranks in one direction, in the order of issue."""

    sends: list[int] = field(default_factory=list)
    receives: list[int] = field(default_factory=list)


def matched_transfers(table: CollectiveTable) -> Mapping[int, int | None]:
    """Row of each open send or receive -> the row of the other side, None where the peer has not issued it.

    The nth send of a pair belongs to its nth receive. Where the first calls are lost, they are counted from the last
    collective that both have completed, if there is one; else what is open is paired in order: a transfer completes on both
    sides, though the batch that it is in may not. What is left over then is not in the answer:
    its other side may have completed, and be lost. `p2p_seq_id` cannot pair them: it counts the calls with all peers together;
    it may show that none is lost.
    """
    if table.is_empty:
        return {}
    is_p2p = table["is_p2p"] & (table["peer"] >= 0)
    is_send_of_op, is_open_N = are_sends(table), is_open(table)
    wanted = set(_keys(table, np.flatnonzero(is_p2p & is_open_N), is_send_of_op))
    if not wanted:
        return {}
    channels: dict[tuple[int, int, int], _Channel] = {key: _Channel() for key in wanted}
    groups = sorted({g for g, _, _ in wanted})
    rows = np.flatnonzero(is_p2p & np.isin(table["group"], groups))
    keys = zip(rows.tolist(), _keys(table, rows, is_send_of_op), is_send_of_op[table["op"][rows]].tolist(), strict=True)
    for row, key, is_send in keys:
        channel = channels.get(key)
        if channel is not None:
            (channel.sends if is_send else channel.receives).append(row)
    matched: dict[int, int | None] = {}
    batched = _batches(table)
    completed = cache(partial(_completed_collectives, table))
    is_whole = cache(partial(_has_all_transfers, table))
    for (group, sender, receiver), channel in channels.items():
        sides = [channel.sends, channel.receives]
        lost = table.wrapped_ranks | (frozenset() if _is_in_batches(table, sides, batched) else table.active_ranks)
        is_counted = True
        if any(rank in lost and not is_whole(rank, group) for rank in (sender, receiver)):
            counted = _since_they_met(table, (completed(sender), completed(receiver)), sides)
            is_counted = counted is not None
            sides = counted or [[r for r in rows if is_open_N[r]] for rows in sides]
        for mine, other in (sides, sides[::-1]):
            for i, row in enumerate(mine):
                if is_open_N[row] and (i < len(other) or is_counted):
                    matched[row] = other[i] if i < len(other) else None
    return matched


def _has_all_transfers(table: CollectiveTable, rank: int, group: int) -> bool:
    """Whether no send or receive of a rank in a group is lost: they are numbered from 1 without a gap.

    Of a batch that begins what is left of the rank the first members may be lost, unless the next one is its like.
    """
    of_rank = table.rank_rows(rank)
    rows = np.flatnonzero(table["is_p2p"][of_rank] & (table["group"][of_rank] == group)) + of_rank.start
    seqs = different(table["seq"][rows])
    if not len(seqs) or seqs[0] != 1 or seqs[-1] != len(seqs):
        return False
    first, second = (
        [(c.op, c.peer) for c in table.calls(rows[table["seq"][rows] == seq]) if "coalesced" not in c.op]
        for seq in (1, 2)
    )
    return bool(rows[0] > of_rank.start) or first == second


def sends_without_a_receive(table: CollectiveTable) -> tuple[int, ...]:
    """Rows of open sends to ranks that say that all they enqueued in the group has completed: a receive ends after its send.

    Of the first open batch of a group some members may be done; the batches behind it have not begun.
    """
    if table.is_empty:
        return ()
    is_open_N = is_open(table) & table["is_p2p"]
    rows = np.flatnonzero(is_open_N & are_sends(table)[table["op"]] & (table["peer"] >= 0))
    key, enqueued, completed = own_words(table)
    of_peer = table["peer"][rows].astype(np.int64) * max(1, len(table.groups)) + table["group"][rows]
    idle = different(key[enqueued == completed], [-1])
    rows = rows[idle[np.searchsorted(idle, of_peer, side="right") - 1] == of_peer]
    batched = _batches(table) if len(rows) else frozenset()
    found = []
    for row in rows.tolist():
        rank, group, seq = (int(table[name][row]) for name in ("rank", "group", "seq"))
        before = slice(table.rank_rows(rank).start, row)
        earlier = table["seq"][before][is_open_N[before] & (table["group"][before] == group)]
        is_behind = any((rank, group, s) in batched for s in set(earlier.tolist()) - {seq})
        if is_behind or (rank, group, seq) not in batched:
            found.append(row)
    return tuple(found)


def _batches(table: CollectiveTable) -> frozenset[tuple[int, int, int]]:
    """(rank, group, sequence number) of the sends and receives that another entry tracks."""
    rows = np.flatnonzero(tracks_a_batch(table))
    return frozenset(zip(*(table[name][rows].tolist() for name in ("rank", "group", "seq")), strict=True))


def _is_in_batches(
    table: CollectiveTable, sides: Sequence[Sequence[int]], batched: Collection[tuple[int, int, int]]
) -> bool:
    """Whether these are members of batches, which a dump of open calls keeps when they are done."""
    is_open = (row for rows in sides for row in rows if table["state"][row] != CallState.COMPLETED)
    return all(tuple(int(table[name][row]) for name in ("rank", "group", "seq")) in batched for row in is_open)


def _since_they_met(
    table: CollectiveTable, met: tuple[_Completed, _Completed], sides: list[list[int]]
) -> list[list[int]] | None:
    """The sends and the receives of a pair since the last collective that both completed; None where that does not tell.

    `met`: the collectives that each of the two completed.
    It does not if the two disagree on how many there were since an earlier one: some were then under way across it.
    """
    common = sorted(met[0].keys() & met[1].keys(), key=met[0].__getitem__)
    if not common:
        return None
    first, last = ([rows[common[at]] for rows in met] for at in (0, -1))
    between = [sum(a < row < b for row in rows) for a, b, rows in zip(first, last, sides, strict=True)]
    is_across = any(
        table["state"][row] != CallState.COMPLETED
        for b, rows in zip(last, sides, strict=True)
        for row in rows
        if row < b
    )
    if is_across or between[0] != between[1]:
        return None
    return [[row for row in rows if row > b] for b, rows in zip(last, sides, strict=True)]


def _completed_collectives(table: CollectiveTable, rank: int) -> _Completed:
    rows = table.rank_rows(rank)
    is_met = (table["state"][rows] == CallState.COMPLETED) & ~table["is_p2p"][rows]
    at = np.flatnonzero(is_met) + rows.start
    return dict(zip(zip(table["group"][at].tolist(), table["seq"][at].tolist(), strict=True), at.tolist(), strict=True))


def _keys(
    table: CollectiveTable, rows: npt.NDArray[np.int64], is_send_of_op: npt.NDArray[np.bool_]
) -> Iterator[tuple[int, int, int]]:
    """(group, sender, receiver) of each row."""
    group, rank, peer = (table[name][rows] for name in ("group", "rank", "peer"))
    is_send = is_send_of_op[table["op"][rows]]
    sender, receiver = np.where(is_send, rank, peer), np.where(is_send, peer, rank)
    return zip(group.tolist(), sender.tolist(), receiver.tolist(), strict=True)
