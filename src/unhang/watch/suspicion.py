"""When to look and when to suspect a hang; who is concerned, and why in one line; and which processes must be ranks that did not announce themselves.

A look costs the ranks some ten milliseconds. Every quiet of a second may be looked at as long as there are looks left; they
come back one by one. Without one, a quiet has to outlast those that ended by themselves. So a hang is seen after a second, and
a job whose every step is long and quiet pays for a few looks a minute.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from unhang.analyze.calls.positions import bare_op
from unhang.analyze.situation import Situation
from unhang.analyze.waits import open_calls
from unhang.analyze.waits.leaving import cannot_end
from unhang.errors import UnhangError
from unhang.read import read_bundle
from unhang.watch import RunOptions, evidence
from unhang.watch.folders import write_whole
from unhang.watch.process import (
    WorkProbe,
    are_at_work,
    children_of,
    may_be_asked,
    talks_elsewhere,
    waits_for_storage,
    workers_of_ray,
)
from unhang.watch.process_tree import descendants_of, sleep_left_s
from unhang.watch.ranks import disown, unrecorded

FIRST_LOOK_S = 1.0
MOST_LOOKS = 4
ONE_LOOK_EVERY_S = 30.0
LEAST_STALL_S = 15.0
START_UP_STALL_S = 60.0
LEFT_STALL_S = 45.0  # torchrun waits half a minute for further nodes
STALL_FACTOR = 3.0
STOPPED_STALL_S, UNHEARD_STALL_S, IDLE_STALL_S, NAP_S = 1.5, 5.0, 30.0, 5.0


def waits_for_stopped(s: Situation) -> bool:
    """Whether all that the others wait for are processes stopped by a signal, not by a debugger (t): no patience makes them go on."""
    roots = [s.case.ranks.get(r) for r in s.waits.roots]
    return bool(roots) and all(e is not None and e.state is not None and e.state.state == "T" for e in roots)


def all_in_init(s: Situation) -> set[int]:
    """All ranks, if every one has come to init_process_group and is still in it."""
    under_way = {
        r
        for r, e in s.case.ranks.items()
        if any(c.kind == "init_process_group" and c.ended_ns is None for c in e.pending)
    }
    return under_way if under_way == set(s.case.world) else set()


def concerned(s: Situation) -> set[int]:
    """Ranks that wait, with those that they wait for; else those whose devices do, or that cannot end, or begin."""
    found = {e.waiter for e in s.waits.edges if e.targets} | {r for r in s.waits.roots if r in s.case.ranks}
    return found or {r for stuck in s.on_device for r in stuck.waiting} or set(cannot_end(s)) or all_in_init(s)


_SHARED = (
    (open_calls.all_meet_by_files, "each rank looks for files of the others, and none makes one"),
    (open_calls.all_wait_for_ray, "all ranks wait for results of Ray, and no process of the job is at work"),
    (open_calls.all_without_task, "who gives the ranks their tasks waits for Ray, and nothing of the job is at work"),
    (
        open_calls.all_wait_in_the_job,
        "all ranks wait for other threads or processes of the job, and none of these is at work",
    ),
    (open_calls.all_wait_for_loaders, "all ranks wait for their data loaders, of which no process is at work"),
    (open_calls.left_by_a_failure, "a rank has failed, and the others wait for what no process of the job gives them"),
    (all_in_init, "all ranks are in init_process_group, and it does not end"),
)


def reason(s: Situation) -> str:
    """One line on why: the first wait."""
    if (edge := next((e for e in s.waits.edges if e.targets), None)) is not None:
        return f"rank {edge.waiter} waits in {edge.what}"
    if open_calls.all_in_unknown_calls(s):
        return "all ranks are in calls with others, of which this torch keeps no record, and none moves"
    if s.on_device:
        stuck = s.on_device[0]
        return f"all ranks of {stuck.group} are in {bare_op(stuck.calls[stuck.waiting[0]].op)} #{stuck.seq}, which does not complete"
    return next((text for holds, text in _SHARED if holds(s)), "a process does not end")


def missing_in_rendezvous(s: Situation) -> set[int]:
    """Ranks that the others wait for in init_process_group."""
    return {t for e in s.waits.edges if e.kind == "rendezvous" for t in e.targets}


def never_seen(s: Situation) -> set[int]:
    """Ranks that the others wait for, in a call or the rendezvous, and that never announced themselves."""
    return missing_in_rendezvous(s) | {t for e in s.waits.edges for t in e.targets if t not in s.case.ranks}


class Idleness:
    """Ranks that no recorded wait accounts for: all are in calls that nobody records, or all wait for other processes of the job, and nothing is at work."""

    def __init__(self, run_dir: Path, root_pid: int) -> None:
        self._work, self._run_dir, self._root = WorkProbe(), run_dir, root_pid

    def ranks(self, s: Situation, pids: Collection[int]) -> set[int] | None:
        """These ranks; None where something is at work, or cannot be told yet. `pids`: of the ranks here."""
        if found := open_calls.all_in_unknown_calls(s):  # where no call is recorded, a loop of them looks the same
            return None if s.case.calls.is_empty and self._work.is_at_work(pids) else found
        of_ray = open_calls.all_wait_for_ray(s)
        found = of_ray or open_calls.left_by_a_failure(s) or self._without_task(s, pids)
        job = [self._root, *(p.pid for p in descendants_of(self._root))]
        if not found and (waiting := open_calls.all_wait_in_the_job(s)) and not may_be_asked(job):
            found = waiting
        if not found and (waiting := open_calls.all_wait_for_loaders(s)) and not any(map(waits_for_storage, job)):
            found = waiting
        if not found:
            return set()
        under_way = (p for p, what in workers_of_ray(job).items() if "." in what)
        asleep, nap_s = (under_way, 0.0) if of_ray else (job, NAP_S)
        sleeps = any((sleep_left_s(pid) or 0.0) > nap_s for pid in {*asleep} - {*pids})  # a rank, between its questions
        return None if sleeps or self._work.is_at_work(job) or any(map(talks_elsewhere, job)) else found

    def with_tasks(self, s: Situation, folders: Sequence[Path]) -> Situation:
        """The situation with what the tasks of asyncio wait for, where all ranks wait for nothing but theirs: a look leaves these out. Blocks: up to 1 s."""
        if not open_calls.all_wait_for_tasks(s):
            return s
        evidence.request_pickles(folders)
        with suppress(UnhangError):
            s = Situation(read_bundle(self._run_dir, trusted=True))
        for folder in folders:
            evidence.drop_answers(folder)  # the next look may find others there
        return s

    def _without_task(self, s: Situation, pids: Collection[int]) -> set[int]:
        """All ranks, if none has a task and the program that gives them theirs waits itself. Blocks: up to 2 s where none has one."""
        if not (found := open_calls.all_without_task(s)):
            return set()
        evidence.take_driver(self._run_dir, self._root, pids)
        return found if open_calls.driver_without_answer(Situation(read_bundle(self._run_dir, trusted=True))) else set()


@dataclass
class Patience:
    """What the watcher has learnt of this job. Pure; the clock is passed in. `asked_s`: the user's own `--stall-after`, which is not adapted.

    `has_stepped`: the job is past its first step; what comes before it (data sets, compilers) is no habit: a quiet of it may come again,
    but nothing tells that one three times as long may.
    Times named `now` are seconds of one clock that starts with the job.
    """

    asked_s: float | None = None
    longest_quiet_s: float = 0.0
    longest_before_s: float = 0.0
    usual_quiet_s: float = FIRST_LOOK_S
    has_stepped: bool = False
    looks_left: float = MOST_LOOKS
    refilled_at: float = 0.0
    look_anew_at: float | None = None

    def stall_after_s(self) -> float:
        """How long a wait may last before it is suspected."""
        if self.asked_s is not None:
            return self.asked_s
        least = LEAST_STALL_S if self.has_stepped else START_UP_STALL_S
        factor = 1.0 if self.has_stepped else STALL_FACTOR
        return max(least, STALL_FACTOR * self.longest_quiet_s, factor * self.longest_before_s)

    def quiet_of(self, quiet_s: float) -> dict[str, float]:
        """What the files keep of a quiet of this length: it, and the longest that had ended by itself."""
        return {
            "quiet_s": round(quiet_s, 3),
            "usual_quiet_s": round(max(self.longest_quiet_s, self.longest_before_s), 3),
        }

    def quiet_ended(self, quiet_s: float, was_looked_at: bool) -> None:
        """Learns from a quiet that ended by itself."""
        if self.has_stepped:
            self.longest_quiet_s = max(self.longest_quiet_s, quiet_s)
        else:
            self.longest_before_s = max(self.longest_before_s, quiet_s)
        if was_looked_at:
            self.usual_quiet_s = max(self.usual_quiet_s, 1.5 * quiet_s)

    def begin_steps(self) -> None:
        """The first step is made: what was quiet before, and the looks that it took, count no more."""
        self.has_stepped = True
        self.usual_quiet_s, self.looks_left = FIRST_LOOK_S, float(MOST_LOOKS)

    def moved_beside(self, now: float) -> None:
        """A rank moved while others stand, at which somebody has looked: where it stops, too, it may have closed a circle."""
        self.look_anew_at = now + FIRST_LOOK_S

    def looked(self) -> None:
        """Counts a look."""
        self.looks_left = max(0.0, self.looks_left - 1)

    def is_time_to_look(self, quiet_s: float, last_look_at_s: float | None, now: float) -> bool:
        """Whether a quiet is worth a look: the first after a second, later ones at three times the age of the last."""
        self.looks_left = min(MOST_LOOKS, self.looks_left + (now - self.refilled_at) / ONE_LOOK_EVERY_S)
        self.refilled_at = now
        if self.look_anew_at is not None and now >= self.look_anew_at and self.looks_left >= 1:
            self.look_anew_at = None
            return last_look_at_s is not None
        if last_look_at_s is None:
            after = FIRST_LOOK_S if self.looks_left >= 1 else self.usual_quiet_s
            return quiet_s >= min(after, self.stall_after_s())
        return last_look_at_s < self.stall_after_s() <= quiet_s or quiet_s >= 3 * last_look_at_s


def limit_s(patience: Patience, s: Situation, unheard: Collection[int]) -> float:
    """How long the waits of this moment may last. `unheard`: ranks of nodes that were heard and are not any more.

    Who waits for these alone has no more to wait for than this job has been seen to need: a node that is gone does not come back.
    """
    usual = patience.stall_after_s()
    idle = (holds for holds, _ in _SHARED[1:-1])
    if patience.asked_s is None and not s.waits.edges and any(holds(s) for holds in idle):
        return max(usual, IDLE_STALL_S)  # a call of an actor, or another process, may take its time without a processor
    if waits_for_stopped(s):
        return min(usual, STOPPED_STALL_S)
    if patience.has_stepped and s.waits.roots and set(s.waits.roots) <= set(unheard):
        return min(usual, max(UNHEARD_STALL_S, STALL_FACTOR * patience.longest_quiet_s))
    return usual


# No rank has announced itself: the launcher waits for other nodes, or the ranks run without the recorder (PYTHONPATH replaced).
#
# Such ranks are looked at from outside, as `unhang attach` does: rarely, since a look stops them for some ten milliseconds, and
# each look that finds them moving doubles the time to the next. A suspicion needs the same standstill in several of them.

_FIRST_S, _EVERY_S, _MOST_S = 20.0, 15.0, 240.0
_AGAIN_S = 5.0
_STANDS_S = 30.0  # of ranks that were seen to move before; else START_UP_STALL_S


class Said(NamedTuple):
    """What the watcher is to say. `kind`: note, suspected, stalled (it still stands) or moves. `onset_ns`: since when it stands."""

    kind: str
    text: str = ""
    waiting: tuple[int, ...] = ()
    onset_ns: int = 0


class Silence:
    """What becomes of a job of which no rank has announced itself. Times named `now` are CLOCK_MONOTONIC seconds."""

    def __init__(self, options: RunOptions, run_dir: Path, root_pid: int) -> None:
        self._options, self._run_dir, self._root = options, run_dir, root_pid
        self._launcher = WorkProbe()
        self._began = self._look_at = time.monotonic()
        self._pause_s, self._is_over, self._has_moved, self.is_looking = _EVERY_S, False, False, False
        self._looked_at = set[str]()
        self._standing: tuple[str, float, int] | None = None  # where, and since when: monotonic, wall clock
        self._left_at: float | None = None

    def is_kept(self, names: Iterable[str], is_alive: bool, now: float) -> bool:
        """Whether no rank has announced itself, or none is left; `names`: the folders of ranks. Those that a look has made do not count."""
        for name in names:
            if name not in self._looked_at:
                if not (self._run_dir / "ranks" / name / "look.json").exists():
                    self._left_at = None if is_alive else self._left_at or now
                    return not is_alive
                self._looked_at.add(name)
        return True

    def end(self, has_verdict: bool) -> None:
        """What was seen of ranks that nobody suspects is of another moment than their end."""
        if not has_verdict:
            for name in self._looked_at:
                disown(self._run_dir / "ranks" / name)

    def turn(self, now: float, stall_after_s: float) -> Said | None:
        """What there is to say. Blocks: some seconds where a look is due."""
        if now < self._look_at or self._is_over:
            return None
        if self._left_at is not None:
            lasted_s = now - self._left_at
            return self._of_launcher(lasted_s, 0.0, "no rank is left, and ") if lasted_s >= LEFT_STALL_S else None
        if self.is_looking:
            return self._look(stall_after_s)
        lasted_s, has_lasted = now - self._began, now - self._began >= stall_after_s
        if lasted_s < _FIRST_S and not has_lasted:
            return None
        self._look_at = now + min(_AGAIN_S, stall_after_s)
        starts = lasted_s < START_UP_STALL_S
        if ranks := unrecorded(self._root, only_launched=not has_lasted, only_misled=starts):
            return self._begin(now, ranks)
        return self._of_launcher(lasted_s, stall_after_s) if has_lasted else None

    def _begin(self, now: float, ranks: list[int]) -> Said:
        self.is_looking, self._look_at = self._options.look_outside is not None, now
        self._is_over = not self.is_looking
        how = "they are looked at from outside, and less is seen" if self.is_looking else "nothing of them is seen"
        who = f"{len(ranks)} rank{'s run' if len(ranks) > 1 else ' runs'}"
        return Said("note", f"{who} without unhang's recorder (is PYTHONPATH replaced?): {how}")

    def _look(self, stall_after_s: float) -> Said | None:
        assert self._options.look_outside is not None
        began, began_ns = time.monotonic(), time.time_ns()
        seen = self._options.look_outside(self._root, self._run_dir)
        now = time.monotonic()
        if seen is None or seen.word != "stalled":
            moves = seen is not None and seen.word == "moves"
            self._has_moved = self._has_moved or moves
            self._pause_s = min(2 * self._pause_s, _MOST_S) if moves else _EVERY_S
            self._standing, self._look_at = None, now + self._pause_s
            return Said("moves") if moves else None
        if self._standing is None or self._standing[0] != seen.text:
            self._standing = (seen.text, began, began_ns)
        self._pause_s, self._look_at = _EVERY_S, now + _EVERY_S
        _, since, since_ns = self._standing
        asked = self._options.stall_after_s
        least_s = asked if asked is not None else _STANDS_S if self._has_moved else START_UP_STALL_S
        if since == began or now - since < least_s:
            return None
        return Said("stalled", seen.text, seen.waiting, since_ns)

    def _of_launcher(self, quiet: float, limit_s: float, before: str = "") -> Said | None:
        """The launcher may wait for other nodes. A busy one passes through its rendezvous, and its ranks import."""
        pids = [self._root, *children_of(self._root)]
        if quiet < limit_s + START_UP_STALL_S and self._launcher.is_at_work(pids):
            return None
        self._is_over = True
        if not (threads := evidence.rendezvous_stacks(pids)):
            return None
        write_whole(self._run_dir / "launcher.json", json.dumps(threads).encode())
        return Said("stalled", f"{before}the launcher waits in its rendezvous", (), time.time_ns() - int(quiet * 1e9))


def may_still_come(root_pid: int, known: Mapping[int, int], missing: Collection[int], in_init: Collection[int]) -> bool:
    """Whether ranks that the others wait for in the rendezvous, or processes that are no rank yet, still work: they import.

    Where all have come to it (`in_init`), whether they work there. `known`: pids by rank. Blocks: up to evidence.CONFIRM_S.
    """
    pids = [known[r] for r in missing or in_init if r in known]
    if not set(missing) <= known.keys():
        pids += [p.pid for p in descendants_of(root_pid) if p.pid not in known.values()]
    return are_at_work(pids, evidence.CONFIRM_S)
