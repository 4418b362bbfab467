"""Which nodes of a large job are to be read: of those that stand alike a few stand for all, whatever kind is rare is read whole.

A job of many nodes is mostly one thing many times: replicas that made the same calls and wait at the same line. To leave out
whole replicas makes a smaller job of the same shape, which is judged by the same rules. Groups within a replica (tensor, pipeline)
are there with all their members or not at all; groups over replicas (data) become smaller. Nodes are alike only where their
ranks belong to the same groups over replicas, made the same calls, and stand in the same place.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from unhang.analyze.activity import is_blocked
from unhang.analyze.situation import Situation
from unhang.model import CollectiveTable, ProcessGroup, RankEvidence, grouped, user_frames

MOST_NODES = 64  # that are read of a large job
LEAST_OF_MOST = 4  # nodes of the largest kind
MOST_OF_REPLICA = 32  # nodes that are one replica
_MOST_KINDS = 6  # that are compared with each other
_TAIL = 64  # calls of a rank that must be equal
_NUMBER = re.compile(r"\d+")
_BUSY = ("spinning", "gil", "user", "device")  # the same thing at different moments


class OuterGroup(NamedTuple):
    """A group with members on other nodes. `size`: of all members, 0 where they are not known; `here`: of those on this node."""

    identity: bytes
    size: int
    here: int


class Told(NamedTuple):
    """What a node says of its ranks, for the choice. `mark`: equal where they stand alike, whatever their numbers.

    `groups`: those with members elsewhere; `peers`: ranks elsewhere with which its ranks had transfers; both in an order that is the
    same for nodes that stand alike.
    """

    mark: bytes
    ranks: tuple[int, ...]
    groups: tuple[OuterGroup, ...] = ()
    peers: tuple[int, ...] = ()


class Chosen(NamedTuple):
    """The nodes to read. `is_whole`: every kind of node is among them, so that they stand for all."""

    nodes: tuple[str, ...]
    is_whole: bool
    kinds: tuple[int, ...]  # how many nodes there are of each kind, the most frequent first


def tell(s: Situation, ranks: Collection[int]) -> Told:
    """What a node says of its own ranks."""
    here = tuple(sorted(ranks))
    naming = _Naming(here)
    rows = [_standing(s, rank, naming) for rank in here]
    return Told(_digest(rows), here, tuple(naming.groups.values()), tuple(naming.peers))


class _Naming:
    """Names for groups and ranks that are the same on nodes that stand alike."""

    def __init__(self, here: Sequence[int]) -> None:
        self._local = {rank: i for i, rank in enumerate(here)}
        self._inner: dict[tuple[int, ...], int] = {}
        self.groups: dict[tuple[str, tuple[int, ...]], OuterGroup] = {}
        self.peers: dict[int, int] = {}
        self._here: dict[int, list[int]] = {}
        self._names: dict[tuple[int, str, str], object] = {}

    def here(self, group: ProcessGroup) -> list[int]:
        """Its members on this node."""
        key = id(group.ranks)  # of a group that the case holds
        if key not in self._here:
            self._here[key] = [rank for rank in group.ranks if rank in self._local]
        return self._here[key]

    def group(self, group: ProcessGroup) -> object:
        """A group's name. To compare the members of a large one takes long, and each call asks."""
        key = id(group.ranks), group.name, group.desc
        if key not in self._names:
            self._names[key] = self._name_of(group)
        return self._names[key]

    def _name_of(self, group: ProcessGroup) -> object:
        here = self.here(group)
        if group.ranks and len(here) == len(group.ranks):
            number = self._inner.setdefault(group.ranks, len(self._inner))
            return "inner", number, tuple(self._local[r] for r in group.ranks), group.desc
        key = ("" if group.ranks else group.name, group.ranks)
        if key not in self.groups:
            self.groups[key] = OuterGroup(_digest(key), len(group.ranks), len(here))
        return "outer", list(self.groups).index(key), group.desc

    def peer(self, rank: int | None) -> object:
        """A rank's name."""
        if rank is None or rank in self._local:
            return rank if rank is None else self._local[rank]
        return "elsewhere", self.peers.setdefault(rank, len(self.peers))


