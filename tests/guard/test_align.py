"""`align` in a process that trains alone, and the words it finds for ranks and counts."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from unhang.inside.guards import align as module
from unhang.inside.guards import exchange
from unhang.inside.guards.align import align
from unhang.inside.guards.job import Job
from unhang.inside.guards.words import name_ranks


class Sampler:
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Loader(list[int]):
    def __init__(self, *items: int) -> None:
        super().__init__(items)
        self.sampler = Sampler()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(7))

    def __len__(self) -> int:
        return 7


def test_alone_it_is_the_loader() -> None:
    loader = Loader(1, 2, 3)
    aligned = align(loader)
    assert [list(aligned), list(aligned)] == [[1, 2, 3], [1, 2, 3]]
    assert len(aligned) == 3
    aligned.sampler.set_epoch(4)
    assert loader.sampler.epoch == 4
    with pytest.raises(AttributeError, match="no attribute 'samples'"):
        _ = aligned.samples


def test_what_has_no_length_has_none_and_is_true() -> None:
    aligned = align(iter([1]))
    with pytest.raises(TypeError):
        len(aligned)
    assert aligned
    assert not align([])


def test_it_can_be_copied_and_pickled() -> None:
    aligned = align([1, 2], name="train")
    assert list(copy.copy(aligned)) == list(copy.deepcopy(aligned)) == [1, 2]
    assert list(pickle.loads(pickle.dumps(aligned))) == [1, 2]


def test_a_wrong_mode_and_a_wrong_limit_are_refused() -> None:
    with pytest.raises(ValueError, match="it must be one of raise, stop_together, warn"):
        align([], mode="stop")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a length of time"):
        align([], limit_s="soon")


@pytest.mark.parametrize(
    ("loader", "length"),
    [
        ([1, 2], 2),
        (DataLoader(torch.arange(5), batch_size=2), 3),  # type: ignore[arg-type]
        (DataLoader(Stream()), exchange.UNKNOWN),
        (iter([1]), exchange.UNKNOWN),
    ],
)
def test_the_length_is_known_where_it_is_no_guess(loader: Any, length: int) -> None:
    assert module._length(loader) == length


@pytest.mark.parametrize(
    ("index", "codes", "lengths", "words"),
    [
        (12, [1, 0, 1, 1], [-1] * 4, "rank 1 has 12 batches; ranks 0, 2, 3 have 13 or more batches"),
        (12, [1, 0, 1, 1], [13, 12, 13, 13], "rank 1 has 12 batches (12 by len()); ranks 0, 2, 3 have 13 or more batches (13 by len())"),
        (0, [1, 1, 1, 1], [13, 12, 13, 13], "rank 1 has 12 batches; ranks 0, 2, 3 have 13 batches"),
        (0, [1, 0, 1, 1], [-1] * 4, "rank 1 has 0 batches; ranks 0, 2, 3 have 1 or more batches"),
        (1, [0, 1, 1, 0], [-1, 5, -1, -1], "ranks 0, 3 have 1 batch; rank 2 has 2 or more batches; rank 1 has 2 or more batches (5 by len())"),
    ],
)  # fmt: skip
def test_the_counts_in_words(index: int, codes: list[int], lengths: list[int], words: str) -> None:
    epoch = module._Epoch(align([]), Job(0, 0, 4), 1)
    epoch._index, epoch._lengths = index, lengths
    assert epoch._counts(codes) == words


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([1], "rank 1"),
        ([2, 0], "ranks 0, 2"),
        ([0, 1], "ranks 0, 1"),
        ([0, 1, 2, 5, 7, 8], "ranks 0-2, 5, 7, 8"),
        (range(4096), "ranks 0-4095"),
        (range(0, 40, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
    ],
)
def test_ranks_in_words(ranks: Any, words: str) -> None:
    assert name_ranks(ranks) == words
