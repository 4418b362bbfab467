"""Lateness is told only on clocks that can be compared, and only of ranks that nobody kept waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from unhang.analyze.positions import CallIndex
from unhang.analyze.stragglers import clock_offsets, stragglers
from unhang.model import CallState, Case, CollectiveTable, Job, ProcessGroup, TableBuilder

MS = 1_000_000
PAIRS = (ProcessGroup("a", "tp", (0, 1), backend="nccl"), ProcessGroup("b", "tp", (2, 3), backend="nccl"))
WORLD = ProcessGroup("0", "default_pg", (0, 1, 2, 3), backend="nccl")


def table_of(
    groups: tuple[ProcessGroup, ...],
    ahead_ms: Mapping[int, int],
    late_ms: Mapping[int, int],
    tells_ends: bool = True,
) -> CollectiveTable:
    """Ten calls of each group, a second apart; `ahead_ms`: of the rank's clock, `late_ms`: how late it comes to each."""
    builder = TableBuilder()
    for group in groups:
        number = builder.group(group)
        for rank in group.ranks:
            for i in range(10):
                now = 10**18 + (i * 1000 + ahead_ms.get(rank, 0)) * MS
                builder.add(
                    rank=rank,
                    group=number,
                    seq=i + 1,
                    op="all_reduce",
                    in_sizes=((4,),),
                    dtype="Float",
                    state=CallState.COMPLETED,
                    created_ns=now + late_ms.get(rank, 0) * MS,
                    completed_ns=now + 900 * MS if tells_ends else 0,
                    record_id=i,
                )
    return builder.build()


def case_of(table: CollectiveTable) -> Case:
    return Case(Job(4, backend="nccl"), {}, table.groups, table)


def test_clocks_of_ranks_that_no_group_connects_are_not_compared() -> None:
    table = table_of(PAIRS, {2: 5000, 3: 5000}, {})
    assert clock_offsets(CallIndex(table)).keys() in ({0, 1}, {2, 3})


def test_what_the_watchdog_cannot_tell_apart_is_one_clock() -> None:
    table = table_of((WORLD,), {1: 60, 2: -40, 3: 3000}, {})
    offsets = clock_offsets(CallIndex(table))
    assert offsets[0] == offsets[1] == offsets[2]
    assert offsets[3] - offsets[0] > 2_900 * MS


def test_a_clock_that_is_ahead_makes_no_straggler_and_lateness_does() -> None:
    ahead = table_of((WORLD,), {3: 3000}, {})
    late = table_of((WORLD,), {3: 3000}, {2: 700})
    assert stragglers(case_of(ahead)) == ()
    assert [s.rank for s in stragglers(case_of(late))] == [2]


def test_where_groups_are_not_known_and_a_rank_left_no_record_nobody_is_called_late() -> None:
    table = table_of((replace(WORLD, ranks=(0, 1, 2)),), {}, {2: 700})
    assert [s.rank for s in stragglers(replace(case_of(table), job=Job(3)))] == [2]
    unknown = replace(table, groups=(replace(WORLD, ranks=()),))
    assert stragglers(case_of(unknown)) == ()


def test_who_shares_a_group_with_a_rank_without_a_record_may_have_been_kept_by_it() -> None:
    pair = ProcessGroup("p", "pp", (2, 3), backend="nccl")
    table = table_of((replace(WORLD, ranks=(0, 1, 2)),), {}, {2: 700})
    assert [s.rank for s in stragglers(case_of(table))] == [2]
    assert stragglers(case_of(replace(table, groups=(*table.groups, pair)))) == ()


def test_where_no_ends_are_told_a_rank_that_is_behind_while_the_others_go_on_has_another_clock() -> None:
    assert stragglers(case_of(table_of((WORLD,), {3: 3000}, {}, tells_ends=False))) == ()
    late = table_of((WORLD,), {}, {3: 700}, tells_ends=False)
    assert [s.rank for s in stragglers(case_of(late))] == [3]
