"""What the recorded calls alone tell: positions, fronts, the two sides of a transfer, who is idle, and whose device stands still."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.analyze.small_tables import DONE, OPEN, STARTED, WORLD, case_of, recv, reduce_, send, table_of
from unhang.analyze.calls.fronts import fronts, matched_transfers, stalled
from unhang.analyze.calls.positions import CallIndex
from unhang.analyze.situation import Situation
from unhang.analyze.waits.recorded_waits import RecordedWaits
from unhang.model import PROGRESS_COLUMNS, CallState, CollectiveTable, ProcessGroup, ProcessState
from unhang.rules.job.missing import candidates
from unhang.rules.registry import judge


def test_equal_elements_in_another_shape_are_the_same_call() -> None:
    table = table_of({0: [reduce_(OPEN, sizes=((2, 8),))], 1: [reduce_(OPEN, sizes=((16,),))]})
    position = CallIndex(table).position(0, 1)
    assert position is not None
    assert not position.is_mismatch


@pytest.mark.parametrize("op", ["all_to_all", "all_gather_v", "reduce_scatter_v", "alltoall_base", "_broadcast_oop"])
def test_uneven_calls_may_differ_in_size_and_not_in_dtype(op: str) -> None:
    def index(dtype: str) -> CallIndex:
        return CallIndex(
            table_of({0: [{"op": op, "sizes": ((3,),)}], 1: [{"op": op, "sizes": ((9,),), "dtype": dtype}]})
        )

    even, odd = index("Float").position(0, 1), index("Half").position(0, 1)
    assert even is not None
    assert odd is not None
    assert (even.is_mismatch, odd.is_mismatch) == (False, True)


def test_a_batch_counts_as_one_call_and_shows_the_member_that_differs() -> None:
    batch = [{"op": "_all_gather_base", "seq": 1}, {"op": "_all_gather_base", "seq": 1, "sizes": ((8,),)}]
    other = [batch[0], {**batch[1], "sizes": ((9,),)}]
    table = table_of({0: [*batch, {"op": "coalesced", "seq": 1}], 1: [*other, {"op": "coalesced", "seq": 1}]})
    position = CallIndex(table).position(0, 1)
    assert position is not None
    assert position.ranks.tolist() == [0, 1]
    assert position.is_mismatch
    assert [table.call(row).in_sizes for row in position.rows.tolist()] == [((8,),), ((9,),)]


def saying(table: CollectiveTable, rank: int, enqueued: int, completed: int, group: int = 0) -> CollectiveTable:
    """The table with the rank's own word on a group too."""
    told = {"rank": rank, "group": group, "enqueued": enqueued, "started": -1, "completed": completed}
    progress = {k: np.append(table.progress[k], v).astype(PROGRESS_COLUMNS[k]) for k, v in told.items()}
    return replace(table, progress=progress)


def batch(call: dict[str, Any], seq: int) -> list[dict[str, Any]]:
    """A batch of one transfer, with the entry that tracks it."""
    return [{**call, "seq": seq}, {**call, "op": "coalesced", "peer": -1, "seq": seq}]


def test_what_a_rank_says_of_itself_counts_as_issued() -> None:
    table = table_of({0: [reduce_(seq=7, state=OPEN)], 1: [reduce_(seq=5)]})
    assert CallIndex(table).last(0) == {0: 7, 1: 5}
    assert CallIndex(saying(table, 1, 7, 7)).last(0) == {0: 7, 1: 7}


def test_what_a_rank_says_it_completed_is_not_open() -> None:
    table = table_of({0: [reduce_(OPEN, seq=6), reduce_(OPEN, seq=7)], 1: [reduce_(OPEN, seq=7)]})
    assert fronts(table) == {0: (0,), 1: (2,)}
    assert fronts(saying(table, 0, 7, 6)) == {0: (1,), 1: (2,)}
    assert CallIndex(saying(table, 0, 7, 6)).open_positions(0, 9) == [7]
    wrapped = replace(saying(table, 0, 7, 4), wrapped_ranks=frozenset([0]))
    assert fronts(wrapped)[0] == ()  # the fifth is open too, and overwritten
    mixed = table_of({0: [reduce_(OPEN, seq=6), send(1, seq=1)]})
    assert fronts(saying(mixed, 0, 9, 9)) == {0: (0,)}  # that counts the transfers


