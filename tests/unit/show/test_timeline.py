from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.unit.show.cases import START_NS, clean, crash, cycle, evidence, hang
from unhang.model import CallState, Case, Frame, Job, PendingCall, ProcessGroup, TableBuilder
from unhang.show.timeline import ENDED, ENDED_ABOUT, WAITING, Timeline, most_per_rank, timeline

SECOND = 1_000_000_000
ME = ProcessGroup("0", "default_pg", (0, 1))


def of_rank(shown: Timeline, rank: int, column: str) -> list[int]:
    i = shown.ranks.index(rank)
    values: list[int] = shown.columns[column][shown.offsets[i] : shown.offsets[i + 1]].tolist()
    return values


def test_times_are_microseconds_after_the_start_of_the_job() -> None:
    shown = timeline(hang().case)
    assert shown.zero_ns == START_NS
    assert shown.unit_ns == 1000
    assert shown.onset == 13_204_000
    assert shown.focus[0] < shown.onset < shown.focus[1] <= shown.end
    assert len(shown) == 4 * 161


def test_an_open_call_is_drawn_to_the_end() -> None:
    shown = timeline(hang().case)
    assert of_rank(shown, 0, "end")[-2:] == [ENDED, WAITING]
    assert of_rank(shown, 0, "start")[-1] + of_rank(shown, 0, "length")[-1] == shown.end
    assert shown.kinds[of_rank(shown, 0, "kind")[-1]] == {
        "op": "barrier", "group": "default_pg", "sizes": "1 Float", "at": "train.py:41 in save_checkpoint",
    }  # fmt: skip


def test_a_call_of_a_dead_rank_waits_no_longer_than_the_rank_lived() -> None:
    shown = timeline(crash().case)
    ended = of_rank(shown, 0, "start")[-1] + of_rank(shown, 0, "length")[-1]
    assert [m.at for m in shown.markers if m.rank == 0] == [ended]
    assert [(m.kind, m.text[:10]) for m in shown.markers if m.rank == 2] == [
        ("error", "IndexError"),
        ("exit", "exited wit"),
    ]
    assert shown.onset_name == "first error"


def test_unknown_completion_is_drawn_to_the_next_call_but_not_far() -> None:
    table = TableBuilder()
    group = table.group(ME)
    for n, at in enumerate((1.0, 1.1, 1.2, 1.3, 60.0)):
        table.add(rank=0, group=group, seq=n, op="all_reduce", created_ns=int(at * SECOND), record_id=n)
    shown = timeline(Case(calls=table.build()))
    assert of_rank(shown, 0, "end") == [ENDED_ABOUT] * 5
    lengths = of_rank(shown, 0, "length")
    assert lengths[:3] == [100_000] * 3
    assert lengths[3] == 400_000


def test_old_calls_are_left_out_but_not_an_open_one() -> None:
    table = TableBuilder()
    group = table.group(ME)
    for n in range(1000):
        state = CallState.STARTED if n == 3 else CallState.COMPLETED
        table.add(rank=0, group=group, seq=n, op="x", created_ns=(n + 1) * SECOND, record_id=n, state=state)
    shown = timeline(Case(calls=table.build()))
    assert of_rank(shown, 0, "seq") == [3, *range(600, 1000)]
    assert shown.left_out == 599
    assert of_rank(shown, 0, "end")[0] == WAITING


def test_what_is_drawn_does_not_depend_on_the_codes_of_the_table() -> None:
    """Several threads read dumps; which stack gets the first code depends on which of them is first."""
    builder = TableBuilder()
    group = builder.group(ME)
    for n in range(6):
        frames = (Frame("train.py", 10 + n % 3, "train"),)
        builder.add(
            rank=0, group=group, seq=n, op="all_reduce", created_ns=(n + 1) * SECOND, record_id=n, frames=frames
        )
    table = builder.build()
    last = len(table.stacks) - 1
    assert last > 0
    turned = replace(
        table,
        columns={**table.columns, "frames": (last - table["frames"]).astype(table["frames"].dtype)},
        stacks=table.stacks[::-1],
    )
    first, second = (timeline(Case(calls=calls)) for calls in (table, turned))
    assert first.kinds == second.kinds
    assert of_rank(first, 0, "kind") == of_rank(second, 0, "kind")


def test_the_number_of_calls_per_rank_falls_with_the_number_of_ranks() -> None:
    assert [most_per_rank(n) for n in (0, 8, 16_384, 10**6)] == [400, 400, 61, 20]


def test_long_jobs_get_a_coarser_unit() -> None:
    table = TableBuilder()
    group = table.group(ME)
    for n, at in enumerate((1, 10 * 86_400)):
        table.add(rank=0, group=group, seq=n, op="x", created_ns=at * SECOND, record_id=n)
    shown = timeline(Case(calls=table.build()))
    assert shown.unit_ns > 1000
    assert shown.end < 2**32
    assert abs(of_rank(shown, 0, "start")[1] * shown.unit_ns - (10 * 86_400 - 1) * SECOND) < shown.unit_ns


def test_pending_calls_are_lanes_too() -> None:
    sample = clean()
    waiting = PendingCall("recv", 4, "pp", 1, START_NS + 2 * SECOND, None)
    done = PendingCall("send", 3, "pp", 1, START_NS + SECOND, START_NS + SECOND + 5000)
    ranks = {**sample.case.ranks, 3: evidence(3, pending=(waiting, done))}
    shown = timeline(replace(sample.case, ranks=ranks))
    assert of_rank(shown, 3, "start")[:2] == [1_000_000, 2_000_000]
    assert of_rank(shown, 3, "end")[:2] == [ENDED, WAITING]
    assert of_rank(shown, 3, "peer")[:2] == [2, 2]
    assert shown.kinds[of_rank(shown, 3, "kind")[1]]["op"] == "recv"


def test_gloo_times_stay_unknown() -> None:
    assert set(timeline(cycle().case).columns["end"].tolist()) == {ENDED_ABOUT, WAITING}


def test_nothing_at_all_is_drawn_as_nothing() -> None:
    for case in (Case(), Case(job=Job(world_size=2, started_ns=START_NS)), Case(ranks={1: evidence(1)})):
        shown = timeline(case)
        assert len(shown) == 0
        assert len(shown.offsets) == len(shown.ranks) + 1
        assert np.all(shown.offsets == 0)
