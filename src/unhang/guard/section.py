"""`with unhang.section("weight_sync", limit_s=60):` parts of the training with names and limits of their own."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from time import monotonic
from types import TracebackType
from typing import Any, Literal, TypeVar

from unhang.errors import SectionOverran
from unhang.guard.durations import Duration, seconds_of
from unhang.guard.ending import leave_now, limited
from unhang.guard.in_background import Turns, live_job, main_thread_place, stack_of
from unhang.guard.section_states import ANSWER_LIMIT_S, Questions, State
from unhang.guard.telling import tell

F = TypeVar("F", bound=Callable[..., Any])
OnOverrun = Literal["tell", "raise_after", "stop"]

# Below the ten minutes after which NCCL gives up, so that the section speaks first.
DEFAULT_LIMIT_S = 300.0
# As after the failure of another rank: so long may the stuck thread take to come back by itself.
GRACE_S = 3.0
_ACTIONS = ("tell", "raise_after", "stop")
_ASK_LIMIT_S = 2 * ANSWER_LIMIT_S + 0.5
_ANNOUNCE_LIMIT_S = 2.0
_IN_FULL = 3
_QUIET_S = 60.0
_LEAST_REST_S = 1.0
_MOST_NAMES = 1000
_MOST_IN_STATE = 64


@dataclass(frozen=True)
class OpenSection:
    """A section that a thread of this process is inside. `seconds`: since it was entered."""

    name: str
    thread: str
    seconds: float
    limit_s: float


class _Use:
    """One stay in a section. `number`: the how-manieth of its name in this process."""

    __slots__ = ("action", "deadline", "ident", "is_told", "limit_s", "name", "number", "since")

    def __init__(self, name: str, limit_s: float, action: str, ident: int, since: float) -> None:
        self.name, self.limit_s, self.action, self.ident, self.since = name, limit_s, action, ident, since
        self.deadline = since + limit_s
        self.number = 0
        self.is_told = False


class Registry:
    """All sections of this process, and the thread that watches their limits."""

    def __init__(
        self, clock: Callable[[], float] = monotonic, say: Callable[[str, str], None] = tell, has_threads: bool = True
    ) -> None:
        self.clock = clock
        self._say = say
        self._has_threads = has_threads
        self._who = ""
        self._uses: dict[int, _Use] = {}
        self._entered: dict[str, int] = {}
        # One that its own thread may take twice: a signal handler may use a section.
        self._lock = threading.RLock()
        self._wakes_at = self._shortest_s = float("inf")
        self._turns: Turns | None = None
        self._told: dict[str, tuple[int, float]] = {}
        self.questions = Questions(self.state)

    def enter(self, use: _Use) -> None:
        """Notes a stay; wakes the watcher only where its limit comes before all others."""
        with self._lock:
            use.number = self._entered[use.name] = self._entered.get(use.name, 0) + 1
            self._uses[id(use)] = use
        if use.deadline < self._wakes_at:
            self._wake(use)

    def leave(self, use: _Use) -> None:
        """The stay is over."""
        self._uses.pop(id(use), None)
        if use.is_told:
            self._say("section", f"{self._who}{use.name!r} was left after {self.clock() - use.since:.1f} s")

    def _wake(self, use: _Use) -> None:
        with self._lock:
            self._shortest_s = min(self._shortest_s, use.limit_s)
            if len(self._entered) > _MOST_NAMES:
                self._entered = {use.name: self._entered[use.name]}
            if self._turns is None:
                if not self._has_threads:
                    return
                self._turns = Turns("unhang-sections", self.watch)
                self.questions.start()
                return
        self._turns.wake()

    def watch(self) -> float | None:
        """Tells of all that are over their limit; returns the seconds until the next limit."""
        for use in self.overdue():
            use.is_told = True
            self.overran(use)
        while True:
            # The second look sees a section that was entered before our waking time could be read.
            self._wakes_at = earliest = self._earliest()
            if self._earliest() >= earliest:
                return None if earliest == float("inf") else max(0.0, earliest - self.clock())

    def _earliest(self) -> float:
        """When a limit is over; where none is open, when one of a section that is entered now would be: so such a one need not wake us."""
        soonest = self.clock() + max(self._shortest_s, _LEAST_REST_S)
        return min((use.deadline for use in list(self._uses.values()) if not use.is_told), default=soonest)

    def overdue(self) -> list[_Use]:
        """The stays over their limit that nobody has told of."""
        now = self.clock()
        return [use for use in list(self._uses.values()) if use.deadline <= now and not use.is_told]

    def overran(self, use: _Use) -> None:
        """One message on one overrun. Blocks, in the watcher's thread, up to the limit of the questions to the others."""
        job = live_job()
        self._who = f"rank {job.rank}: " if job is not None else ""
        text, others = self._message(use)
        if text:
            self._say("section", text)
        if use.action == "stop":
            self._stop(use, text, others)

    def _message(self, use: _Use) -> tuple[str, str]:
        """The message, and what it says of the other ranks; empty where this section has been told of often, and lately."""
        now = self.clock()
        count, last = self._told.get(use.name, (0, 0.0))
        if count >= _IN_FULL and now - last < _QUIET_S and use.action != "stop":
            return "", ""
        self._told[use.name] = (count + 1, now)
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - (now - use.since)))
        stack = stack_of(sys._current_frames().get(use.ident))
        others = limited(lambda: self.questions.ask(use.name, use.number), _ASK_LIMIT_S, None)
        if others is None:
            others = "the other ranks could not be asked: the store does not answer"
        lines = [
            f"{self._who}{use.name!r} is over its limit of {use.limit_s:g} s: thread {_thread_name(use.ident)} has been "
            f"inside since {since}, for the {_ordinal(use.number)} time",
            others,
            stack.rstrip(),
        ]
        return "\n".join(line for line in lines if line), others

    def _stop(self, use: _Use, text: str, others: str) -> None:
        """Announces the failure, and ends this process if the section is not left soon."""
        job = live_job()
        if job is not None and job.board is not None:
            board, rank = job.board, job.rank
            what = f"section {use.name!r} is over its limit of {use.limit_s:g} s" + (f"; {others}" if others else "")
            limited(lambda: board.announce({"rank": rank, "what": what, "text": text}), _ANNOUNCE_LIMIT_S, None)
        until = monotonic() + GRACE_S
        while id(use) in self._uses:
            if monotonic() > until:
                self._say("section", f"{self._who}{use.name!r} is still not left; this process ends now")
                leave_now(1)
            time.sleep(0.05)

    def opened(self) -> list[OpenSection]:
        """The sections that are open now, in the order in which they were entered."""
        now = self.clock()
        return [
            OpenSection(use.name, _thread_name(use.ident), now - use.since, use.limit_s)
            for use in list(self._uses.values())
        ]

    def state(self) -> State:
        """For the other ranks: how often each section was entered and left, which are open, and where the main thread is."""
        now, uses = self.clock(), list(self._uses.values())
        inside: dict[str, int] = {}
        for use in uses:
            inside[use.name] = inside.get(use.name, 0) + 1
        names = list(dict.fromkeys([*inside, *reversed(list(self._entered))]))[:_MOST_IN_STATE]
        counts = {name: self._entered.get(name, 0) for name in names}
        return {
            "sections": {name: [count, count - inside.get(name, 0)] for name, count in counts.items()},
            "open": [[use.name, round(now - use.since, 1)] for use in uses[-_MOST_IN_STATE:]],
            "at": main_thread_place(),
        }

    def stop(self) -> None:
        """Ends the threads; blocks for less than two seconds."""
        if self._turns is not None:
            self._turns.stop()
        self.questions.stop()