def test_a_rank_waits_in_its_first_open_call_or_in_those_that_have_started() -> None:
    tp = ProcessGroup("1", "tp", (0, 1), backend="nccl")
    calls = [reduce_(), reduce_(OPEN, group="1"), reduce_(OPEN)]
    started = [reduce_(), reduce_(OPEN, group="1"), reduce_(STARTED)]
    table = table_of({0: calls, 1: started}, WORLD, tp)
    assert {r: [table.call(row).group.name for row in rows] for r, rows in fronts(table).items()} == {
        0: ["1"],
        1: ["0"],
    }


def test_the_nth_send_belongs_to_the_nth_receive_whatever_the_sequence_numbers_say() -> None:
    table = table_of({0: [send(1), send(2), send(1, OPEN)], 1: [recv(0), recv(0, OPEN), recv(0, OPEN)], 2: [recv(0)]})
    matched = matched_transfers(table)
    rows = {(r, i): table.rank_rows(r).start + i for r in range(3) for i in range(3)}
    assert matched == {rows[0, 2]: rows[1, 1], rows[1, 1]: rows[0, 2], rows[1, 2]: None}


def test_in_a_wrapped_buffer_what_is_open_is_paired_in_order() -> None:
    table = table_of({0: [send(1, OPEN, record=900)], 1: [recv(0, record=500), recv(0, OPEN, record=501)]})
    wrapped = replace(table, wrapped_ranks=frozenset((0, 1)))
    assert sorted(matched_transfers(wrapped).items()) == [(0, 2), (2, 0)]


@pytest.mark.parametrize(("first", "second", "is_whole"), [(1, 2, True), (5, 6, False), (1, 3, False)])
def test_where_the_numbers_begin_with_one_and_have_no_gap_no_transfer_is_lost(
    first: int, second: int, is_whole: bool
) -> None:
    def exchange(peer: int, seq: int, state: CallState) -> list[dict[str, Any]]:
        return [{**way(peer, state), "seq": seq, "record": 4 * seq + i} for i, way in enumerate((send, recv))]

    def track(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*calls, {**calls[-1], "op": "coalesced", "peer": -1, "record": calls[-1]["record"] + 1}]

    ahead = [*exchange(0, first, DONE), *exchange(0, second, DONE), *track(exchange(0, second + 1, OPEN))]
    table = table_of({0: [*exchange(1, first, DONE), *track(exchange(1, second, OPEN))], 1: ahead})
    lost = replace(table, wrapped_ranks=frozenset((0, 1)), active_ranks=frozenset((0, 1)))
    matched = matched_transfers(lost)
    waits_in, done, behind = (2, 3), [8, 7], [10, 9]  # rows: those of rank 0 end with 4
    assert [matched[row] for row in waits_in] == (done if is_whole else behind)


def test_an_idle_rank_is_the_root_and_its_victims_wait_through_other_groups() -> None:
    tp, dp = ProcessGroup("1", "tp", (0, 1), backend="nccl"), ProcessGroup("2", "dp", (1, 3), backend="nccl")
    table = table_of(
        {0: [reduce_(group="1")], 1: [reduce_(group="1"), reduce_(OPEN, group="1")], 3: [reduce_(OPEN, group="2")]},
        WORLD,
        tp,
        dp,
    )
    s = Situation(case_of(table, absent=[2]))
    assert [(late.rank, late.victims) for late in s.idle_roots] == [(0, (1, 3))]


def test_a_call_behind_another_has_not_arrived() -> None:
    tp, dp = ProcessGroup("1", "tp", (0, 1), backend="nccl"), ProcessGroup("2", "dp", (1, 3), backend="nccl")
    ahead = [reduce_(OPEN, group="1"), reduce_(OPEN, group="2")]
    table = table_of({0: [], 1: ahead, 3: [reduce_(OPEN, group="2")]}, WORLD, tp, dp)
    s = Situation(case_of(table))
    assert [(e.waiter, e.targets) for e in s.waits.edges] == [(1, (0,)), (3, (1,))]


