"""How the ranks answer each other in `check_replicas`: through memory that they share, or over a group of their own.

Not on the way of the other guards: a rank that skips an optimizer step, which is what is looked for, comes to these exchanges at
another time than to theirs. Memory where it can be: each gloo group keeps a thread that wakes a hundred times a second.

Each exchange is cut where it has to wait: it yields the question whether to go on. The same exchanges on all ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any, TypeVar

from unhang.guard import exchange
from unhang.guard.job import Job
from unhang.guard.shared_rows import SharedRow, SharedRows
from unhang.guard.telling import names_of

T = TypeVar("T")
Cut = Generator[Callable[[], bool], None, T]
_CHECK_EVERY_S = 0.2


def way_of(mine: Job, key: str, limit_s: float, what: str) -> ThroughMemory | OverGroup:
    """The way for this job. All ranks call it, and it blocks and raises, as `exchange.gather`."""
    shared = exchange.shared_by_all(mine, key, limit_s, what)
    return OverGroup(mine, limit_s) if shared is None else ThroughMemory(shared, limit_s)


class ThroughMemory:
    """The ranks read each other's numbers."""

    def __init__(self, shared: SharedRows, limit_s: float) -> None:
        """`limit_s`: for the others to come to an exchange."""
        self._shared, self._limit_s = shared, limit_s
        self._begun = self._checked = 0.0

    def greatest(self, numbers: Any) -> Cut[None]:
        """Puts the greatest of all ranks in the place of each of these numbers, a tensor."""
        by_rank = yield from self._of_all(numbers.tolist())
        numbers.copy_(numbers.new_tensor(by_rank).amax(0))

    def of_all(self, number: int) -> Cut[list[int]]:
        """The number of each rank."""
        by_rank = yield from self._of_all([number])
        return [theirs[0] for theirs in by_rank]

    def _of_all(self, numbers: list[int]) -> Cut[list[list[int]]]:
        found: list[list[int]] = [[] for _ in range(self._shared.world_size)]
        for first in range(0, len(numbers), exchange.WIDTH):
            part = numbers[first : first + exchange.WIDTH]
            # There is room: no rank is more than one exchange ahead of another.
            row = self._shared.begin([*part, *[0] * (exchange.WIDTH - len(part))])
            self._begun = self._checked = time.monotonic()
            yield lambda row=row: self._is_here(row)  # type: ignore[misc]
            for known, theirs in zip(found, row.rows(), strict=True):
                known += theirs[: len(part)]
        return found

    def _is_here(self, row: SharedRow) -> bool:
        """Whether all have come.

        Raises:
            ConnectionLost: a rank that has not come will not.
            RanksDiffer: some have not come within the limit.
        """
        if row.is_here():
            return True
        now = time.monotonic()
        if now - self._checked < _CHECK_EVERY_S:
            return False
        self._checked = now
        if gone := row.gone():
            raise exchange.ConnectionLost(f"{names_of(gone)} left or ended")
        if row.is_here():
            return True
        if now - self._begun > self._limit_s:
            raise exchange.did_not_come(row.absent(), "a comparison", self._limit_s)
        return False

    def end(self) -> None:
        """This rank compares no more."""
        self._shared.leave()


class OverGroup:
    """By collectives over a gloo group."""

    def __init__(self, mine: Job, limit_s: float) -> None:
        """Makes the group; all ranks together. Its timeout is short: a process does not end before what it has begun in it."""
        import torch.distributed as dist

        self._world_size = mine.world_size
        self._group: Any = dist.new_group(
            backend="gloo", timeout=timedelta(seconds=limit_s), group_desc="unhang replicas"
        )

    def greatest(self, numbers: Any) -> Cut[None]:
        """As through memory."""
        import torch.distributed as dist

        work = dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self._group, async_op=True)
        yield work.is_completed
        work.wait()

    def of_all(self, number: int) -> Cut[list[int]]:
        """As through memory."""
        import torch
        import torch.distributed as dist

        everyone = torch.zeros(self._world_size, dtype=torch.int64)
        work = dist.all_gather_into_tensor(everyone, torch.tensor([number]), group=self._group, async_op=True)
        yield work.is_completed
        work.wait()
        return [int(theirs) for theirs in everyone.tolist()]

    def end(self) -> None:
        """Gives up the group; held until the interpreter is taken apart, one aborts the process now and then."""
        self._group = None
