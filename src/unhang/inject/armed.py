"""A fault that is ready to strike in this process: whether it is its turn, and the record of what it did."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any

from . import rank
from .fault import EVER_S, Fault, Value

_STEPS = (2, 4)
_CALLS = (2, 6)


class Armed:
    """One fault with its values. What is not given is drawn from the seed, alike in every process."""

    def __init__(self, fault: Fault, values: dict[str, Value], seed: int, index: int, files: tuple[str, ...]) -> None:
        self.fault = fault
        self.index = index
        self.has_struck = False
        self._values = values
        self._files = files
        self._seed = seed
        self._visits = 0
        self._has_met = False
        self._has_passed = False
        drawn = random.Random(f"{seed}:{fault.name}")
        known = {p.name for p in fault.parameters}
        self._share = drawn.random()
        if values.get("step") is None and values.get("call") is None:
            if "batch" in known and values.get("batch") is None:
                values["batch"] = drawn.randint(*_STEPS)
            elif "op" in known:
                values["call"] = drawn.randint(*_CALLS)
            elif "step" in known:
                values["step"] = drawn.randint(*_STEPS)

    def value(self, name: str) -> Any:
        """The value of a parameter."""
        return self._values.get(name)

    @property
    def rank(self) -> int | str:
        """The rank that is struck, or `all`."""
        given = self._values.get("rank")
        return int(self._share * rank.world_size()) if given is None else given  # type: ignore[return-value]

    @property
    def is_here(self) -> bool:
        """Whether this process is (a helper of) the rank that is struck."""
        mine = rank.rank()
        return mine is not None and self.rank in ("all", mine)

    @property
    def is_turn(self) -> bool:
        """Whether this is the moment, on whatever rank. Asked once at each place where the fault could strike: counts them."""
        self.meet()
        if self._has_passed:
            return False
        self._visits += 1
        number = self._values.get("call") or self._values.get("batch")
        if number is not None:
            self._has_passed = self._visits == number
        else:
            self._has_passed = rank.steps >= (self._values.get("step") or 0)  # type: ignore[operator]
        return self._has_passed

    @property
    def is_due(self) -> bool:
        """Whether to strike now, in this process."""
        return self.is_turn and self.is_here

    @property
    def visits(self) -> int:
        """How often this rank came to where the fault could strike."""
        return self._visits

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
        line = rank.program_line()
        where = f" at {os.path.basename(line[0])}:{line[1]}" if line else ""
        text = f"[unhang] inject: rank {rank.rank()} {what} (step {rank.steps}){where}\n"
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())

    def stay(self) -> None:
        """Sleeps for the parameter `seconds`."""
        given = self._values.get("seconds")
        until = time.monotonic() + float(EVER_S if given is None else given)
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 1000))

    def _write(self, event: str, what: str) -> None:
        line = rank.program_line()
        entry = {
            "event": event,
            "fault": self.fault.name,
            "index": self.index,
            "rank": rank.rank(),
            "world_size": rank.world_size(),
            "step": rank.steps,
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
