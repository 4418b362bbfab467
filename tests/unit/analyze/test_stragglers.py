"""Lateness is told only on clocks that can be compared, and only of ranks that nobody kept waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from unhang.analyze.calls.positions import CallIndex
from unhang.analyze.stragglers import Pace, clock_offsets, pace_of, stragglers
from unhang.model import CallState, Case, CollectiveTable, Frame, Job, ProcessGroup, TableBuilder

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


def rounds(slow: int, late_ms: int = 100) -> CollectiveTable:
    """Eight rounds, each of two calls of a row and one of a column of a square of four; one rank is late by itself.

    Before that of its column each rank calls something in a group of its own.
    """
    builder = TableBuilder()
    rows, columns, alone = ((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0,), (1,), (2,), (3,))
    of_ranks = (*rows, *columns, *alone)
    numbers = {ranks: builder.group(ProcessGroup(str(ranks), "", ranks, backend="gloo")) for ranks in of_ranks}
    free_ms, records, calls = [0] * 4, [0] * 4, dict.fromkeys(numbers, 0)
    for members in (rows, rows, alone, columns) * 8:
        for ranks in members:
            calls[ranks] += 1
            for rank in ranks:
                free_ms[rank] += 1 + late_ms * (rank == slow)
                builder.add(
                    rank=rank,
                    group=numbers[ranks],
                    seq=calls[ranks],
                    op="all_reduce",
                    state=CallState.COMPLETED,
                    created_ns=10**18 + free_ms[rank] * MS,
                    record_id=records[rank],
                )
                records[rank] += 1
            for rank, until in [(rank, max(free_ms[r] for r in ranks)) for rank in ranks]:
                free_ms[rank] = until
    return builder.build()


def test_who_is_kept_in_one_group_and_comes_late_to_another_one_is_not_named_for_it() -> None:
    assert {s.rank for s in stragglers(case_of(rounds(slow=1)))} == {1}


def test_a_group_with_fewer_members_than_others_of_its_purpose_may_have_been_kept_by_one_without_a_record() -> None:
    table = rounds(slow=3)
    kinds = {1: "alone", 2: "row"}
    unknown = tuple(
        replace(g, desc="column" if g.ranks in ((0, 2), (1, 3)) else kinds[len(g.ranks)], ranks=())
        for g in table.groups
    )
    keep = table["rank"] != 3
    columns = {name: column[keep] for name, column in table.columns.items()}
    left = replace(case_of(replace(table, columns=columns, groups=unknown)), job=Job(3))
    assert stragglers(left) == ()
    assert [s.rank for s in stragglers(case_of(table))] == [3, 3]


def in_flight(is_kept: bool) -> CollectiveTable:
    """Ten rounds in which the host of rank 1 comes late to the second call of its row.

    `is_kept`: its call with rank 2, made before the first one, is still in flight until then: no more may be.
    """
    builder = TableBuilder()
    row, pair = (builder.group(ProcessGroup(str(ranks), "", ranks, backend="nccl")) for ranks in ((0, 1), (1, 2)))
    late = 300 if is_kept else 0
    calls = {0: [(row, 0), (row, 2)], 1: [(pair, 0), (row, 1), (row, 300)], 2: [(pair, late)]}
    for rank, round_ms in calls.items():
        seqs = {row: 0, pair: 0}
        for i in range(10 * len(round_ms)):
            group, ms = round_ms[i % len(round_ms)]
            seqs[group] += 1
            made = 10**18 + (400 * (i // len(round_ms)) + ms) * MS
            about = {"op": "all_reduce", "state": CallState.COMPLETED, "record_id": i}
            builder.add(rank=rank, group=group, seq=seqs[group], created_ns=made, **about)
    return builder.build()


def test_who_waits_for_an_earlier_call_wherever_its_host_stands_is_not_late_by_itself() -> None:
    assert [s.rank for s in stragglers(replace(case_of(in_flight(is_kept=False)), job=Job(3)))] == [1]
    assert [s.rank for s in stragglers(replace(case_of(in_flight(is_kept=True)), job=Job(3)))] == [2]


def test_what_kept_a_rank_and_is_overwritten_may_have_kept_it_until_the_next_call_of_its_group() -> None:
    table = in_flight(is_kept=True)
    left = (table["group"] == 0) | (table["seq"] == 10)
    cut = replace(table, columns={name: column[left] for name, column in table.columns.items()})
    assert [s.rank for s in stragglers(replace(case_of(cut), job=Job(3)))] == [1]
    wrapped = replace(cut, wrapped_ranks=frozenset((1, 2)))
    assert stragglers(replace(case_of(wrapped), job=Job(3))) == ()


def _lateness(values_s: list[float]) -> Pace:
    return pace_of(np.array(values_s))


def test_how_lateness_goes_on() -> None:
    even = [0.3, 0.31, 0.29, 0.33, 0.28, 0.3, 0.32, 0.3, 0.31, 0.3]
    assert _lateness(even).kind == "constant"
    growing = _lateness([0.1 + 0.05 * i for i in range(30)])
    assert growing.kind == "growing"
    assert growing.last_s > 4 * growing.first_s
    saving = _lateness([0.4 if i % 10 == 9 else -0.01 for i in range(100)])
    assert (saving.kind, saving.every) == ("periodic", 10)


def test_lateness_without_a_pattern_is_given_none() -> None:
    drawn = np.random.default_rng(1)
    assert _lateness([*drawn.exponential(0.4, 60)]).kind == ""
    assert _lateness([0.5 if drawn.random() < 0.2 else 0.0 for _ in range(100)]).kind == ""
    assert _lateness([0.3] * 4).kind == ""
    assert _lateness([-0.1] * 50).kind == ""


def test_one_cooler_moment_is_no_growth_and_one_jump_neither() -> None:
    assert _lateness([0.3] * 20 + [0.3, 0.9] + [0.3] * 20).kind == "constant"
    assert _lateness([0.3] * 15 + [0.6] * 15).kind != "growing"


def test_who_answers_for_ranks_without_inputs_waits_by_design() -> None:
    """Of ten calls the others make eight within the exit of Join: two late ones are no habit."""
    table = table_of((WORLD,), {}, {2: 700})
    assert [s.rank for s in stragglers(case_of(table))] == [2]
    join = Frame("/lib/torch/distributed/algorithms/join.py", 266, "__exit__")
    is_shadow = (table["seq"] > 2) & (table["rank"] != 2)
    frames = np.where(is_shadow, 0, -1).astype(table["frames"].dtype)
    joined = replace(table, columns={**table.columns, "frames": frames}, stacks=((join,),))
    assert stragglers(case_of(joined)) == ()


def overlapped(begins_ms: int, backend: str = "gloo", late_ms: int = 400) -> CollectiveTable:
    """Thirty rounds in each of which rank 1 issues its call late, and the others wait for theirs only so long after they issued it."""
    builder = TableBuilder()
    number = builder.group(ProcessGroup("0", "default_pg", (0, 1, 2), backend=backend))
    for rank in range(3):
        for i in range(30):
            now = 10**18 + (i * 800 + late_ms * (rank == 1)) * MS
            builder.add(
                rank=rank,
                group=number,
                seq=i + 1,
                op="all_reduce",
                state=CallState.COMPLETED,
                created_ns=now,
                awaited_ns=now + (begins_ms * MS if rank != 1 else 0),
                record_id=i,
            )
    return builder.build()


def test_who_issues_late_keeps_nobody_that_waits_only_later() -> None:
    assert stragglers(replace(case_of(overlapped(750)), job=Job(3))) == ()


def test_who_issues_late_keeps_those_that_wait_at_once_or_a_little_later() -> None:
    for begins_ms in (0, 20, 60):
        (found,) = stragglers(replace(case_of(overlapped(begins_ms)), job=Job(3)))
        assert found.rank == 1
        assert abs(found.median_lateness_s - (0.4 - begins_ms / 1000)) < 0.001


def test_on_a_device_the_host_waits_for_nothing() -> None:
    (found,) = stragglers(replace(case_of(overlapped(750, "nccl")), job=Job(3)))
    assert found.rank == 1


def test_two_long_waits_and_short_ones_beside_them_are_no_habit() -> None:
    """Two samples were huge; what else is late is the noise of a busy machine."""
    builder = TableBuilder()
    number = builder.group(ProcessGroup("0", "default_pg", (0, 1), backend="gloo"))
    late_ms = {2: 6000, 4: 6000, 6: 80, 7: 80}
    now = 10**18
    for i in range(8):
        for rank in range(2):
            at = now + late_ms.get(i, 0) * MS * rank
            builder.add(rank=rank, group=number, seq=i + 1, op="all_reduce", created_ns=at, record_id=i)
        now += (late_ms.get(i, 0) + 20) * MS
    assert stragglers(replace(case_of(builder.build()), job=Job(2))) == ()
