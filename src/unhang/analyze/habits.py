"""Where a rank departed from what it always does, and from what ranks with the same program do.

A training step repeats. What a rank will call next is told by the longest stretch of its past, or of a peer's, that ends
like its present. Where two sides of a wait blame each other, the one that did something else than its past foretold is
where the programs parted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from unhang.analyze.callpath import user_path
from unhang.analyze.positions import signatures
from unhang.model import CollectiveTable

_LEAST_STRETCH = 3
_MOST_ROWS = 1000
_MOST_PEERS = 3
_LATEST, _LEAST_PERIOD = 32, 8
_MOST_WITNESSES = 8
_MOSTLY, _UNKNOWN = 0.75, 1 << 24
_MIX = np.uint64(0x9E3779B97F4A7C15)

Keys = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]


def _mixed(left: Keys, right: Keys) -> Keys:
    """One number for a pair of numbers."""
    mixed = (left ^ (right + _MIX + (left << np.uint64(6)) + (left >> np.uint64(2)))) * np.uint64(0xFF51AFD7ED558CCD)
    result: Keys = mixed ^ (mixed >> np.uint64(33))
    return result


@dataclass(frozen=True)
class _Program:
    """The kinds of transfers that a rank makes: again and again, and at all."""

    often: frozenset[int]
    ever: frozenset[int]

    def is_like(self, other: _Program) -> bool:
        """Whether each makes what the other makes again and again; one that departed makes it once less, and another one."""
        return self.often <= other.ever and other.often <= self.ever


def _rings(table: CollectiveTable, rows: Ints, distance: Ints, size_N: Ints) -> Ints:
    """Groups nearly all of whose batches send so far one way as they receive from the other; `rows`: the sends and receives."""
    is_send = np.array([op.rsplit(":", 1)[-1] == "send" for op in table.ops] or [False])[table["op"][rows]]
    ahead = np.where(is_send, distance[rows], -distance[rows]) % size_N[rows]
    keys = np.stack([table[name][rows].astype(np.int64) for name in ("group", "rank", "seq")])
    batches, of_row, count = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    of_row = of_row.reshape(-1)
    sends, steps, squares = (
        np.bincount(of_row, weights=values, minlength=len(count)) for values in (is_send, ahead, ahead * ahead)
    )
    is_exchange = (count == 2) & (sends == 1) & (squares * 2 == steps * steps)
    groups, group_of = np.unique(batches[0], return_inverse=True)
    share = np.bincount(group_of, weights=is_exchange) / np.bincount(group_of) if len(groups) else np.zeros(0)
    return groups[share >= _MOSTLY]


class Habits:
    """The calls of all ranks of a table, in words that mean the same on every rank. Legend: N rows."""

    def __init__(self, table: CollectiveTable) -> None:
        self._table = table
        self._departures: dict[tuple[int, int], int | None] = {}

    def departures(self, last_rows: Mapping[int, int]) -> dict[int, int]:
        """Those of the ranks that departed from their habit lately, with the row of the first call in which they did.

        `last_rows`: up to which of its calls each of the ranks is looked at; what it issued ahead does not matter. Nothing is
        said where the past of one of them is not in its dump: it could not be told from the others.
        """
        if not self._table.active_ranks.isdisjoint(last_rows):
            return {}
        for rank, row in last_rows.items():
            if (rank, row) not in self._departures:
                self._departures[rank, row] = self._departure(rank, last_rows)
        return {r: found for r, row in last_rows.items() if (found := self._departures[r, row]) is not None}

    def firsts(self, rows: Mapping[int, int]) -> frozenset[int]:
        """Those of the ranks whose call is made for the first time anywhere, while the others' is known; `rows`: the call of each."""
        if not self._table.active_ranks.isdisjoint(rows):
            return frozenset()
        at = np.array(list(rows.values()), dtype=np.int64)
        elsewhere = np.ones(len(self._table), dtype=bool)
        for rank, row in rows.items():
            elsewhere[row : self._table.rank_rows(rank).stop] = False
        known = np.isin(self.tokens[at], self.tokens[elsewhere])
        return frozenset(r for r, is_known in zip(rows, known.tolist(), strict=True) if not is_known)

    @cached_property
    def tokens(self) -> Keys:
        """`[N]`: the kind of group, op, elements, direction, and the lines of the user's code where they are known."""
        table = self._table
        paths: dict[object, int] = {}
        of_stack = np.array([paths.setdefault(user_path(stack), len(paths) + 1) for stack in table.stacks] + [0])
        what = _mixed(signatures(table).astype(np.uint64), self._kind_of_group)
        return _mixed(_mixed(what, self._place), of_stack[table["frames"]].astype(np.uint64))

    @cached_property
    def _kind_of_group(self) -> Keys:
        """`[N]`: equal numbers for groups of one purpose."""
        kinds: dict[object, int] = {}
        found = [
            kinds.setdefault(g.desc if g.desc not in ("", "undefined") else len(g.ranks), len(kinds))
            for g in self._table.groups
        ]
        of_row: Keys = np.array(found or [0], np.uint64)[self._table["group"]]
        return of_row

    @cached_property
    def _place(self) -> Keys:
        """`[N]`: how far the peer is away in the group, so that each stage of a pipeline speaks of "the next" alike.

        In a ring the next of the last member is the first.
        """
        table = self._table
        place = np.zeros(len(table), dtype=np.int64)
        rows = np.flatnonzero(table["is_p2p"] & (table["peer"] >= 0))
        for row in rows.tolist():
            ranks = table.groups[int(table["group"][row])].ranks
            rank, peer = int(table["rank"][row]), int(table["peer"][row])
            near = rank in ranks and peer in ranks
            place[row] = 1000 + (ranks.index(peer) - ranks.index(rank) if near else peer - rank)
        size_N = np.array([len(g.ranks) or _UNKNOWN for g in table.groups] or [_UNKNOWN])[table["group"]]
        in_ring = rows[np.isin(table["group"][rows], _rings(table, rows, place - 1000, size_N))]
        place[in_ring] = 1000 + (place[in_ring] - 1000) % size_N[in_ring]
        return place.astype(np.uint64)

    @cached_property
    def _programs(self) -> dict[int, _Program]:
        """What each rank sends and receives, and where; one object for equal ones."""
        table = self._table
        kinds = _mixed(_mixed(self._place, table["op"].astype(np.uint64)), self._kind_of_group)
        programs: dict[int, _Program] = {}
        known: dict[_Program, _Program] = {}
        for rank in np.unique(table["rank"]).tolist():
            rows = table.rank_rows(rank)
            found, counts = np.unique(kinds[rows][table["is_p2p"][rows]], return_counts=True)
            program = _Program(frozenset(found[counts > 1].tolist()), frozenset(found.tolist()))
            programs[rank] = known.setdefault(program, program)
        return programs

    def _peers(self, rank: int, suspects: Collection[int], are_suspects: bool, but: Collection[int] = ()) -> list[int]:
        """Ranks with the same program that are (not) suspected, those with the longest record first."""
        ranks = self._programs.keys() - self._table.active_ranks - {rank, *but}
        mine = self._programs[rank]
        alike = {p: p.is_like(mine) for p in set(self._programs.values())}
        same = [r for r in ranks if (r in suspects) is are_suspects and alike[self._programs[r]]]
        lengths = {r: -(s.stop - s.start) for r in same for s in [self._table.rank_rows(r)]}
        return sorted(same, key=lambda r: (self._programs[r].often != mine.often, lengths[r], r))[:_MOST_PEERS]

    def _stream(self, rank: int) -> Keys:
        rows = self._table.rank_rows(rank)
        return self.tokens[max(rows.start, rows.stop - _MOST_ROWS) : rows.stop]

    def _is_same_call(self, row: int, other: int) -> bool:
        table = self._table
        same = all(table[name][row] == table[name][other] for name in ("group", "seq", "is_p2p"))
        return same and bool(self.tokens[row] == self.tokens[other])

    def _restart(self, rank: int, last_row: int, suspects: Collection[int]) -> int:
        """How many calls the rank made until, after a collective that it shares with them, other ranks began anew; 0 if none did.

        A rank in its second repetition has no past that tells where the first one ends; that others are through tells it.
        """
        table = self._table
        mine = slice(table.rank_rows(rank).start, last_row + 1)
        lost = table.wrapped_ranks | table.active_ranks
        for other in [r for r in self._programs if r not in suspects and r not in lost][:_MOST_WITNESSES]:
            calls = self._calls_in_a_round(other)
            end = table.rank_rows(other).start + calls - 1
            if not calls or table["is_p2p"][end]:
                continue
            same = [table[name][mine] == table[name][end] for name in ("group", "seq", "is_p2p")]
            at = np.flatnonzero(np.logical_and.reduce(same))
            if len(at):
                return int(at[-1]) + 1
        return 0

    def _calls_in_a_round(self, rank: int) -> int:
        """After how many calls nearly all that a rank did follows again as from its begin; 0 if that is not seen."""
        stream = self._stream(rank)
        for n in range(_LEAST_STRETCH, len(stream) - _LEAST_STRETCH + 1):
            if stream[n] == stream[0]:
                differs = np.append(np.flatnonzero(stream[n:] != stream[: len(stream) - n]), len(stream) - n)
                if differs[0] >= max(_LEAST_STRETCH, _MOSTLY * (len(stream) - n)):
                    return n
        return 0

    def _departure(self, rank: int, last_rows: Mapping[int, int]) -> int | None:
        if rank not in self._programs:
            return None
        last_row = last_rows[rank]
        side = {r for r, row in last_rows.items() if self._is_same_call(row, last_row)}
        companions = len(side)
        if 2 * companions > len(last_rows):
            side = {rank}  # the greater part may clear its members; a smaller one that waits in one call may not
        rows = self._table.rank_rows(rank)
        first = max(rows.start, last_row + 1 - _MOST_ROWS)
        foretelling, clearing = (
            [self._stream(p) for p in self._peers(rank, last_rows, is_one, side)] for is_one in (False, True)
        )
        is_whole = first == rows.start and rank not in self._table.wrapped_ranks
        record = self._table["record_id"]
        equals = [
            self._table.rank_rows(p) for is_one in (False, True) for p in self._peers(rank, last_rows, is_one, side)
        ]
        past = _Past(
            self.tokens[first : last_row + 1],
            self._table["group"][first : last_row + 1],
            frozenset(np.unique(self._table["group"][rows]).tolist()),
            is_whole,
            self._restart(rank, last_row, last_rows) if is_whole else 0,
            tuple((self.tokens[of], int(record[first]) - int(record[of.start])) for of in equals),
            companions,
            sum(bool(self.tokens[row] == self.tokens[last_row]) for row in last_rows.values()),
        )
        found, period = _departures(past, foretelling, clearing)
        lately = [i for i in found if i >= len(past.stream) - max(period, _LEAST_PERIOD)]
        return first + lately[0] if lately else None


