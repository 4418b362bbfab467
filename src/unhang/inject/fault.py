"""What a fault is: its name, its parameters with their limits, what it causes, and the rules that must find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .points import COLLECTIVES, TRANSFERS

if TYPE_CHECKING:
    from .armed import Armed

Value = int | float | str | None


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


def rank_of(default: Value) -> Parameter:
    """The parameter `rank` of a fault that strikes a certain rank unless told otherwise."""
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
    make_ready: Callable[[Armed], None]
