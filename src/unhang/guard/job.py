"""The job as the script sees it: one object per process, made by `process_group`, or when a guard is first used without it."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from unhang.guard.board import Board, connected

SIDE_TIMEOUT_S = 600.0


@dataclass
class Job:
    """Rank, size and device of this process, and what the guards share.

    `side`: a gloo group of all ranks for the guards' own small exchanges, so that they never mix with the job's.
    """

    rank: int
    local_rank: int
    world_size: int
    device: Any = None
    backend: str = ""
    timeout_s: float = SIDE_TIMEOUT_S
    board: Board | None = None
    side: Any = None
    steps: int = 0
    guards: dict[str, Any] = field(default_factory=dict)

    def side_group(self) -> Any:
        """The guards' own group. The first call is made by all ranks together: it blocks until all have come."""
        if self.side is None:
            import torch.distributed as dist

            self.side = dist.new_group(backend="gloo", timeout=timedelta(seconds=self.timeout_s), group_desc="unhang")
        return self.side


_current: Job | None = None
_lock = threading.Lock()


def current() -> Job:
    """The job of this process; made from the default process group where the script initialised it itself.

    Raises:
        RuntimeError: torch.distributed is not initialised.
    """
    made = _current
    if made is not None:
        return made
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            "torch.distributed is not initialised; use `with unhang.process_group():` around the training"
        )
    with _lock:
        if _current is None:
            use(_made(dist))
        return _current or _made(dist)


def _made(dist: Any) -> Job:
    rank, size, local = dist.get_rank(), dist.get_world_size(), os.environ.get("LOCAL_RANK", "")
    board = board_of(rank, size)
    return Job(rank, int(local) if local.isdecimal() else rank, size, backend=str(dist.get_backend()), board=board)


def use(job: Job | None) -> None:
    """Makes this the job of the process, or none."""
    global _current
    _current = job


def board_of(rank: int, world_size: int) -> Board | None:
    """The notice board of the default group's store; None where it has none that can be reached."""
    from torch.distributed import distributed_c10d as c10d

    try:
        store = connected(c10d._get_default_store())
        return Board(store, rank, world_size, os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or "0")
    except Exception:  # noqa: BLE001 - the guards work without it, they only cannot tell the others
        return None