@dataclass(frozen=True)
class _Past:
    """The calls of a rank up to the one in question, `[N]`.

    `all_groups`: those in which it made calls. `is_whole`: the very first of its calls is there.
    `restart`: the number of calls in the first repetition, where other ranks tell it, else 0. `equals`: all calls of ranks
    with the same program, and where among them the call stands that has the number of the first one here. `companions`: how many
    ranks, with this one, wait in the call in question. `alike`: how many wait in a call of its kind, in any group.
    """

    stream: Keys
    group: npt.NDArray[np.int32]
    all_groups: frozenset[int]
    is_whole: bool
    restart: int
    equals: tuple[tuple[Keys, int], ...] = ()
    companions: int = 1
    alike: int = 1

    def repeats(self, start: int, end: int) -> bool:
        """Whether the calls from `start` to `end` are a whole round of the program, and not of a loop within it.

        A loop that ends for the first time looks like a departure. In a whole round the rank makes all the calls, in all
        the groups, that it made before.
        """
        return self.has_all_groups(start, end) and bool(np.isin(self.stream[:start], self.stream[start:end]).all())

    def has_all_groups(self, start: int, end: int) -> bool:
        """Whether from `start` to `end` there are calls in all the groups in which the rank makes any."""
        return self.all_groups <= set(np.unique(self.group[start:end]).tolist())

    def is_cut_at(self, at: Ints, stretch: int) -> bool:
        """Whether the one place that this stretch led to is where the lost part of the past ends: it may have been longer."""
        return not self.is_whole and stretch > 0 and len(at) == 1 and int(at[0]) == stretch

    def is_cut_loop(self, at: Ints, i: int, stretch: int) -> bool:
        """Whether all that is known of the past is the end of a loop whose begin is lost: it may have had more rounds.

        The call at `i` is then no departure where the stretch goes back to the lost part, or where the loop goes on.
        """
        n, stream = int(at[0]), self.stream
        if self.is_whole or len(at) > 1:
            return False
        calls = next((q for q in range(1, n) if np.array_equal(stream[q:n], stream[: n - q])), None)
        if calls is None or self.all_groups <= set(self.group[i - calls : i].tolist()):
            return False
        is_all = 2 * calls <= n and np.array_equal(stream[:n], stream[i - n : i])
        return is_all or (calls <= stretch and bool(stream[i] == stream[i - calls]))

    def is_outvoted(self, i: int) -> bool:
        """Whether more than its companions, who made the same calls under the same numbers up to this one, all made another now.

        Right after the begin of the program they must all have made the same other one: ranks may start differently.
        """
        votes = []
        for stream, at in self.equals:
            first = max(0, -at)
            is_known = first + _LEAST_STRETCH <= i or (self.is_whole and at == 0)
            if is_known and i + at < len(stream) and np.array_equal(stream[first + at : i + at], self.stream[first:i]):
                votes.append(int(stream[i + at]))
        is_one = i >= _LEAST_STRETCH or len(set(votes)) == 1
        rivals = max(1, self.companions, self.alike if i == len(self.stream) - 1 else 1)
        return len(votes) > rivals and is_one and int(self.stream[i]) not in votes

    def begins_anew_otherwise(self, i: int) -> bool:
        """Whether the second repetition is equal to the first up to this call, and differs in it."""
        n = i - self.restart
        if not self.restart or not 0 <= n < min(self.restart, _LEAST_STRETCH):
            return False  # later its own past tells
        return bool((self.stream[:n] == self.stream[self.restart : i]).all()) and bool(self.stream[n] != self.stream[i])


