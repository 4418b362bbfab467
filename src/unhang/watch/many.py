"""A look at a job of many ranks, in two stages: every node tells how its ranks stand in a few bytes, and few nodes send their files."""

from __future__ import annotations

import gc
import json
import math
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from unhang.analyze.alike import MOST_NODES, Told, choose, tell
from unhang.analyze.situation import Situation
from unhang.errors import UnhangError
from unhang.read.bundle import read_bundle
from unhang.read.gathered import ALIKE
from unhang.watch.far import FarNode, Packer
from unhang.watch.meeting import Meeting
from unhang.watch.messages import FarRank, Orders, State
from unhang.watch.options import RunOptions
from unhang.watch.outward import OutwardAgent
from unhang.watch.ranks import WatchedRank, write_whole
from unhang.watch.suspicion import FIRST_LOOK_S

MANY_RANKS, SEND_S, PUMP_S = 512, 5.0, 0.05
# The exchange gives up the interpreter's lock with each packet; it must not wait long for it while we go through all ranks.
MANY_NODES, MANY_SWITCH_S = 64, 0.0002
MANY_OBJECTS = (
    50_000,
    20,
    100,
)  # what each message makes lives until the next: to go through it all costs more than the message
OWN = ""  # the hub's own node, among the others
MOST_FAILED = 16


def world_of(folders: Iterable[Path]) -> int:
    """How many ranks the job has, by the word of these processes; 0 where none tells."""
    found = [0]
    for folder in folders:
        with suppress(OSError, ValueError, AttributeError, TypeError):
            found.append(int(json.loads((folder / "identity.json").read_bytes()).get("world_size") or 0))
    return max(found)


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
        _write(run_dir, self._world, self.ranks, self.nodes, unseen=self._unseen, is_whole=self._is_whole, kinds=kinds)


def _write(run_dir: Path, world: int, read: Collection[int], nodes: Collection[str], **more: object) -> None:
    """What the reader must know of the ranks that are not read."""
    fields = {"world": world, "read": read, "unseen": (), "is_whole": False, "nodes": nodes, **more}
    write_whole(run_dir / ALIKE, json.dumps(fields).encode())


def _ranks_of(nodes: Iterable[FarNode]) -> Iterator[FarRank]:
    return (rank for node in nodes for rank in node.ranks.values() if not rank.is_unheard)


