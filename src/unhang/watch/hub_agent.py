"""What a watcher does as the hub of several nodes: it hears them, has them look, and judges over the ranks of all.

A proof over nodes is made of one moment: every node has looked, and only then every node is asked whether its ranks still stand
as they did. Nobody is accused for being unseen: the ranks of a node that is not heard are unknown.
"""

from __future__ import annotations

import gc
import math
import shutil
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from unhang.watch import RunOptions
from unhang.watch.agent import NEW_RANKS_S
from unhang.watch.evidence import is_unchanged
from unhang.watch.far import FarNode, Packer, why_silent, words_on
from unhang.watch.folders import fields_of
from unhang.watch.many import Passing, Selection, note_unread, told_of, world_of
from unhang.watch.meeting import MOST_SUCCESSORS, Meeting
from unhang.watch.messages import MOST_MESSAGES_PER_S, FarRank, JointVerdict, Orders, State, pause_of
from unhang.watch.outward import OutwardAgent
from unhang.watch.ranks import WatchedRank
from unhang.watch.suspicion import FIRST_LOOK_S

MANY_RANKS, SEND_S = 512, 5.0
# The exchange gives up the interpreter's lock with each packet; it must not wait long for it while we go through all ranks.
MANY_NODES, MANY_SWITCH_S = 64, 0.0002
MANY_OBJECTS = (
    50_000,
    20,
    100,
)  # what each message makes lives until the next: to go through it all costs more than the message
OWN = ""  # the hub's own node, among the others
MOST_FAILED = 16


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
        note_unread(self.run_dir, self._world, ranks, nodes)

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


LOOK_S, CONFIRM_WAIT_S, SECURE_S, ACKNOWLEDGE_S = 5.0, 3.0, 4.0, 2.0
UNHEARD_S, TOLD_AFTER_S = 4.0, 8.0
CLOSED_S, SILENT_S = 1.5, 1.5
PUMP_S, SHARE = 0.05, 1.0
MOST_LINES = 4


