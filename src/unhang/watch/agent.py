"""The node agent: outside the ranks, survives them, polls progress, proves or suspects a hang, and secures the evidence.

It reads the shared-memory pages five times a second. Only when a rank has been quiet for longer than this job is known to be
quiet does it look: calls from torch's worker server, stacks, /proc. A look costs the ranks some ten milliseconds.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from unhang.analyze.situation import Situation
from unhang.errors import UnhangError
from unhang.probe import flight, stacks
from unhang.probe.process import WorkProbe, are_at_work, children_of, oom_kills
from unhang.read.bundle import read_bundle
from unhang.watch.deaths import DeathClock
from unhang.watch.options import RunOptions
from unhang.watch.patience import FIRST_LOOK_S, START_UP_STALL_S, Patience
from unhang.watch.process_tree import descendants_of
from unhang.watch.ranks import WatchedRank, write_whole
from unhang.watch.suspicion import all_in_init, missing_in_rendezvous, reason, waits_for_stopped
from unhang.watch.unregistered import adopt, disown, is_adopted, unregistered

POLL_S = 0.2
# Of a rank that has come and gone between two looks not even the exit code is known.
NEW_RANKS_POLL_S, NEW_RANKS_S, START_S = 0.03, 2.0, 60.0
CONFIRM_S = 0.35
CLOCK_GAP_S = 3.0
DEATH_GRACE_S = 2.0
STOPPED_STALL_S = 1.5
MOST_WORKERS = 16


def watch(options: RunOptions, run_dir: Path, root_pid: int, to_supervisor: int, from_supervisor: int) -> None:
    """Watches the job until the supervisor says that it ended.

    Blocks: as long as the job.
    """
    Agent(options, run_dir, root_pid, to_supervisor, from_supervisor).run()


class Agent:
    """The state of the watch."""

    def __init__(
        self, options: RunOptions, run_dir: Path, root_pid: int, to_supervisor: int, from_supervisor: int
    ) -> None:
        self.options, self.run_dir, self.root_pid = options, run_dir, root_pid
        self._out, self._in = to_supervisor, from_supervisor
        self.ranks: dict[str, WatchedRank] = {}
        self._deaths, self._launcher = DeathClock(), WorkProbe()
        self.patience = Patience(options.stall_after_s)
        self.verdict: dict[str, Any] | None = None
        self._last_look_at_s: float | None = None
        self._look_again_at: float | None = None
        self._oom_kills_before = oom_kills()
        self._started = self._last_turn = self._newest_at = time.monotonic()
        self._is_over = False
        self._is_sealed = False  # we asked for the end: what happens from now on is our doing and no evidence

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
                    self.ranks[name], self._newest_at = rank, time.monotonic()
                    if rank.pidfd is not None:
                        poller.register(rank.pidfd, select.POLLIN)
                        self._deaths.add(rank)
                    else:
                        self._note_death(rank)

    def _on_event(self, descriptor: int, poller: select.poll) -> None:
        if descriptor == self._in:
            self._is_over = True
            return
        for rank in self.ranks.values():
            if rank.pidfd == descriptor:
                poller.unregister(descriptor)
                self._note_death(rank)

    def _oom_kills(self) -> int | None:
        """How often the kernel has killed for want of memory since the job started."""
        kills = oom_kills()
        return None if kills is None else kills - (self._oom_kills_before or 0)

    def _note_death(self, rank: WatchedRank) -> None:
        """Keeps how a rank ended; what happens after we asked for the end is our doing."""
        died_ns, code = rank.note_death()
        if not self._is_sealed:
            fields = {"state": "gone", "died_ns": died_ns, "exit_code": code}
            rank.write_state({**fields, "oom_kills": self._oom_kills()})

    def _turn(self, now: float) -> None:
        if now - self._last_turn > CLOCK_GAP_S:  # we were stopped, and so was the job (Ctrl-Z, a suspended machine)
            for rank in self._live():
                rank.moved_at = now
        self._last_turn = now
        if self._is_sealed:
            return
        ended = [q for rank in self._live() if (q := rank.poll(now)) is not None]
        for rank in self.ranks.values():
            if rank.is_aborting():
                self._secure_aborting(rank)
        if ended:
            self._on_movement(max(ended), now)
        elif self.verdict is None or self.verdict["kind"] == "suspected":
            self._on_quiet(now)

    def _live(self) -> list[WatchedRank]:
        return [rank for rank in self.ranks.values() if rank.is_alive]

    def _running(self) -> list[WatchedRank]:
        """Those that can answer: a stopped process cannot."""
        return [rank for rank in self._live() if not rank.probe.is_stopped()]

    def _secure_aborting(self, rank: WatchedRank) -> None:
        """Saves the calls of a rank that sleeps in its SIGABRT handler, and calls and stacks of its peers; then lets it die."""
        self._fetch_calls(rank)
        peers = [other for other in self._live() if other is not rank]
        for other in peers:
            self._fetch_calls(other)
        self._take_stacks([rank, *peers])
        flight.request_pickles([other.folder for other in (rank, *peers)], timeout_s=0.5)
        rank.end_abort()
        stacks.wake_sleeper(rank.pid)

    def _fetch_calls(self, rank: WatchedRank) -> bytes | None:
        dump = None if rank.probe.is_stopped() else flight.fetch_calls(rank.folder)
        if dump is not None:
            write_whole(rank.folder / "flight.json", dump)
        return dump

    def _on_movement(self, quiet_s: float, now: float) -> None:
        was_looked_at = self._last_look_at_s is not None
        others_quiet = [r for r in self._live() if r.quiet_s(now) >= FIRST_LOOK_S]
        if not others_quiet or self.verdict is None:
            self.patience.quiet_ended(quiet_s, was_looked_at)
        if not others_quiet:
            self._last_look_at_s = self._look_again_at = None
        if self.verdict is not None and not self._still_waiting(now):
            self._withdraw()

    def _still_waiting(self, now: float) -> bool:
        waiting = set((self.verdict or {}).get("waiting_ranks", ()))
        dying = any((r.folder / name).exists() for r in self.ranks.values() for name in ("error.json", "exit.json"))
        return dying or any(r.rank in waiting and r.quiet_s(now) > POLL_S for r in self._live())

    def _withdraw(self) -> None:
        assert self.verdict is not None
        self._write_verdict({**self.verdict, "withdrawn": True})
        self.verdict = None
        for rank in self.ranks.values():
            (rank.folder / "flight.pickle").unlink(missing_ok=True)
            disown(rank.folder)
        self._tell({"event": "note", "text": "the job moves again; the suspicion is withdrawn"})

    def _on_quiet(self, now: float) -> None:
        quiet = max((r.quiet_s(now) for r in self._live()), default=now - self._started)
        if self.verdict is not None:
            self._maybe_abort(now)
        elif not self._live():
            self._look_at_launcher(quiet)
        elif self._is_time_to_look(quiet, now):
            self._last_look_at_s, self._look_again_at = quiet, None
            self.patience.looked()
            self._look(now)

    def _is_time_to_look(self, quiet: float, now: float) -> bool:
        if self._look_again_at is not None and now >= self._look_again_at:
            return True
        return self.patience.is_time_to_look(quiet, self._last_look_at_s, now - self._started)

    def _maybe_abort(self, now: float) -> None:
        """A suspected hang that lasts: end the job, with fresh evidence."""
        assert self.verdict is not None
        lasted_s = (time.time_ns() - self.verdict["onset_ns"]) / 1e9
        if self.options.on_hang == "abort" and lasted_s >= self.options.abort_after_s:
            self._take_evidence()
            flight.request_pickles([r.folder for r in self._running()])
            self._is_sealed = True
            self._tell({"event": "verdict", "kind": "suspected", "end": True})

    def _look_at_launcher(self, quiet: float) -> None:
        """No rank has registered: the launcher may wait for other nodes."""
        limit_s = self.patience.stall_after_s()
        if self.ranks or quiet < limit_s or self._last_look_at_s is not None:
            return
        pids = [self.root_pid, *children_of(self.root_pid)]
        if quiet < limit_s + START_UP_STALL_S and self._launcher.is_at_work(pids):
            return  # a busy launcher passes through its rendezvous, and its ranks import
        self._last_look_at_s = quiet
        threads = [t for found in stacks.take_stacks(pids[:8]).values() for t in found]
        if any("rendezvous" in str(f.get("filename")) for t in threads for f in t.get("frames", ())):
            write_whole(self.run_dir / "launcher.json", json.dumps(threads).encode())
            self._declare("suspected", (), self._started_ns(), "the launcher waits in its rendezvous")

    def _started_ns(self) -> int:
        return time.time_ns() - int((time.monotonic() - self._started) * 1e9)

    # -- looking -------------------------------------------------------------------------------------------------------

    def _take_evidence(self) -> dict[int, bytes]:
        """Calls, stacks and /proc of all live ranks into their folders; the JSON dumps by rank."""
        live = self._live()
        dumps = {}
        for rank in live:
            dump = self._fetch_calls(rank)
            if dump is not None:
                dumps[rank.rank] = dump
            rank.write_state({**rank.probe.read(), "oom_kills": self._oom_kills()})
        self._take_stacks(live)
        return dumps

    def _take_stacks(self, live: list[WatchedRank]) -> None:
        stopped = [r.pid for r in live if r.probe.is_stopped()]
        found = stacks.take_stacks([r.pid for r in live], stopped)
        for rank in live:
            if rank.pid in found:
                write_whole(rank.folder / "pyspy.json", json.dumps(_with_pid(found[rank.pid], rank.pid)).encode())
        without = [r.pid for r in live if r.pid not in found and r.pid not in stopped]
        stacks.ask_faulthandler([pid for pid in without if stacks.listens_to_stack_signal(pid)])

    def _look(self, now: float) -> None:
        dumps = self._take_evidence()
        situation = self._situation()
        if situation is None:
            return
        if situation.proven and not self._peer_just_died(now):
            ranks = [r for r in self._live() if r.rank in situation.proven]
            least, quiet = 0.9 * FIRST_LOOK_S, min((r.quiet_s(now) for r in ranks), default=0.0)
            if quiet < least:
                self._look_again_at = now + least - quiet
                return
            if len(ranks) == len(situation.proven) and self._is_unchanged(ranks, dumps):
                self._declare("proven", situation.waits.waiting, self._onset_ns(situation), reason(situation))
                return
            self._look_again_at = now + 1.0
        self._maybe_suspect(situation, now)

    def _peer_just_died(self, now: float) -> bool:
        """Whether a rank ended a moment ago: with gloo the others then fail by themselves, and the launcher ends them."""
        if any(not r.is_alive and now - r.died_at < DEATH_GRACE_S for r in self.ranks.values()):
            self._look_again_at = now + DEATH_GRACE_S
            return True
        return False

    def _situation(self) -> Situation | None:
        try:
            return Situation(read_bundle(self.run_dir, trusted=True))
        except UnhangError:
            return None

    def _is_unchanged(self, ranks: list[WatchedRank], dumps: dict[int, bytes]) -> bool:
        """Whether the proof still holds a moment later: same pages, same open calls."""
        before = {r.rank: r.movement for r in ranks}
        time.sleep(CONFIRM_S)
        now = time.monotonic()
        for rank in ranks:
            if rank.poll(now) is not None or rank.movement != before[rank.rank]:
                return False
            again = flight.fetch_calls(rank.folder)
            if rank.rank in dumps and (
                again is None or flight.open_calls(again) != flight.open_calls(dumps[rank.rank])
            ):
                return False
        return True

    def _maybe_suspect(self, s: Situation, now: float) -> None:
        """Somebody waits, and neither it nor what it waits for has moved for longer than this job ever needed."""
        limit = min(self.patience.stall_after_s(), STOPPED_STALL_S if waits_for_stopped(s) else float("inf"))
        concerned = {e.waiter for e in s.waits.edges if e.targets} | {r for r in s.waits.roots if r in s.case.ranks}
        shutting_down = {r for r, a in s.activities.items() if a.kind == "shutdown"} if not concerned else set()
        ranks = concerned or shutting_down or all_in_init(s)
        live = {r.rank for r in self._live()}
        if not ranks & live or all(a.kind == "frozen" for r, a in s.activities.items() if r in live):
            return
        quiet = min(r.quiet_s(now) for r in self._live() if r.rank in ranks)
        if quiet < limit:
            self._look_again_at = now + limit - quiet
            return
        if now - self._started < START_UP_STALL_S and self._may_still_come(s):
            self._look_again_at = now + 1.0
            return
        if self._adopt_missing(s):
            self._look_again_at = now
            return
        waiting = tuple(sorted(s.waits.waiting)) or tuple(sorted(ranks))
        self._declare("suspected", waiting, self._onset_ns(s), reason(s))

    def _adopt_missing(self, s: Situation) -> bool:
        """Whether processes were found that must be ranks that never announced themselves: their stacks are wanted."""
        missing = missing_in_rendezvous(s) - {r.rank for r in self.ranks.values()}
        members = [p.pid for p in descendants_of(self.root_pid)] if missing else []
        found = unregistered(missing, [r.pid for r in self._live()], members)
        adopt(self.run_dir, found)
        return bool(found)

    def _may_still_come(self, s: Situation) -> bool:
        """Whether ranks that the others wait for in the rendezvous, or processes that are no rank yet, still work: they import.

        Where all have come to it, whether they work there. Blocks: up to CONFIRM_S.
        """
        missing = missing_in_rendezvous(s)
        known = {r.rank: r.pid for r in self._live()}
        pids = [known[r] for r in missing or all_in_init(s) if r in known]
        if not missing <= known.keys():
            pids += [p.pid for p in descendants_of(self.root_pid) if p.pid not in known.values()]
        return are_at_work(pids, CONFIRM_S)

    def _onset_ns(self, s: Situation) -> int:
        """When the oldest wait began."""
        times = [e.since_ns for e in s.waits.edges if e.targets and e.since_ns]
        quiet = [r.moved_ns for r in self._live()]
        return min(times) if times else min(quiet, default=self._started_ns())

    def _declare(self, kind: str, waiting: tuple[int, ...], onset_ns: int, reason: str) -> None:
        """Takes the calls with their paths, writes the verdict, tells the supervisor."""
        flight.request_pickles([r.folder for r in self._running()])
        self._secure_workers()
        end = kind == "proven" and self.options.on_hang == "abort"
        verdict = {
            "kind": kind,
            "onset_ns": onset_ns,
            "detected_ns": time.time_ns(),
            "waiting_ranks": list(waiting),
            "reason": reason,
            "withdrawn": False,
        }
        self._write_verdict(verdict)
        self.verdict, self._is_sealed = verdict, end
        self._tell({"event": "verdict", "kind": kind, "end": end})
        if not end:
            self._show()

    def _secure_workers(self) -> None:
        """Stacks of the children of each rank (loader workers), beside those of the rank itself."""
        for rank in self._live():
            children = children_of(rank.pid)[:MOST_WORKERS]
            found = stacks.take_stacks(children, timeout_s=1.0) if children else {}
            if found:
                with suppress(OSError, ValueError):
                    own = json.loads((rank.folder / "pyspy.json").read_bytes())
                    extra = [t for pid, threads in found.items() for t in _with_pid(threads, pid)]
                    write_whole(rank.folder / "pyspy.json", json.dumps(own + extra).encode())

    def _show(self) -> None:
        """Lets the verdict appear while the job still stands."""
        report: Callable[[Path], str] | None = self.options.render
        if report is not None:
            with suppress(Exception):
                self._tell({"event": "show", "text": report(self.run_dir)})

    def _write_verdict(self, verdict: dict[str, Any]) -> None:
        write_whole(self.run_dir / "verdict.json", json.dumps(verdict).encode())

    def _tell(self, message: dict[str, Any]) -> None:
        with suppress(OSError):
            os.write(self._out, json.dumps(message).encode() + b"\n")


def _with_pid(threads: list[Any], pid: int) -> list[Any]:
    return [{**t, "pid": t.get("pid") or pid} for t in threads if isinstance(t, dict)]
