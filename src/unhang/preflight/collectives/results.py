"""What one rank says of one verified collective: frozen, and nothing in it that JSON cannot hold."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec


class State(StrEnum):
    """How a case went on one rank."""

    OK = "ok"  # it ended, and every element was right
    WRONG = "wrong"  # it ended with a wrong result
    SKIPPED = "skipped"  # torch refuses it here; `reason` is torch's own
    OUTSIDE = "outside"  # this rank is in none of the case's groups
    ERROR = "error"  # it raised
    HUNG = "hung"  # it did not end within its limit, or was never entered (`entered`)
    DIED = "died"  # the worker ended in it
    NOT_RUN = "not_run"  # `reason` says why


@dataclass(frozen=True, slots=True)
class Wrong:
    """Wrong elements, as one rank saw them.

    `sources`: the ranks whose data was wrong; () where elements mix the data of all. `missing_rank`, `doubled_rank`: every
    wrong element is exactly what it would be without the contribution of this rank, or with two of it.
    """

    first_index: int
    expected: str
    got: str
    count: int
    size: int
    sources: tuple[int, ...] = ()
    missing_rank: int | None = None
    doubled_rank: int | None = None

    def __str__(self) -> str:
        text = f"element {self.first_index} is {self.got}, not {self.expected} ({self.count} of {self.size} wrong)"
        if self.missing_rank is not None:
            return f"{text}, as if rank {self.missing_rank} had contributed nothing"
        if self.doubled_rank is not None:
            return f"{text}, as if rank {self.doubled_rank} had contributed twice"
        return text


@dataclass(frozen=True, slots=True)
class Stuck:
    """Where a worker stood when its limit had passed.

    `stack`: "file:line in function", outermost first. `issued`: how many collectives torch has recorded there in all, None
    where it records none; equal programs have equal numbers, so the rank with the lowest has not yet made the call that
    the others wait in. Point-to-point calls may be missing from it.
    """

    stack: tuple[str, ...] = ()
    issued: int | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """Times of repeated runs of one thing, in seconds. `low_s` is the lower quartile, `mad_s` the median absolute deviation."""

    median_s: float
    low_s: float
    mad_s: float
    repeats: int
    busbw_gbps: float | None = None


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case on one rank.

    `case` is its number in the plan, the same on all ranks. `size` counts elements of what the largest buffer holds.
    `group` is a split's name: `suite.group_of` tells its members. `entered`: the call had been reached. `busbw_gbps` is gigabytes per second, as
    nccl-tests reckon bus bandwidth (one single run: only `figures` are worth comparing).
    """

    case: int
    name: str
    op: str
    size: int
    dtype: str
    group: str
    state: State
    entered: bool = True
    seconds: float | None = None
    busbw_gbps: float | None = None
    reason: str = ""
    wrong: Wrong | None = None
    stuck: Stuck | None = None
    waiting_for: tuple[int, ...] = ()
    figures: Figures | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """How long things may take, in seconds. `settle_s`: how long a hung worker is kept, so that its peers notice too."""

    case_s: float = 10.0
    start_s: float = 60.0
    run_s: float = 300.0
    settle_s: float = 2.0


def encode(results: tuple[CaseResult, ...]) -> bytes:
    """The results of one rank as JSON."""
    return msgspec.json.encode(results)


def decode(data: bytes) -> tuple[CaseResult, ...]:
    """The results of one rank from `encode`.

    Raises:
        msgspec.MsgspecError: it is something else.
    """
    return msgspec.json.decode(data, type=tuple[CaseResult, ...])


def as_fields(thing: Any) -> Any:
    """What the standard `json` can write of a result."""
    return msgspec.to_builtins(thing)
