"""`hb = unhang.heartbeat()`, `hb.step()` in the loop: how far every rank is, which one lags, and which step was slow, and why."""

from __future__ import annotations

import atexit
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any
from weakref import WeakSet

from unhang.inside.guards.board import Board
from unhang.inside.guards.job import live_job
from unhang.inside.guards.step_clock import Phase, SlowStep, StepClock
from unhang.inside.guards.words import Duration, log, name_ranks, seconds_of
from unhang.inside.guards.worker import Worker, limited, main_thread_place

PULSE_S = 3.0
# A step that takes longer says where it is.
_LONG_S = 2.0
_SLOW_LINES_S = 60.0
# For the others to reach the step of which rank 0 speaks.
_LATE_S = 0.5
_ASK_EVERY_S = 0.05
_CLOSE_LIMIT_S = 1.0
_ALL_LOOK_AT_ALL = 16
_LOOKED_AT = 4
_MOST_NAMED = 4
_open: WeakSet[Heartbeat] = WeakSet()

Pulse = dict[str, Any]


class _Seen:
    """What this rank knows of another: its last pulse, when it last gave one, and when it last ended a step."""

    def __init__(self, pulse: Pulse, now: float) -> None:
        self.pulse = pulse
        self.alive = self.stepped = now
        self.named = ""

    def update(self, pulse: Pulse, now: float) -> None:
        if pulse["beat"] != self.pulse["beat"]:
            self.alive = now
        if pulse["step"] != self.pulse["step"]:
            self.stepped = now
        self.pulse = pulse


