"""Of very many nodes: who speaks to the hub through which other one, and of which few the files are read, where the others tell in a few bytes how their ranks stand."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from unhang.analyze.alike import MOST_NODES, Told, choose, tell
from unhang.analyze.situation import Situation
from unhang.errors import UnhangError
from unhang.read import read_bundle
from unhang.read.gathered import ALIKE
from unhang.watch.far import FarNode
from unhang.watch.folders import fields_of, write_whole
from unhang.watch.joining import Address
from unhang.watch.messages import Push, Row, State

MOST_DIRECT, GROUP = 256, 100


class Passing:
    """`via`: who speaks through which node, and where that one listens. Up to MOST_DIRECT nodes, each speaks for itself."""

    def __init__(self) -> None:
        self.via: dict[str, tuple[str, Address]] = {}
        self._sizes: dict[str, int] = {}  # of the groups, by the nodes that pass on
        self._filled = ""  # the group that is filled now

    def place(self, node: FarNode, nodes: Mapping[str, FarNode]) -> None:
        """Finds a place for a node that has spoken for itself."""
        if len(nodes) <= MOST_DIRECT or node.id in self.via or node.id in self._sizes:
            return
        if self._filled and self._sizes[self._filled] < GROUP:
            self._sizes[self._filled] += 1
            self.via[node.id] = self._filled, nodes[self._filled].address
        elif node.address.port:
            self._sizes[node.id], self._filled = 0, node.id

    def lose(self, node: str) -> None:
        """A node is not heard: who spoke through it is to find another place, and its own is free."""
        if self._sizes.pop(node, None) is not None:
            self._filled = "" if self._filled == node else self._filled
            for name in [name for name, (passing, _) in self.via.items() if passing == node]:
                del self.via[name]
        elif node in self.via:
            passing, _ = self.via.pop(node)
            self._sizes[passing] -= 1


SAME_S, ALIKE_S = 0.001, 0.2


def row_of(known: State, state: State) -> Row | None:
    """What is new in a state that `only_goes_on`, where the ranks are alike in it; None where they are not."""
    step_s, moved, quiets = state.at - known.at, 0, list[float]()
    for before, now in zip(known.ranks, state.ranks, strict=True):
        if now.dead_s < 0:
            quiets.append(now.quiet_s)
            moved += step_s - (now.quiet_s - before.quiet_s) > SAME_S
    done = (state.looked, state.told if state.looked > known.looked else None, state.still, state.is_still)
    if not moved:
        return Row(state.at, -1.0, *done)
    if moved < len(quiets) or max(quiets) - min(quiets) > ALIKE_S:
        return None
    return Row(state.at, min(quiets), *done)


def only_goes_on(known: State, state: State) -> bool:
    """Whether nothing is new but how long the ranks have been quiet, and what a look showed."""
    return _without_times(known) == _without_times(state)


def _without_times(s: State) -> tuple[object, ...]:
    ranks = [(r.folder, r.dead_s < 0, r.exit_code, r.has_stepped, r.has_failed) for r in s.ranks]
    return s.hub, s.secured, s.seen, s.is_over, s.world, s.sent, ranks


class Group:
    """What they said. `nodes`: the last state of each."""

    def __init__(self) -> None:
        self.nodes: dict[str, State] = {}
        self._known: dict[str, State] = {}  # to the hub
        self._news: dict[str, Push] = {}
        self._rows: dict[str, Row] = {}
        self._left: list[str] = []

    def hear(self, node: str, push: Push) -> bool:
        """Takes a message; returns whether the hub shall have it at once."""
        self.nodes[node] = push.state
        waiting, known = self._news.get(node), self._known.get(node)
        goes_on = known is not None and only_goes_on(known, push.state)
        is_plain = goes_on and waiting is None and not push.files and not push.gone
        if is_plain and known is not None and (row := row_of(known, push.state)) is not None:
            self._rows[node] = row
            return (known.looked, known.still) != (row.looked, row.still)
        if waiting is not None:
            push.files = {**waiting.files, **push.files}
            push.gone = [*waiting.gone, *push.gone]
        self._rows.pop(node, None)
        self._news[node] = push
        return not goes_on

    def leave(self, node: str) -> None:
        """A node has hung up."""
        if self.nodes.pop(node, None) is not None:
            self._left.append(node)
            self._known.pop(node, None)
            self._news.pop(node, None)
            self._rows.pop(node, None)

    def take(self) -> tuple[dict[str, Push], dict[str, Row], list[str]]:
        """What is new: whole messages, rows, and who has hung up."""
        found = self._news, self._rows, self._left
        self._news, self._rows, self._left = {}, {}, []
        self._known |= {node: push.state for node, push in found[0].items()}
        self._known |= {node: self.nodes[node] for node in found[1]}
        return found

    def begin_again(self) -> list[str]:
        """The hub knows nothing; returns who is to tell everything."""
        self._known, self._rows = {}, {}
        return list(self.nodes)

    def owes(self, look: int, confirm: int) -> bool:
        """Whether somebody has not done yet what was asked."""
        return any(s.looked < look or s.still < confirm for s in self.nodes.values() if not s.is_over and s.ranks)


def world_of(folders: Iterable[Path]) -> int:
    """How many ranks the job has, by the word of these processes; 0 where none tells."""
    found = (fields_of(folder / "identity.json").get("world_size") for folder in folders)
    return max((size for size in found if isinstance(size, int)), default=0)


def told_of(run_dir: Path) -> Told | None:
    """What a node says of its own ranks after a look, those included that have ended; None where nothing can be read of them."""
    with suppress(UnhangError):
        case = read_bundle(run_dir / "ranks", trusted=True)
        return tell(Situation(case), case.ranks.keys())
    return None


class Selection:
    """The nodes that are read, and what is written of the others. `nodes`: `OWN` for the hub's own."""

    def __init__(self, told: Mapping[str, Told], world: int, silent: Collection[int]) -> None:
        """`told`: what the nodes say that looked. `silent`: the ranks of the others."""
        chosen = choose(told)
        self.nodes, self._is_whole = chosen.nodes, chosen.is_whole
        heard = {rank for one in told.values() for rank in one.ranks}
        self._unseen = sorted(set(silent) - heard)
        missing = set(range(world)) - heard - set(self._unseen)
        self.ranks = tuple(sorted({*missing, *(rank for node in chosen.nodes for rank in told[node].ranks)}))
        self._world, self._kinds = world, chosen.kinds

    def write(self, run_dir: Path) -> None:
        """Writes what the reader must know of those that are not read."""
        kinds = self._kinds[:MOST_NODES]
        note_unread(
            run_dir, self._world, self.ranks, self.nodes, unseen=self._unseen, is_whole=self._is_whole, kinds=kinds
        )


def note_unread(run_dir: Path, world: int, read: Collection[int], nodes: Collection[str], **more: object) -> None:
    """What the reader must know of the ranks that are not read."""
    fields = {"world": world, "read": read, "unseen": (), "is_whole": False, "nodes": nodes, **more}
    write_whole(run_dir / ALIKE, json.dumps(fields).encode())