class AgentOfMany(OutwardAgent):
    """What a watcher does where the ranks are too many to read them all."""

    def __init__(self, options: RunOptions, run_dir: Path, root_pid: int, out: int, orders: int) -> None:
        super().__init__(options, run_dir, root_pid, out, orders)
        self.packer, self.nodes = Packer(run_dir), dict[str, FarNode]()
        self.meeting: Meeting
        self._far_ranks: list[FarRank] | None = None  # those of nodes that are heard
        self._spoke = dict[str, FarNode]()  # since the last turn
        self._given = 0  # the last number that was given to an order or a verdict
        self._own_world, self._far_world, self._worlds, self._done = 0, 0, set[str](), State()

    # Whom we speak of; of very many ranks none is gone through that did not change

    def _far(self) -> list[FarRank]:
        if self.meeting.role != "hub":
            return []
        if self._far_ranks is None:
            self._far_ranks = [*_ranks_of(self.nodes.values())]
        return self._far_ranks

    def _everyone(self) -> list[WatchedRank]:
        return [*super()._everyone(), *self._far()]

    def _ended_quiets(self, now: float) -> list[float]:
        nodes, self._spoke = self._spoke.values(), {}
        return [*super()._ended_quiets(now), *(q for n in nodes if not n.unheard and (q := n.poll()) is not None)]

    def _may_be_quiet(self) -> list[WatchedRank]:
        nodes = self.nodes.values() if self.meeting.role == "hub" else ()
        return [*super()._everyone(), *_ranks_of(n for n in nodes if n.longest_s >= FIRST_LOOK_S)]

    def _longest_quiet(self, now: float) -> float | None:
        longest = super()._longest_quiet(now)
        for node in self.nodes.values() if self.meeting.role == "hub" else ():
            if node.unheard or (longest is not None and node.longest_s <= longest):
                continue  # none of its ranks is quiet for longer than was said
            quiets = [r.quiet_s(now) for r in node.ranks.values() if r.is_alive]
            longest = max(quiets if longest is None else [longest, *quiets], default=longest)
        return longest

    def _heard(self) -> list[FarNode]:
        """Other nodes with ranks that live, as far as they can be asked."""
        return [n for n in self.nodes.values() if not n.unheard and n.has_life()]

    def _note_world(self) -> None:
        if new := self.ranks.keys() - self._worlds:
            self._worlds |= new
            self._own_world = max(self._own_world, world_of(self.ranks[name].folder for name in new))
            self.packer.is_brief = self._own_world > MANY_RANKS

    def _make_room(self) -> None:
        """Of very many nodes, the exchange comes first."""
        if len(self.nodes) > MANY_NODES:
            sys.setswitchinterval(MANY_SWITCH_S)
            gc.set_threshold(*MANY_OBJECTS)

    @property
    def _world(self) -> int:
        """Ranks of the job, as any of them was told."""
        return max(self._own_world, self._far_world)

    @property
    def _are_many(self) -> bool:
        return self._world > MANY_RANKS

    def _read_some(self, look: int, world: int) -> None:
        """Has the files sent of a few nodes that stand for all, or of all that differ. Blocks: up to SEND_S."""
        told = {n.id: n.state.told for n in self._heard() if n.state.looked >= look and n.state.told is not None}
        if self.ranks and (own := told_of(self.run_dir)) is not None:
            told[OWN] = own
        known = {r.rank for n in self.nodes.values() for r in n.ranks.values() if not r.is_earlier}
        chosen = Selection(told, world, known)
        self._have_sent(chosen.nodes, chosen.ranks)
        chosen.write(self.run_dir)

    def _read_failed(self) -> None:
        """Of a job that has ended, and did not hang: the nodes whose ranks failed first, and nothing of the others. Blocks: up to SEND_S."""
        when = {
            n: min((r.died_at for r in n.ranks.values() if r.has_failed()), default=math.inf) for n in self._heard_of()
        }
        failed = sorted((n for n, at in when.items() if at < math.inf), key=when.__getitem__)[:MOST_FAILED]
        ranks = sorted({r.rank for r in (*self.ranks.values(), *(r for n in failed for r in n.ranks.values()))})
        nodes = [n.id for n in failed]
        if nodes:
            self._have_sent(nodes, tuple(ranks))
        _write(self.run_dir, self._world, ranks, nodes)

    def _heard_of(self) -> list[FarNode]:
        return [node for node in self.nodes.values() if not node.unheard]

    def _send_files(self, orders: Orders) -> None:
        """As a member: has the files sent that the hub wants."""
        self.packer.only = frozenset(orders.only)
        self.packer.pages_wanted += 1
        self._done = msgspec.structs.replace(self._done, sent=orders.send)

    def _have_sent(self, nodes: Collection[str], ranks: tuple[int, ...]) -> None:
        """Asks these nodes for their files, and waits for them. Blocks: up to SEND_S."""
        self._given += 1
        number = self._given
        for node in nodes:
            if node != OWN:
                self.nodes[node].write()
        self.meeting.asked = dict.fromkeys(nodes, (number, ranks))
        self.meeting.announce(self.meeting.asked)
        until = time.monotonic() + SEND_S
        while any(n.state.sent < number and not n.closed_at for n in self._heard_of() if n.id in self.meeting.asked):
            if time.monotonic() > until:
                return
            time.sleep(PUMP_S)
            self._take_in()

    def _take_in(self) -> None:
        raise NotImplementedError