class Heartbeat:
    """The steps of this rank. Made by `heartbeat`; `close` ends it, as does the end of the process or of a `with` block."""

    def __init__(
        self,
        every: int,
        limit_s: float,
        name: str,
        slow: float,
        clock: Callable[[], float] = time.perf_counter,
        say: Callable[[str, str], None] = log,
        has_threads: bool = True,
    ) -> None:
        self.every, self.limit_s, self.name = every, limit_s, name
        self._time, self._say = clock, say
        self._clock = StepClock(slow, clock)
        self._info: dict[str, Any] = {}
        self._slow: deque[SlowStep] = deque(maxlen=1)
        self._slow_logged = -_SLOW_LINES_S
        self._logged_step = 0
        self._beats = 0
        self._rank, self._world_size = 0, 1
        self._board: Board | None = None
        self._lost: Board | None = None
        self._has_job = False
        self._seen: dict[int, _Seen] = {}
        self._said: set[str] = set()
        self._looked = clock()
        self._pid = os.getpid()
        self._is_closed = False
        self._worker = Worker("unhang-heartbeat", self.turn) if has_threads else None
        _open.add(self)

    @property
    def steps(self) -> int:
        """The steps that this rank has ended."""
        return self._clock.steps

    def step(self, **info: float | str) -> None:
        """A step has ended; `info`, plain numbers or words, appears in rank 0's next line. Never waits."""
        slow = self._clock.step()
        if info:
            self._info = info
        if slow is not None:
            self._slow.append(slow)
            self._wake()
        if not self._clock.steps % self.every:
            self._wake()

    def phase(self, name: str) -> Phase:
        """Marks a part of the step, such as "data" or "communication", so that a slow step can say where it was spent.

        Example:
            import unhang

            with unhang.heartbeat() as hb:
                for batch in range(3):
                    with hb.phase("data"):
                        values = [batch] * 4
                    hb.step()
        """
        return Phase(self._clock, name)

    def close(self) -> None:
        """The training is over: the others expect no more steps of this rank. Blocks for less than two seconds."""
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        with suppress(Exception):
            self._clock.leave_recorder()
        if self._worker is not None:
            self._worker.stop()
        if self._worker is not None or self._board is not None:
            limited(self._announce, _CLOSE_LIMIT_S, None)

    def _announce(self) -> None:
        if self._board is not None:
            self._board.put(self._key(self._rank), self._pulse())
        target = self._clock.steps // self.every * self.every
        if self._rank == 0 and target > self._logged_step:
            self._log_progress(target)

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _wake(self) -> None:
        if self._worker is not None:
            self._worker.wake()

    def _key(self, rank: int) -> str:
        return f"heartbeat/{self.name}/{rank}"

    def _pulse(self) -> Pulse:
        self._beats += 1
        is_late = self._time() - self._clock.last > min(_LONG_S, self.limit_s / 2)
        return {
            "beat": self._beats,
            "step": self._clock.steps,
            "time": time.time(),
            "phase": self._clock.phase,
            "at": main_thread_place() if is_late else "",
            "closed": self._is_closed,
        }

    def turn(self) -> float:
        """One look of the thread: puts up this rank's state, logs what there is to report; returns the seconds to the next.

        Blocks for as long as the store does; the training does not wait for this thread.
        """
        job = live_job()
        if job is not None:
            self._has_job = True
            self._rank, self._world_size = job.rank, job.world_size
            self._board = job.board if job.board is not self._lost else None
        self._log_slow_step()
        if job is None and self._has_job:
            self._leave_board()
            return PULSE_S
        self._clock.follow_recorder()
        try:
            self._beat()
        except Exception:  # noqa: BLE001 - the store is gone: the job ends, or its host has
            self._lost, self._board = self._board, None
        return max(min(PULSE_S, self.limit_s / 4), self._world_size / 1024)

    def _leave_board(self) -> None:
        """The groups are gone, and the store may follow: the others expect no more of this rank."""
        board, self._board = self._board, None
        self._seen.clear()
        if board is not None:
            with suppress(Exception):
                board.put(self._key(self._rank), {**self._pulse(), "closed": True})

    def _beat(self) -> None:
        self._announce()
        now = self._time()
        if now - self._looked >= min(self.limit_s / 4, 10.0):
            self._looked = now
            self._look_at_the_others(now)

    def _log_slow_step(self) -> None:
        """At most one a minute, and from rank 0 or from the rank that was slow itself: the others only waited."""
        while self._slow:
            slow = self._slow.popleft()
            is_ours = bool(slow.spent) and not slow.is_of_others
            now = self._time()
            if now - self._slow_logged >= _SLOW_LINES_S and (self._rank == 0 or is_ours):
                self._slow_logged = now
                self._say("heartbeat", f"rank {self._rank}: {slow}")

    def _log_progress(self, target: int) -> None:
        self._logged_step = target
        behind: dict[int, int] = {}
        absent: list[int] = []
        if self._board is not None and self._world_size > 1:
            until = self._time() + max(_LATE_S, self._clock.median_s)
            while True:
                # They end the step at about the same time as this rank: asked at once, they would have to be asked again.
                time.sleep(_ASK_EVERY_S)
                pulses = self._pulses(range(self._world_size))
                behind = {r: target - p["step"] for r, p in pulses.items() if p["step"] < target and not p["closed"]}
                absent = [rank for rank in range(self._world_size) if rank not in pulses]
                if not (behind or absent) or self._time() > until:
                    break
        ranks = "1 rank" if self._world_size == 1 else f"{self._world_size} ranks"
        if self._board is None and self._world_size > 1:
            ranks = f"rank 0 (the other {self._world_size - 1} cannot be asked)"
        parts = [f"step {target}: {ranks}"]
        if self._clock.median_s:
            parts.append(f"median {self._clock.median_s:.2g} s/step")
        parts += [
            f"{name} {_shown(value)}" for name, value in self._info.items() if isinstance(value, (int, float, str))
        ]
        late = sorted(behind.items(), key=lambda item: -item[1])
        parts += [f"rank {rank} is {_steps(steps)} behind" for rank, steps in late[:_MOST_NAMED]]
        if len(late) > _MOST_NAMED:
            parts.append(f"{len(late) - _MOST_NAMED} more ranks are behind")
        if absent:
            parts.append(f"no heartbeat so far from {name_ranks(absent)}")
        self._say("heartbeat", ", ".join(parts))

    def _pulses(self, ranks: Iterable[int]) -> dict[int, Pulse]:
        """The last pulses of these ranks, of those that have given one.

        Raises:
            Exception: the store is gone.
        """
        board = self._board
        if board is None:
            return {}
        names = {rank: self._key(rank) for rank in ranks}
        if not board.has(*names.values()):
            names = {rank: name for rank, name in names.items() if board.has(name)}
        return dict(zip(names, board.get_all(list(names.values())), strict=True)) if names else {}

    def _watched(self) -> list[int]:
        """In a large job each rank looks at the next few only, so that each is looked at by a few."""
        others = [(self._rank + distance) % self._world_size for distance in range(1, self._world_size)]
        return others if self._world_size <= _ALL_LOOK_AT_ALL else others[:_LOOKED_AT]

    def _look_at_the_others(self, now: float) -> None:
        for rank, pulse in self._pulses(self._watched()).items():
            if rank in self._seen:
                self._seen[rank].update(pulse, now)
            else:
                self._seen[rank] = _Seen(pulse, now)
        going = {rank: seen for rank, seen in self._seen.items() if not seen.pulse["closed"]}
        furthest = max([self.steps, *(seen.pulse["step"] for seen in going.values())])
        for rank, seen in going.items():
            what = self._wrong_with(rank, seen, now, furthest)
            if what and seen.named != what[0] and self._is_first(f"{rank}/{what[0]}"):
                self._say("heartbeat", f"rank {rank} {what[1]}")
            elif seen.named and not what and now - seen.stepped < self.limit_s:
                self._say("heartbeat", f"rank {rank} goes on: step {seen.pulse['step']}")
            seen.named = what[0] if what else ""
        own_s = now - self._clock.last
        stand = own_s > self.limit_s and all(now - seen.stepped > self.limit_s for seen in going.values())
        if stand and furthest and self._is_first(f"all/{furthest}"):
            self._say("heartbeat", self._all_stand(own_s))

    def _wrong_with(self, rank: int, seen: _Seen, now: float, furthest: int) -> tuple[str, str] | None:
        """A key and a text, if this rank is silent or has been left behind for longer than the limit."""
        step = seen.pulse["step"]
        if now - seen.alive > self.limit_s:
            text = (
                f"has given no sign of life for {now - seen.alive:.0f} s, at step {step}: it has ended, is stopped, "
                "or its interpreter stands still"
            )
            return f"silent {step}", text
        if now - seen.stepped > self.limit_s and step < furthest:
            text = f"has ended no step for {now - seen.stepped:.0f} s: it is at step {step}, {_steps(furthest - step)} behind"
            return f"behind {step}", text + _doing(seen.pulse)
        return None

    def _is_first(self, what: str) -> bool:
        """Whether no other rank has said this; what nobody can be asked of, each says."""
        if self._board is None:
            return self._seen_first(what)
        standing = self._board.put_first(f"heartbeat/{self.name}/said/{what}", self._rank)
        return bool(standing == self._rank) and self._seen_first(what)

    def _seen_first(self, what: str) -> bool:
        is_new = what not in self._said
        self._said.add(what)
        return is_new

    def _all_stand(self, seconds: float) -> str:
        pulses = self._pulses(range(self._world_size)) or {self._rank: self._pulse()}
        groups: dict[str, list[int]] = {}
        for rank, pulse in pulses.items():
            if not pulse["closed"]:
                groups.setdefault(f"step {pulse['step']}{_doing(pulse)}", []).append(rank)
        parts = [f"{name_ranks(ranks)} at {where}" for where, ranks in sorted(groups.items(), key=lambda g: len(g[1]))]
        return f"no rank has ended a step for {seconds:.0f} s: {'; '.join(parts[: 2 * _MOST_NAMED])}"


