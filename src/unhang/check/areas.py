"""What `unhang check` looks at: one module per area; and what each is given: what was asked for, and the ranks of the check.

An area has `LIMIT_S`, the longest that its local reading may take; `SCOPE`: who reads it, every "rank" or one rank per
"host"; `probe(context)`: what this process can read by itself; and, where the ranks must act together,
`probe_together(context)`, which all ranks call in the same order and which has limits of its own.
Both yield readings, and `Unavailable("area.kind" or "area", reason)` for what could not be read.
"""

from __future__ import annotations

import importlib
import json
import platform
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, cast

from unhang.inside.rank import LOCAL_RANK, RANK, WORLD_SIZE, number_from
from unhang.model import Reading, Unavailable

AREAS = ("machine", "network", "devices", "versions", "environment", "collectives", "links")
LOCAL_WORLD_SIZE = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
NODES = ("GROUP_WORLD_SIZE", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_FIRST_PORT, _PORTS = 20_000, 10_000  # where a port is chosen from the number of a Slurm job
_PAUSE_S, _SLOWEST_PAUSE_S = 0.02, 0.25
_GRACE_S = 5.0  # the others wait this much longer than rank 0, which says who came


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


# The ranks: which one this process is, and how they meet. Who does not come is named; nobody waits for ever.


@dataclass(frozen=True, slots=True)
class Member:
    """One process of the check. `address` and `port`: where rank 0, or torchrun's agent, holds the store."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int | None = None
    nodes: int | None = None
    host: str = ""
    address: str = ""
    port: int = 0
    agent_holds_store: bool = False
    run_id: str = ""

    @property
    def is_first_on_host(self) -> bool:
        """Whether it reads for its whole host."""
        return self.local_rank == 0


def member_from(environ: Mapping[str, str]) -> Member:
    """This process, as torchrun, Slurm or MPI describe it; without any of them it is alone."""
    rank, world = number_from(RANK, environ), number_from(WORLD_SIZE, environ)
    host, job = platform.node(), number_from(("SLURM_JOB_ID", "SLURM_JOBID"), environ)
    if rank is None or world is None or world < 1 or rank >= world:
        return Member(host=host)
    return Member(
        rank=rank,
        world_size=world,
        local_rank=number_from(LOCAL_RANK, environ) or 0,
        local_world_size=number_from(LOCAL_WORLD_SIZE, environ),
        nodes=number_from(NODES, environ),
        host=host,
        address=environ.get("MASTER_ADDR", "") or _slurm_address(environ),
        port=number_from(("MASTER_PORT",), environ) or (_FIRST_PORT + job % _PORTS if job is not None else 0),
        agent_holds_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        run_id=f"{environ.get('TORCHELASTIC_RUN_ID', '')}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}",
    )


def _slurm_address(environ: Mapping[str, str]) -> str:
    """The first node of the Slurm step: `node[03-07,9]` begins with node03."""
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    match = re.match(r"([^\[,]+)(?:\[(\d+))?", nodes)
    return f"{match[1]}{match[2] or ''}" if match else environ.get("SLURM_LAUNCH_NODE_IPADDR", "")


class CannotMeet(Exception):
    """The store cannot be reached, or not be opened."""


@dataclass
class Participants:
    """The ranks that came. `absent`: rank -> why it is not there. Alone, there is no store, and all calls return at once."""

    member: Member
    store: Any = None
    present: tuple[int, ...] = (0,)
    absent: dict[int, str] = field(default_factory=dict)

    @property
    def is_alone(self) -> bool:
        """Whether there is nobody else."""
        return self.store is None

    def collect(self, name: str, value: Any, limit_s: float) -> dict[int, Any]:
        """Every rank's value (of what JSON knows) on rank 0; elsewhere an empty dict. Blocks rank 0 up to `limit_s`.

        Who gives nothing within the limit is absent from then on.
        """
        own, expected = self.member.rank, len(self.present)
        if self.store is None:
            return {own: value}
        found: dict[int, Any] = {}
        try:
            self.store.set(f"{name}/{own}", json.dumps(value))
            self.store.add(f"{name}/count", 1)
            if own != 0:
                return {}
            self._until(lambda: self.store.add(f"{name}/count", 0) >= expected, limit_s)
            for rank in self.present:
                if self.store.check([f"{name}/{rank}"]):
                    found[rank] = json.loads(self.store.get(f"{name}/{rank}"))
                else:
                    self.absent[rank] = f"stopped answering: nothing from it within {limit_s:g} s ({name})"
        except RuntimeError as error:  # torch's errors of stores and sockets are RuntimeErrors
            self._lost_store(error)
            return {own: value} if own == 0 else {}
        self.present = tuple(found)
        return found

    def share(self, name: str, value: Any, limit_s: float) -> Any:
        """Rank 0's value on every rank; None where rank 0 does not give it. Blocks the others up to `limit_s`."""
        is_giver = self.store is None or self.member.rank == 0
        try:
            if is_giver:
                if self.store is not None:
                    self.store.set(name, json.dumps(value))
                return value
            if self._until(lambda: self.store.check([name]), limit_s):
                return json.loads(self.store.get(name))
            self.absent[0] = f"stopped answering: nothing from it within {limit_s:g} s ({name})"
        except RuntimeError as error:
            self._lost_store(error)
        return value if is_giver else None

    def _lost_store(self, error: RuntimeError) -> None:
        """The store has gone, and whoever held it."""
        if self.member.rank != 0:
            self.absent[0] = f"stopped answering: the store is gone ({_first_line(error)})"

    def exchange(self, name: str, value: Any, limit_s: float) -> dict[int, Any]:
        """Every rank's value on every rank, without those who gave none. Blocks up to `limit_s` and a grace.

        Every rank that is present must call it, in the same order, each time with another name.
        """
        found = self.collect(name, value, limit_s)
        if self.store is None:
            return found
        shared = self.share(f"{name}/all", {str(r): v for r, v in found.items()}, limit_s + _GRACE_S)
        if shared is None:
            return {self.member.rank: value}
        everyone = {int(r): v for r, v in shared.items()}
        self.present = tuple(r for r in self.present if r in everyone)
        return everyone

    def _until(self, is_true: Callable[[], bool], limit_s: float) -> bool:
        """Asks the store again and again, with growing pauses. Blocks up to `limit_s`."""
        deadline, pause = time.monotonic() + limit_s, _PAUSE_S
        while not is_true():
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, _SLOWEST_PAUSE_S)
        return True


