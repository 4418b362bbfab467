"""The job as the script sees it: one object per process; and the store in which its ranks meet, also where they do so several times."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from unhang.inside.guards.board import Board, connected, innermost
from unhang.inside.guards.worker import after_workers, limited
from unhang.inside.rank import LOCAL_RANK, number_from, with_group

if TYPE_CHECKING:
    import torch

SIDE_TIMEOUT_S = 600.0
END_LIMIT_S = 2.0
_uses: Counter[str] = Counter()
# Rank 0's server stays until the process ends, or meets elsewhere: another rank may begin its next use before rank 0 has ended
# the last one.
_hosted: list[Any] = []


@dataclass
class Job:
    """Rank, size and device of this process, and what the guards share.

    `group`: a weak reference to the default group. `shared`: memory for the guards' own small exchanges, where all ranks run on
    one machine. `side`: else a gloo group of all ranks for them, so that they never mix with the job's; `side_backend`: what is
    below it, which is called without the detour through torch's dispatcher (a third of the time of a call). `is_answered`: a watcher
    of the notice board answers the questions of other ranks.
    """

    rank: int
    local_rank: int
    world_size: int
    device: torch.device | None = None
    backend: str = ""
    timeout_s: float = SIDE_TIMEOUT_S
    board: Board | None = None
    side: Any = None
    side_backend: Any = field(default=None, repr=False)
    shared: Any = field(default=None, repr=False)
    is_answered: bool = False
    steps: int = 0
    guards: dict[str, Any] = field(default_factory=dict)
    pid: int = field(default_factory=os.getpid)
    group: Any = field(default=None, repr=False)

    def is_of(self, group: Any) -> bool:
        """Whether this default group is the one that the job was made from. It is not kept alive: its end closes connections."""
        return self.group is not None and self.group() is group

    def turn(self, of: str) -> int:
        """The number of this use of a guard, from 1: the same on all ranks, which make equally many."""
        uses: Counter[str] = self.guards.setdefault("turns", Counter())
        uses[of] += 1
        return uses[of]

    def side_group(self) -> Any:
        """The guards' own group. The first call is made by all ranks together: it blocks until all have come."""
        if self.side is None:
            import torch.distributed as dist

            made = dist.new_group(backend="gloo", timeout=timedelta(seconds=self.timeout_s), group_desc="unhang")
            below = getattr(made, "_get_backend", None)
            self.side_backend = made if below is None else below(sys.modules["torch"].device("cpu"))
            self.side = made
        return self.side

    def end(self) -> None:
        """The job is over: destroys the guards' own group. Blocks up to END_LIMIT_S. Never raises.

        It goes before all other groups: no wrapped model holds it, so nothing can keep it. One that is still held when the
        interpreter is taken apart aborts the process now and then. A forked child leaves it to its parent.
        """
        shared, self.shared = self.shared, None
        if shared is not None and self.pid == os.getpid():
            shared.leave()
        held, self.side, self.side_backend = [self.side, self.side_backend], None, None
        if held[0] is not None and self.pid == os.getpid():
            # The last reference goes in that thread as well.
            limited(lambda: _destroy(held), END_LIMIT_S, None)


def _destroy(held: list[Any]) -> None:
    held.pop()
    sys.modules["torch"].distributed.destroy_process_group(held.pop())


_current: Job | None = None
_lock = threading.Lock()


def current() -> Job:
    """The job of this process; made from the default process group where the script initialised it itself.

    Raises:
        RuntimeError: torch.distributed is not initialised, or this is a process that a rank has forked.
    """
    dist: Any = sys.modules.get("torch.distributed")
    group = None if dist is None or not dist.is_available() else dist.group.WORLD
    made = _current
    if made is not None and made.pid != os.getpid():
        raise RuntimeError("this process was forked from a rank; the guards work in the rank itself only")
    if group is None:
        raise RuntimeError(
            "torch.distributed is not initialised; use `with unhang.process_group():` around the training"
        )
    if made is not None and made.is_of(group):
        return made
    with _lock:
        made = _current
        if made is None or not made.is_of(group):
            made = _made(dist)
            use(made)
        return made


