"""One case on one rank: its group; its data, functions of (rank, index) with exact reductions; how results are compared.

Imports torch: only the worker imports this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch

from unhang.check.collectives.suite import Case, Figures, Wrong, group_of

# Reduced data repeats after so many elements (a prime, so that it does not line up with chunks): the expected result of
# 1,000 ranks is then cheap.
PERIOD = 8191
# Counts up to which every whole number is exact, and so the sum of all contributions.
_EXACT = {
    torch.float64: 1 << 31, torch.float32: 1 << 24, torch.float16: 1 << 11, torch.bfloat16: 1 << 8, torch.int64: 1 << 31,
    torch.int32: 1 << 30, torch.uint8: 255, torch.bool: 1, torch.complex64: 1 << 24,
}  # fmt: skip
# Primes below what the dtype holds exactly; what is larger than this marks an element that nothing was written to.
_MODULUS = {torch.float16: 2039, torch.bfloat16: 251, torch.uint8: 251, torch.bool: 2}
_ANY_MODULUS = 65521
_LEAST_PROOF = 8
_MEAN_ERROR = 3e-7  # of a mean in float32, for each rank that was added
_LEAST_DIFFERENT = 3
_REDUCE = {
    "sum": torch.add, "avg": torch.add, "premul_sum": torch.add, "product": torch.mul, "min": torch.minimum,
    "max": torch.maximum, "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor,
}  # fmt: skip


class Pattern:
    """The data of one case. `salt`: other data for each case, so that left-overs of an earlier one are noticed."""

    def __init__(self, dtype: torch.dtype, device: torch.device, salt: int) -> None:
        self.dtype, self.device, self.salt = dtype, device, salt

    def moved(self, rank: int, count: int) -> torch.Tensor:
        """What a rank sends where nothing is reduced."""
        return self._typed(self._numbers(rank, count))

    def empty(self, count: int) -> torch.Tensor:
        """A buffer to receive into, full of a value that no rank sends (a bool has none to spare)."""
        poison = {torch.uint8: 255, torch.bool: 1}.get(self.dtype, -1)
        return torch.full((count,), poison, dtype=self.dtype, device=self.device)

    def contributed(self, rank: int, ranks: Sequence[int], count: int, reduction: str) -> torch.Tensor:
        """What a rank contributes to a reduction over `ranks`."""
        return self._typed(_tiled(self._contribution(rank, ranks, min(count, PERIOD), reduction), count))

    def reduced(self, ranks: Sequence[int], count: int, reduction: str) -> torch.Tensor:
        """The exact result of the reduction."""
        period = min(count, PERIOD)
        total = self._contribution(ranks[0], ranks, period, reduction)
        for rank in ranks[1:]:
            total = _REDUCE[reduction](total, self._contribution(rank, ranks, period, reduction))
        if reduction == "premul_sum":
            total = total * 2
        if reduction == "avg":
            return _tiled(total.to(torch.float64) / len(ranks), count).to(self.dtype).to(self.device)
        return self._typed(_tiled(total, count))

    def _typed(self, numbers: torch.Tensor) -> torch.Tensor:
        if self.dtype.is_complex:
            return torch.complex(numbers.float(), -numbers.float()).to(self.dtype).to(self.device)
        return numbers.to(self.dtype).to(self.device)

    def _numbers(self, rank: int, count: int) -> torch.Tensor:
        modulus = _MODULUS.get(self.dtype, _ANY_MODULUS)
        index = torch.arange(count, dtype=torch.int64)
        numbers = index * (2 * (rank % 59) + 1) + (rank * 101 + self.salt * 13)
        if modulus == 2:
            return (numbers * 2654435761 >> 7) % 2
        return numbers % modulus

    def _contribution(self, rank: int, ranks: Sequence[int], count: int, reduction: str) -> torch.Tensor:
        numbers = self._numbers(rank, count)
        if reduction in ("min", "max", "band", "bor", "bxor"):
            return numbers
        exact = _EXACT[self.dtype] // (2 if reduction == "premul_sum" else 1)
        most = int(math.log2(exact)) if reduction == "product" else exact
        turns = -(-len(ranks) // max(most, 1))  # with more ranks than that, they take turns
        is_mine = (torch.arange(count) + ranks.index(rank)) % turns == 0
        if reduction == "product":
            return torch.where(is_mine & (numbers % 2 == 1), 2, 1)
        per_rank = min(max(most * turns // len(ranks), 1), _ANY_MODULUS)
        return torch.where(is_mine, numbers % per_rank + 1, 0) if per_rank > 1 else is_mine.to(torch.int64)


def _tiled(period: torch.Tensor, count: int) -> torch.Tensor:
    return period.repeat(-(-count // max(len(period), 1)))[:count] if count > len(period) else period


def compare(
    got: torch.Tensor, expected: torch.Tensor, sources: Iterable[int] = (), relative: float = 0.0
) -> Wrong | None:
    """The first wrong element, None if all are right. `relative`: the error that a mean may have."""
    if got.shape != expected.shape:
        wanted = expected.numel()
        return Wrong(0, f"{wanted} elements", f"{got.numel()}", wanted, wanted, tuple(sources))
    if torch.equal(got, expected):
        return None
    is_wrong = (got - expected).abs() > expected.abs() * relative if relative else got != expected
    is_wrong |= got != got
    indexes = is_wrong.nonzero().flatten()
    if not len(indexes):
        return None
    at = int(indexes[0])
    texts = str(expected[at].item()), str(got[at].item())
    return Wrong(at, *texts, len(indexes), got.numel(), tuple(sources))


def compare_parts(parts: Iterable[tuple[torch.Tensor, torch.Tensor, int]]) -> Wrong | None:
    """Compares (got, expected, source rank) one after the other; the index counts through all of them."""
    first: Wrong | None = None
    sources: list[int] = []
    before = count = 0
    for got, expected, source in parts:
        wrong = compare(got, expected)
        if wrong:
            sources.append(source)
            count += wrong.count
            first = first or Wrong(before + wrong.first_index, wrong.expected, wrong.got, 0, 0)
        before += expected.numel()
    return first and replace(first, count=count, size=before, sources=tuple(sources))


def compare_sum(got: torch.Tensor, pattern: Pattern, ranks: Sequence[int], whole: int, offset: int = 0) -> Wrong | None:
    """Compares a part of a sum over `ranks`, from `offset` of `whole` elements, and tells whose contribution is missing.

    A rank is named only when every wrong element is off by exactly its contribution, in enough different values, and that
    of no other rank would do.
    """
    part = slice(offset, offset + got.numel())
    expected = pattern.reduced(ranks, whole, "sum")[part]
    wrong = compare(got, expected)
    if wrong is None or got.dtype.is_complex or got.shape != expected.shape:
        return wrong
    indexes = (got != expected).nonzero().flatten()
    off = got[indexes].double() - expected[indexes].double()
    if len(indexes) < _LEAST_PROOF or len(off.unique()) < _LEAST_DIFFERENT:
        return wrong
    missing: list[int] = []
    doubled: list[int] = []
    for rank in ranks:
        alone = pattern.contributed(rank, ranks, whole, "sum")[part][indexes].double()
        if torch.equal(off, -alone):
            missing.append(rank)
        if torch.equal(off, alone):
            doubled.append(rank)
    if len(missing) + len(doubled) != 1:
        return wrong
    return replace(wrong, missing_rank=missing[0] if missing else None, doubled_rank=doubled[0] if doubled else None)


@dataclass
class Prepared:
    """A case ready to run."""

    call: Callable[[], object]
    check: Callable[[], Wrong | None]
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
        relative = _MEAN_ERROR * self.members if is_mean_inexact else 0.0
        return compare(got, expected[offset : offset + got.numel()], relative=relative)

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