def test_a_call_that_all_have_come_to_is_in_flight_and_nobody_is_idle() -> None:
    s = Situation(case_of(table_of({r: [reduce_(), reduce_(OPEN)] for r in range(4)})))
    assert s.waits.roots == ()
    assert all(s.recorded.in_flight(r) for r in range(4))


def test_a_rank_that_left_nothing_is_unseen_not_idle() -> None:
    s = Situation(case_of(table_of({r: [reduce_(OPEN)] for r in (0, 1, 3)}), absent=[2]))
    assert [late.rank for late in s.unseen_roots] == [2]
    assert s.idle_roots == ()


def test_a_process_whose_calls_could_not_be_had_is_unseen_not_idle() -> None:
    case = case_of(table_of({r: [reduce_(), reduce_(OPEN)] for r in (0, 1, 3)}))
    alive = replace(case.ranks[2], state=ProcessState("S"))
    s = Situation(replace(case, ranks={**case.ranks, 2: alive}))
    assert [late.rank for late in s.late] == [2]
    assert s.idle_roots == ()
    assert [late.rank for late in s.unseen_roots] == [2]
    findings = judge(s.case).findings
    assert [(f.rule, f.cause, f.culprit_ranks) for f in findings] == [("no-dump", "unknown", (2,))]


def test_a_dump_without_a_call_is_idle_if_it_tells_of_its_groups() -> None:
    table = table_of({r: [reduce_(OPEN)] for r in (0, 1, 3)})
    told = {"rank": [2], "group": [0], "enqueued": [-1], "started": [-1], "completed": [-1]}
    progress = {k: np.array(v, dtype=PROGRESS_COLUMNS[k]) for k, v in told.items()}
    s = Situation(case_of(replace(table, progress=progress)))
    assert [late.rank for late in s.idle_roots] == [2]


def test_of_two_ranks_without_a_dump_either_may_have_started_it() -> None:
    s = Situation(case_of(table_of({r: [send(2, OPEN)] for r in (0, 1)}), absent=[2, 3]))
    assert [late.rank for late in s.unseen_roots] == [2]
    assert candidates(s) == (2, 3)


def test_of_a_rank_known_by_its_dump_alone_the_dump_was_readable() -> None:
    s = Situation(case_of(table_of({r: [reduce_(OPEN)] for r in (0, 1, 3)})))
    assert [late.rank for late in s.idle_roots] == [2]


def test_a_batch_whose_start_the_ring_buffer_lost_is_no_other_call() -> None:
    batch = [{"op": "_all_gather_base", "seq": 5, "sizes": ((n,),), "state": OPEN} for n in (8, 16, 24)]
    table = table_of({0: batch, 1: batch[1:]})
    index = CallIndex(replace(table, wrapped_ranks=frozenset([1])))
    position = index.position(0, 5)
    assert position is not None
    assert not position.is_mismatch
    whole = CallIndex(table).position(0, 5)
    assert whole is not None
    assert whole.is_mismatch


def test_where_a_ring_buffer_holds_open_calls_alone_the_first_of_them_may_be_lost() -> None:
    done = [reduce_(record=3), *(reduce_(OPEN, record=n) for n in (4, 5))]
    table = table_of({0: done, 1: [reduce_(OPEN, record=n) for n in (7, 8, 9)], 2: [reduce_(OPEN, record=7)]})
    table = replace(table, wrapped_ranks=frozenset((0, 1, 2)), active_ranks=frozenset((1, 2)))
    rows = {r: table.rank_rows(r).start for r in range(3)}
    assert fronts(table) == {0: (rows[0] + 1,), 1: (), 2: (rows[2],)}


def test_a_rank_of_whose_first_batch_but_the_end_is_left_waits_in_what_is_overwritten() -> None:
    end = {"op": "coalesced", "peer": -1, "state": OPEN}
    table = table_of({0: [end, recv(1, OPEN)], 1: [send(0), {**end, "state": DONE}, send(0, OPEN)]})
    rows = table.rank_rows(1)
    assert fronts(table) == {0: (), 1: (rows.stop - 1,)}


