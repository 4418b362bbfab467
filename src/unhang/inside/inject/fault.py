"""One way to break a job: its name, parameters, what it causes and the rules that find it; and one that is ready to strike."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import program
from .program import COLLECTIVES, TRANSFERS

Value = int | float | str | None
Ready = Callable[["Armed"], None]
Can = Callable[["Armed", Any], bool]
_DRAWN_STEPS = (2, 4)
_DRAWN_CALLS = (2, 6)


@dataclass(frozen=True)
class Parameter:
    """One parameter. The type is that of the limits; text where there are none, one of `choices` where there are some.

    `default`: None means that it is left out, or drawn by the seed where the fault says so.
    """

    name: str
    summary: str
    default: Value = None
    least: float | None = None
    most: float | None = None
    is_whole: bool = True
    choices: tuple[str, ...] = ()

    @property
    def limits(self) -> str:
        """What is allowed, in words."""
        if self.choices and self.least is None:
            return " or ".join(self.choices)
        if self.least is None:
            return "a text"
        kind = "a whole number" if self.is_whole else "a number"
        also = f", or {' or '.join(self.choices)}" if self.choices else ""
        return f"{kind} from {self.least:g} to {self.most:g}{also}"


RANK = Parameter("rank", "the rank that it strikes; drawn by the seed if not given", None, 0, 10**7, choices=("all",))
STEP = Parameter("step", "optimizer steps done before it strikes; drawn by the seed", None, 0, 10**9)
CALL = Parameter("call", "strike at this explicit collective call of the rank (from 1) instead", None, 1, 10**9)
OP = Parameter(
    "op", "count only calls of this function of torch.distributed", "any", choices=("any", *COLLECTIVES, *TRANSFERS)
)
BATCH = Parameter("batch", "the batch of the rank, from 1, that is struck; drawn by the seed", None, 1, 10**9)
EVER_S = 3600
DATA_FAMILY = "data"


def rank_of(default: Value) -> Parameter:
    """The parameter `rank` of a fault that strikes a certain rank unless another is given."""
    return Parameter("rank", "the rank that it strikes", default, 0, 10**7, choices=("all",))


def seconds(default: float = EVER_S, what: str = "how long it lasts, in seconds") -> Parameter:
    """The parameter `seconds`."""
    return Parameter("seconds", what, default, 0.001, 10**6, is_whole=False)


@dataclass(frozen=True)
class Fault:
    """One way to break a job.

    `cause`: what `unhang` must name, empty where the job goes on as if nothing were wrong. `needs`: what the program must have,
    for "the program has no ...". `make_ready` hangs the fault onto the program's calls.
    """

    name: str
    family: str
    summary: str
    parameters: tuple[Parameter, ...]
    found_by: tuple[str, ...]
    cause: str
    is_hang: bool
    needs: str
    make_ready: Ready


def once_at(place: list[Any], act: Callable[[Armed, Any], None], can: Can = lambda armed, met: True) -> Ready:
    """A fault that acts at a place of the program when its turn comes; what it cannot strike there does not count."""

    def make_ready(armed: Armed) -> None:
        place.append(lambda met: act(armed, met) if can(armed, met) and armed.is_due else None)

    return make_ready


def from_now_on(
    place: list[Any],
    what: Callable[[Armed, Any], str],
    act: Callable[[Armed, Any], None],
    can: Can = lambda armed, met: True,
) -> Ready:
    """One that acts at each visit from its turn on. `what`: as for `Armed.strikes`."""

    def make_ready(armed: Armed) -> None:
        def listen(met: Any) -> None:
            if not can(armed, met):
                return
            if not armed.has_struck and armed.is_due:
                armed.strikes(what(armed, met))
            if armed.has_struck and armed.is_here:
                act(armed, met)

        place.append(listen)

    return make_ready


def sleep_delay(armed: Armed, _met: object) -> None:
    """Sleeps for the parameter `delay`."""
    time.sleep(armed.value("delay"))


class Armed:
    """One fault with its values. What is not given is drawn from the seed, alike in every process.

    visits: how often this rank came to where the fault could strike.
    """

    def __init__(self, fault: Fault, values: dict[str, Value], seed: int, index: int, files: tuple[str, ...]) -> None:
        self.fault = fault
        self.index = index
        self.has_struck = False
        self._values = values
        self._files = files
        self.visits = 0
        self._has_met = False
        self._has_passed = False
        drawn = random.Random(f"{seed}:{fault.name}")
        known = {p.name for p in fault.parameters}
        self._share = drawn.random()
        if values.get("step") is None and values.get("call") is None:
            if "batch" in known and values.get("batch") is None:
                values["batch"] = drawn.randint(*_DRAWN_STEPS)
            elif "op" in known:
                values["call"] = drawn.randint(*_DRAWN_CALLS)
            elif "step" in known:
                values["step"] = drawn.randint(*_DRAWN_STEPS)

    def value(self, name: str) -> Any:
        """The value of a parameter."""
        return self._values.get(name)

    @property
    def rank(self) -> int | str:
        """The rank that is struck, or `all`."""
        given = self._values.get("rank")
        return int(self._share * program.world_size()) if given is None else given  # type: ignore[return-value]

    @property
    def is_here(self) -> bool:
        """Whether this process is (a helper of) the rank that is struck."""
        mine = program.rank()
        return mine is not None and self.rank in ("all", mine)

    @property
    def is_turn(self) -> bool:
        """Whether this is the moment, on whatever rank. Asked once at each place where the fault could strike: counts them."""
        self.meet()
        if self._has_passed:
            return False
        self.visits += 1
        number = self._values.get("call") or self._values.get("batch")
        if number is not None:
            self._has_passed = self.visits == number
        else:
            self._has_passed = program.steps >= (self._values.get("step") or 0)  # type: ignore[operator]
        return self._has_passed

    @property
    def is_due(self) -> bool:
        """Whether to strike now, in this process."""
        return self.is_turn and self.is_here

    def meet(self) -> None:
        """The program has what the fault needs."""
        if not self._has_met:
            self._has_met = True
            self._write("met", "")

    def strikes(self, what: str) -> None:
        """Says and records that the fault happens, before it does. `what` reads after "rank N"."""
        self.meet()
        if self.has_struck:
            return
        self.has_struck = True
        self._write("happened", what)
        line = program.program_line()
        where = f" at {os.path.basename(line[0])}:{line[1]}" if line else ""
        text = f"[unhang] inject: rank {program.rank()} {what} (step {program.steps}){where}\n"
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())

    def stay(self) -> None:
        """Sleeps for the parameter `seconds`."""
        given = self._values.get("seconds")
        until = time.monotonic() + float(EVER_S if given is None else given)
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 1000))

    def _write(self, event: str, what: str) -> None:
        line = program.program_line()
        entry = {
            "event": event,
            "fault": self.fault.name,
            "index": self.index,
            "rank": program.rank(),
            "world_size": program.world_size(),
            "step": program.steps,
            "time_ns": time.time_ns(),
            "pid": os.getpid(),
            "what": what,
            "file": line[0] if line else None,
            "line": line[1] if line else None,
        }
        data = (json.dumps(entry) + "\n").encode()
        for file in self._files if event == "happened" else self._files[:1]:
            try:
                target = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            except OSError:
                continue
            try:
                os.write(target, data)
            finally:
                os.close(target)
