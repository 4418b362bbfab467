"""One case on one rank: its group, its data, and how results are compared. Imports torch: only the worker imports this file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch

from unhang.preflight.collectives.patterns import Pattern, compare, compare_parts, compare_sum
from unhang.preflight.collectives.results import Figures, Wrong
from unhang.preflight.collectives.suite import Case, group_of

# Of a mean in float32, for each rank that was added.
_MEAN_ERROR = 3e-7


@dataclass
class Prepared:
    """A case ready to run. `moved_bytes`: what nccl-tests call the algorithm's bytes, already times the bus factor."""

    call: Callable[[], object]
    check: Callable[[], Wrong | None]
    moved_bytes: float = 0.0
    figures: Figures | None = None


@dataclass
class Bench:
    """What all cases of one worker share: its place, the store, and the groups made so far."""

    rank: int
    world_size: int
    device: torch.device
    store: Any
    timeout: timedelta
    groups: dict[str, Any] = field(default_factory=dict)

    def sync(self) -> None:
        """Waits until the device has done what was asked of it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Place:
    """One case on one rank: the group, the data, and the count of elements per rank and per buffer."""

    def __init__(self, bench: Bench, case: Case, number: int) -> None:
        self.bench, self.case, self.number = bench, case, number
        self.ranks = group_of(case.group, bench.rank, bench.world_size)
        self.group = bench.groups.get(case.group)
        self.me = bench.rank
        self.position = self.ranks.index(self.me)
        self.members = len(self.ranks)
        self.root = self.ranks[min(case.root, self.members - 1)]
        self.is_root = self.me == self.root
        self.count = case.size
        # What is left of an odd count stays odd: unaligned chunks are a path of their own.
        self.chunk = max(1, case.size // self.members | case.size % 2)
        self.pattern = Pattern(getattr(torch, case.dtype), bench.device, number)
        self.item_bytes = self.pattern.empty(1).element_size()
        self.next = self.ranks[(self.position + 1) % self.members]
        self.previous = self.ranks[self.position - 1]

    def contributed(self, count: int) -> torch.Tensor:
        """This rank's input of a reduction."""
        return self.pattern.contributed(self.me, self.ranks, count, self.case.reduction)

    def compare_reduced(self, got: torch.Tensor, whole: int, offset: int = 0) -> Wrong | None:
        """Compares a part of a reduction's result."""
        if self.case.reduction == "sum":
            return compare_sum(got, self.pattern, self.ranks, whole, offset)
        expected = self.pattern.reduced(self.ranks, whole, self.case.reduction)
        is_mean_inexact = self.case.reduction == "avg" and self.members & (self.members - 1)
        return compare(
            got,
            expected[offset : offset + got.numel()],
            relative=_MEAN_ERROR * self.members if is_mean_inexact else 0.0,
        )

    def compare_gathered(self, parts: list[torch.Tensor]) -> Wrong | None:
        """Compares what came from each rank of the group, in order."""
        return compare_parts(
            (part, self.pattern.moved(rank, part.numel()), rank) for part, rank in zip(parts, self.ranks, strict=True)
        )

    def compare_scattered(self, parts: list[torch.Tensor]) -> Wrong | None:
        """Compares what each rank cut out of its own data for this one."""
        mine = slice(self.position * self.chunk, (self.position + 1) * self.chunk)
        return compare_parts(
            (part, self.pattern.moved(rank, self.chunk * self.members)[mine], rank)
            for part, rank in zip(parts, self.ranks, strict=True)
        )

    def prepared(
        self, call: Callable[[], object], check: Callable[[], Wrong | None], count: int, factor: float = 1.0
    ) -> Prepared:
        """A case that moves `count` elements, with the factor by which nccl-tests turn that into bus traffic."""
        return Prepared(call, check, count * self.item_bytes * factor)

    @property
    def share(self) -> float:
        """The part of a buffer that has to leave its rank: (n - 1) / n."""
        return (self.members - 1) / self.members
