"""`unhang.together(condition)`: all ranks decide together to skip, stop or retry."""

from __future__ import annotations

from dataclasses import dataclass

from unhang.errors import RanksDiffer
from unhang.guard import exchange
from unhang.guard.durations import Duration, seconds_of
from unhang.guard.job import Job


@dataclass(frozen=True)
class Agreement:
    """What all ranks said; the same object on each of them. True where any rank said yes.

    `ranks`: those that said yes.

    Example:
        import unhang

        agreement = unhang.together(True, name="stop")
        assert agreement and agreement.any and agreement.all
        assert agreement.ranks == tuple(range(agreement.world_size))
    """

    ranks: tuple[int, ...]
    world_size: int

    @property
    def any(self) -> bool:
        """Whether some rank said yes."""
        return bool(self.ranks)

    @property
    def all(self) -> bool:
        """Whether every rank said yes."""
        return len(self.ranks) == self.world_size

    def __bool__(self) -> bool:
        return self.any


def together(condition: object, *, name: str = "", limit_s: Duration | None = None) -> Agreement:
    """Tells every rank which ranks find `condition` true, so that all take the same branch.

    The safe form of skipping a step, or of try and except around it: a rank that skips alone leaves the others waiting. All
    ranks call it at the same place, in every step, also those for which nothing is wrong.

    It cannot take back what was begun. After an exception in the middle of a step whose collectives some ranks have issued
    already (inside `backward()` of DDP, in a sharded forward), the ranks are at different places, and no question of ours
    gets them together: let the exception end the job. So ask before the first collective of the step.

    Example:
        # Skip a step, before `backward()`, in which any rank has a loss that is not finite.
        import torch
        import unhang

        model = torch.nn.Linear(2, 1)
        for batch in torch.tensor([[1.0, 2.0], [float("nan"), 0.0], [3.0, 4.0]]):
            loss = model(batch).sum()
            if unhang.together(not torch.isfinite(loss), name="loss is not finite"):
                continue
            loss.backward()

    Example:
        # Try again with half the batch, on all ranks, after one of them ran out of memory in the forward.
        import torch
        import unhang

        model, batch = torch.nn.Linear(2, 1), torch.ones(8, 2)
        while len(batch):
            loss = None
            try:
                loss = model(batch).sum()
            except torch.OutOfMemoryError:
                pass
            if not unhang.together(loss is None, name="out of memory"):
                loss.backward()
                break
            batch = batch[: len(batch) // 2]

    Blocks: until all ranks have come, up to `limit_s`; about 0.3 ms where they come at the same time. A condition on a device
    is waited for.

    Args:
        condition: anything that is true or false, a tensor with one element too.
        name: for messages.
        limit_s: for the other ranks to come; by default the timeout of the job.

    Raises:
        RanksDiffer: some ranks did not come, or came to another place; both are named.
        PeerFailed: another rank failed.
    """
    says_yes = bool(condition)
    mine = exchange.here()
    if mine is None:
        return Agreement((0,) if says_yes else (), 1)
    return _agreed(mine, says_yes, name, mine.timeout_s if limit_s is None else seconds_of(limit_s))


def _agreed(mine: Job, says_yes: bool, name: str, wait_s: float) -> Agreement:
    words = f"together(name={name!r})" if name else "together()"
    calls = mine.guards.setdefault("together calls", {})
    calls[name] = calls.get(name, 0) + 1
    row = (exchange.number_of(mine, "call", words), calls[name], 0, int(says_yes), exchange.UNKNOWN)
    asked = exchange.start(mine, row, wait_s, words)
    asked.wait(wait_s, words)
    apart = "" if asked.is_alike() else asked.places()
    if apart:
        raise RanksDiffer(apart)
    agreement = Agreement(tuple(rank for rank, sent in enumerate(asked.rows()) if sent[3]), mine.world_size)
    asked.free()
    return agreement
