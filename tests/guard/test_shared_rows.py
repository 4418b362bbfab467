"""Rows in shared memory: complete or absent, never half written, and never overwritten before all ranks have read them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from unhang.errors import RanksDiffer
from unhang.inside.guards import exchange, shared_memory
from unhang.inside.guards.job import Job
from unhang.inside.guards.shared_memory import SharedRows

Rows = list[SharedRows]


@pytest.fixture
def rows() -> Iterator[Callable[[int], Rows]]:
    descriptors = []

    def made(world_size: int) -> Rows:
        descriptor, path = shared_memory.offered(world_size)
        descriptors.append(descriptor)
        found = [shared_memory.opened(path, rank, world_size) for rank in range(world_size)]
        return [one for one in found if one is not None]

    yield made
    for descriptor in descriptors:
        os.close(descriptor)


def test_rows_are_here_when_all_are_written(rows: Callable[[int], Rows]) -> None:
    ranks = rows(3)
    asked = [ranks[rank].begin((7, 1, 0, rank, -1)) for rank in (0, 2)]
    assert not asked[0].is_here()
    assert asked[0].absent() == [1]
    late = ranks[1].begin((7, 1, 0, 1, -1))
    assert late.is_here()
    assert asked[0].is_here()
    assert asked[1].is_here()
    assert [row.rows() for row in (asked[0], late)] == [[[7, 1, 0, rank, -1] for rank in range(3)]] * 2
    assert (asked[0].is_alike, asked[0].absent()) == (False, [])
    alike = [rank.begin((7, 1, 1, 1, -1)) for rank in ranks]
    assert all(row.is_here() and row.is_alike for row in alike)


def test_no_two_rows_count_as_alike_whose_numbers_have_one_hash(rows: Callable[[int], Rows]) -> None:
    assert hash(-1) == hash(-2)
    for at in range(5):
        one, other = (
            rank.begin([*[0] * at, number, *[0] * (4 - at)]) for number, rank in zip((-1, -2), rows(2), strict=True)
        )
        assert one.is_here()
        assert other.is_here()
        assert [row[at] for row in one.rows()] == [row[at] for row in other.rows()] == [-1, -2]


def test_a_row_that_is_half_written_is_not_here(rows: Callable[[int], Rows]) -> None:
    ranks = rows(2)
    asked, theirs = (rank.begin((7, 1, 0, number, -1)) for number, rank in enumerate(ranks))
    memory, at = ranks[0].memory, 8 * theirs._slots[1]
    whole = memory[at : at + 64]
    for word in range(7):
        memory[at + 8 * word : at + 8 * word + 8] = bytes([90] * 8)
        assert not asked.is_here(), word
        memory[at : at + 64] = whole
    assert asked.is_here()


def test_nothing_is_overwritten_before_all_have_read_it(rows: Callable[[int], Rows]) -> None:
    ahead, behind = rows(2)
    unread = []
    for step in range(63):
        assert ahead.has_room()
        unread.append(ahead.begin((7, 1, step, 1, -1)))
    assert not ahead.has_room()
    assert ahead.slow() == [0, 1]
    for step in range(31):
        behind.begin((7, 1, step, 1, -1))
    assert not ahead.has_room()
    assert ahead.slow() == [1]
    for step in range(31, 40):
        behind.begin((7, 1, step, 1, -1))
    assert ahead.has_room()
    assert ahead.begin((7, 1, 63, 1, -1)).absent() == [1]
    assert ahead.has_room()
    assert all(row.is_here() for row in unread[:40])
    assert [row.rows()[1][2] for row in unread[:40]] == list(range(40))


def test_in_step_the_ring_goes_round_for_ever(rows: Callable[[int], Rows]) -> None:
    ranks = rows(2)
    outer = [rank.begin((1, 1, 0, 1, -1)) for rank in ranks]
    for step in range(1000):
        assert all(rank.has_room() for rank in ranks), step
        asked = [rank.begin((2, 1, step, rank.rank, -1)) for rank in ranks]
        assert [row.is_here() for row in asked] == [True, True]
        assert asked[0].rows() == asked[1].rows() == [[2, 1, step, 0, -1], [2, 1, step, 1, -1]]
    assert all(row.is_here() and row.rows() == [[1, 1, 0, 1, -1]] * 2 for row in outer)


def test_a_rank_that_left_or_ended_is_gone(rows: Callable[[int], Rows]) -> None:
    ranks = rows(2)
    assert [ranks[0].is_gone(rank) for rank in (0, 1)] == [False, False]
    ranks[1].leave()
    assert ranks[0].is_gone(1)
    descriptor, path = shared_memory.offered(2)
    program = f"from unhang.inside.guards import shared_memory; assert shared_memory.opened({path!r}, 1, 2); print('in', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        here = shared_memory.opened(path, 0, 2)
        os.close(descriptor)
        assert here is not None
        assert not here.is_gone(1)
        other.communicate("\n", timeout=20)
    assert here.is_gone(1)


def test_what_cannot_be_opened_is_none(tmp_path: object) -> None:
    descriptor, path = shared_memory.offered(2)
    assert shared_memory.opened(path, 0, 3) is None
    os.close(descriptor)
    assert shared_memory.opened(path, 0, 2) is None


def test_where_no_memory_is_to_be_had_none_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert shared_memory.offered(2) == (-1, "")


def test_a_wait_names_who_did_not_come_and_who_is_gone(rows: Callable[[int], Rows]) -> None:
    ranks = rows(3)
    mine = Job(0, 0, 3, shared=ranks[0])
    ranks[1].begin((7, 1, 0, 1, -1))
    asked = exchange.start(mine, (7, 1, 0, 1, -1), 1.0, "together()")
    with pytest.raises(RanksDiffer, match=r"^rank 2 did not come to together\(\) within 0.01 s$"):
        asked.wait(0.01, "together()")
    ranks[2].leave()
    before = time.monotonic()
    with pytest.raises(exchange.ConnectionLost, match=r"Connection closed by peer: rank 2 left or ended"):
        asked.wait(40, "together()")
    assert time.monotonic() - before < 30
    ranks[2].begin((7, 1, 0, 0, -1))
    asked.wait(1, "together()")
    assert asked.rows()[2] == [7, 1, 0, 0, -1]
    assert asked.places() == ""


def test_who_has_not_read_is_named_too(rows: Callable[[int], Rows]) -> None:
    ranks = rows(2)
    mine = Job(0, 0, 2, shared=ranks[0])
    for step in range(63):
        exchange.start(mine, (7, 1, step, 1, -1), 1.0, "align()")
    with pytest.raises(RanksDiffer, match=r"^ranks 0, 1 did not come to align\(\) within 0.01 s$"):
        exchange.start(mine, (7, 1, 63, 1, -1), 0.01, "align()")
    ranks[1].leave()
    with pytest.raises(exchange.ConnectionLost, match="rank 1 left or ended, in align"):
        exchange.start(mine, (7, 1, 63, 1, -1), 40, "align()")
