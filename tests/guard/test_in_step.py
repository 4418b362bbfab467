"""Ranks in step, each a thread with its own view of the shared memory: what they get, whatever else goes through that memory."""

from __future__ import annotations

import gc
import os
import random
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import pytest

from unhang.errors import PeerFailed, RanksDiffer
from unhang.inside.guards import exchange, shared_memory
from unhang.inside.guards.align import _Epoch, align
from unhang.inside.guards.job import Job

LIMIT_S = 20.0
STEPS = 200  # three times round the ring


def jobs(world_size: int) -> list[Job]:
    """One for each rank, with memory that they share."""
    descriptor, path = shared_memory.offered(world_size)
    made = [Job(rank, rank, world_size) for rank in range(world_size)]
    for job in made:
        job.shared = shared_memory.opened(path, job.rank, world_size)
        assert job.shared is not None
    os.close(descriptor)
    return made


def batches(job: Job, loader: Iterable[Any], epoch: int = 1, **options: Any) -> Iterator[Any]:
    """An epoch of this rank, as `for` goes through it."""
    aligned = align(loader, limit_s=LIMIT_S, **options)
    return chain.from_iterable(_Epoch(aligned, job, epoch).stretches())


def on_all(world_size: int, train: Callable[[Job], Any]) -> list[Any]:
    """What `train` returns, or raises, on each rank."""
    with ThreadPoolExecutor(world_size) as threads:
        begun = [threads.submit(train, job) for job in jobs(world_size)]
        return [one.exception(60) or one.result() for one in begun]


def other_exchange(job: Job, turn: int) -> list[int]:
    """One that a guard beside `align` makes."""
    asked = exchange.start(job, (5, turn, 0, job.rank, -1), LIMIT_S, "another guard")
    asked.wait(LIMIT_S, "another guard")
    return [row[3] for row in asked.rows()]


@pytest.fixture
def short_way(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions at which ranks left the short way: so few that most steps go it."""
    left: list[int] = []
    for name in ("_fell_out", "_go_on"):
        original = getattr(_Epoch, name)

        def seen(epoch: Any, in_step: Any, found: Any, original: Any = original) -> None:
            left.append(in_step.position)
            original(epoch, in_step, found)

        monkeypatch.setattr(_Epoch, name, seen)
    return left


def test_all_get_all_batches_on_the_short_way(short_way: list[int]) -> None:
    ranks = jobs(2)
    loops = [batches(job, range(STEPS)) for job in ranks]
    # Both have told of their first batch before either waits.
    with ThreadPoolExecutor(2) as threads:
        got = [list(threads.map(next, loops))]
    got += [[next(loop) for loop in loops] for _ in range(STEPS - 1)]
    assert got == [[step, step] for step in range(STEPS)]
    assert len(short_way) < STEPS / 4


@pytest.mark.parametrize("seed", range(6))
def test_whatever_else_they_exchange(seed: int) -> None:
    plan = random.Random(seed)
    ends = [plan.randrange(150) for _ in range(6)]  # a break, or the end of the loader
    others = {(epoch, step) for epoch in range(6) for step in range(150) if plan.random() < 0.2}
    inner = {(epoch, step) for epoch in range(6) for step in range(150) if plan.random() < 0.02}

    def train(job: Job) -> list[Any]:
        own = random.Random(f"{seed} {job.rank}")
        got: list[Any] = []
        for epoch, end in enumerate(ends):
            for step in batches(job, range(100), epoch, name="train"):
                got.append((epoch, step))
                if own.random() < 0.05:
                    time.sleep(own.random() / 500)
                if (epoch, step) in others:
                    got.append(other_exchange(job, len(got)))
                if (epoch, step) in inner:
                    got += batches(job, range(70), 1000 * epoch + step, name="evaluate")
                if step == end:
                    break
        return got

    first, *rest = on_all(3, train)
    assert isinstance(first, list), first
    assert [pair for pair in first if isinstance(pair, tuple)] == [
        (epoch, step) for epoch, end in enumerate(ends) for step in range(min(end + 1, 100))
    ]
    assert all(answer == [0, 1, 2] for answer in first if isinstance(answer, list))
    assert rest == [first, first]


def test_a_rank_with_fewer_batches_is_found_on_the_short_way() -> None:
    def train(job: Job) -> int:
        return sum(1 for _ in batches(job, iter(range(STEPS + (job.rank == 1))), name="train"))

    for error in on_all(3, train):
        assert isinstance(error, RanksDiffer)
        assert str(error).startswith(f"ranks 0, 2 have {STEPS} batches; rank 1 has {STEPS + 1} or more batches")


def test_all_stop_together_from_the_short_way() -> None:
    def train(job: Job) -> int:
        return sum(1 for _ in batches(job, iter(range(STEPS + job.rank)), mode="stop_together"))

    assert on_all(3, train) == [STEPS, STEPS, STEPS]


def test_an_error_of_a_loader_comes_in_the_place_of_its_batch() -> None:
    def broken(rank: int) -> Iterator[int]:
        yield from range(STEPS)
        if rank == 1:
            raise ValueError("no such file")
        yield STEPS

    def train(job: Job) -> int:
        loop = batches(job, map(int, broken(job.rank)))
        for step in range(STEPS):
            assert next(loop) == step
        return next(loop)

    errors = on_all(2, train)
    assert isinstance(errors[0], PeerFailed)
    assert "in its loader, at batch 201 of epoch 1" in str(errors[0])
    assert isinstance(errors[1], ValueError)


def test_a_rank_at_another_place_is_found() -> None:
    def train(job: Job) -> None:
        for epoch in (1, 2):
            for step in batches(job, range(STEPS), epoch, name="train"):
                if (job.rank, epoch, step) == (1, 1, 100):
                    break

    for error in on_all(2, train):
        assert "rank 0 at batch 103 of epoch 1" in str(error)
        assert "rank 1 at batch 1 of epoch 2" in str(error)


def test_a_loop_that_rests_keeps_its_place_while_others_go_round_the_ring() -> None:
    def train(job: Job) -> list[int]:
        first, second = batches(job, range(STEPS), name="one"), batches(job, range(STEPS), name="two")
        got = [next(first) for _ in range(5)]
        for turn in range(STEPS):
            assert other_exchange(job, turn) == [0, 1]
        got += [next(first) for _ in range(5)]
        for _ in range(STEPS):
            got.append(next(second))
        return [*got, *first]

    expected = [*range(10), *range(STEPS), *range(10, STEPS)]
    assert on_all(2, train) == [expected, expected]


class Batch:
    """Something that a weak reference can follow."""

    def __init__(self, number: int) -> None:
        self.number = number


def test_no_batch_is_held_that_the_loop_has_let_go() -> None:
    def train(job: Job) -> list[bool]:
        loop, alive = batches(job, map(Batch, range(20))), []
        for _ in range(10):
            batch = next(loop)
            known = weakref.ref(batch)
            del batch
            alive.append(known() is not None)
        rest = weakref.ref(next(loop))
        del loop
        gc.collect()
        return [*alive, rest() is not None]

    assert on_all(2, train) == [[False] * 11] * 2


def test_what_interrupts_a_loader_ends_the_epoch() -> None:
    def items() -> Iterator[int]:
        yield from range(50)
        raise KeyboardInterrupt

    def train(job: Job) -> list[Any]:
        loop = batches(job, map(int, items()))
        got = [next(loop) for _ in range(49)]
        with pytest.raises(KeyboardInterrupt):
            next(loop)
        return [*got, *loop]

    assert on_all(2, train) == [[*range(49)]] * 2
