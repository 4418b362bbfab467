"""What a job needs of a host: the arithmetic, and that the guards count alike."""

from __future__ import annotations

from unhang.analyze.situation import Situation
from unhang.inside.guards import forecast as check
from unhang.rules import machine as readings
from unhang.rules.machine import Needs, ago, needs_of, size
from unhang.testing import read, readings_case


def needs(**fields: int) -> Needs:
    case = readings_case(read("setup.job plan", **fields), read("machine.cores", count=4))
    return needs_of(Situation(case), read("machine.memory"))


def test_batches_of_all_ranks_and_workers() -> None:
    told = needs(ranks_per_node=8, workers=4, prefetch=3, batch_bytes=1000, world_size=16)
    assert told.batches == 4 * 3 + 2
    assert told.loader_bytes == 8 * 14 * 1000
    assert told.files == 32 + (2 + 4 * 4 + 14) + 3 * 16
    assert needs(ranks_per_node=8, workers=4).loader_bytes is None, "nobody told how large a batch is"
    assert needs(ranks_per_node=8, workers=0).loader_bytes == 0
    assert needs(ranks_per_node=8).loader_bytes is None


def test_the_guards_count_alike() -> None:
    assert readings.SHARE == check._SHARE
    assert readings.LOADER_FILES == check._DESCRIPTORS
    assert readings.WORKER_FILES == check._DESCRIPTORS_PER_WORKER
    assert readings.HELD_BATCHES == check._HELD_BATCHES


def test_a_plan_counts_only_where_it_gives_a_value() -> None:
    told = needs(ranks_per_node=2, cores=16)
    assert (told.planned("cores"), told.planned("memory_bytes")) == (16, None)


def test_sizes_and_ages_for_people() -> None:
    assert [size(0), size(999), size(10_000_000), size(3.2e12)] == ["0 bytes", "999 bytes", "10 MB", "3.2 TB"]
    assert [ago(5), ago(600), ago(10_000)] == ["5 s ago", "10 minutes ago", "3 hours ago"]