def test_in_a_wrapped_buffer_transfers_are_counted_from_the_last_collective_that_both_completed() -> None:
    sender = [reduce_(seq=4), send(1, seq=6), send(1, OPEN, seq=7, record=902)]
    receiver = [reduce_(seq=4, record=500), recv(0, seq=6, record=501), recv(0, seq=7, record=502)]
    table = replace(table_of({0: sender, 1: receiver}), wrapped_ranks=frozenset((0, 1)))
    assert matched_transfers(table) == {2: 5}
    no_anchor = replace(table_of({0: sender[1:], 1: receiver[1:]}), wrapped_ranks=frozenset((0, 1)))
    assert matched_transfers(no_anchor) == {}  # the other side may have completed, and be lost


def test_transfers_that_were_under_way_across_a_collective_are_not_counted_from_it() -> None:
    sender = [reduce_(seq=4), send(1), reduce_(seq=5), send(1, OPEN)]
    receiver = [reduce_(seq=4), reduce_(seq=5), recv(0), recv(0, OPEN)]
    table = replace(table_of({0: sender, 1: receiver}), wrapped_ranks=frozenset((0, 1)))
    assert matched_transfers(table) == {3: 7, 7: 3}


def test_one_against_two_is_odd_unless_nothing_is_known_of_the_fourth() -> None:
    calls = {0: [reduce_(OPEN)], 1: [reduce_(OPEN)], 2: [{"op": "barrier", "state": OPEN}]}
    known, unknown = ({**calls, 3: [reduce_(group="1")]}, calls)
    pair = ProcessGroup("1", "tp", (3,), backend="nccl")
    for case, is_sure in ((case_of(table_of(known, WORLD, pair)), True), (case_of(table_of(unknown)), False)):
        assert Situation(case).stuck[0].has_majority is is_sure


def test_of_two_idle_ranks_that_lost_their_past_and_do_not_say_how_far_they_are_either_may_wait() -> None:
    one, two = ProcessGroup("1", "tp", (0, 1), backend="nccl"), ProcessGroup("2", "tp", (2, 3), backend="nccl")
    calls = {r: [reduce_(group=g)] for r, g in ((1, "1"), (3, "2"))}
    waiting = {r: [reduce_(group=g), reduce_(OPEN, group=g)] for r, g in ((0, "1"), (2, "2"))}
    table = replace(table_of({**calls, **waiting}, WORLD, one, two), wrapped_ranks=frozenset((1, 3)))
    found = [f for f in judge(case_of(table)).findings if f.rule == "never-issued"]
    assert [(f.culprit_ranks, f.confidence < 0.5) for f in found] == [((1, 3), True)]


def test_a_transfer_that_is_gone_from_a_partial_dump_keeps_nobody_if_another_of_its_batch_does() -> None:
    batch = [recv(0, STARTED, seq=7), send(2, STARTED, seq=7)]
    table = table_of({0: [send(1, OPEN, seq=7)], 1: batch, 2: [reduce_(OPEN)]})
    partial = replace(table, active_ranks=frozenset((0, 1, 2)))
    assert [e.targets for e in Situation(case_of(partial)).waits.edges_of(1)] == []
    assert [e.targets for e in Situation(case_of(table)).waits.edges_of(1)] == [(2,)]


def timed(*states: CallState) -> list[dict[str, Any]]:
    return [reduce_(state, started=int(state is DONE)) for state in states]


def test_a_device_that_has_not_begun_its_next_call_waits_for_nobody_and_is_named() -> None:
    calls = {0: timed(DONE, OPEN, OPEN), **{r: timed(DONE, STARTED, OPEN) for r in (1, 2, 3)}}
    s = Situation(case_of(table_of(calls)))
    assert [(e.waiter, e.targets) for e in s.waits.edges] == [(1, (0,)), (2, (0,)), (3, (0,))]
    one_is_gone = case_of(table_of({r: calls[r] for r in (0, 1, 2)}), absent=[3])
    for case in (s.case, one_is_gone):
        assert [(f.rule, f.culprit_ranks) for f in judge(case).findings] == [("not-completed", (0,))]