class Section:
    """A name with a limit: a context manager, a decorator; may be used again and by several threads. Made by `section`."""

    __slots__ = ("_stays", "action", "limit_s", "name")

    def __init__(self, name: str, limit_s: float, action: str) -> None:
        self.name, self.limit_s, self.action = name, limit_s, action
        self._stays: list[_Use] = []

    def __enter__(self) -> Section:
        use = _Use(self.name, self.limit_s, self.action, get_ident(), _registry.clock())
        self._stays.append(use)
        _registry.enter(use)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        use = self._last_of_this_thread()
        if use is None:
            return
        _registry.leave(use)
        if kind is None and use.action != "tell" and _registry.clock() > use.deadline:
            raise SectionOverran(
                f"section {use.name!r} took {_registry.clock() - use.since:.1f} s, its limit is {use.limit_s:g} s"
            )

    def _last_of_this_thread(self) -> _Use | None:
        stays = self._stays
        if len(stays) > 1:
            ident = get_ident()
            for use in reversed(stays):
                if use.ident == ident:
                    stays.remove(use)
                    return use
        return stays.pop() if stays else None

    def __call__(self, function: F) -> F:
        """Each call of the function is a stay in the section."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with Section(self.name, self.limit_s, self.action):
                    return await function(*args, **kwargs)

            return awaited  # type: ignore[return-value]

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with Section(self.name, self.limit_s, self.action):
                return function(*args, **kwargs)

        return called  # type: ignore[return-value]


def section(name: str, limit_s: Duration = DEFAULT_LIMIT_S, on_overrun: OnOverrun = "tell") -> Section:
    """A part of the training with a limit of its own, told of as soon as it is over: who is inside, where, and who is not.

    Sections nest, each thread has its own, and one costs about two microseconds, so that it may stand in the inner loop.
    At an overrun one message says since when this rank's thread has been inside, its stack, and how the other ranks
    stand in the section of the same name: inside, left, or not entered as often.

    Example:
        import unhang

        with unhang.section("weight_sync", limit_s=60):
            weights = [1.0, 2.0]

        @unhang.section("evaluation", limit_s="10m", on_overrun="raise_after")
        def evaluate() -> float:
            return 0.5

        assert evaluate() == 0.5

    Args:
        name: the same on all ranks that do the same.
        limit_s: seconds, or a text such as "10m".
        on_overrun: "tell" says it; "raise_after" also raises SectionOverran where the section is left; "stop" also
            announces a failure, so that all ranks under `unhang.process_group` end, and ends this process if the
            section is not left within three seconds.

    Raises:
        ValueError: no sensible limit or action.
        SectionOverran: from the end of the `with` block, only where it was asked for and the body raised nothing itself.

    Blocks: never.
    """
    seconds = limit_s if isinstance(limit_s, (int, float)) and 0 < limit_s < 1e9 else seconds_of(limit_s)
    if on_overrun not in _ACTIONS:
        raise ValueError(f"on_overrun is {on_overrun!r}; it must be one of {', '.join(_ACTIONS)}")
    return Section(name, seconds, on_overrun)


def sections() -> list[OpenSection]:
    """The sections that the threads of this process are inside, the outermost first.

    Example:
        import unhang

        with unhang.section("epoch"), unhang.section("data", limit_s=30):
            assert [s.name for s in unhang.sections()] == ["epoch", "data"]
    """
    return _registry.opened()


def answer() -> None:
    """Tells another rank that asks how this one stands in its sections. Blocks for as long as the store does."""
    _registry.questions.answer()


def limit_around(ident: int) -> float | None:
    """The shortest limit of the sections that this thread is inside; None outside of all."""
    return min((use.limit_s for use in list(_registry._uses.values()) if use.ident == ident), default=None)


def _thread_name(ident: int) -> str:
    return next((t.name for t in threading.enumerate() if t.ident == ident), str(ident))


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


_registry = Registry()


def _forget_in_child() -> None:
    """A forked child, such as a worker of a data loader, is in no section of its parent, and has none of its threads."""
    global _registry
    _registry = Registry()


os.register_at_fork(after_in_child=_forget_in_child)
