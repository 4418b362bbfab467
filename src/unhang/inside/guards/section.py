"""`with unhang.section("weight_sync", limit_s=60):` parts of the training with names and limits of their own."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from threading import get_ident
from time import monotonic
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeVar

from unhang.errors import SectionOverran
from unhang.inside.guards.ending import leave_now
from unhang.inside.guards.job import live_job
from unhang.inside.guards.section_states import ANSWER_LIMIT_S, SectionQuestions, State
from unhang.inside.guards.words import Duration, log, seconds_of
from unhang.inside.guards.worker import Worker, limited, main_thread_place, stack_of

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


class OpenSection(NamedTuple):
    """A section that a thread of this process is inside. `seconds`: since it was entered."""

    name: str
    thread: str
    seconds: float
    limit_s: float


# A stay in a section: until when, since when, the thread, the how-manieth of its name in this process, and which section.
# A plain tuple: in the midst of a training nearly all that a section costs is code and memory that are not in the cache.
_Stay = tuple[float, float, int, int, "Section"]


class Registry:
    """All sections of this process, and the thread that watches their limits.

    numbers: by name, the number of the next stay. open: the stays that are not over, in the order in which they began.
    late: those of them that were reported. wakes_at: when the watcher looks next.
    """

    def __init__(
        self, clock: Callable[[], float] = monotonic, say: Callable[[str, str], None] = log, has_threads: bool = True
    ) -> None:
        self.clock = clock
        self.numbers: dict[str, itertools.count[int]] = {}
        self.open: list[_Stay] = []
        self.wakes_at = self._shortest_s = float("inf")
        self.late: set[_Stay] = set()
        self._say = say
        self._has_threads = has_threads
        self._who = ""
        # One that its own thread may take twice: a signal handler may use a section.
        self._lock = threading.RLock()
        self._worker: Worker | None = None
        self._reported: dict[str, tuple[int, float]] = {}
        self.questions = SectionQuestions(self.state)

    def numbers_of(self, name: str) -> itertools.count[int]:
        """The numbers of the stays under a name, which nobody has used yet."""
        if len(self.numbers) >= _MOST_NAMES:
            self.numbers = {}
        return self.numbers.setdefault(name, itertools.count(1))

    def left_late(self, stay: _Stay) -> None:
        """A stay is over; that is logged where its overrun was."""
        if stay in self.late:
            self.late.discard(stay)
            self._say("section", f"{self._who}{stay[-1].name!r} was left after {self.clock() - stay[1]:.1f} s")

    def wake(self, limit_s: float) -> None:
        """A limit comes before all others: the watcher has to look earlier."""
        with self._lock:
            self._shortest_s = min(self._shortest_s, limit_s)
            if self._worker is None:
                if not self._has_threads:
                    return
                self._worker = Worker("unhang-sections", self.watch)
                self.questions.start()
                return
        self._worker.wake()

    def watch(self) -> float | None:
        """Reports all that are over their limit; returns the seconds until the next limit."""
        for stay in self.overdue():
            self.late.add(stay)
            self.overran(stay)
        while True:
            # The second look sees a section that was entered before our waking time could be read.
            self.wakes_at = earliest = self._earliest()
            if self._earliest() >= earliest:
                return None if earliest == float("inf") else max(0.0, earliest - self.clock())

    def _earliest(self) -> float:
        """When a limit is over; where none is open, when one of a section that is entered now would be: so such a one need not wake us."""
        soonest = self.clock() + max(self._shortest_s, _LEAST_REST_S)
        return min((stay[0] for stay in self.open.copy() if stay not in self.late), default=soonest)

    def overdue(self) -> list[_Stay]:
        """The stays over their limit that are not reported yet."""
        now = self.clock()
        return [stay for stay in self.open.copy() if stay[0] <= now and stay not in self.late]

    def overran(self, stay: _Stay) -> None:
        """One message on one overrun. Blocks, in the watcher's thread, up to the limit of the questions to the others."""
        self._who = f"rank {job.rank}: " if (job := live_job()) is not None else ""
        text, others = self._message(stay)
        if text:
            self._say("section", text)
        if stay[-1].action == "stop":
            self._stop(stay, text, others)

    def _message(self, stay: _Stay) -> tuple[str, str]:
        """The message, and what it says of the other ranks; empty where this section has been reported often, and lately."""
        now, (_, began, ident, number, section) = self.clock(), stay
        count, last = self._reported.get(section.name, (0, 0.0))
        if count >= _IN_FULL and now - last < _QUIET_S and section.action != "stop":
            return "", ""
        self._reported[section.name] = (count + 1, now)
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - (now - began)))
        stack = stack_of(sys._current_frames().get(ident))
        others = limited(lambda: self.questions.ask(section.name, number), _ASK_LIMIT_S, None)
        if others is None:
            others = "the other ranks could not be asked: the store does not answer"
        lines = [
            f"{self._who}{section.name!r} is over its limit of {section.limit_s:g} s: thread {_thread_name(ident)} has been "
            f"inside since {since}, for the {_ordinal(number)} time",
            others,
            stack.rstrip(),
        ]
        return "\n".join(line for line in lines if line), others

    def _stop(self, stay: _Stay, text: str, others: str) -> None:
        """Announces the failure, and ends this process if the section is not left soon."""
        job, section = live_job(), stay[-1]
        if job is not None and job.board is not None:
            board, rank = job.board, job.rank
            what = f"section {section.name!r} is over its limit of {section.limit_s:g} s" + (
                f"; {others}" if others else ""
            )
            limited(lambda: board.announce({"rank": rank, "what": what, "text": text}), _ANNOUNCE_LIMIT_S, None)
        until = monotonic() + GRACE_S
        while stay in self.open:
            if monotonic() > until:
                self._say("section", f"{self._who}{section.name!r} is still not left; this process ends now")
                leave_now(1)
            time.sleep(0.05)

    def opened(self) -> list[OpenSection]:
        """The sections that are open now, in the order in which they were entered."""
        now = self.clock()
        return [
            OpenSection(section.name, _thread_name(ident), now - since, section.limit_s)
            for _, since, ident, _, section in self.open.copy()
        ]

    def state(self) -> State:
        """For the other ranks: how often each section was entered and left, which are open, and where the main thread is."""
        now, stays = self.clock(), self.open.copy()
        inside = Counter(stay[-1].name for stay in stays)
        names = list(dict.fromkeys([*inside, *reversed(list(self.numbers))]))[:_MOST_IN_STATE]
        counts = {name: _given(self.numbers.get(name)) for name in names}
        return {
            "sections": {name: [count, count - inside[name]] for name, count in counts.items()},
            "open": [[stay[-1].name, round(now - stay[1], 1)] for stay in stays[-_MOST_IN_STATE:]],
            "at": main_thread_place(),
        }

    def stop(self) -> None:
        """Ends the threads; blocks for less than two seconds."""
        if self._worker is not None:
            self._worker.stop()
        self.questions.stop()


