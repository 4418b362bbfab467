"""Who did something else than its past and its peers foretold."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.analyze.small_tables import DONE, OPEN, WORLD, recv, reduce_, send, table_of
from unhang.analyze.calls.habits import Habits
from unhang.analyze.calls.programs import Programs
from unhang.model import CallState, CollectiveTable, Frame, ProcessGroup, TableBuilder
from unhang.testing import judge, make_case


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


THREE = ProcessGroup("0", "default_pg", (0, 1, 2), backend="nccl")


def test_among_suspects_with_one_program_the_one_against_two_has_departed_unless_a_file_is_gone() -> None:
    first = [{"op": "broadcast"}, reduce_(), {"op": "all_gather"}]
    calls = {r: [*first, reduce_(OPEN) if r != 1 else {"op": "barrier", "state": OPEN}] for r in range(3)}
    table, one_is_gone = table_of(calls, THREE), table_of(calls)
    assert Habits(table).departures(last(table)) == {1: 7}
    assert Habits(one_is_gone).departures(last(table)) == {}  # two against two
    rank0_looks_on = {r: row for r, row in last(table).items() if r}
    assert Habits(table_of({**calls, 3: calls[0]})).departures(rank0_looks_on) == {1: 7}


def test_the_greater_part_clears_its_members_only_if_it_stays_so_whatever_the_others_call() -> None:
    odd, usual = ({"op": op, "state": OPEN} for op in ("scatter", "all_reduce"))
    table = table_of({r: [*step(), *step(), odd if r < 2 else usual] for r in range(3)})
    assert Habits(table).departures(last(table)) == {}
    assert list(Habits(table).departures(last(table), not_come=1)) == [0, 1]


def test_one_rank_of_many_that_made_the_same_call_clears_it() -> None:
    begin, own = [{"op": op} for op in ("broadcast", "all_reduce", "all_gather")], [{"op": "scatter", "state": OPEN}]
    usual = [*begin, {"op": "barrier"}, *begin]
    calls = {0: [*begin, *own], **dict.fromkeys(range(1, 7), usual)}
    table = table_of(calls, ProcessGroup("0", "default_pg", tuple(range(8)), backend="nccl"))
    assert Habits(table).departures({0: 3}) == {0: 3}
    assert Habits(table_of({**calls, 7: [*begin, *own]})).departures({0: 3}) == {}


def test_who_made_the_same_calls_up_to_now_foretells_better_than_a_loop_within_the_first_round() -> None:
    pair = ProcessGroup("1", "dp", (0, 1, 2, 3), backend="nccl")
    loop, end = (
        [{"op": op} for op in ("all_gather", "gather", "scatter")],
        {"op": "barrier", "group": "1", "state": OPEN},
    )
    calls = {r: [*loop, *loop, *([{"op": "all_reduce"}] if r else []), *loop, end] for r in range(4)}
    assert Habits(table_of(calls, WORLD, pair)).departures({0: 9}) == {0: 6}


def test_ranks_with_one_program_vote_by_the_numbers_of_their_calls() -> None:
    calls = [{"op": op} for op in ("broadcast", "all_reduce", "all_gather", "barrier", "all_reduce")]
    wrapped = [{**call, "record": i} for i, call in enumerate(calls)][1:]
    table = table_of({0: [*calls[:4], {"op": "scatter", "state": OPEN}], 1: wrapped, 2: wrapped, 3: [reduce_()]})
    table = replace(table, wrapped_ranks=frozenset((1, 2)))
    assert Habits(table).departures({0: 4}) == {0: 4}


def ring(rank: int, size: int, line: int, state: CallState = DONE) -> list[dict[str, Any]]:
    """A batch in which a rank gives to the next one and takes from the one before; `line` tells calls apart by their size."""
    ways = (send((rank + 1) % size, state), recv((rank - 1) % size, state))
    return [{**way, "sizes": ((line,),), "group": "1", "seq": line} for way in ways]


@pytest.mark.parametrize("size", [2, 3])
def test_the_members_of_a_ring_have_one_program_wherever_it_closes(size: int) -> None:
    group = ProcessGroup("1", "cp", tuple(range(size)), backend="nccl")
    calls = {r: [call for line in (1, 2, 3) for call in ring(r, size, line)] for r in range(size)}
    tokens = Habits(table_of(calls, WORLD, group)).tokens.reshape(size, -1)
    assert (tokens == tokens[0]).all()


def test_the_stages_of_a_pipeline_have_no_ring() -> None:
    stages = ProcessGroup("1", "pp", (0, 1, 2), backend="nccl")
    calls = {0: [send(1), recv(1)], 1: [recv(0), send(2), recv(2), send(0)], 2: [recv(1), send(1)]}
    table = table_of({r: [{**c, "group": "1"} for c in theirs] for r, theirs in calls.items()}, WORLD, stages)
    tokens = Habits(table).tokens
    assert tokens[0] != tokens[7]  # the first sends to the next, the last to the one before


@pytest.mark.parametrize("ways", [(recv,), (send,), (recv, send), (send, recv, recv)])
@pytest.mark.parametrize("seen", [(0, 1, 2, 3), (0, 1, 3)])
def test_where_all_send_or_receive_one_way_it_is_a_ring_without_batches(
    ways: Sequence[Any], seen: Sequence[int]
) -> None:
    ahead = {send: 1, recv: -1}
    table = table_of({r: [way((r + ahead[way]) % 4) for way in ways] for r in seen})
    tokens = Habits(table).tokens.reshape(len(seen), -1)
    assert (tokens == tokens[0]).all()


def test_a_pipeline_that_sends_one_way_is_no_ring() -> None:
    stages = ProcessGroup("1", "pp", (0, 1, 2, 3), backend="nccl")
    calls = {0: [send(1)], 1: [recv(0), send(2)], 2: [recv(1), send(3)], 3: [recv(2)]}
    table = table_of({r: [{**c, "group": "1"} for c in theirs] for r, theirs in calls.items()}, WORLD, stages)
    assert not Programs(table).is_same_stage(1, 2)


def test_a_program_that_begins_unlike_those_of_its_peers_has_departed() -> None:
    begin = [{"op": op} for op in ("broadcast", "all_reduce", "all_gather")]
    table = table_of({r: begin if r else [{"op": "barrier", "state": OPEN}, *begin] for r in range(4)})
    assert Habits(table).departures({0: 0}) == {0: 0}


def test_to_begin_with_what_the_peers_call_later_is_a_departure_too() -> None:
    begin = [{"op": op} for op in ("broadcast", "all_reduce", "all_gather", "barrier")]
    table = table_of({r: begin if r else [{"op": "barrier", "state": OPEN}, *begin] for r in range(4)})
    assert Habits(table).departures({0: 0}) == {0: 0}
    assert Habits(table).departures({1: table.rank_rows(1).start}) == {}


def test_where_the_peers_begin_unlike_each_other_nobody_has_departed() -> None:
    begin = [{"op": op} for op in ("broadcast", "all_reduce", "all_gather")]
    table = table_of({r: [{"op": op, "state": OPEN}, *begin] for r, op in enumerate(("barrier", "a", "b", "c"))})
    assert Habits(table).departures({0: 0}) == {}


def test_at_the_begin_of_a_pipeline_those_at_the_same_stage_tell() -> None:
    begins = [("broadcast", "all_reduce", "all_gather"), ("all_gather", "scatter", "broadcast")]
    groups = [ProcessGroup(f"pp{r}", "pp", (r, r + 4), backend="nccl") for r in range(4)]
    groups += [ProcessGroup(f"cp{r}", "cp", (r, r + 1), backend="nccl") for r in (0, 2, 4, 6)]
    calls = {}
    for r in range(8):
        ring = [{**way(r ^ 1), "group": f"cp{r & 6}", "seq": 1} for way in (send, recv)]
        stage = send(r + 4, group=f"pp{r}") if r < 4 else recv(r - 4, group=f"pp{r - 4}")
        calls[r] = [*({"op": op} for op in begins[r // 4]), *ring, stage]
    calls[0] = [{"op": "barrier", "state": OPEN}, *calls[0]]
    table = table_of(calls, ProcessGroup("0", "default_pg", tuple(range(8)), backend="nccl"), *groups)
    programs = Programs(table)
    assert programs.like(0) == [1, 2, 3, 4, 5, 6, 7]
    assert [r for r in range(1, 8) if programs.is_same_stage(0, r)] == [1, 2, 3]
    assert Habits(table).departures({0: 0}) == {0: 0}


def test_in_its_first_round_a_rank_that_departed_before_its_loops_has_departed() -> None:
    begin = [{"op": op} for op in ("broadcast", "all_reduce", "all_gather")]
    loop = [{"op": "all_to_all"}, {"op": "gather"}, {"op": "scatter"}] * 8
    end = [{"op": "barrier", "group": "1", "state": OPEN}]
    groups = WORLD, ProcessGroup("1", "dp", (0, 1, 2, 3), backend="nccl")
    table = table_of({r: [*begin, *([{"op": "odd"}] if not r else []), *loop, *end] for r in range(4)}, *groups)
    assert Habits(table).departures({0: 27}) == {0: 3}


def lost(table: CollectiveTable, *ranks: int) -> CollectiveTable:
    return replace(table, wrapped_ranks=frozenset(ranks))


def test_what_followed_the_first_call_that_is_left_foretells_a_whole_round() -> None:
    followed = [{"op": "barrier"}, *step(), {"op": "barrier"}]
    table = table_of({0: [*followed[:-2], {"op": "barrier"}, {"op": "odd", "state": OPEN}], 1: [{"op": "scatter"}]})
    assert Habits(lost(table, 0)).departures({0: 4}) == {0: 4}
    assert Habits(table).departures({0: 4}) == {}  # one call alone, at the begin of the program, tells nothing


def test_a_loop_that_goes_on_is_no_departure_though_only_its_end_is_left_of_the_past() -> None:
    def body(first: str) -> list[dict[str, Any]]:
        return [{"op": op} for op in (first, "all_gather", "gather", "scatter")]

    loop = ({"op": "gather"}, {"op": "scatter"}, *body("all_reduce"), {"op": "barrier", "group": "1"})
    now = [{"op": "begin"}, *body("all_reduce"), {"op": "all_reduce", "state": OPEN}]
    groups = WORLD, ProcessGroup("1", "dp", (0, 1, 2, 3), backend="nccl")
    table = table_of({0: [*loop, *now], 1: [{"op": "send_off"}]}, *groups)
    assert Habits(lost(table, 0)).departures({0: len(loop) + 5}) == {}
    other = table_of({0: [*loop, *now[:-1], {"op": "odd", "state": OPEN}], 1: [{"op": "send_off"}]}, *groups)
    assert Habits(lost(other, 0)).departures({0: len(loop) + 5}) == {0: len(loop) + 5}


def test_a_peer_whose_past_is_cut_clears_a_call_that_it_made_under_the_same_number() -> None:
    first, layer = {"op": "broadcast"}, [{"op": op} for op in ("all_gather", "gather", "scatter")]
    mine = [first, *layer, {**first, "state": OPEN}]

    def departures(*fifth: dict[str, Any]) -> dict[int, int]:
        theirs = [*layer, *fifth, *layer, {"op": "barrier"}]  # what is left of them begins with their second call
        calls = {0: mine, 1: [{**call, "record": i} for i, call in enumerate(theirs, 1)], 2: [{"op": "scatter"}]}
        return Habits(lost(table_of(calls, THREE), 1)).departures({0: 4, 2: 5 + len(theirs)})

    assert departures(first) == {}
    assert departures({"op": "reduce"}, first) == {0: 4}


def test_the_begin_of_a_round_counts_as_a_call() -> None:
    layer, end = [{"op": "all_gather"}, {"op": "gather"}], {"op": "barrier", "group": "1"}
    one_layer_less = [*layer, *layer, *layer, end, *layer, *layer, {**end, "state": OPEN}]
    other_program = [{"op": "broadcast"}, {"op": "scatter"}, {"op": "all_to_all"}, end] * 2
    pair = ProcessGroup("1", "dp", (0, 1), backend="nccl")
    table = table_of({0: one_layer_less, 1: other_program}, WORLD, pair)
    assert Habits(table).departures({0: 11}) == {0: 11}
    assert Habits(lost(table, 1)).departures({0: 11}) == {}  # nobody tells where the first round ends


def test_what_is_left_of_one_round_of_a_loop_does_not_foretell_its_end() -> None:
    loop = [{"op": op} for op in ("all_gather", "gather", "scatter")]
    first = [*loop[1:], {"op": "barrier", "group": "1"}, {"op": "broadcast"}]
    groups = WORLD, ProcessGroup("1", "dp", (0, 1), backend="nccl")
    table = table_of({0: [*first, *loop, {**loop[0], "state": OPEN}], 1: [{"op": "send_off"}]}, *groups)
    assert Habits(lost(table, 0)).departures({0: 7}) == {}
    other = table_of({0: [*first, *loop, {"op": "odd", "state": OPEN}], 1: [{"op": "send_off"}]}, *groups)
    assert Habits(lost(other, 0)).departures({0: 7}) == {0: 7}


def test_of_a_fork_into_equal_halves_neither_outvotes_the_other() -> None:
    past = [{"op": op} for op in ("broadcast", "all_reduce", "all_gather", "reduce_scatter")]
    pairs = [ProcessGroup(str(n), "dp", (n, n + 3), backend="nccl") for n in (1, 2, 3)]
    ends = {
        r: {"op": "barrier", "state": OPEN} if r < 4 else {"op": "gather", "group": str(r - 3)} for r in range(1, 7)
    }
    table = table_of({r: [*past, end] for r, end in ends.items()}, WORLD, *pairs)
    table = replace(table, wrapped_ranks=frozenset(range(1, 7)))
    assert Habits(table).departures(last(table)) == {}


STAGES = tuple(ProcessGroup(str(r), "pp", (r, r + 2), backend="nccl") for r in (0, 1))


def test_a_rank_that_is_stuck_early_has_the_program_of_those_at_its_place_in_the_groups() -> None:
    stage, last = ([call(peer, group=g) for call in (send, recv) * 2] for g, peer in (("0", 2), ("1", 1)))
    table = table_of({0: stage, 2: [recv(0, OPEN, group="0")], 3: last}, *STAGES)
    assert Programs(table).like(2) == [3]


def test_ranks_that_make_no_transfer_of_one_kind_run_no_common_program() -> None:
    table = table_of({0: [send(2, group="0")], 1: [send(3, group="1")], 2: [recv(0, group="0")]}, *STAGES)
    assert Programs(table).like(0) == [1]


def test_lines_of_code_do_not_count_for_a_kind_of_call_of_which_one_file_lacks_them() -> None:
    builder = TableBuilder()
    group = builder.group(WORLD)
    for rank, op, line in (
        (0, "all_reduce", 5),
        (1, "all_reduce", 9),
        (2, "all_reduce", 0),
        (0, "barrier", 5),
        (1, "barrier", 9),
    ):
        frames = (Frame("train.py", line, "main"),) if line else None
        builder.add(rank=rank, group=group, seq=1, op=op, state=DONE, frames=frames)
    table = builder.build()
    of_op = {op: set(Programs(table).tokens[table["op"] == i].tolist()) for i, op in enumerate(table.ops)}
    assert {op: len(found) for op, found in of_op.items()} == {"all_reduce": 1, "barrier": 2}


@pytest.mark.parametrize("seed", range(8))
def test_where_the_data_decide_the_past_foretells_nothing(seed: int) -> None:
    draw = random.Random(seed)
    past = [c for _ in range(60) for c in (*["all_reduce[5]"] * draw.randrange(2), "all_reduce[8]", "barrier")]
    case = make_case({0: [*past, "all_reduce[8] !"], 1: [*past, "all_reduce[5] !"]}, world=2)
    first = judge(case).findings[0]
    assert (first.culprit_ranks, first.confidence) == ((0, 1), 0.45)