def live_job() -> Job | None:
    """The job while its process groups stand; None before and after, and in a process that a rank has forked."""
    try:
        return current() if with_group() is not None else None
    except Exception:  # noqa: BLE001 - they are being made or destroyed at this moment
        return None


def here() -> Job | None:
    """The job, or None where this process trains alone and has nobody to agree with."""
    mine = live_job()
    return mine if mine is not None and mine.world_size > 1 else None


def group_timeout(*devices: str) -> timedelta | None:
    """The timeout of the default group's collectives, by the first of these kinds of device that it serves; None where it does not show it."""
    torch, dist = sys.modules["torch"], with_group()
    for device in devices:
        with suppress(Exception):
            found: timedelta = dist.group.WORLD._get_backend(torch.device(device)).options._timeout
            return found
    return None


def _made(dist: Any) -> Job:
    rank, size = dist.get_rank(), dist.get_world_size()
    local = number_from(LOCAL_RANK)
    made = Job(
        rank,
        rank if local is None else local,
        size,
        backend=str(dist.get_backend()),
        group=weakref.ref(dist.group.WORLD),
    )
    made.board = board_of(rank, size)
    return made


def use(job: Job | None) -> None:
    """Makes this the job of the process, or none; the one before is over. Blocks up to END_LIMIT_S."""
    global _current
    before, _current = _current, job
    if before is not None and before is not job:
        before.end()


def board_of(rank: int, world_size: int, number: int = 0) -> Board | None:
    """The notice board of the default group's store; None where it has none that can be reached."""
    from torch.distributed import distributed_c10d as c10d

    try:
        store = c10d._get_default_store()
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or "0"
        board = Board(connected(store), rank, world_size, f"{restart}.{number}")
        # On rank 0 this may be the server itself, which must not end before the last notice is read.
        board.keeps_alive = innermost(store)
        return board
    except Exception:  # noqa: BLE001 - the guards work without it, they only cannot announce failures
        return None


after_workers(partial(use, None))


def prepared(backend: str, more: dict[str, Any], limit_s: float) -> tuple[dict[str, Any], int]:
    """The arguments of `init_process_group` for this use, and its number in its store. MPI meets without a store.

    Blocks: in a second use, until all ranks have come to the store, up to `limit_s`.
    """
    number = begun(more)
    return more if backend == "mpi" else with_keys_of_its_own(more, number, limit_s), number


def begun(more: dict[str, Any]) -> int:
    """How often this process has used this store, with this use; the same on all ranks, which make equally many."""
    place = _place(more)
    _uses[place] += 1
    return _uses[place]


def _place(more: dict[str, Any]) -> str:
    if more.get("store") is not None:
        store = innermost(more["store"])
        where = (
            f"{getattr(store, 'host', '')}:{store.port}"
            if getattr(store, "port", 0)
            else getattr(store, "path", id(store))
        )
        return f"{type(store).__name__} {where}"
    method = str(more.get("init_method") or "env://")
    if method.startswith("env://"):
        return f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    return method


def with_keys_of_its_own(more: dict[str, Any], number: int, limit_s: float) -> dict[str, Any]:
    """The arguments of `init_process_group`, with a store in which the keys of this use do not meet those of earlier ones.

    Blocks: until all ranks have come to the store, up to `limit_s`.
    """
    if number == 1:
        return more
    import torch.distributed as dist

    more = dict(more)
    store, rank, size = more.pop("store", None), more.pop("rank", -1), more.pop("world_size", -1)
    if store is None:
        limit = timedelta(seconds=limit_s)
        met = dist.rendezvous(more.pop("init_method", None) or "env://", rank, size, timeout=limit)
        store, rank, size = next(iter(met))
        store.set_timeout(limit)
    return {**more, "store": dist.PrefixStore(f"use_{number}", store), "rank": rank, "world_size": size}


def keep_server(board: Board) -> None:
    """Has rank 0 keep the server for a next use."""
    if board.rank == 0 and board.port:
        _hosted[:] = [board.keeps_alive]
