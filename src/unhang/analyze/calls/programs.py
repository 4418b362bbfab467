"""The kinds of calls of all ranks in words that mean the same on every rank, and which ranks run the same program."""

from __future__ import annotations

from collections.abc import Hashable, KeysView
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import NamedTuple, TypeAlias

from unhang.analyze.calls.fronts import are_sends, tracks_a_batch
from unhang.analyze.calls.positions import signatures
from unhang.analyze.program.callpath import Path, user_path
from unhang.analyze.program.trees import read_source
from unhang.model import CollectiveTable, Frame, different
from unhang.numeric import np, npt

_MOSTLY, _UNKNOWN = 0.75, 1 << 24
_MIX = 0x9E3779B97F4A7C15

Keys: TypeAlias = "npt.NDArray[np.uint64]"
Ints: TypeAlias = "npt.NDArray[np.int64]"


def _mixed(left: Keys, right: Keys) -> Keys:
    """One number for a pair of numbers."""
    mixed = (left ^ (right + _MIX + (left << np.uint64(6)) + (left >> np.uint64(2)))) * np.uint64(0xFF51AFD7ED558CCD)
    result: Keys = mixed ^ (mixed >> np.uint64(33))
    return result


@dataclass(frozen=True)
class _Program:
    """The kinds of transfers that a rank makes: again and again, and at all.

    `places`: (kind of group, its size, the rank's number in it) of the groups in which there are transfers; `stage`: of those
    among them that are no rings, in which every member does the same.
    """

    often: frozenset[int]
    ever: frozenset[int]
    places: frozenset[tuple[int, int, int]]
    stage: frozenset[tuple[int, int, int]]

    def is_like(self, other: _Program) -> bool:
        """Whether each makes what the other makes again and again; one that departed makes it once less, and another one.

        A rank that is stuck early has made less than it would: there the place in the groups tells, where it is known.
        Nothing that both make, where both make any, is no likeness.
        """
        if self.places and self.places == other.places:
            return True
        is_apart = self.ever and other.ever and self.ever.isdisjoint(other.ever)
        return not is_apart and self.often <= other.ever and other.often <= self.ever


class Programs:
    """What the ranks of a table call. Legend: N rows."""

    def __init__(self, table: CollectiveTable) -> None:
        self._table = table

    @property
    def ranks(self) -> KeysView[int]:
        """The ranks of whom any call is recorded."""
        return self._of_rank.keys()

    def is_equal(self, rank: int, other: int) -> bool:
        """Whether two ranks make the same kinds of transfers again and again."""
        return self._of_rank[rank].often == self._of_rank[other].often

    def is_same_stage(self, rank: int, other: int) -> bool:
        """Whether two ranks are at the same place of a pipeline; False where there is none."""
        return bool(self._of_rank[rank].stage) and self._of_rank[rank].stage == self._of_rank[other].stage

    def key(self, rank: int) -> Hashable:
        """Equal for ranks with equal programs."""
        return self._of_rank[rank]

    def like(self, rank: int) -> list[int]:
        """The other ranks with the same program."""
        mine = self._of_rank[rank]
        alike = {p: p.is_like(mine) for p in set(self._of_rank.values())}
        return [r for r, program in self._of_rank.items() if r != rank and alike[program]]

    @cached_property
    def tokens(self) -> Keys:
        """`[N]`: the kind of group, op, elements, direction, and the lines of the user's code.

        The lines do not count for a kind of call of which they are unknown somewhere: some files may lack them.
        """
        table = self._table
        paths: dict[object, int] = {(): 0}
        of_stack = np.array([paths.setdefault(user_path(stack), len(paths)) for stack in table.stacks] + [0])
        what = _mixed(_mixed(signatures(table).astype(np.uint64), self._kind_of_group), self._place)
        path = of_stack[table["frames"]].astype(np.uint64)
        path[np.isin(what, different(what[path == 0]))] = 0
        return _mixed(what, path)

    @cached_property
    def _kind_of_group(self) -> Keys:
        """`[N]`: equal numbers for groups of one purpose."""
        of_row: Keys = np.array(self._kinds or [0], np.uint64)[self._table["group"]]
        return of_row

    @cached_property
    def _kinds(self) -> list[int]:
        """For each group the number of its purpose."""
        kinds: dict[object, int] = {}
        purposes = (len(g.ranks) if g.desc in ("", "undefined") else g.desc for g in self._table.groups)
        return [kinds.setdefault(purpose, len(kinds)) for purpose in purposes]

    @cached_property
    def _place(self) -> Keys:
        """`[N]`: as `_straight_place`; in a ring the next of the last member is the first."""
        place, in_ring = self._straight_place.copy(), np.isin(self._table["group"], self._rings) & self._is_addressed
        place[in_ring] = 1000 + (place[in_ring] - 1000) % self._size[in_ring]
        return place.astype(np.uint64)

    @cached_property
    def _is_addressed(self) -> npt.NDArray[np.bool_]:
        """`[N]`: sends and receives whose other side is known."""
        found: npt.NDArray[np.bool_] = self._table["is_p2p"] & (self._table["peer"] >= 0)
        return found

    @cached_property
    def _size(self) -> Ints:
        """`[N]`: the members of the group."""
        of_row: Ints = np.array([len(g.ranks) or _UNKNOWN for g in self._table.groups] or [_UNKNOWN])[
            self._table["group"]
        ]
        return of_row

    @cached_property
    def _rings(self) -> Ints:
        """The groups that are rings."""
        rows = np.flatnonzero(self._is_addressed)
        return _rings(self._table, rows, self._straight_place - 1000, self._size)

    @cached_property
    def _straight_place(self) -> Ints:
        """`[N]`: how far the peer is away in the group, so that each stage of a pipeline speaks of "the next" alike."""
        table = self._table
        place = np.zeros(len(table), dtype=np.int64)
        for row in np.flatnonzero(self._is_addressed).tolist():
            ranks = table.groups[int(table["group"][row])].ranks
            rank, peer = int(table["rank"][row]), int(table["peer"][row])
            near = rank in ranks and peer in ranks
            place[row] = 1000 + (ranks.index(peer) - ranks.index(rank) if near else peer - rank)
        return place

    @cached_property
    def _of_rank(self) -> dict[int, _Program]:
        """What each rank sends and receives, and where; one object for equal ones."""
        table = self._table
        kinds = _mixed(_mixed(self._place, table["op"].astype(np.uint64)), self._kind_of_group)
        places: dict[int, set[tuple[int, int, int]]] = {}
        stages: dict[int, set[tuple[int, int, int]]] = {}
        rings = set(self._rings.tolist())
        for group in different(table["group"][table["is_p2p"]]).tolist():
            ranks = table.groups[group].ranks
            for i, rank in enumerate(ranks):
                for found_of in (places,) if group in rings else (places, stages):
                    found_of.setdefault(rank, set()).add((self._kinds[group], len(ranks), i))
        is_transfer = table["is_p2p"] & ~tracks_a_batch(table)
        programs: dict[int, _Program] = {}
        known: dict[_Program, _Program] = {}
        for rank in different(table["rank"]).tolist():
            rows = table.rank_rows(rank)
            found, counts = np.unique(kinds[rows][is_transfer[rows]], return_counts=True)
            often, ever = frozenset(found[counts > 1].tolist()), frozenset(found.tolist())
            program = _Program(often, ever, *(frozenset(of.get(rank, ())) for of in (places, stages)))
            programs[rank] = known.setdefault(program, program)
        return programs