def _departures(past: _Past, peers: Sequence[Keys], clearing: Sequence[Keys]) -> tuple[list[int], int]:
    """(places at which the past foretold another call, calls of one repetition).

    What a rank did before counts most; where that says nothing, its peers foretell. A call is no departure if any peer, or
    one of `clearing`, makes it after an equal stretch that is as long.
    """
    stream, others = past.stream, [*peers, *clearing]
    own_run = np.zeros(len(stream) + 1, dtype=np.int64)  # length of the equal stretch that ends before each place
    runs = [np.zeros(len(r) + 1, dtype=np.int64) for r in others]
    found, distances = [], []
    for i, token in enumerate(stream):
        told = own_run[:i]
        longest = int(told.max(initial=0))
        at = np.flatnonzero(told == longest)
        if longest < _LEAST_STRETCH and not past.is_cut_at(at, longest):
            at = at[:0]
        if len(at) and (stream[at] == token).any():
            distances.append(i - int(at[-1]))
        else:
            is_told = len(at) > 0 and past.repeats(int(at[0]), i) and not past.is_cut_loop(at, i, longest)
            if not len(at):
                longest = max((int(run[:-1].max(initial=0)) for run in runs[: len(peers)]), default=0)
                is_from_begin = past.is_whole and longest == i
                is_told = longest >= _LEAST_STRETCH and (is_from_begin or past.repeats(i - longest, i))
                if not is_told and past.begins_anew_otherwise(i):
                    longest, is_told = i - past.restart + 1, True
            if not is_told and past.is_outvoted(i):
                longest, is_told = i, True
            if is_told and not any(
                (r[run[:-1] >= longest] == token).any() for r, run in zip(others, runs, strict=True)
            ):
                found.append(i)
        for reference, run in zip([stream, *others], [own_run, *runs], strict=True):
            run[1:] = np.where(reference == token, run[:-1] + 1, 0)
    period = max(distances[-_LATEST:], default=len(stream))
    is_first_round = past.is_whole and not past.has_all_groups(len(stream) - period, len(stream))
    return found, len(stream) if is_first_round else period
