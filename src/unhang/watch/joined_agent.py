"""The watcher of one node among several: the hub judges over the ranks of all of them, the others look when it asks.

A proof over nodes is made of one moment: every node has looked, and only then every node is asked whether its ranks still stand
as they did. Nobody is accused for being unseen: the ranks of a node that is not heard are unknown.
"""

from __future__ import annotations

import json
import os
import select
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
from unhang.watch.evidence import drop_answers, is_unchanged, request_pickles, take_evidence, take_workers
from unhang.watch.far import UNKNOWN_WHY, FarNode, FarRank, why_silent, words_on
from unhang.watch.meeting import MOST_SUCCESSORS, Meeting
from unhang.watch.messages import CRASH, MESSAGES_PER_S, JointVerdict, Orders, RankState, State, pause_of
from unhang.watch.options import RunOptions
from unhang.watch.ranks import WatchedRank

LOOK_S, CONFIRM_WAIT_S, SECURE_S, ACKNOWLEDGE_S = 5.0, 3.0, 4.0, 2.0
UNHEARD_S, TOLD_AFTER_S, HUB_SILENT_S = 4.0, 8.0, 6.0
CLOSED_S, LINGER_S, LAST_WORDS_S, CAUSE_S = 1.5, 1.0, 1.0, 3.0
_PUMP_S, SHARE, MOST_PAUSE_S = 0.05, 4.0, 0.6
MOST_LINES = 4


