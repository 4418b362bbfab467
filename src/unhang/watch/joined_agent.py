"""The watcher of one node among several: the hub judges over the ranks of all of them, the others look when it asks."""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from unhang.watch import RunOptions, many
from unhang.watch.evidence import drop_answers, is_unchanged, request_pickles, take_evidence, take_workers
from unhang.watch.far import UNKNOWN_WHY, FarNode, why_silent
from unhang.watch.hub_agent import MOST_LINES, PUMP_S, SHARE, HubAgent
from unhang.watch.meeting import Meeting
from unhang.watch.messages import CRASH, LEFT, JointVerdict, Orders, RankState, State
from unhang.watch.ranks import WatchedRank

HUB_SILENT_S = 6.0
LINGER_S, LAST_WORDS_S, CAUSE_S = 1.0, 1.0, 5.0
MOST_PAUSE_S = 0.6


class JoinedAgent(HubAgent):
    """The state of the watch, with what other nodes say."""

    def __init__(self, options: RunOptions, run_dir: Path, root_pid: int, out: int, orders: int) -> None:
        super().__init__(options, run_dir, root_pid, out, orders)
        assert options.join is not None
        self.meeting = Meeting(options.join, self.packer.pack, lambda text: self._send({"event": "note", "text": text}))
        self.meeting.via = self.passing.via
        self._published = State()
        self._seen: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})  # what the last look saw: calls, movement
        self._promised: JointVerdict | None = None  # for which the hub will have the job ended
        self._cause: JointVerdict | None = None  # why it failed elsewhere, while ours go on
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
            self._get_ready(now)

    def _publish(self, now: float, is_urgent: bool = False) -> None:
        """Leaves what the others shall know to the meeting; at once where it is no matter of course."""
        ranks = [_state_of(rank, now) for rank in self.ranks.values()]
        state = msgspec.structs.replace(self._done, ranks=ranks, world=self._own_world, at=now)
        before = {r.folder: (r.dead_s >= 0, r.has_failed) for r in self._published.ranks}
        is_new = before != {r.folder: (r.dead_s >= 0, r.has_failed) for r in ranks}
        if is_new:
            self.packer.pages_wanted += 1
        self._published = state
        self.meeting.publish(state, is_urgent or is_new)

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
        if verdict is not None and verdict.kind == CRASH and self._here():
            self._cause = verdict
            return
        if verdict is None:
            return
        if verdict.number > self._done.seen:
            self._done = msgspec.structs.replace(self._done, seen=verdict.number)
            said = {name: getattr(verdict, name) for name in ("kind", "line", "report", "is_withdrawn")}
            will_end = verdict.will_end and self._can_be_ended()
            self._send({"event": "joint", **said, "will_end": will_end, "ns": time.time_ns()})
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
        has_crashed = self._has_crashed()
        if has_crashed and self._cause is not None:
            self._hear_verdict(self._cause)
        elif has_crashed and self.meeting.role in ("member", "seeking"):
            self._hear_the_cause()
        if self.meeting.role != "hub":
            return
        self._wait_for_all()
        lost = [n for n in self.nodes.values() if n.closed_at and not n.unheard and not self._is_known_to_end(n)]
        self._far_ranks = None
        for node in () if self._is_sealed else lost:
            node.lose(why_silent(node.address, is_closed=True) if node in lost[:MOST_LINES] else UNKNOWN_WHY)
        if self._are_many and not self._is_sealed and self.verdict is None:
            self._read_failed()
        if has_crashed and any(not node.unheard and not node.closed_at for node in self.nodes.values()):
            self._tell_the_cause()

    def _wait_for_all(self) -> None:
        """As the hub: until all others have ended, and those have come that knew the hub before this one.

        A job may fail before the watchers have met: those of its ranks that nobody watches yet are waited for, too. Blocks: about LAST_WORDS_S.
        """
        has_crashed = self._has_crashed()
        until = time.monotonic() + (LAST_WORDS_S if self._has_failed() or self._is_sealed else LINGER_S / 2)
        until += LAST_WORDS_S if self.meeting.fellows else 0
        self._take_in()
        while time.monotonic() < until:
            is_all_here = self.meeting.fellows <= self.nodes.keys() and not (has_crashed and self._are_missing())
            if is_all_here and all(n.state.is_over or n.closed_at for n in self._heard()):
                return
            time.sleep(PUMP_S)
            self._take_in()

    def _are_missing(self) -> bool:
        """Whether no watcher has spoken of some ranks of the job."""
        return len(self.ranks) + sum(len(node.ranks) for node in self.nodes.values()) < self._world

    @staticmethod
    def _is_known_to_end(node: FarNode) -> bool:
        return node.state.is_over and not node.has_life()

    def _has_crashed(self) -> bool:
        """Whether our ranks did not end well, by nobody's order."""
        ended_badly = any(rank.seen_end and rank.seen_end[1] for rank in self.ranks.values() if not rank.is_earlier)
        return (self._has_failed() or ended_badly) and not self._is_sealed and self._interrupted is None

    def _tell_the_cause(self) -> None:
        """As the hub of a job that failed: what its ranks left says why, in one line for every screen. Blocks: about a second."""
        if self._cause is None:
            self._judge()
            self._cause = JointVerdict(0, CRASH, self._headline.line, self._where_to, [], 0)
        if not self._cause.line:
            return
        self._given += 1
        number = self._given
        self._order(verdict=msgspec.structs.replace(self._cause, number=number))
        until = time.monotonic() + LAST_WORDS_S
        while any(n.state.seen < number and not n.closed_at and not n.unheard for n in self.nodes.values()):
            if time.monotonic() >= until:
                return
            time.sleep(PUMP_S)
            self._take_in()

    def _hear_the_cause(self) -> None:
        """As a member of a job that failed: waits for the hub's line, or to be the hub. A hub that has our evidence reports, even if it is not over.

        Blocks: up to CAUSE_S.
        """
        until = time.monotonic() + CAUSE_S
        while self.meeting.role in ("member", "seeking") and time.monotonic() < until:
            verdict = self.meeting.orders.verdict
            if verdict is not None and verdict.kind == CRASH:
                self._hear_verdict(verdict)
                return
            if self.meeting.orders.send > self._done.sent:
                self._send_files(self.meeting.orders)
                self._publish(time.monotonic(), is_urgent=True)
            time.sleep(PUMP_S)
        if self.meeting.role == "member" and self.meeting.delivered.is_over:
            self._judge()
            left = {"event": "joint", "kind": LEFT, "line": self._headline.line}
            self._send({**left, "report": self.meeting.orders.report})


def _state_of(rank: WatchedRank, now: float) -> RankState:
    dead_s = -1.0 if rank.is_alive else max(0.0, now - rank.died_at)
    code = rank.seen_end[1] if rank.seen_end else None
    quiet_s = max(0.0, rank.quiet_s(now if rank.is_alive else rank.died_at))
    return RankState(rank.folder.name, quiet_s, dead_s, code, rank.has_stepped(), rank.has_failed())
