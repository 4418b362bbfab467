"""The guards' own group ends with the job, once, in one place; and the failure that a rank has heard of is the one it passes on."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from unhang.errors import PeerFailed
from unhang.inside.guards import exchange, job
from unhang.inside.guards.board import Board
from unhang.inside.guards.job import Job
from unhang.inside.guards.peers import Peers


@pytest.fixture
def mine() -> Iterator[Job]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=60))
    yield job.current()
    job.use(None)
    if dist.is_initialized():
        dist.destroy_process_group()


def groups() -> int:
    return len(dist.distributed_c10d._world.pg_map)


def test_the_end_destroys_the_side_group_and_nothing_else(mine: Job) -> None:
    mine.side_group().allreduce([torch.ones(1)]).wait()
    assert groups() == 2
    mine.end()
    assert (groups(), mine.side) == (1, None)
    dist.all_reduce(torch.ones(1))
    mine.end()


def test_the_next_job_ends_the_one_before(mine: Job) -> None:
    mine.side_group()
    job.use(mine)
    assert mine.side is not None
    job.use(None)
    assert (groups(), mine.side) == (1, None)


def test_the_script_may_have_destroyed_all_groups(mine: Job) -> None:
    mine.side_group()
    dist.destroy_process_group()
    mine.end()
    assert mine.side is None


def test_a_group_that_does_not_go_is_left(mine: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    released, begun = threading.Event(), threading.Event()

    def stand_still(_: object) -> None:
        begun.set()
        released.wait(20)

    mine.side_group()
    monkeypatch.setattr(job, "_destroy", stand_still)
    monkeypatch.setattr(job, "END_LIMIT_S", 0.05)
    mine.end()
    assert begun.is_set()
    released.set()


def test_a_forked_child_leaves_the_group_to_its_parent(mine: Job) -> None:
    mine.side_group()
    mine.pid = os.getpid() + 1
    mine.end()
    assert groups() == 2


def test_the_first_failure_is_passed_on_and_not_its_echo(capsys: pytest.CaptureFixture[str]) -> None:
    board = Board(dist.HashStore(), 1, 3)
    peers = Peers(Job(1, 1, 3, backend="gloo", board=board))
    heard = exchange.peer_failed({"rank": 2, "what": "in its loader: OSError: no file", "text": "where it was"})
    peers.failed(heard)
    stands = board.failure()
    assert stands is not None
    assert (stands["rank"], stands["by"], stands["what"]) == (2, 1, "in its loader: OSError: no file")


def test_of_a_failure_that_names_nobody_the_rank_says_it_itself() -> None:
    board = Board(dist.HashStore(), 1, 3)
    Peers(Job(1, 1, 3, backend="gloo", board=board)).failed(PeerFailed("from elsewhere"))
    stands = board.failure()
    assert stands is not None
    assert (stands["rank"], stands["what"]) == (1, "PeerFailed: from elsewhere")
