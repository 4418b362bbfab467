"""What an area is given: who we are, with whom, what was asked, and whom to tell of progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from unhang.preflight.member import Member

if TYPE_CHECKING:
    from unhang.preflight.party import Party


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


def _silent(text: str) -> None:
    """Tells nobody."""


@dataclass(frozen=True, slots=True)
class Context:
    """What an area is given. `environ` is the environment in which the job would start."""

    member: Member
    party: Party
    options: CheckOptions
    environ: Mapping[str, str]
    tell: Callable[[str], None] = _silent
