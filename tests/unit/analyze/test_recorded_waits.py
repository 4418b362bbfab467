"""What the recorded calls alone tell: positions, fronts, the two sides of a transfer, habits, and who is idle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from unhang.analyze.fronts import fronts, matched_transfers
from unhang.analyze.habits import Habits
from unhang.analyze.positions import CallIndex
from unhang.analyze.situation import Situation
from unhang.model import (
    PROGRESS_COLUMNS,
    CallState,
    Case,
    CollectiveTable,
    HangObservation,
    Job,
    ProcessGroup,
    ProcessState,
    RankEvidence,
    RankIdentity,
    TableBuilder,
)
from unhang.rules.process.no_dump import candidates
from unhang.rules.registry import judge

WORLD = ProcessGroup("0", "default_pg", (0, 1, 2, 3), backend="nccl")
OPEN, STARTED, DONE = CallState.SCHEDULED, CallState.STARTED, CallState.COMPLETED


def table_of(calls: Mapping[int, Sequence[dict[str, Any]]], *groups: ProcessGroup) -> CollectiveTable:
    """Rank -> its calls; each has op, and may have group, seq, state, peer, sizes."""
    builder = TableBuilder()
    indexes = {g.name: builder.group(g) for g in (groups or (WORLD,))}
    for rank, theirs in calls.items():
        counts: dict[tuple[str, bool], int] = {}
        for i, call in enumerate(theirs):
            group, is_p2p = call.get("group", "0"), "peer" in call
            counts[group, is_p2p] = seq = call.get("seq", counts.get((group, is_p2p), 0) + 1)
            builder.add(
                rank=rank,
                group=indexes[group],
                seq=seq,
                op=call["op"],
                in_sizes=call.get("sizes", ((4,),)),
                dtype=call.get("dtype", "Float"),
                state=call.get("state", DONE),
                is_p2p=is_p2p,
                peer=call.get("peer", -1),
                created_ns=10**18 + i * 10**6 + rank,
                record_id=call.get("record", i),
            )
    return builder.build()


def case_of(table: CollectiveTable, world: int = 4, absent: Sequence[int] = ()) -> Case:
    ranks = {r: RankEvidence(RankIdentity(r)) for r in range(world) if r not in absent}
    return Case(Job(world, backend="nccl"), ranks, table.groups, table, hang=HangObservation("suspected", 1.0, 600.0))


def reduce_(state: CallState = DONE, **more: Any) -> dict[str, Any]:
    return {"op": "all_reduce", "state": state, **more}


def send(peer: int, state: CallState = DONE, **more: Any) -> dict[str, Any]:
    return {"op": "send", "peer": peer, "state": state, **more}


def recv(peer: int, state: CallState = DONE, **more: Any) -> dict[str, Any]:
    return {"op": "recv", "peer": peer, "state": state, **more}


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


def test_what_a_rank_says_of_itself_counts_as_issued() -> None:
    table = table_of({0: [reduce_(seq=7, state=OPEN)], 1: [reduce_(seq=5)]})
    told = {"rank": [1], "group": [0], "enqueued": [7], "started": [-1], "completed": [7]}
    assert CallIndex(table).last(0) == {0: 7, 1: 5}
    progress = {k: np.array(v, dtype=PROGRESS_COLUMNS[k]) for k, v in told.items()}
    assert CallIndex(replace(table, progress=progress)).last(0) == {0: 7, 1: 7}


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


def step(odd: bool = False) -> list[dict[str, Any]]:
    return [{"op": "broadcast" if odd else "all_reduce"}, {"op": "all_gather"}, {"op": "barrier"}]


def last(table: CollectiveTable) -> dict[int, int]:
    return {r: table.rank_rows(r).stop - 1 for r in np.unique(table["rank"]).tolist()}


def test_only_the_rank_that_left_the_common_habit_is_new() -> None:
    table = table_of({0: [*step(), *step(), *step()], 1: [*step(), *step(), *step(odd=True)]})
    assert list(Habits(table).departures(last(table))) == [1]


def test_what_all_ranks_do_for_the_first_time_is_no_news() -> None:
    table = table_of({r: [*step(), *step(), *step(odd=True)] for r in range(4)})
    assert Habits(table).departures({0: last(table)[0]}) == {}


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


def test_in_a_wrapped_buffer_transfers_are_counted_from_the_last_collective_that_both_completed() -> None:
    sender = [reduce_(seq=4), send(1), send(1, OPEN, record=902)]
    receiver = [reduce_(seq=4, record=500), recv(0, record=501), recv(0, record=502)]
    table = replace(table_of({0: sender, 1: receiver}), wrapped_ranks=frozenset((0, 1)))
    assert matched_transfers(table) == {2: 5}
    no_anchor = replace(table_of({0: sender[1:], 1: receiver[1:]}), wrapped_ranks=frozenset((0, 1)))
    assert matched_transfers(no_anchor) == {1: None}


def test_transfers_that_were_under_way_across_a_collective_are_not_counted_from_it() -> None:
    sender = [reduce_(seq=4), send(1), reduce_(seq=5), send(1, OPEN)]
    receiver = [reduce_(seq=4), reduce_(seq=5), recv(0), recv(0, OPEN)]
    table = replace(table_of({0: sender, 1: receiver}), wrapped_ranks=frozenset((0, 1)))
    assert matched_transfers(table) == {3: 7, 7: 3}


def layers(count: int, then: str) -> list[dict[str, Any]]:
    return [*({"op": op} for _ in range(count) for op in ("all_reduce", "all_gather", "reduce_scatter")), {"op": then}]


def test_a_loop_that_ends_for_the_first_time_is_no_departure() -> None:
    table = table_of({0: [{"op": "broadcast"}, *layers(3, "barrier")], 1: [{"op": "scatter"}]})
    assert Habits(table).departures({0: 10}) == {}


def test_a_loop_that_ends_earlier_than_in_a_whole_round_is_a_departure() -> None:
    whole = [{"op": "broadcast"}, *layers(3, "barrier")]
    table = table_of({0: [*whole, {"op": "broadcast"}, *layers(2, "barrier")], 1: [{"op": "scatter"}]})
    assert Habits(table).departures({0: len(whole) + 7}) == {0: len(whole) + 7}


def test_where_others_begin_anew_a_rank_that_does_not_has_departed() -> None:
    first = [send(2), recv(2), send(2, sizes=((9,),)), reduce_()]
    table = table_of({0: [*first, recv(2, OPEN)], 1: [*first, *first], 2: [reduce_()]})
    assert Habits(table).departures({0: 4, 2: 9 + 4}) == {0: 4}
    without = table_of({0: [*first, recv(2, OPEN)], 2: [reduce_()]})
    assert Habits(without).departures({0: 4}) == {}


def test_a_call_that_others_make_elsewhere_is_not_new() -> None:
    tp, dp = ProcessGroup("1", "tp", (0, 1), backend="nccl"), ProcessGroup("2", "tp", (2, 3), backend="nccl")
    gather, scatter = ({"op": op, "group": "1", "state": OPEN} for op in ("all_gather", "reduce_scatter"))
    table = table_of({0: [gather], 1: [scatter], 2: [{"op": "all_gather", "group": "2"}]}, WORLD, tp, dp)
    assert Habits(table).firsts({0: 0, 1: 1}) == frozenset([1])


def test_one_against_two_is_odd_unless_nothing_is_known_of_the_fourth() -> None:
    calls = {0: [reduce_(OPEN)], 1: [reduce_(OPEN)], 2: [{"op": "barrier", "state": OPEN}]}
    known, unknown = ({**calls, 3: [reduce_(group="1")]}, calls)
    pair = ProcessGroup("1", "tp", (3,), backend="nccl")
    for case, is_sure in ((case_of(table_of(known, WORLD, pair)), True), (case_of(table_of(unknown)), False)):
        assert Situation(case).stuck[0].has_majority is is_sure


def test_among_suspects_with_one_program_the_one_against_two_has_departed() -> None:
    first = [{"op": "broadcast"}, reduce_(), {"op": "all_gather"}]
    table = table_of({r: [*first, reduce_(OPEN) if r != 1 else {"op": "barrier", "state": OPEN}] for r in range(3)})
    assert Habits(table).departures(last(table)) == {1: 7}


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


def test_ranks_with_one_program_vote_by_the_numbers_of_their_calls() -> None:
    calls = [{"op": op} for op in ("broadcast", "all_reduce", "all_gather", "barrier", "all_reduce")]
    wrapped = [{**call, "record": i} for i, call in enumerate(calls)][1:]
    table = table_of({0: [*calls[:4], {"op": "scatter", "state": OPEN}], 1: wrapped, 2: wrapped, 3: [reduce_()]})
    table = replace(table, wrapped_ranks=frozenset((1, 2)))
    assert Habits(table).departures({0: 4}) == {0: 4}