class HubAgent(AgentOfMany):
    """The part of the watch that goes over all nodes."""

    def __init__(self, options: RunOptions, run_dir: Path, root_pid: int, out: int, orders: int) -> None:
        super().__init__(options, run_dir, root_pid, out, orders)
        self._is_ready = False
        self.passing, self._by_name = Passing(), dict[str, str]()
        self._told = set[str]()  # nodes of which the screen says that they are not heard

    def _values(self, now: float) -> dict[str, float]:
        return {**super()._values(now), "unhang_nodes_unheard": sum(bool(n.unheard) for n in self.nodes.values())}

    def _get_ready(self, now: float) -> None:
        """Imports what a headline needs, once and while nothing happens: at a hang it would take a second."""
        if self.nodes and not self._is_ready and now - self._newest_at > NEW_RANKS_S:
            self._is_ready = True
            with suppress(Exception):
                if self.options.get_ready is not None:
                    self.options.get_ready()

    def _take_in(self) -> None:
        new: set[int] = set()
        while not self.meeting.inbox.empty():
            said = self.meeting.inbox.get()
            node = self.nodes.get(said.node)
            if said.push is None:
                if node is not None and not (
                    said.is_direct and node.id in self.passing.via
                ):  # else it went to its place
                    node.closed_at = said.at
                    self.passing.lose(node.id)
                continue
            if node is None:
                node = self.nodes[said.node] = FarNode(said, self.run_dir)
            self._told.discard(node.id)
            self._spoke[node.id] = node
            was_unheard = bool(node.unheard)
            found = node.hear(said.push, said, self.meeting.orders.hub, not self._is_sealed)
            new.update(rank.rank for rank in found)
            if found or was_unheard:
                self._far_ranks = None
                self._forget_before(node)
            self._far_world = max(self._far_world, said.push.state.world)
            if not self._are_many:
                node.write()
            for rank in node.dead_now():
                self._note_death(rank)
            for other in [o for name in said.rows if (o := self.nodes.get(name)) is not None]:
                self._far_ranks = None if other.unheard else self._far_ranks
                other.hear_row(said.rows[other.id], said.at)
                self._told.discard(other.id)
                self._spoke[other.id] = other
            if said.is_direct:
                self.passing.place(node, self.nodes)
        if new:
            self._newest_at = time.monotonic()
            self._make_room()
            if any(rank.rank in new for rank in self._twice()):
                self._far_world = 0
                self._begin_again()
        self._order()

    def _forget_before(self, node: FarNode) -> None:
        """A watcher that was started anew knows the processes that the one before it knew: what that one said is old."""
        other = self.nodes.get(self._by_name.get(node.name, ""), node)
        self._by_name[node.name] = node.id
        if other is not node and not node.ranks.keys().isdisjoint(other.ranks):
            del self.nodes[other.id]
            self.passing.lose(other.id)
            shutil.rmtree(other.folder, ignore_errors=True)

    def _twice(self) -> list[WatchedRank]:
        """Processes of this attempt that have a number which another one has, too."""
        counts = Counter(rank.rank for rank in self._of_attempt())
        return [rank for rank in self._of_attempt() if counts[rank.rank] > 1]

    def _order(self, **changes: Any) -> None:
        """Gives orders; without any, only what the nodes must know anyway."""
        pause_s = pause_of(len(self.nodes), len(self.nodes) - len(self.passing.via))
        first = islice((n for n in self.nodes.values() if not n.unheard), MOST_SUCCESSORS)  # in the order of joining
        successors = [(n.id, *n.address) for n in first]
        self.meeting.orders = msgspec.structs.replace(
            self.meeting.orders, pause_s=pause_s, successors=successors, report=self._where_to, **changes
        )
        if changes:
            self.meeting.announce(self.meeting.asked if changes.keys() == {"secure"} and self.meeting.asked else None)

    def _await(self, is_done: Callable[[FarNode], bool], limit_s: float) -> bool:
        """Whether all nodes that are heard have done what was asked; one that says nothing at all is not waited for. Blocks: up to `limit_s`."""
        pause_s, until = PUMP_S, time.monotonic() + limit_s + 2 * self.meeting.orders.pause_s
        until += len(self.nodes) / MOST_MESSAGES_PER_S
        silent_s = SILENT_S + 3 * self.meeting.orders.pause_s
        while waited_for := [node for node in self._heard() if not is_done(node)]:
            now = time.monotonic()
            if now >= until or all(now - node.heard_at > silent_s for node in waited_for):
                return False
            time.sleep(pause_s)
            began_s = time.thread_time()
            self._take_in()
            self._listen_for_silence(now)
            pause_s = max(PUMP_S, SHARE * (time.thread_time() - began_s))  # the exchange needs the interpreter, too
        return True

    def _listen_for_silence(self, now: float) -> None:
        patience_s = UNHEARD_S + 3 * self.meeting.orders.pause_s
        for node in self.nodes.values():
            is_closed = node.closed_at and now - node.closed_at > CLOSED_S
            if not node.unheard and not node.state.is_over and (is_closed or now - node.heard_at > patience_s):
                node.lose()
                self.passing.lose(node.id)
                self._far_ranks = None
                if node.has_life():
                    self._look_again_at = now
        lost = [node for node in self.nodes.values() if node.unheard]
        self._unheard = frozenset(r.rank for n in lost for r in n.ranks.values() if r.is_alive and not r.is_earlier)
        for node in [node for node in lost if not node.is_probed][:1]:  # one each turn: it takes its time
            node.lose(why_silent(node.address, bool(node.closed_at)))
        due = [node for node in lost if now - node.heard_at > TOLD_AFTER_S and node.id not in self._told]
        if due and not self._is_sealed:
            self._told.update(node.id for node in due)
            for node in due[:MOST_LINES]:
                self._send({"event": "note", "text": words_on(node, now)})
            if len(due) > MOST_LINES:
                more = f"{len(due) - MOST_LINES} more nodes have not been heard for as long"
                self._send({"event": "note", "text": more})

    def _take_evidence(self, with_workers: bool) -> dict[int, bytes]:
        self._given += 1
        number = self._given
        self._order(look=number)
        dumps = super()._take_evidence(with_workers)
        self._await(lambda node: node.state.looked >= number, LOOK_S)
        if self._are_many:
            self._read_some(number, self._world)
        return dumps

    def _is_unchanged(self, ranks: Sequence[WatchedRank], dumps: Mapping[int, bytes]) -> bool:
        look = self.meeting.orders.look
        if not self._heard():
            return super()._is_unchanged(ranks, dumps)
        if any(node.state.looked < look for node in self._heard()):
            return False
        self._order(confirm=look)
        here = [rank for rank in ranks if not isinstance(rank, FarRank)]
        is_still = is_unchanged(here, dumps) and self._await(lambda node: node.state.still >= look, CONFIRM_WAIT_S)
        concerned = set(ranks)
        all_count = self._are_many
        nodes = (n for n in self._heard() if all_count or not concerned.isdisjoint(n.ranks.values()))
        return is_still and all(n.state.is_still for n in nodes)

    def _secure(self) -> None:
        self._given += 1
        number = self._given
        self._order(secure=number)
        super()._secure()
        asked = self.meeting.asked if self._are_many else self.nodes
        self._await(lambda node: node.id not in asked or node.state.secured >= number, SECURE_S)

    def _tell(self, verdict: Mapping[str, Any], will_end: bool) -> None:
        if self.meeting.role == "hub" and self.nodes:
            self._judge()
        super()._tell(verdict, will_end)
        if self.meeting.role != "hub" or not self.nodes:
            return
        self._given += 1
        number, line = self._given, self._headline.line or str(verdict.get("reason", ""))
        joint = JointVerdict(
            number,
            str(verdict["kind"]),
            line,
            self._where_to,
            list(verdict["waiting_ranks"]),
            int(verdict["onset_ns"]),
            bool(verdict["withdrawn"]),
            will_end,
        )
        self._order(verdict=joint)
        if will_end:
            self._await(lambda node: node.state.seen >= number, ACKNOWLEDGE_S)
            if self._can_be_ended():
                self._send({"event": "condemned", "will_end": True, "ns": time.time_ns()})
            self._order(verdict=msgspec.structs.replace(joint, is_end=True))

    def _can_be_ended(self) -> bool:
        """Whether this node's part of the job still runs."""
        return bool(self._here()) or not self.ranks

    @cached_property
    def _where_to(self) -> str:
        """Where the report on all nodes will be."""
        folder = fields_of(self.run_dir / "job.json").get("report_dir") or self.options.report_dir
        return f"{socket.gethostname()}:{folder}"

    def _withdraw(self) -> None:
        verdict = self.verdict
        super()._withdraw()
        if verdict is not None:
            self._tell({**verdict, "withdrawn": True}, will_end=False)
