"""The node agent: outside the ranks, survives them, polls progress, proves or suspects a hang, and secures the evidence.

It reads the shared-memory pages five times a second. Only when a rank has been quiet for longer than this job is known to be
quiet does it look: calls from torch's worker server, stacks, /proc. A look costs the ranks some ten milliseconds.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from unhang.analyze.situation import Situation
from unhang.analyze.waits.open_calls import caught_left_s, oldest_wait_ns
from unhang.errors import UnhangError
from unhang.read import read_bundle
from unhang.watch import RunOptions, evidence, naps, suspicion
from unhang.watch.course import Course
from unhang.watch.folders import write_whole
from unhang.watch.process import oom_kills
from unhang.watch.ranks import DEATH_GRACE_S, DeathClock, WatchedRank, adopt_missing, death_grace_s, disown, is_adopted
from unhang.watch.suspicion import (
    FIRST_LOOK_S,
    START_UP_STALL_S,
    Idleness,
    Patience,
    Silence,
    may_still_come,
)

POLL_S = 0.2
# Of a rank that has come and gone between two looks not even the exit code is known.
NEW_RANKS_POLL_S, NEW_RANKS_S, START_S = 0.03, 2.0, 60.0
CLOCK_GAP_S, VERDICT = 3.0, "verdict.json"
UNKNOWN_CALLS_S, GOES_ON_S = 5.0, 10.0  # a job that still makes steps so long after a signal has not been ended by it


class Agent:
    """The state of the watch."""

    def __init__(self, options: RunOptions, run_dir: Path, root_pid: int, out: int, orders: int) -> None:
        self.options, self.run_dir, self.root_pid = options, run_dir, root_pid
        self._out, self._in = out, orders
        self.ranks: dict[str, WatchedRank] = {}
        self._deaths, self._idle, self._naps = DeathClock(), Idleness(run_dir, root_pid), naps.Naps()
        self._silence = Silence(options, run_dir, root_pid)
        self.patience = Patience(options.stall_after_s)
        self.course = Course(run_dir, lambda text: self._send({"event": "note", "text": text}))
        self.verdict: dict[str, Any] | None = None
        self._last_look_at_s = self._look_again_at = cast("float | None", None)
        self._oom_kills_before, self._started_ns = oom_kills(), time.time_ns()
        self._started = self._began = self._last_turn = self._newest_at = time.monotonic()
        self._unheard = frozenset[int]()  # ranks of other nodes that are not heard any more
        self._is_over = self._is_sealed = False  # sealed: we asked for the end; what happens from now on is no evidence
        # A signal is ending the job, since when, and these ranks: what happens from now on is its doing.
        self._interrupted: tuple[float, list[WatchedRank]] | None = None

    def run(self) -> None:
        """Turns until the job is over."""
        poller = select.poll()
        poller.register(self._in, select.POLLIN | select.POLLHUP)
        self._deaths.start()
        try:
            while not self._is_over:
                self._discover(poller)
                events = poller.poll(self._pause_s() * 1000)
                for descriptor, _ in events:
                    self._on_event(descriptor, poller)
                now = time.monotonic()
                if events or now - self._last_turn >= 0.9 * POLL_S:
                    self._turn(now)
            self._discover(poller)  # a rank may have come and gone since the last turn
        finally:
            self._deaths.stop()
            self._silence.end(self.verdict is not None)
            self.course.write()

    def _pause_s(self) -> float:
        now = time.monotonic()
        may_come = now - self._newest_at < NEW_RANKS_S or (not self.ranks and now - self._started < START_S)
        return NEW_RANKS_POLL_S if may_come else POLL_S

    def _discover(self, poller: select.poll) -> None:
        with suppress(OSError):
            for name in os.listdir(self.run_dir / "ranks"):
                if name not in self.ranks and (self.run_dir / "ranks" / name / "identity.json").exists():
                    folder = self.run_dir / "ranks" / name
                    rank = WatchedRank(folder, self._started if is_adopted(folder) else time.monotonic())
                    if any(other.rank == rank.rank for other in self._of_attempt()):
                        self._begin_again()
                    self.ranks[name], self._newest_at = rank, time.monotonic()
                    if rank.pidfd is not None:
                        poller.register(rank.pidfd, select.POLLIN)
                        self._deaths.add(rank)
                    else:
                        self._note_death(rank)

    def _of_attempt(self) -> list[WatchedRank]:
        return [rank for rank in self._everyone() if not rank.is_earlier]

    def _begin_again(self) -> None:
        """Ranks are started again: what was seen of those that have ended says nothing of this attempt."""
        for rank in self._of_attempt():
            rank.is_earlier = not rank.is_alive or rank.seen_end is not None
        if not any(rank.is_alive for rank in self._of_attempt()):
            self.verdict = self._last_look_at_s = self._look_again_at = None
            self.patience.has_stepped, self._began = False, time.monotonic()
            self.course.begin_again()

    def _on_event(self, descriptor: int, poller: select.poll) -> None:
        if descriptor == self._in:
            orders = os.read(self._in, 4096).split(b"\n")
            self._is_over = self._is_over or orders == [b""] or b"end" in orders
            if b"interrupted" in orders and not self._is_sealed:
                self._on_interruption()
            return
        for rank in self.ranks.values():
            if rank.pidfd == descriptor:
                poller.unregister(descriptor)
                self._note_death(rank)

    def _oom_kills(self) -> int | None:
        """How often the kernel has killed for want of memory since the job started."""
        return None if (kills := oom_kills()) is None else kills - (self._oom_kills_before or 0)

    def _note_death(self, rank: WatchedRank) -> None:
        """Keeps how a rank ended. One that ended well shows that the job moves."""
        died_ns, code = rank.note_death()
        end: dict[str, Any] = {"state": "gone", "died_ns": died_ns, "exit_code": code, "oom_kills": self._oom_kills()}
        rank.write_state(end | self.patience.quiet_of(rank.quiet_s(rank.died_at)))
        if self.verdict is None and not self._is_sealed:
            evidence.drop_if_old(rank, "pyspy.json")  # of a quiet that ended by itself
        if code == 0 and not self._is_sealed and self._interrupted is None:
            for other in self._live():
                other.moved_at = max(other.moved_at, rank.died_at)
            if self.verdict is not None and self.verdict["kind"] == "suspected" and not self._has_failed():
                self._withdraw()
        elif self.verdict is not None:
            self._look_again_at = rank.died_at + death_grace_s()  # what was suspected may be certain now

    def _on_interruption(self) -> None:
        """A signal is about to end the job: keeps what every rank does, and says so; nothing is looked at after it."""
        self._interrupted = (time.monotonic(), self._here())
        evidence.take_before_end(self._here(), self._oom_kills())
        self._send({"event": "secured"})

    def _seal(self) -> None:
        self._is_sealed = True
        for rank in self._here():
            rank.keep_state({**rank.probe.read(), "oom_kills": self._oom_kills()})

    def _turn(self, now: float) -> None:
        if now - self._last_turn > CLOCK_GAP_S:  # we were stopped, and so was the job (Ctrl-Z, a suspended machine)
            for rank in self._here():
                rank.moved_at = now
        self._last_turn = now
        if self._is_sealed:
            return
        ended = self._ended_quiets(now)
        self.course.turn(self._here(), now)
        for rank in [rank for rank in self.ranks.values() if rank.is_aborting()]:
            if self._interrupted is None:
                evidence.take_at_abort(rank, [other for other in self._here() if other is not rank])
            else:
                evidence.let_die(rank)
        if self._interrupted is not None:
            if not ended or not self._has_survived(*self._interrupted, now):
                return
            self._go_on()
        if ended:
            self._on_movement(max(ended), now)
        elif self.verdict is None or self.verdict["kind"] == "suspected":
            self._on_quiet(now)

    def _everyone(self) -> list[WatchedRank]:
        return list(self.ranks.values())

    _may_be_quiet = _everyone

    def _ended_quiets(self, now: float) -> list[float]:
        return [q for rank in self.ranks.values() if rank.is_alive and (q := rank.poll(now)) is not None]

    def _live(self) -> list[WatchedRank]:
        return [rank for rank in self._everyone() if rank.is_alive]

    def _here(self) -> list[WatchedRank]:
        return [rank for rank in self.ranks.values() if rank.is_alive]

    def _running(self) -> list[WatchedRank]:  # a stopped process cannot answer
        return [rank for rank in self._here() if not rank.probe.is_stopped()]

    def _on_movement(self, quiet_s: float, now: float) -> None:
        was_looked_at = self._last_look_at_s is not None
        others_quiet = any(r.is_alive and r.quiet_s(now) >= FIRST_LOOK_S for r in self._may_be_quiet())
        if not others_quiet or self.verdict is None:
            self.patience.quiet_ended(quiet_s, was_looked_at)
        if not others_quiet:
            self._last_look_at_s = self._look_again_at = None
        elif self._last_look_at_s is not None:
            self.patience.moved_beside(now - self._started)
        if not self.patience.has_stepped and any(r.has_stepped() for r in self._live()):
            self.patience.begin_steps()
        if self.verdict is not None and not self._still_waiting(now):
            self._withdraw()

    def _still_waiting(self, now: float) -> bool:
        waiting = set((self.verdict or {}).get("waiting_ranks", ()))
        return self._has_failed() or any(r.rank in waiting and r.quiet_s(now) > POLL_S for r in self._live())

    def _has_failed(self) -> bool:  # then its peers move only because their calls fail
        return any(rank.has_failed() for rank in self._of_attempt())

    def _has_survived(self, since: float, ranks: list[WatchedRank], now: float) -> bool:
        return now - since >= GOES_ON_S and all(rank.is_alive for rank in ranks) and not self._has_failed()

    def _go_on(self) -> None:  # the job took the signal
        self._interrupted = None
        for rank in self._here():
            evidence.let_go(rank)
        self._send({"event": "goes-on"})

    def _withdraw(self) -> None:
        assert self.verdict is not None
        write_whole(self.run_dir / VERDICT, json.dumps({**self.verdict, "withdrawn": True}).encode())
        for rank in self.ranks.values():
            evidence.drop_answers(rank.folder)
            disown(rank.folder)
        stood_s = (time.time_ns() - self.verdict["onset_ns"]) / 1e9
        self.course.passed(self.verdict, stood_s)
        self.verdict = None
        self._last_look_at_s = self._look_again_at = None
        self._send({"event": "note", "text": f"it moves again after {stood_s:.0f} s: no hang"})

    def _on_quiet(self, now: float) -> None:
        if self._silence.is_kept((r.folder.name for r in self._everyone()), bool(self._live()), now):
            self._on_silence(now)
            return
        is_due = self._look_again_at is not None and now >= self._look_again_at
        if self.verdict is not None:
            if is_due:
                self._look_again_at = None
                self._look(now)
            else:
                self._maybe_abort()
        elif (quiet := self._longest_quiet(now)) is not None and (
            is_due or self.patience.is_time_to_look(quiet, self._last_look_at_s, now - self._started)
        ):
            self._last_look_at_s, self._look_again_at = quiet, None
            self.patience.looked()
            self._look(now)

    def _longest_quiet(self, now: float) -> float | None:
        return max((rank.quiet_s(now) for rank in self._here()), default=None)

    def _maybe_abort(self) -> None:
        """A suspected hang that lasts: end the job where the user has said so, with fresh evidence."""
        assert self.verdict is not None
        if not self._is_to_be_ended(self.verdict):
            return
        stalled = self._live()
        self._take_evidence(with_workers=True)
        evidence.request_pickles([r.folder for r in self._running()])
        if any(rank.seen_end is not None or rank.moves() for rank in stalled):
            return  # it has come to life, or to its end, in the meantime
        self._end_suspected()

    def _is_to_be_ended(self, verdict: Mapping[str, Any]) -> bool:
        limit_s, lasted_s = self.options.abort_after_s, (time.time_ns() - verdict["onset_ns"]) / 1e9
        is_due = self.options.on_hang == "abort" and limit_s is not None and lasted_s >= limit_s
        return is_due and not self._naps.keep(verdict, self._here(), limit_s or 0.0, time.monotonic())

    def _end_suspected(self) -> None:
        assert self.verdict is not None
        self._tell(self.verdict, will_end=True)
        self._seal()
        self._send({"event": "verdict", "kind": "suspected", "end": True, "left": not self._live()})

    def _on_silence(self, now: float) -> None:
        """No rank has announced itself."""
        said = self._silence.turn(now, self.patience.stall_after_s())
        if said is None:
            if self.verdict is not None and not self._silence.is_looking:
                self._maybe_abort()
        elif said.kind == "note":
            self._send({"event": "note", "text": said.text})
        elif said.kind == "moves":
            if self.verdict is not None:
                self._withdraw()
        elif self.verdict is None:
            self._declare("suspected", said.waiting, said.onset_ns, said.text)
        elif self._silence.is_looking and self._is_to_be_ended(self.verdict):
            self._end_suspected()

    def _look(self, now: float) -> None:
        dumps = self._take_evidence(with_workers=self.verdict is not None)
        if (situation := self._situation()) is None:
            return
        if situation.proven and not self._may_still_change(situation, now):
            ranks = [r for r in self._live() if r.rank in situation.proven]
            least, quiet = 0.9 * FIRST_LOOK_S, min((r.quiet_s(now) for r in ranks), default=0.0)
            if quiet < least:
                self._look_again_at = now + least - quiet
                return
            if len(ranks) == len(situation.proven) and self._is_unchanged(ranks, dumps):
                self._declare("proven", situation.waits.waiting, self._onset_ns(situation), suspicion.reason(situation))
                return
            self._look_again_at = now + 1.0
        if self.verdict is None:
            self._maybe_suspect(situation, now)

    def _take_evidence(self, with_workers: bool) -> dict[int, bytes]:
        return evidence.take_evidence(self._here(), self._oom_kills(), with_workers=with_workers)

    _is_unchanged = staticmethod(evidence.is_unchanged)

    def _secure(self) -> None:
        """Takes what a look leaves out: the calls with their paths, the loaders' workers, and C++ frames where they are wanted."""
        evidence.request_pickles([r.folder for r in self._running()])
        evidence.take_workers(self._here(), self.options.native)
        evidence.take_driver(self.run_dir, self.root_pid, [r.pid for r in self._here()])

    def _tell(self, verdict: Mapping[str, Any], will_end: bool) -> None:
        """Lets other nodes know."""

    def _may_still_change(self, s: Situation, now: float) -> bool:
        """Whether a rank ended a moment ago: with gloo the others then fail, and the launcher ends them. Or a wait ends by a limit that is caught."""
        has_died = any(not r.is_alive and now - r.died_at < death_grace_s() for r in self._everyone())
        if left_s := DEATH_GRACE_S if has_died else caught_left_s(s, time.time_ns()):
            self._look_again_at = now + left_s
        return bool(left_s)

    def _situation(self) -> Situation | None:
        try:
            return Situation(read_bundle(self.run_dir, trusted=True))
        except UnhangError:
            return None

    def _maybe_suspect(self, s: Situation, now: float) -> None:
        """Somebody waits, and neither it nor what it waits for has moved for longer than this job ever needed."""
        s = self._idle.with_tasks(s, [r.folder for r in self._here()])
        limit = suspicion.limit_s(self.patience, s, self._unheard)
        ranks = suspicion.concerned(s) or self._idle.ranks(s, [r.pid for r in self._here()])
        if ranks is None:
            self._look_again_at = now + UNKNOWN_CALLS_S
            return
        live = {r.rank for r in self._live()}
        if not ranks & live or all(a.kind == "frozen" for r, a in s.activities.items() if r in live):
            return
        quiet = min(r.quiet_s(now) for r in self._live() if r.rank in ranks)
        if quiet < limit:
            self._look_again_at = now + limit - quiet
            return
        if now - self._began < START_UP_STALL_S and self._may_still_come(s):
            self._look_again_at = now + 1.0
            return
        if self._adopt_missing(s):
            self._look_again_at = now
            return
        waiting = tuple(sorted(s.waits.waiting)) or tuple(sorted(ranks))
        self._declare("suspected", waiting, self._onset_ns(s), suspicion.reason(s))

    def _adopt_missing(self, s: Situation) -> bool:
        """Whether processes were found that must be ranks that never announced themselves: their stacks are wanted."""
        missing = suspicion.never_seen(s) - {r.rank for r in self._of_attempt()}
        return adopt_missing(self.run_dir, self.root_pid, missing, [r.pid for r in self._here()])

    def _may_still_come(self, s: Situation) -> bool:
        known = {r.rank: r.pid for r in self._here()}
        return may_still_come(self.root_pid, known, suspicion.missing_in_rendezvous(s), suspicion.all_in_init(s))

    def _onset_ns(self, s: Situation) -> int:
        moved = {r.rank: r.moved_ns for r in self._live()}
        return oldest_wait_ns(s, moved) or min(moved.values(), default=self._started_ns)

    def _declare(self, kind: str, waiting: tuple[int, ...], onset_ns: int, reason: str) -> None:
        """Takes the calls with their paths, writes the verdict, tells the supervisor."""
        self._secure()
        end = kind == "proven" and self.options.on_hang == "abort"
        times = {"onset_ns": onset_ns, "detected_ns": time.time_ns()}
        self.verdict = verdict = {
            "kind": kind, **times, "waiting_ranks": list(waiting), "reason": reason, "withdrawn": False
        }  # fmt: skip
        write_whole(self.run_dir / VERDICT, json.dumps(verdict).encode())
        self.course.write()
        self._tell(verdict, end)
        if end:
            self._seal()
        self._send({"event": "verdict", "kind": kind, "end": end})
        if not end and self.options.render is not None:  # while the job still stands
            with suppress(Exception):
                self._send({"event": "show", "text": self.options.render(self.run_dir)})

    def _send(self, message: dict[str, Any]) -> None:
        with suppress(OSError):
            os.write(self._out, json.dumps(message).encode() + b"\n")
