"""Where a rank departed from what it always does, and from what ranks with the same program do.

A training step repeats. What a rank will call next is told by the longest stretch of its past, or of a peer's, that ends
like its present. Where two sides of a wait blame each other, the one that did something else than its past foretold is
where the programs parted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
_MIX = np.uint64(0x9E3779B97F4A7C15)

Keys = npt.NDArray[np.uint64]


def _mixed(left: Keys, right: Keys) -> Keys:
    """One number for a pair of numbers."""
    mixed = (left ^ (right + _MIX + (left << np.uint64(6)) + (left >> np.uint64(2)))) * np.uint64(0xFF51AFD7ED558CCD)
    result: Keys = mixed ^ (mixed >> np.uint64(33))
    return result


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
                self._departures[rank, row] = self._departure(rank, row, last_rows)
        return {r: found for r, row in last_rows.items() if (found := self._departures[r, row]) is not None}

    def firsts(self, rows: Mapping[int, int]) -> frozenset[int]:
        """Those of the ranks that have never made this call before, which the others have; `rows`: the call of each."""
        if not self._table.active_ranks.isdisjoint(rows):
            return frozenset()
        starts = {rank: self._table.rank_rows(rank).start for rank in rows}
        return frozenset(r for r, row in rows.items() if self.tokens[row] not in self.tokens[starts[r] : row])

    @cached_property
    def tokens(self) -> Keys:
        """`[N]`: the kind of group, op, elements, direction, and the lines of the user's code where they are known."""
        table = self._table
        kinds: dict[object, int] = {}
        kind_of_group = [
            kinds.setdefault(g.desc if g.desc not in ("", "undefined") else len(g.ranks), len(kinds))
            for g in table.groups
        ]
        paths: dict[object, int] = {}
        of_stack = np.array([paths.setdefault(user_path(stack), len(paths) + 1) for stack in table.stacks] + [0])
        what = _mixed(signatures(table).astype(np.uint64), np.array(kind_of_group or [0], np.uint64)[table["group"]])
        return _mixed(_mixed(what, self._place), of_stack[table["frames"]].astype(np.uint64))

    @cached_property
    def _place(self) -> Keys:
        """`[N]`: how far the peer is away in the group, so that each stage of a pipeline speaks of "the next" alike."""
        table = self._table
        place = np.zeros(len(table), dtype=np.int64)
        for row in np.flatnonzero(table["is_p2p"] & (table["peer"] >= 0)).tolist():
            ranks = table.groups[int(table["group"][row])].ranks
            rank, peer = int(table["rank"][row]), int(table["peer"][row])
            near = rank in ranks and peer in ranks
            place[row] = 1000 + (ranks.index(peer) - ranks.index(rank) if near else peer - rank)
        return place.astype(np.uint64)

    @cached_property
    def _programs(self) -> dict[int, int]:
        """Equal numbers for ranks that run the same program: what each sends and receives again and again, and where."""
        table = self._table
        kinds = _mixed(self._place, table["op"].astype(np.uint64))
        programs: dict[int, int] = {}
        known: dict[frozenset[int], int] = {}
        for rank in np.unique(table["rank"]).tolist():
            rows = table.rank_rows(rank)
            found, counts = np.unique(kinds[rows][table["is_p2p"][rows]], return_counts=True)
            programs[rank] = known.setdefault(frozenset(found[counts > 1].tolist()), len(known))
        return programs

    def _peers(self, rank: int, suspects: Collection[int], are_suspects: bool) -> list[int]:
        """Ranks with the same program that are (not) suspected, those with the longest record first."""
        ranks = self._programs.keys() - self._table.active_ranks - {rank}
        same = [r for r in ranks if self._programs[r] == self._programs[rank]]
        lengths = {r: -(s.stop - s.start) for r in same for s in [self._table.rank_rows(r)]}
        return sorted((r for r in same if (r in suspects) is are_suspects), key=lambda r: (lengths[r], r))[:_MOST_PEERS]

    def _stream(self, rank: int) -> Keys:
        rows = self._table.rank_rows(rank)
        return self.tokens[max(rows.start, rows.stop - _MOST_ROWS) : rows.stop]

    def _departure(self, rank: int, last_row: int, suspects: Collection[int]) -> int | None:
        if rank not in self._programs:
            return None
        first = max(self._table.rank_rows(rank).start, last_row + 1 - _MOST_ROWS)
        stream = self.tokens[first : last_row + 1]
        foretelling, clearing = (
            [self._stream(p) for p in self._peers(rank, suspects, is_one)] for is_one in (False, True)
        )
        found, period = _departures(stream, foretelling, clearing)
        lately = [i for i in found if i >= len(stream) - max(period, _LEAST_PERIOD)]
        return first + lately[0] if lately else None


def _departures(stream: Keys, peers: Sequence[Keys], clearing: Sequence[Keys]) -> tuple[list[int], int]:
    """(places at which the past foretold another call, calls of one repetition).

    What a rank did before counts most; where that says nothing, its peers foretell. A call is no departure if any peer, or
    one of `clearing`, makes it after an equal stretch that is as long.
    """
    others = [*peers, *clearing]
    own_run = np.zeros(len(stream) + 1, dtype=np.int64)  # length of the equal stretch that ends before each place
    runs = [np.zeros(len(r) + 1, dtype=np.int64) for r in others]
    found, distances = [], []
    for i, token in enumerate(stream):
        told = own_run[:i]
        longest = int(told.max(initial=0))
        at = np.flatnonzero(told == longest) if longest >= _LEAST_STRETCH else np.zeros(0, dtype=np.int64)
        if len(at) and (stream[at] == token).any():
            distances.append(i - int(at[-1]))
        else:
            if not len(at):
                longest = max((int(run[:-1].max(initial=0)) for run in runs[: len(peers)]), default=0)
            is_told = longest >= _LEAST_STRETCH
            if is_told and not any(
                (r[run[:-1] >= longest] == token).any() for r, run in zip(others, runs, strict=True)
            ):
                found.append(i)
        for reference, run in zip([stream, *others], [own_run, *runs], strict=True):
            run[1:] = np.where(reference == token, run[:-1] + 1, 0)
    return found, int(np.median(distances[-_LATEST:])) if distances else len(stream)