def _digest(value: object) -> bytes:
    return hashlib.sha256(repr(value).encode()).digest()[:8]


def _standing(s: Situation, rank: int, naming: _Naming) -> object:
    """All that the waits-for graph, and what is told of a rank that only waits, are made of; no times, no numbers of processes."""
    evidence, table = s.case.ranks.get(rank), s.case.calls
    own = sorted(
        (g for g in s.case.groups if rank in naming.here(g)), key=lambda g: (g.desc, len(g.ranks), g.ranks[:1])
    )
    groups = [naming.group(g) for g in own]
    calls = _calls(table, rank, naming)
    if evidence is None:
        return groups, calls
    kind = s.activities[rank].kind
    main = next((t for t in evidence.stacks if t.is_main), None)
    where = [(f.file, f.line, f.function) for f in user_frames(main.frames)] if main else None
    return groups, calls, _transfers(evidence, naming), "busy" if kind in _BUSY else kind, where, _rest(evidence)


def _calls(table: CollectiveTable, rank: int, naming: _Naming) -> object:
    rows = table.rank_rows(rank)
    found = table.calls(range(max(rows.start, rows.stop - _TAIL), rows.stop))
    last = {table.groups[p["group"]]: p for p in _progress(table, rank)}
    kinds = [(c.seq, c.op, c.in_sizes, c.out_sizes, c.dtype, int(c.state), c.is_p2p) for c in found]
    told = [(naming.group(c.group), *kind, naming.peer(c.peer)) for c, kind in zip(found, kinds, strict=True)]
    return told, [(naming.group(g), p["enqueued"], p["started"], p["completed"]) for g, p in last.items()]


def _progress(table: CollectiveTable, rank: int) -> list[dict[str, int]]:
    rows = (table.progress["rank"] == rank).nonzero()[0].tolist()
    return [{name: int(column[row]) for name, column in table.progress.items()} for row in rows]


def _transfers(evidence: RankEvidence, naming: _Naming) -> object:
    """Calls that the flight recorder does not show, counted: a peer compares how many were made."""
    made = Counter(
        (c.kind, repr(naming.peer(c.peer)), c.tag, c.ended_ns is None, _NUMBER.sub("#", c.detail))
        for c in evidence.pending
    )
    return sorted(made.items())


def _rest(evidence: RankEvidence) -> object:
    end, error, state = evidence.exit, evidence.error, evidence.state
    return (
        is_blocked(evidence),
        (end.kind, end.code) if end else None,
        (error.type, [(f.file, f.line) for f in error.frames]) if error else None,
        [e.type for e in evidence.handled],
        state is not None and state.state in ("T", "t", "Z", "X", "gone"),
        evidence.steps,
        evidence.initialized,
        sorted(_NUMBER.sub("#", u.what) for u in evidence.unavailable),
    )