@pytest.mark.parametrize(
    "calls",
    [
        {r: [reduce_(), reduce_(OPEN)] for r in range(4)},
        {r: timed(DONE, OPEN) for r in range(4)},
        {0: timed(OPEN, OPEN), **{r: timed(DONE, STARTED) for r in (1, 2, 3)}},
    ],
    ids=["begins-are-not-recorded", "all-of-them", "an-earlier-call-may-be-overwritten"],
)
def test_no_device_is_said_to_stand_still_where_that_is_not_told(calls: dict[int, list[dict[str, Any]]]) -> None:
    table = replace(table_of(calls), wrapped_ranks=frozenset([0]))
    assert stalled(table, fronts(table)) == frozenset()


def test_an_earlier_call_of_the_group_may_be_open_and_overwritten_though_another_group_went_on() -> None:
    tp = ProcessGroup("1", "tp", (0, 1), backend="nccl")
    calls = {0: [reduce_(group="1", started=1), reduce_(OPEN, seq=8)], 1: [reduce_(STARTED, seq=8)]}
    calls |= {r: [reduce_(STARTED, seq=7)] for r in (2, 3)}
    table = table_of(calls, WORLD, tp)
    assert Situation(case_of(replace(table, wrapped_ranks=frozenset([0])))).recorded.stalled == frozenset()
    assert Situation(case_of(table)).recorded.stalled == {0}


def test_a_device_stands_still_where_the_rank_says_that_the_call_before_has_completed() -> None:
    table = table_of({r: [reduce_(STARTED if r else OPEN, seq=8)] for r in range(4)})
    active = replace(table, wrapped_ranks=frozenset(range(4)), active_ranks=frozenset(range(4)))
    assert Situation(case_of(active)).recorded.stalled == frozenset()
    assert Situation(case_of(saying(active, 0, 8, 7))).recorded.stalled == {0}


def test_a_device_does_not_stand_still_where_an_open_transfer_before_the_call_may_be_overwritten() -> None:
    cp = ProcessGroup("1", "cp", (0, 1), backend="nccl")
    calls = {0: [reduce_(OPEN, seq=8), send(1, OPEN, group="1", seq=6)]}
    calls |= {r: [reduce_(STARTED, seq=8)] for r in (1, 2, 3)}

    def recorded(completed: int, calls: dict[int, list[dict[str, Any]]] = calls) -> RecordedWaits:
        table = saying(saying(table_of(calls, WORLD, cp), 0, 8, 7), 0, 6, completed, group=1)
        partial = replace(table, wrapped_ranks=frozenset(range(4)), active_ranks=frozenset(range(4)))
        return Situation(case_of(partial)).recorded

    assert recorded(5).stalled == {0}
    assert (recorded(3).stalled, recorded(3).fronts[0]) == (frozenset(), ())
    mixed = {**calls, 1: [*calls[1], reduce_(OPEN, group="1")]}
    assert recorded(5, mixed).stalled == frozenset()  # of which kind the fifth was, nothing tells


def test_an_idle_rank_that_says_it_has_completed_all_is_awaited_in_a_batch_that_has_not_begun() -> None:
    cp = ProcessGroup("1", "cp", (1, 2), backend="nccl")

    def targets(batches: int, is_known: bool) -> list[tuple[int, ...]]:
        sends = [call for n in range(batches) for call in batch(send(2, OPEN, group="1"), 6 + n)]
        calls = {0: [reduce_()], 1: [reduce_(seq=2), recv(0, OPEN), *sends], 2: [reduce_()], 3: [reduce_()]}
        table = table_of(calls, WORLD, cp)
        table = replace(table, wrapped_ranks=frozenset((1, 2)))
        told = saying(table, 2, 5, 5, group=1) if is_known else table
        return [e.targets for e in Situation(case_of(told)).waits.edges]

    assert targets(batches=2, is_known=True) == [(0,), (2,)]
    assert targets(batches=1, is_known=True) == [(0,)]  # its side may be done
    assert targets(batches=2, is_known=False) == [(0,)]