def heartbeat(every: int = 50, limit: Duration = 120.0, name: str = "train", slow: float = 2.0) -> Heartbeat:
    """Shows that all ranks move: one line from rank 0 every `every` steps, and one on each rank that does not.

    `step()` costs about a microsecond; all else happens in a thread. A step that takes more than `slow` times this job's
    median (of the last 200 steps, and not in the first ten) is reported, at most once a minute, with the phases in which it
    was spent: those that `unhang run` marks by itself, and those that the script marks with `hb.phase("data")`.

    Example:
        import unhang

        hb = unhang.heartbeat(every=50)
        for step in range(100):
            loss = 1.0 / (step + 1)
            hb.step(loss=loss)
        hb.close()
        assert hb.steps == 100

    Args:
        every: how many steps lie between two lines.
        limit: after so long without a step, or without any sign of life, a rank is named by the others.
        name: of this loop, if there are several; the same on all ranks.
        slow: how many times the median is a slow step.

    Raises:
        ValueError: an argument makes no sense.

    Blocks: never.
    """
    if every < 1 or slow <= 1:
        raise ValueError("`every` must be at least 1, and `slow` greater than 1")
    return Heartbeat(every, seconds_of(limit), name, slow)


def _doing(pulse: Pulse) -> str:
    phase = f", in the phase {pulse['phase']}" if pulse["phase"] else ""
    return phase + (f", at {pulse['at']}" if pulse["at"] else "")


def _shown(value: float | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:40]


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def _close_all() -> None:
    for made in list(_open):
        made.close()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_open.clear)
