"""How replicas are compared through shared memory: the numbers of all ranks, and an end where one does not come."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from unhang.errors import RanksDiffer
from unhang.inside.guards import comparing, exchange, shared_memory
from unhang.inside.guards.comparing import ThroughMemory


@pytest.fixture
def ways() -> Iterator[list[ThroughMemory]]:
    descriptor, path = shared_memory.offered(3)
    opened = [shared_memory.opened(path, rank, 3) for rank in range(3)]
    yield [ThroughMemory(one, 5.0) for one in opened if one is not None]
    os.close(descriptor)


def results(exchanges: list[Any]) -> list[Any]:
    """Drives the exchanges of all ranks to their ends, each as far as it can go."""
    found: dict[int, Any] = {}
    questions = [next(one) for one in exchanges]
    for _ in range(100):
        for rank, one in enumerate(exchanges):
            if rank not in found and questions[rank]():
                try:
                    questions[rank] = next(one)
                except StopIteration as end:
                    found[rank] = end.value
    return [found[rank] for rank in range(len(exchanges))]


@pytest.mark.parametrize("count", [1, 5, 6, 23])
def test_the_greatest_of_all_ranks(ways: list[ThroughMemory], count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    numbers = [torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator) for _ in ways]
    expected = torch.stack(numbers).amax(0)
    results([way.greatest(own) for way, own in zip(ways, numbers, strict=True)])
    assert all(torch.equal(own, expected) for own in numbers)


def test_the_number_of_each_rank(ways: list[ThroughMemory]) -> None:
    for numbers in ([7, -7, 2**62], [3, 3, 3]):
        assert results([way.of_all(number) for way, number in zip(ways, numbers, strict=True)]) == [numbers] * 3


def test_many_comparisons_in_a_row(ways: list[ThroughMemory]) -> None:
    for turn in range(200):
        assert results([way.of_all(turn) for way in ways]) == [[turn] * 3] * 3


def test_who_is_late_and_who_has_left_is_named(ways: list[ThroughMemory], monkeypatch: pytest.MonkeyPatch) -> None:
    is_here, _ = (next(way.of_all(1)) for way in ways[:2])
    assert not is_here()
    monkeypatch.setattr(comparing, "_CHECK_EVERY_S", 0.0)
    assert not is_here()
    ways[0]._limit_s = 0.0
    with pytest.raises(RanksDiffer, match=r"^rank 2 did not come to a comparison within 0 s$"):
        is_here()
    ways[2].end()
    with pytest.raises(exchange.ConnectionLost, match=r"^rank 2 left or ended$"):
        is_here()
