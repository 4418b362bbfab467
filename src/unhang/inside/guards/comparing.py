"""What `check_replicas` compares, and how the ranks answer each other: through memory that they share, or over a group of their own.

Not on the way of the other guards: a rank that skips an optimizer step, which is what is looked for, comes to these exchanges at
another time than to theirs. Memory where it can be: each gloo group keeps a thread that wakes a hundred times a second.

Each exchange is cut where it has to wait: it yields the question whether to go on. The same exchanges on all ranks.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from unhang.inside.guards import exchange
from unhang.inside.guards.job import Job
from unhang.inside.guards.shared_memory import SharedRow, SharedRows
from unhang.inside.guards.words import name_ranks

NOT_COMPARED = {
    "sharded": "each rank holds its own part",
    "local": "of BatchNorm, each rank has the statistics of its own batches",
    "copied": "DDP copies them from rank 0 before every forward, which may change them",
    "unusual": "without data of their own (lazy, meta, sparse or quantized)",
}
T = TypeVar("T")
Cut = Generator[Callable[[], bool], None, T]
_CHECK_EVERY_S = 0.2


def replicated(model: Any, what: Iterable[str]) -> tuple[list[tuple[str, Any]], dict[str, list[str]]]:
    """The tensors that should be equal on all ranks, by name, and the names of the others by the reason."""
    kinds, sharded, local, copied = set(what), *_special(model)
    compared: list[tuple[str, Any]] = []
    left_out: dict[str, list[str]] = {}
    for is_buffer, name, tensor in _tensors(model, kinds):
        own = _whole(tensor)
        if id(tensor) in sharded or own is None:
            reason = "sharded"
        elif is_buffer and id(tensor) in local:
            reason = "local"
        elif is_buffer and id(tensor) in copied:
            reason = "copied"
        elif not _has_bits(own):
            reason = "unusual"
        else:
            compared.append((name, own))
            continue
        left_out.setdefault(reason, []).append(name)
    return compared, left_out


def _tensors(model: Any, kinds: set[str]) -> Iterator[tuple[bool, str, Any]]:
    """Whether it is a buffer, its name without what wrappers add, and the tensor."""
    for is_buffer, kind, named in (
        (False, "parameters", model.named_parameters()),
        (True, "buffers", model.named_buffers()),
    ):
        if kind in kinds:
            for name, tensor in named:
                yield is_buffer, name.removeprefix("module.").replace("_orig_mod.", ""), tensor


def _special(model: Any) -> tuple[set[int], set[int], set[int]]:
    """By id: parameters that FSDP shards, BatchNorm's local statistics, buffers that DDP copies in every forward."""
    import torch

    sharded: set[int] = set()
    local: set[int] = set()
    copied: set[int] = set()
    for module in model.modules():
        kind = type(module).__name__
        if kind == "FullyShardedDataParallel" and "NO_SHARD" not in str(getattr(module, "sharding_strategy", "")):
            sharded.update(map(id, (*module.parameters(), *module.buffers())))
        elif kind == "DistributedDataParallel":
            own = module.__dict__
            if own.get("forward_sync_buffers", own.get("broadcast_buffers", True)):
                copied.update(map(id, module.buffers()))
            ignored = own.get("parameters_to_ignore") or ()
            sharded.update(id(t) for n, t in (*module.named_parameters(), *module.named_buffers()) if n[7:] in ignored)
        elif isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and kind != "SyncBatchNorm":
            local.update(id(b) for b in (module.running_mean, module.running_var) if b is not None)
    return sharded, local, copied


def _whole(tensor: Any) -> Any:
    """The tensor as this rank holds it, or None where it holds only a part: a DTensor's shard, a part of ZeRO stage 3."""
    if hasattr(tensor, "ds_id") or type(tensor).__name__ == "FlatParameter":
        return None
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return tensor
    import torch.distributed as dist

    is_everywhere = all(p.is_replicate() for p in placements) and tensor.device_mesh.size() == dist.get_world_size()
    return tensor.to_local() if is_everywhere else None


def _has_bits(tensor: Any) -> bool:
    import torch

    is_lazy = isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)
    return not is_lazy and tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_quantized


def cannot_compare(model: Any, world_size: int) -> str:
    """Why this model is not compared; empty where it is."""
    import torch.distributed as dist

    for module in model.modules():
        group = getattr(module, "process_group", None) if type(module).__name__ == "DistributedDataParallel" else None
        with suppress(Exception):
            if group is not None and dist.get_world_size(group) != world_size:
                return "its replicas are on a part of the ranks only"
    return ""


def layout_of(names: Sequence[str], tensors: Sequence[Any]) -> int:
    """A number that is equal where names, shapes and dtypes are."""
    text = "\n".join(f"{n} {tuple(t.shape)} {t.dtype}" for n, t in zip(names, tensors, strict=True))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


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
            raise exchange.ConnectionLost(f"{name_ranks(gone)} left or ended")
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
