"""Several logs in one order, and the clocks of their machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unhang.read import read_paths
from unhang.read.logs.case import case_of_outputs, merged, timeline
from unhang.read.output_log import OutputLog, parse_output

START = 10 * 3600


def clock(second: float) -> str:
    whole, milli = divmod(round((START + second) * 1000), 1000)
    return f"2025-02-18T{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}.{milli:03d}Z"


def log(path: str, *lines: tuple[float | None, str], ahead_s: float = 0.0) -> OutputLog:
    text = "\n".join(what if at is None else f"{clock(at + ahead_s)} {what}" for at, what in lines)
    return parse_output(text.encode(), path)


def barrier(number: int, rank: int = 0) -> str:
    return f"Rank {rank}: Completed store-based barrier for key:store_based_barrier_key:{number} with 2 nodes."


def texts(*outputs: OutputLog) -> list[str]:
    return [line.text for line in timeline(outputs)]


def test_lines_come_by_time_and_within_a_log_as_written() -> None:
    a = log("a.log", (None, "a0"), (1, "a1"), (None, "a1b"), (4, "a4"), (3, "a3"))
    b = log("b.log", (2, "b2"), (5, "b5"))
    assert texts(a, b) == ["a0", "a1", "a1b", "b2", "a4", "a3", "b5"]
    carried = timeline([a, b])
    assert carried[0].time_ns is None
    assert carried[2].time_ns == carried[1].time_ns
    assert texts(a) == ["a0", "a1", "a1b", "a4", "a3"]
    assert timeline([]) == ()


def test_a_clock_ahead_is_found_and_corrected() -> None:
    a = log("a.log", (0, barrier(1)), (5, barrier(2)), (20, "a fails"))
    b = log("b.log", (0.1, barrier(1, 1)), (5.3, barrier(2, 1)), (18, "b fails"), ahead_s=3.2)
    found = merged([a, b])
    (offset,) = [o for o in found.offsets if o.machine != found.reference]
    assert (offset.machine, offset.events, offset.is_known) == ("b.log", 2, True)
    assert abs(offset.ahead_s - 3.4) < 1e-6
    assert offset.uncertainty_s == 1.0
    assert [line.text for line in found.lines][-2:] == ["b fails", "a fails"]
    assert found.notes() == (
        "b.log's clock is 3.4 s ahead (+-1.0 s, estimated from 2 events) against a.log; its times are corrected",
    )
    assert found.absent() == ()


@pytest.mark.parametrize("prefix", ["", "[I609 "], ids=["the time of day", "the day without the year"])
def test_logs_that_were_copied_at_other_times_are_not_thought_apart(tmp_path: Path, prefix: str) -> None:
    for i, name in enumerate("ab"):
        path = tmp_path / f"node-{name}.log"
        path.write_text(f"{prefix}22:03:0{i}.100 {barrier(1, i)}\n{prefix}22:13:03.100 {name} fails\n")
        os.utime(path, (1_700_000_000 + i * 500 * 86_400,) * 2)
    assert read_paths([tmp_path]).present == (
        "4 lines of output",
        "clocks of 2 machines agree within 1.0 s (estimated from what they logged)",
    )


def test_clocks_that_agree_are_left_alone() -> None:
    a = log("a.log", (0, barrier(1)), (9, "a"))
    b = log("b.log", (0.3, barrier(1, 1)), (8, "b"))
    found = merged([a, b])
    assert [o.applied_s for o in found.offsets] == [0.0, 0.0]
    assert found.notes() == ("clocks of 2 machines agree within 1.0 s (estimated from what they logged)",)
    assert [x.time_ns for x in found.lines] == sorted(x.time_ns or 0 for x in found.lines)


def test_a_zone_apart_is_found_from_steps() -> None:
    steps = [(i * 10.0, f"step {i} loss 0.1") for i in range(6)]
    b_ahead = [(at + 0.5, what) for at, what in steps]
    found = merged([log("a.log", *steps), log("b.log", *b_ahead, ahead_s=7200)])
    offset = found.offsets[-1]
    assert (round(offset.applied_s), offset.events, offset.uncertainty_s) in ((7200, 6, 5.0), (-7200, 6, 5.0))


def test_one_late_timeout_proves_no_difference_of_clocks() -> None:
    caught = "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran"
    found = merged([log("a.log", (0, caught.format(0))), log("b.log", (300, caught.format(1)))])
    assert not found.offsets[-1].is_known
    assert found.offsets[-1].applied_s == 0.0


def test_what_is_not_known_is_said() -> None:
    case = case_of_outputs([log("a.log", (0, "a")), log("b.log", (1, "b"))])
    assert [(a.what, "no event" in a.reason) for a in case.absent] == [
        ("clock differences of b.log against a.log", True)
    ]
    untimed = case_of_outputs([log("a.log", (0, "a")), log("b.log", (None, "b"))])
    assert [line.text for line in untimed.log] == ["a", "b"]
    assert [a.what for a in untimed.absent] == ["times in b.log"]
    assert case_of_outputs([log("a.log", (0, "a"))]).absent == ()


def test_logs_of_one_machine_share_its_clock() -> None:
    a = log("x/attempt_0/0/stderr.log", (0, "a"))
    b = log("x/attempt_0/1/stderr.log", (1, "b"))
    found = merged([a, b])
    assert found.offsets == ()
    assert found.absent() == ()
    pods = [log(f"{i}.log", (i, "[pod/w-0/main] x")) for i in range(2)]
    assert merged(pods).offsets == ()


def test_a_chain_of_machines_is_followed() -> None:
    a = log("a.log", (0, barrier(1)), (1, "a"))
    b = log("b.log", (0, barrier(1)), (5, barrier(2)), ahead_s=10)
    c = log("c.log", (5, barrier(2)), ahead_s=30)
    found = {o.machine: o for o in merged([a, b, c]).offsets}
    assert all(o.is_known for o in found.values())
    assert round(found["c.log"].ahead_s - found["a.log"].ahead_s) == 30
    assert round(found["b.log"].ahead_s - found["a.log"].ahead_s) == 10


def test_times_without_a_year_join_those_with_one() -> None:
    a = log("a.log", (0, "a"))
    b = parse_output(b"[E218 10:00:05.000000000 x.cpp:1] b", "b.log")
    c = parse_output(b"09:59:59 INFO c", "c.log")
    assert [line.source.path for line in timeline([a, b, c])] == ["c.log", "a.log", "b.log"]


def test_exceptions_of_several_logs_come_by_time() -> None:
    trace = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in f\nValueError: {}'
    late = parse_output(f"{clock(9)} x\n{trace.format('late')}".encode(), "a.log")
    early = parse_output(f"{clock(2)} x\n{trace.format('early')}".encode(), "b.log")
    assert [e.message for e in case_of_outputs([late, early]).loose_errors] == ["early", "late"]