class JoinedAgent(many.AgentOfMany):
    """The state of the watch, with what other nodes say."""

    def __init__(self, options: RunOptions, run_dir: Path, root_pid: int, out: int, orders: int) -> None:
        super().__init__(options, run_dir, root_pid, out, orders)
        assert options.join is not None
        self.meeting = Meeting(options.join, self.packer.pack, lambda text: self._send({"event": "note", "text": text}))
        self._published = State()
        self._seen: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})  # what the last look saw: calls, movement
        self._told: set[str] = set()
        self._promised: JointVerdict | None = None  # for which the hub will have the job ended
        self._has_ended = self._hears = False
        self._turn_s = 0.0

    def run(self) -> None:
        """Turns until the job is over, and lets the others know."""
        self.meeting.start()
        try:
            super().run()
            self._last_words()
        finally:
            self.meeting.stop()

    def _discover(self, poller: select.poll) -> None:
        if not self._hears:
            poller.register(self.meeting.woken, select.POLLIN)
            self._hears = True
        super()._discover(poller)
        self._note_world()

    def _pause_s(self) -> float:
        return max(super()._pause_s(), min(MOST_PAUSE_S, SHARE * self._turn_s))  # of very many ranks a turn takes long

    def _on_event(self, descriptor: int, poller: select.poll) -> None:
        if descriptor == self.meeting.woken:
            with suppress(OSError):
                os.eventfd_read(descriptor)
            return
        super()._on_event(descriptor, poller)

    # Each turn

    def _turn(self, now: float) -> None:
        self._exchange(now)
        began_s = time.thread_time()
        super()._turn(now)
        self._turn_s = time.thread_time() - began_s
        self._publish(now)

    def _on_quiet(self, now: float) -> None:
        is_member = self.meeting.role == "member" and now - self.meeting.heard_at < HUB_SILENT_S
        if not is_member:
            super()._on_quiet(now)

    def _exchange(self, now: float) -> None:
        if self.meeting.role == "member":
            self._obey(self.meeting.orders)
            return
        if self._promised is not None:  # and the hub that was about to say it is gone
            self._end_for(self._promised)
        if self.meeting.role == "hub":
            self._take_in()
            self._listen_for_silence(now)

    def _publish(self, now: float, is_urgent: bool = False) -> None:
        """Leaves what the others shall know to the meeting; at once where it is no matter of course."""
        ranks = [_state_of(rank, now) for rank in self.ranks.values()]
        state = msgspec.structs.replace(self._done, ranks=ranks, world=self._own_world)
        before = {r.folder: (r.dead_s >= 0, r.has_failed) for r in self._published.ranks}
        is_new = before != {r.folder: (r.dead_s >= 0, r.has_failed) for r in ranks}
        if is_new:
            self.packer.pages_wanted += 1
        self._published = state
        self.meeting.publish(state, is_urgent or is_new)

    # As the hub

    def _values(self, now: float) -> dict[str, float]:
        return {**super()._values(now), "unhang_nodes_unheard": sum(bool(n.unheard) for n in self.nodes.values())}

    def _take_in(self) -> None:
        new: set[int] = set()
        while not self.meeting.inbox.empty():
            said = self.meeting.inbox.get()
            node = self.nodes.get(said.node)
            if said.push is None:
                if node is not None:
                    node.closed_at = said.at
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
            self._far_world = max(self._far_world, said.push.state.world)
            if not self._are_many:
                node.write()
            for rank in node.dead_now():
                self._note_death(rank)
        if new:
            self._newest_at = time.monotonic()
            self._make_room()
            if any(rank.rank in new for rank in self._twice()):
                self._far_world = 0
                self._begin_again()
        self._order()

    def _twice(self) -> list[WatchedRank]:
        """Processes of this attempt that have a number which another one has, too."""
        counts = Counter(rank.rank for rank in self._of_attempt())
        return [rank for rank in self._of_attempt() if counts[rank.rank] > 1]

    def _order(self, **changes: Any) -> None:
        """Gives orders; without any, only what the nodes must know anyway."""
        pause_s = pause_of(len(self.nodes))
        first = islice((n for n in self.nodes.values() if not n.unheard), MOST_SUCCESSORS)  # in the order of joining
        successors = [(n.id, *n.address) for n in first]
        self.meeting.orders = msgspec.structs.replace(
            self.meeting.orders, pause_s=pause_s, successors=successors, report=self._where_to, **changes
        )
        if changes:
            self.meeting.announce(self.meeting.asked if changes.keys() == {"secure"} and self.meeting.asked else None)

    def _await(self, is_done: Callable[[FarNode], bool], limit_s: float) -> bool:
        """Whether all nodes that are heard have done what was asked. Blocks: up to `limit_s`."""
        pause_s, until = _PUMP_S, time.monotonic() + limit_s + 2 * self.meeting.orders.pause_s
        until += len(self.nodes) / MESSAGES_PER_S
        while not all(map(is_done, self._heard())):
            if (now := time.monotonic()) >= until:
                return False
            time.sleep(pause_s)
            began_s = time.thread_time()
            self._take_in()
            self._listen_for_silence(now)
            pause_s = max(_PUMP_S, SHARE * (time.thread_time() - began_s))  # the exchange needs the interpreter, too
        return True

    def _listen_for_silence(self, now: float) -> None:
        patience_s = UNHEARD_S + 3 * self.meeting.orders.pause_s
        for node in self.nodes.values():
            is_closed = node.closed_at and now - node.closed_at > CLOSED_S
            if not node.unheard and not node.state.is_over and (is_closed or now - node.heard_at > patience_s):
                node.lose()
                self._far_ranks = None
                if any(rank.is_alive for rank in node.ranks.values()):
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

    # As a member

    def _obey(self, orders: Orders) -> None:
        if orders.hub != self._done.hub:
            self._done = State(orders.hub)
        if self._is_sealed or self._interrupted is not None:
            self._hear_verdict(orders.verdict)
            return
        live, done = self._here(), self._done
        if orders.look > done.looked:
            dumps = take_evidence(live, self._oom_kills())
            self._seen = dumps, {r.rank: r.movement for r in live}
            self.packer.only = frozenset()
            told = many.told_of(self.run_dir) if self.packer.is_brief else None
            self._done = msgspec.structs.replace(done, looked=orders.look, told=told)
        elif orders.send > done.sent:
            self._send_files(orders)
        elif orders.confirm > done.still and orders.confirm == done.looked:
            dumps, movement = self._seen
            is_still = movement == {r.rank: r.movement for r in live} and is_unchanged(live, dumps)
            self._done = msgspec.structs.replace(done, still=orders.confirm, is_still=is_still)
        elif orders.secure > done.secured and not (self.packer.is_brief and not self.packer.only):
            request_pickles([r.folder for r in self._running()])
            take_workers(live)
            self._done = msgspec.structs.replace(done, secured=orders.secure)
        self._hear_verdict(orders.verdict)
        if self._done is not done:
            self.packer.pages_wanted += 1
            self._publish(time.monotonic(), is_urgent=True)

    def _hear_verdict(self, verdict: JointVerdict | None) -> None:
        if verdict is None or (
            verdict.kind == CRASH and self._here()
        ):  # of a job that failed elsewhere, while ours go on
            return
        if verdict.number > self._done.seen:
            self._done = msgspec.structs.replace(self._done, seen=verdict.number)
            said = {name: getattr(verdict, name) for name in ("kind", "line", "report", "is_withdrawn", "will_end")}
            self._send({"event": "joint", **said})
            for rank in self.ranks.values() if verdict.is_withdrawn else ():
                drop_answers(rank.folder)
            if verdict.will_end:
                self._promised = verdict
                self._seal()
            self._publish(time.monotonic(), is_urgent=True)
        if verdict.is_end:
            self._end_for(verdict)

    def _end_for(self, verdict: JointVerdict) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._send({"event": "verdict", "kind": verdict.kind, "end": True})

    def _on_interruption(self) -> None:
        super()._on_interruption()
        self.packer.pages_wanted += 1
        self._publish(time.monotonic(), is_urgent=True)

    # The end

    def _last_words(self) -> None:
        """Tells the hub how our ranks ended, and hears why the job failed; as the hub, the other way round. Blocks: up to CAUSE_S or so."""
        self._done = msgspec.structs.replace(self._done, is_over=True)
        self._publish(time.monotonic(), is_urgent=True)
        has_crashed = self._has_failed() and not self._is_sealed and self._interrupted is None
        if self.meeting.role == "member" and has_crashed:
            self._hear_the_cause()
        if self.meeting.role != "hub":
            return
        until = time.monotonic() + (LAST_WORDS_S if self._has_failed() or self._is_sealed else LINGER_S / 2)
        while any(not n.state.is_over and not n.closed_at for n in self._heard()) and time.monotonic() < until:
            time.sleep(_PUMP_S)
            self._take_in()
        lost = [n for n in self.nodes.values() if n.closed_at and not n.state.is_over and not n.unheard]
        self._far_ranks = None
        for node in () if self._is_sealed else lost:
            node.lose(why_silent(node.address, is_closed=True) if node in lost[:MOST_LINES] else UNKNOWN_WHY)
        if self._are_many and not self._is_sealed and self.verdict is None:
            self._read_failed()
        if has_crashed and any(not node.unheard and not node.closed_at for node in self.nodes.values()):
            self._tell_the_cause()

    def _tell_the_cause(self) -> None:
        """As the hub of a job that failed: what its ranks left says why, in one line for every screen. Blocks: about a second."""
        self._judge()
        if not self._headline.line:
            return
        self._given += 1
        number = self._given
        self._order(verdict=JointVerdict(number, CRASH, self._headline.line, self._where_to, [], 0))
        until = time.monotonic() + LAST_WORDS_S
        while any(n.state.seen < number and not n.closed_at and not n.unheard for n in self.nodes.values()):
            if time.monotonic() >= until:
                return
            time.sleep(_PUMP_S)
            self._take_in()

    def _hear_the_cause(self) -> None:
        """As a member of a job that failed: waits for the hub's line, or says where its report will be. Blocks: up to CAUSE_S."""
        until = time.monotonic() + CAUSE_S
        while self.meeting.role == "member" and time.monotonic() < until:
            verdict = self.meeting.orders.verdict
            if verdict is not None and verdict.kind == CRASH:
                self._hear_verdict(verdict)
                return
            if self.meeting.orders.send > self._done.sent:
                self._send_files(self.meeting.orders)
                self._publish(time.monotonic(), is_urgent=True)
            time.sleep(_PUMP_S)
        if report := self.meeting.orders.report:
            self._send({"event": "note", "text": f"the report on the ranks of all nodes is on {report}"})


def _state_of(rank: WatchedRank, now: float) -> RankState:
    dead_s = -1.0 if rank.is_alive else max(0.0, now - rank.died_at)
    code = rank.seen_end[1] if rank.seen_end else None
    quiet_s = max(0.0, rank.quiet_s(now if rank.is_alive else rank.died_at))
    return RankState(rank.folder.name, quiet_s, dead_s, code, rank.has_stepped(), rank.has_failed())