def choose(told: Mapping[str, Told]) -> Chosen:
    """The nodes to read, few of each kind and all of the rare kinds; at most MOST_NODES."""
    replicas = _replicas(told)
    kinds = grouped((_mark_of(replica, told), replica) for replica in replicas)
    by_size = sorted(kinds.values(), key=lambda k: (-len(k), told[k[0][0]].ranks))
    counts, is_whole = _how_many([len(k) for k in by_size], MOST_NODES // max(map(len, replicas), default=1))
    nodes = [node for kind, count in zip(by_size, counts, strict=True) for replica in kind[:count] for node in replica]
    return Chosen(tuple(nodes), is_whole, tuple(len(k) * len(k[0]) for k in by_size))


def _how_many(sizes: Sequence[int], most: int) -> tuple[list[int], bool]:
    """How many replicas of each kind are read, the largest kind first, and whether they stand for all.

    They do where what is the majority stays it, and what is none becomes none.
    """
    rest = sum(sizes[1:])
    if sum(sizes) <= most:
        return list(sizes), True
    if 3 * rest + LEAST_OF_MOST <= most:
        return [min(sizes[0], 2 * rest + LEAST_OF_MOST), *sizes[1:]], True
    if len(sizes) <= _MOST_KINDS and (few := _scaled(sizes, most)) is not None:
        return few, True
    return [1] * min(len(sizes), most) + [0] * max(0, len(sizes) - most), False


def _scaled(sizes: Sequence[int], most: int) -> list[int] | None:
    """Numbers as small as may be, that stand to each other as the sizes do: none of two sets of kinds becomes the larger one."""
    for total in range(len(sizes), most + 1):
        found = [max(1, round(n * total / sum(sizes))) for n in sizes]
        if sum(found) <= most and found[0] >= min(sizes[0], LEAST_OF_MOST) and _compare_alike(sizes, found):
            return found
    return None


def _compare_alike(sizes: Sequence[int], found: Sequence[int]) -> bool:
    for sides in product((-1, 0, 1), repeat=len(sizes)):
        before, after = (sum(side * n for side, n in zip(sides, of, strict=True)) for of in (sizes, found))
        if (before > 0) != (after > 0) or (before < 0) != (after < 0):
            return False
    return True


def _replicas(told: Mapping[str, Told]) -> list[tuple[str, ...]]:
    """The nodes that groups and transfers join, by rank. Groups that would join too many are those over replicas."""
    joined = _Joined(told)
    node_of = {rank: node for node, t in told.items() for rank in t.ranks}
    for node, t in told.items():
        for peer in t.peers:
            if peer in node_of:
                joined.join([node, node_of[peer]])
    members = grouped(((group.size, group.identity), node) for node, t in told.items() for group in t.groups)
    most = min(MOST_OF_REPLICA, max(1, len(told) // 8))
    for size in sorted({size for size, _ in members if size}):
        of_size = [nodes for (other, _), nodes in members.items() if other == size]
        if any(len(nodes) > most for nodes in of_size):
            break  # to join them takes long where they are very many
        before = joined.copy()
        for nodes in of_size:
            joined.join(nodes)
        if joined.largest > most:
            joined = before
            break
    return joined.parts()


class _Joined:
    """Sets of nodes that belong together (union-find)."""

    def __init__(self, told: Mapping[str, Told]) -> None:
        self._told, self._parent, self._sizes = told, {node: node for node in told}, dict.fromkeys(told, 1)
        self.largest = 1

    def copy(self) -> _Joined:
        other = _Joined({})
        other._told, other._parent, other._sizes = self._told, dict(self._parent), dict(self._sizes)
        other.largest = self.largest
        return other

    def _root(self, node: str) -> str:
        while (parent := self._parent[node]) != node:
            self._parent[node] = node = self._parent[parent]
        return node

    def join(self, nodes: Iterable[str]) -> None:
        first, *others = (self._root(node) for node in nodes)
        for other in others:
            root = self._root(other)
            first = self._root(first)
            if root != first:
                self._parent[root] = first
                self._sizes[first] += self._sizes[root]
                self.largest = max(self.largest, self._sizes[first])

    def parts(self) -> list[tuple[str, ...]]:
        nodes = sorted(self._told, key=lambda n: self._told[n].ranks)
        return [tuple(part) for part in grouped((self._root(node), node) for node in nodes).values()]


def _mark_of(replica: Sequence[str], told: Mapping[str, Told]) -> object:
    """Equal for replicas that stand alike: their own groups and ranks have numbers within it, those over replicas are the same."""
    place = {r: (i, j) for i, node in enumerate(replica) for j, r in enumerate(told[node].ranks)}
    members: Counter[bytes] = Counter()
    for node in replica:
        members.update({g.identity: g.here for g in told[node].groups})
    inside: dict[bytes, int] = {}
    rows = []
    for node in replica:
        one = told[node]
        groups = tuple(
            inside.setdefault(g.identity, len(inside)) if members[g.identity] == g.size else g.identity
            for g in one.groups
        )
        rows.append((one.mark, len(one.ranks), groups, tuple(place.get(p, ("rank", p)) for p in one.peers)))
    return tuple(rows)
