"""What a rank does for the first time: the transition between two calls that nobody else ever makes.

Ranks that run the same program make the same calls after the same calls, iteration after iteration. Where two sides of a
wait blame each other, the one that left its own and everybody's habit is where the programs parted.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

import numpy as np
import numpy.typing as npt

from unhang.analyze.callpath import user_path
from unhang.analyze.positions import signatures
from unhang.model import CollectiveTable

_CONTEXT = 2
_LEAST_SEEN = 3  # contexts seen less often tell nothing
_MIX = np.uint64(0x9E3779B97F4A7C15)

Keys = npt.NDArray[np.uint64]


def _mixed(left: Keys, right: Keys) -> Keys:
    """One number for a pair of numbers."""
    mixed = (left ^ (right + _MIX + (left << np.uint64(6)) + (left >> np.uint64(2)))) * np.uint64(0xFF51AFD7ED558CCD)
    result: Keys = mixed ^ (mixed >> np.uint64(33))
    return result


class Habits:
    """The transitions of all ranks of a table. Legend: N rows, T transitions (rows with enough rows before them)."""

    def __init__(self, table: CollectiveTable) -> None:
        self._table = table

    @cached_property
    def tokens(self) -> Keys:
        """`[N]`: what each call is, in words that mean the same on every rank: kind of group, op, elements, direction."""
        table = self._table
        kinds: dict[object, int] = {}
        kind_of_group = np.array(
            [
                kinds.setdefault(g.desc if g.desc not in ("", "undefined") else len(g.ranks), len(kinds))
                for g in table.groups
            ]
            or [0]
        )
        what = _mixed(signatures(table).astype(np.uint64), kind_of_group[table["group"]].astype(np.uint64))
        return _mixed(what, self._place)

    @cached_property
    def _place(self) -> Keys:
        return _place_in_group(self._table)

    @cached_property
    def _programs(self) -> Keys:
        """`[N]`: equal numbers for ranks that run the same program: what each sends and receives, and in which direction."""
        table = self._table
        ranks, of_row = np.unique(table["rank"], return_inverse=True)
        p2p = np.flatnonzero(table["is_p2p"])
        kinds = np.unique(_mixed(self._place[p2p], table["op"][p2p].astype(np.uint64)), return_inverse=True)[1]
        width = int(kinds.max(initial=0)) + 1
        pairs, counts = np.unique(of_row[p2p] * width + kinds, return_counts=True)
        usual = pairs[counts > 1]
        programs = np.zeros(len(ranks), dtype=np.uint64)
        np.add.at(programs, usual // width, _mixed(np.zeros(len(usual), np.uint64), (usual % width).astype(np.uint64)))
        return programs[of_row]

    @cached_property
    def _is_new(self) -> npt.NDArray[np.bool_]:
        """`[N]`: calls that nowhere follow their predecessors, though others often do; by what they are, or by their lines."""
        table = self._table
        paths: dict[object, int] = {}
        of_stack = np.array([paths.setdefault(user_path(stack), len(paths)) for stack in table.stacks] + [0])
        has_path = table["frames"] >= 0
        is_new = self._new_among(self.tokens, np.ones(len(table), dtype=bool))
        if has_path.any():
            is_new |= self._new_among(_mixed(self.tokens, of_stack[table["frames"]].astype(np.uint64)), has_path)
        return is_new

    def _new_among(self, tokens: Keys, of: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        rank, programs = self._table["rank"], self._programs
        is_new = np.zeros(len(tokens), dtype=bool)
        if len(tokens) <= _CONTEXT:
            return is_new
        context = _mixed(programs[2:], _mixed(tokens[:-2], tokens[1:-1]))
        is_new[2:] = _is_unique(context, tokens[2:], (rank[2:] == rank[:-2]) & of[:-2] & of[1:-1] & of[2:])
        starts = np.flatnonzero((tokens[1:] != tokens[:-1]) | (rank[1:] != rank[:-1])) + 1
        before, here = starts[:-1], starts[1:]  # a run of equal calls between two others
        whole = (rank[here] == rank[before - 1]) & (rank[here] == rank[before]) & of[here] & of[before]
        change = _mixed(_mixed(programs[here], tokens[before - 1]), _mixed(tokens[before], tokens[here]))
        is_new[here] |= _is_unique(change, (here - before).astype(np.uint64), whole)
        return is_new

    def newcomers(self, ranks: Collection[int]) -> dict[int, int]:
        """Those of the ranks that did something new, with the row of the first call in which they did."""
        found = {}
        for rank in ranks:
            rows = self._table.rank_rows(rank)
            new = np.flatnonzero(self._is_new[rows])
            if len(new):
                found[rank] = rows.start + int(new[0])
        return found


def _is_unique(context: Keys, then: Keys, of: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Where a common context is followed by what follows it nowhere else. `of`: which places count."""
    found: npt.NDArray[np.bool_] = (_counts(context, of) >= _LEAST_SEEN) & (_counts(_mixed(context, then), of) == 1)
    return found & of


def _counts(keys: Keys, of: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """How often each key occurs among those selected."""
    values, counts = np.unique(keys[of], return_counts=True)
    at = np.searchsorted(values, keys)
    at[at == len(values)] = 0
    return np.where(values[at] == keys, counts[at], 0) if len(values) else np.zeros(len(keys), dtype=np.int64)


def _place_in_group(table: CollectiveTable) -> Keys:
    """`[N]`: how far the peer is away in the group, so that each stage of a pipeline speaks of "the next" alike."""
    place = np.zeros(len(table), dtype=np.int64)
    for row in np.flatnonzero(table["is_p2p"] & (table["peer"] >= 0)).tolist():
        ranks = table.groups[int(table["group"][row])].ranks
        rank, peer = int(table["rank"][row]), int(table["peer"][row])
        near = rank in ranks and peer in ranks
        place[row] = 1000 + (ranks.index(peer) - ranks.index(rank) if near else peer - rank)
    return place.astype(np.uint64)