def meet(member: Member, limit_s: float, connect: Callable[[Member, float], Any] | None = None) -> Participants:
    """Waits for the other ranks. Blocks up to `limit_s` and a grace.

    Raises:
        CannotMeet: the store cannot be reached within the limit, or rank 0 cannot open it.
    """
    if member.world_size == 1:
        return Participants(member, None, (member.rank,))
    store = (connect or _connect)(member, limit_s)
    participants = Participants(member, store, tuple(range(member.world_size)))
    participants.collect("here", member.host, limit_s)
    came = participants.share("present", list(participants.present), limit_s + _GRACE_S)
    if came is None:
        raise CannotMeet(
            f"{member.address}:{member.port} holds a store, but rank 0 did not answer within {limit_s:g} s"
        )
    for rank in range(member.world_size):
        if rank not in came:
            participants.absent[rank] = f"never came: nothing from it within {limit_s:g} s"
    participants.present = tuple(came)
    return participants


def _connect(member: Member, limit_s: float) -> Any:
    """The job's store: torchrun's agent holds it, or rank 0."""
    if not member.address or not member.port:
        raise CannotMeet("MASTER_ADDR and MASTER_PORT are not set: the ranks do not know where to meet")
    is_holder = member.rank == 0 and not member.agent_holds_store
    if not is_holder:
        _await_listener(member.address, member.port, limit_s)
    try:
        from torch.distributed import PrefixStore, TCPStore
    except ImportError as error:
        raise CannotMeet(f"torch cannot be imported, and the ranks meet in its store: {error}") from error
    try:
        store = TCPStore(
            member.address,
            member.port,
            is_master=is_holder,
            wait_for_workers=False,
            timeout=timedelta(seconds=max(1.0, limit_s)),
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise CannotMeet(f"the store cannot be {'opened' if is_holder else 'used'}: {_first_line(error)}") from error
    return PrefixStore(f"unhang-check/{member.run_id}", store)


def _await_listener(address: str, port: int, limit_s: float) -> None:
    """Waits until somebody listens there. torch's own client would print stacks of C++ and wait twice as long.

    Raises:
        CannotMeet: nobody does within the limit; with what the last attempt met.
    """
    deadline, pause_s = time.monotonic() + limit_s, _PAUSE_S
    while True:
        try:
            with socket.create_connection((address, port), timeout=max(0.1, deadline - time.monotonic())):
                return
        except OSError as error:
            if time.monotonic() + pause_s >= deadline:
                raise CannotMeet(f"{error.strerror or error} for {limit_s:g} s") from error
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _SLOWEST_PAUSE_S)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]
