"""What a watcher does as the hub of several nodes: it hears them, has them look, and judges over the ranks of all.

A proof over nodes is made of one moment: every node has looked, and only then every node is asked whether its ranks still stand
as they did. Nobody is accused for being unseen: the ranks of a node that is not heard are unknown.
"""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from unhang.watch import many
from unhang.watch.agent import NEW_RANKS_S
from unhang.watch.evidence import is_unchanged
from unhang.watch.far import FarNode, why_silent, words_on
from unhang.watch.group import Passing
from unhang.watch.meeting import MOST_SUCCESSORS
from unhang.watch.messages import MOST_MESSAGES_PER_S, FarRank, JointVerdict, pause_of
from unhang.watch.options import RunOptions
from unhang.watch.ranks import WatchedRank

LOOK_S, CONFIRM_WAIT_S, SECURE_S, ACKNOWLEDGE_S = 5.0, 3.0, 4.0, 2.0
UNHEARD_S, TOLD_AFTER_S = 4.0, 8.0
CLOSED_S, SILENT_S = 1.5, 1.5
PUMP_S, SHARE = 0.05, 1.0
MOST_LINES = 4


class HubAgent(many.AgentOfMany):
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
            self._send({"event": "condemned"})
            self._order(verdict=msgspec.structs.replace(joint, is_end=True))

    @cached_property
    def _where_to(self) -> str:
        """Where the report on all nodes will be."""
        folder: object = self.options.report_dir
        with suppress(OSError, ValueError, AttributeError):
            folder = json.loads((self.run_dir / "job.json").read_bytes()).get("report_dir") or folder
        return f"{socket.gethostname()}:{folder}"

    def _withdraw(self) -> None:
        verdict = self.verdict
        super()._withdraw()
        if verdict is not None:
            self._tell({**verdict, "withdrawn": True}, will_end=False)
