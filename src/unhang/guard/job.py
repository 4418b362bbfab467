"""The job as the script sees it: one object per process, made by `process_group`, or when a guard is first used without it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from unhang.guard import identity
from unhang.guard.board import Board, connected, innermost
from unhang.guard.ending import limited

if TYPE_CHECKING:
    import torch

SIDE_TIMEOUT_S = 600.0
END_LIMIT_S = 2.0


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


def _made(dist: Any) -> Job:
    rank, size = dist.get_rank(), dist.get_world_size()
    local = identity.number_from(identity.LOCAL_RANK)
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
    except Exception:  # noqa: BLE001 - the guards work without it, they only cannot tell the others
        return None


atexit.register(use, None)
