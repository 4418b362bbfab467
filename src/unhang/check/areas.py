"""What `unhang check` looks at: one module per area, and what each is given.

An area has `LIMIT_S`, the longest that its local reading may take; `SCOPE`: who reads it, every "rank" or one rank per
"host"; `probe(context)`: what this process can read by itself; and, where the ranks must act together,
`probe_together(context)`, which all ranks call in the same order and which has limits of its own.
Both yield readings, and `Unavailable("area.kind" or "area", reason)` for what could not be read.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

from unhang.check.participants import Member, Participants
from unhang.model import Reading, Unavailable

AREAS = ("machine", "network", "devices", "versions", "environment", "collectives", "links")


class Area(Protocol):
    """A module of this folder."""

    SCOPE: str
    LIMIT_S: float

    def probe(self, context: Context) -> Iterable[Reading | Unavailable]:
        """What this process can read by itself."""


def area(name: str) -> Area:
    """The module of an area."""
    return cast(Area, importlib.import_module(f"unhang.check.{name}"))


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What was asked for on the command line.

    `plan`: a set-up that is not there (`nodes`, `gpus`, `workers`, `cores`, `memory`, `shm` ...), as it was given.
    `fail_on`: the least severity that makes the exit code 1: wrong, doubtful, note.
    `collectives`: names of collectives, or `all`; empty: none are run. `workers`: loader workers per rank, where known.
    """

    areas: tuple[str, ...] = ()
    collectives: tuple[str, ...] = ()
    links: bool = False
    plan: Mapping[str, str] = field(default_factory=dict)
    workers: int | None = None
    folders: tuple[Path, ...] = ()
    ports: tuple[int, ...] = ()
    backend: str = ""
    join_limit_s: float = 30.0
    case_limit_s: float = 20.0
    largest_bytes: int = 4 << 20
    reference: Path | None = None
    save_reference: Path | None = None
    code: Path | None = None
    fail_on: str = "note"


@dataclass(frozen=True, slots=True)
class Context:
    """What an area is given. `environ` is the environment in which the job would start."""

    participants: Participants
    options: CheckOptions
    environ: Mapping[str, str]
    on_progress: Callable[[str], None] = lambda text: None

    @property
    def member(self) -> Member:
        """Which rank this process is."""
        return self.participants.member