def _rings(table: CollectiveTable, rows: Ints, distance: Ints, size_N: Ints) -> Ints:
    """Groups that are rings; `rows`: the sends and receives.

    Nearly all of their batches send so far one way as they receive from the other, or all members send and receive one way.
    """
    is_send = are_sends(table)[table["op"][rows]]
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
    one_way = _one_way_rings(table, rows, np.where(is_send, distance[rows], -distance[rows]), ahead, is_send)
    return different(groups[share >= _MOSTLY], one_way)


def _one_way_rings(
    table: CollectiveTable, rows: Ints, straight: Ints, ahead: Ints, is_send: npt.NDArray[np.bool_]
) -> Ints:
    """Groups in which all who transfer send so far ahead, around the end, or receive, and nearly all is sent so.

    In a pipeline the last stage sends nothing ahead. Of two members each is ahead of the other.
    """
    group, rank = (table[name][rows].astype(np.int64) for name in ("group", "rank"))
    _, way_of, count = np.unique(group * (_UNKNOWN + 1) + ahead, return_inverse=True, return_counts=True)
    is_usual = count[way_of.reshape(-1)] >= _MOSTLY * np.bincount(group, minlength=1)[group]
    order = np.argsort(group, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    found = []
    for part in parts if len(order) else []:
        at, g = part[is_usual[part]], int(group[part[0]])
        if len(at) and len(table.groups[g].ranks) > 2 and (straight[at] != straight[at[0]]).any():
            seen, *sides = (different(rank[of]) for of in (part, at[is_send[at]], at[~is_send[at]]))
            if all(not len(side) or np.array_equal(side, seen) for side in sides):
                found.append(g)
    return np.array(found, dtype=np.int64)


class Copies(NamedTuple):
    """Two files of one name with different texts, called for the same thing at the same line: `mine` on one rank, `theirs` on another one."""

    mine: Frame
    theirs: Frame


def unlike_copies(table: CollectiveTable, rank: int, other: int) -> Copies | None:
    """The innermost function of the program that the recorded calls of two ranks came through in unlike copies of a file, as far as these can be read here."""
    mine, theirs = (_called_from(table, r) for r in (rank, other))
    shared = [key for key in mine.keys() & theirs.keys() if mine[key].file != theirs[key].file]
    for key in sorted(shared, key=lambda key: -len(key[0])):
        one, two = read_source(mine[key].file), read_source(theirs[key].file)
        if one is not None and two is not None and one[1] != two[1]:
            return Copies(mine[key], theirs[key])
    return None


def _called_from(table: CollectiveTable, rank: int) -> dict[tuple[Path, str, str], Frame]:
    """The last place in each function, by the way to it, its name, and that of its file."""
    numbers = {int(n) for n in table["frames"][table.rank_rows(rank)] if n >= 0}
    found = {}
    for way in (user_path(table.stacks[n]) for n in sorted(numbers)):
        for depth, frame in enumerate(way):
            found[way[:depth], frame.function, PurePath(frame.file).name] = frame
    return found