def test_an_idle_rank_is_awaited_in_a_transfer_behind_the_one_in_which_a_rank_waits() -> None:
    table = table_of({0: [reduce_()], 1: [reduce_(), recv(0, OPEN), send(2, OPEN)], 2: [reduce_()], 3: [reduce_()]})
    s = Situation(case_of(table))
    assert [(e.waiter, e.targets) for e in s.waits.edges] == [(1, (0,)), (1, (2,))]
    titles = [f.title for f in judge(s.case).findings]
    assert titles == ["ranks 0, 2 never issued the other side of rank 1's recv and send"]
    counted = Situation(case_of(replace(table, wrapped_ranks=frozenset([2]))))  # since the collective it made no call
    assert [(e.waiter, e.targets) for e in counted.waits.edges] == [(1, (0,)), (1, (2,))]
    table = table_of({0: [reduce_()], 1: [reduce_(), recv(0, OPEN), send(2, OPEN)], 2: [recv(0)], 3: [reduce_()]})
    lost = Situation(case_of(replace(table, wrapped_ranks=frozenset([2]))))
    assert [(e.waiter, e.targets) for e in lost.waits.edges] == [(1, (0,))]  # its side may be done, and overwritten


def test_a_dump_of_open_calls_keeps_the_members_of_batches_so_they_are_counted() -> None:
    sent, taken = [send(1, seq=1), send(1, seq=2)], [recv(0, seq=1), *batch(recv(0, OPEN), 2)]
    table = replace(table_of({0: [*sent, reduce_(OPEN)], 1: taken}), active_ranks=frozenset((0, 1)))
    assert matched_transfers(table) == {4: 1}
    alone = replace(table_of({0: [reduce_(OPEN)], 1: [recv(0, OPEN)]}), active_ranks=frozenset((0, 1)))
    assert matched_transfers(alone) == {}


def test_a_majority_of_one_is_none_where_it_is_not_recorded_who_belongs_to_the_groups() -> None:
    past = [{"op": op, "group": g} for g, op in (("1", "all_gather"), ("1", "scatter"), ("0", "all_reduce"))] * 4
    odd = [*past, {"op": "barrier", "state": OPEN}]
    usual = [*past, *({**call, "state": OPEN} for call in past[:3])]
    world = ProcessGroup("0", "default_pg", (0, 1, 2), backend="nccl")
    known, unknown = (ProcessGroup("1", "tp", ranks, backend="nccl") for ranks in ((0, 1, 2), ()))
    for group, culprits in ((known, (1,)), (unknown, (0, 1, 2))):
        table = table_of({0: odd, 1: usual, 2: odd}, world, group)
        divergence = Situation(case_of(table, world=3)).divergence
        assert divergence is not None
        assert divergence.culprits == culprits


@pytest.mark.parametrize("is_awaited", [True, False])
def test_those_who_make_one_call_clear_each_other_unless_somebody_waits_for_them_elsewhere(is_awaited: bool) -> None:
    pairs = ((0, 3), (1, 4), (2, 5), (6, 7)) if is_awaited else ((0, 1), (3, 4), (2,), (5, 6, 7))
    groups = [ProcessGroup(str(i), "tp", ranks, backend="nccl") for i, ranks in enumerate(pairs, start=1)]
    calls: dict[int, list[dict[str, Any]]] = {}
    for group in groups:
        for rank in group.ranks:
            gather, scatter = ({"op": op, "group": group.name} for op in ("all_gather", "scatter"))
            before = OPEN if is_awaited else DONE
            ahead = [{**gather, "state": before}, {**scatter, "state": before}, reduce_(OPEN)]
            behind = [gather, {**scatter, "state": OPEN}]
            now = [{"op": "barrier", "state": OPEN}] if rank < 3 else ahead if rank < 5 else behind
            calls[rank] = [
                *[gather, scatter, reduce_()] * 4,
                *(now if rank != 5 else ahead[:1] if is_awaited else behind),
            ]
    world = ProcessGroup("0", "default_pg", tuple(range(8)), backend="nccl")
    divergence = Situation(case_of(table_of(calls, world, *groups), world=8)).divergence
    assert divergence is not None
    assert divergence.culprits == ((0, 1, 2) if is_awaited else (0, 1, 2, 3, 4))
