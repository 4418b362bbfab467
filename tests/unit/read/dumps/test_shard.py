"""What dumps alone say of the job: its groups, and whether it stood still."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unhang.model import CallState, CollectiveTable, ProcessGroup, TableBuilder
from unhang.read.dumps import DumpFile, RankDump, Shard, observed_hang, stale_ranks, unify_groups, unseen, world_size

S = 1_000_000_000
BEGAN = 1_795_000_000 * S


def table_of(*rows: tuple[int, ProcessGroup, int, CallState], timeout_ms: int = -1) -> CollectiveTable:
    """Rows of (rank, group, seconds, state)."""
    parts = []
    for rank, group, second, state in rows:
        builder = TableBuilder()
        builder.add(
            rank=rank,
            group=builder.group(group),
            seq=second + 1,
            op="all_reduce",
            state=state,
            created_ns=BEGAN + second * S,
            record_id=second,
            timeout_ms=timeout_ms,
        )
        parts.append(builder.build())
    from unhang.model import join

    merged = parts[0]
    for part in parts[1:]:  # ranks repeat here, which join allows as long as it is not asked to tell them apart
        merged = join([merged, part])
    return merged


def shard(table: CollectiveTable, written_s: float = 0.0, **spans: tuple[int, int]) -> Shard:
    """`written_s`: when the dumps were written, 0 if unknown. `spans`: r0=(first, last) in seconds."""
    dumps = {}
    for rank in sorted({*table["rank"].tolist(), *(int(name[1:]) for name in spans)}):
        first, last = spans.get(f"r{rank}", (0, 100))
        file = DumpFile(rank, f"/d/{rank}", written_ns=BEGAN + int(written_s * S) if written_s else 0)
        dumps[rank] = RankDump(file, first_ns=BEGAN + first * S, last_ns=BEGAN + last * S)
    return Shard(table, dumps)


WORLD = ProcessGroup("0", "default_pg", (0, 1))
OPEN, DONE = CallState.SCHEDULED, CallState.COMPLETED
STUCK = table_of((0, WORLD, 0, DONE), (0, WORLD, 1, DONE), (0, WORLD, 2, OPEN), (1, WORLD, 1, DONE))


@pytest.mark.parametrize(
    ("written_s", "stands_still"),
    [(0.0, True), (100.5, False), (114.0, False), (116.0, True), (700.0, True)],
    ids=["unknown", "live", "14 s", "16 s", "timeout"],
)
def test_open_calls_are_a_hang_only_if_nothing_moved_for_long(written_s: float, stands_still: bool) -> None:
    assert (observed_hang(shard(STUCK, written_s)) is not None) is stands_still


def test_a_job_that_pauses_for_a_minute_is_given_two() -> None:
    slow = table_of((0, WORLD, 0, DONE), (0, WORLD, 60, DONE), (0, WORLD, 61, OPEN))
    assert observed_hang(shard(slow, 190.0)) is None
    assert observed_hang(shard(slow, 230.0)) is not None
    limited = replace(slow, columns={**slow.columns, "timeout_ms": slow["timeout_ms"] * 0 + 90_000})
    assert observed_hang(shard(limited, 190.0)) is not None, "its own limit was hit"


def test_no_clock_tells_when_the_job_began_or_the_dumps_were_written() -> None:
    hang = observed_hang(shard(STUCK, 700.0))
    assert hang is not None
    assert (hang.onset_s, hang.detected_after_s, hang.waiting_ranks) == (None, None, (0,))


def test_without_open_calls_there_is_no_hang() -> None:
    assert observed_hang(shard(table_of((0, WORLD, 0, DONE)), 700.0)) is None


def test_groups_of_one_name_are_told_apart_by_their_members() -> None:
    pair, other, nameless = (
        ProcessGroup("5", "tp", (0, 1)),
        ProcessGroup("5", "", (2, 3), backend="nccl"),
        ProcessGroup("5", "", ()),
    )
    table = unify_groups(table_of((0, pair, 0, DONE), (2, other, 0, DONE), (3, nameless, 0, DONE)))
    by_rank = {int(r): table.groups[int(g)] for r, g in zip(table["rank"], table["group"], strict=True)}
    assert (by_rank[0].name, by_rank[0].ranks) == ("5", (0, 1))
    assert by_rank[2] == by_rank[3]
    assert (by_rank[2].name, by_rank[2].ranks) == ("5@2-3", (2, 3))


def test_what_several_dumps_know_of_a_group_comes_together() -> None:
    known, described = ProcessGroup("7", "", (0, 1)), ProcessGroup("7", "dp", (), backend="nccl")
    table = unify_groups(table_of((0, known, 0, DONE), (1, described, 0, DONE)))
    assert table.groups == (ProcessGroup("7", "dp", (0, 1), backend="nccl"),)


def test_settling_twice_changes_nothing() -> None:
    once = unify_groups(
        table_of((0, ProcessGroup("5", "", (0, 1)), 0, DONE), (2, ProcessGroup("5", "", (2,)), 0, DONE))
    )
    assert unify_groups(once).groups == once.groups


def test_a_dump_that_ends_before_the_others_begin_is_of_an_earlier_run() -> None:
    table = table_of((0, WORLD, 0, DONE), (1, WORLD, 0, DONE))
    runs = {"r0": (1000, 1100), "r1": (1000, 1100), "r2": (100, 900)}
    assert stale_ranks(shard(table, **runs)) == [2]
    assert stale_ranks(shard(table, **{**runs, "r2": (100, 990)})) == [], "clocks may differ by as much"
    wrapped = replace(table, wrapped_ranks=frozenset((0, 1)))
    assert stale_ranks(shard(wrapped, **runs)) == (), "their first calls are lost"


def test_the_size_of_the_job_and_who_is_missing() -> None:
    lost = shard(table_of((0, ProcessGroup("0", "", (0, 1, 2)), 0, DONE)))
    assert world_size(lost) == 3
    assert [u.what for u in unseen(lost)] == ["rank 1", "rank 2"]
    many = shard(table_of((0, ProcessGroup("0", "", tuple(range(100))), 0, DONE)))
    assert len(unseen(many)) == 1