def _given(numbers: itertools.count[int] | None) -> int:
    """How many numbers were taken; only its text shows that without taking one."""
    return 0 if numbers is None else int(repr(numbers).removeprefix("count(").removesuffix(")")) - 1


class Section:
    """A name with a limit: a context manager, a decorator; may be used again and by several threads. Made by `section`."""

    __slots__ = ("_stays", "action", "limit_s", "name")

    def __init__(self, name: str, limit_s: float, action: str) -> None:
        self.name, self.limit_s, self.action = name, limit_s, action
        self._stays: list[_Stay] = []

    def __enter__(self) -> Section:
        registry = _registry
        since = registry.clock()
        numbers = registry.numbers.get(self.name) or registry.numbers_of(self.name)
        stay = (since + self.limit_s, since, get_ident(), next(numbers), self)
        self._stays.append(stay)
        registry.open.append(stay)
        if stay[0] < registry.wakes_at:
            registry.wake(self.limit_s)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        ident, registry = get_ident(), _registry
        for stay in reversed(self._stays):
            if stay[2] == ident:
                break
        else:
            return  # of another process, or never entered
        self._stays.remove(stay)
        try:
            registry.open.remove(stay)
        except ValueError:  # entered before this process was forked
            pass
        if registry.late:
            registry.left_late(stay)
        if self.action != "tell" and kind is None and registry.clock() > stay[0]:
            took_s = registry.clock() - stay[1]
            raise SectionOverran(f"section {self.name!r} took {took_s:.1f} s, its limit is {self.limit_s:g} s")

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
    """A part of the training with a limit of its own, reported as soon as that is over: who is inside, where, and who is not.

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
    """Answers another rank that asks how this one stands in its sections. Blocks for as long as the store does."""
    _registry.questions.answer()


def limit_around(ident: int) -> float | None:
    """The shortest limit of the sections that this thread is inside; None outside of all."""
    return min((stay[-1].limit_s for stay in _registry.open.copy() if stay[2] == ident), default=None)


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
