"""Where no cause is established the report says what decides, in which order, at what cost; with a cause it does not."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files

import pytest

from tests.rules.notation import make_case
from unhang.diagnosis import judge_case
from unhang.model import Case, Diagnosis, WaitsFor
from unhang.read.logs.case import log_case
from unhang.show.course import cost_of_step
from unhang.show.text import render_text
from unhang.show.verdict import to_json

LINE = (
    "[rank{rank}]:[E1125 10:{minute}:00.570000000 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=5164000, NumelOut=5164000, Timeout(ms)=600000) ran for 600042 "
    "milliseconds before timing out.\n"
)
START = "[rank0]:[I1125 09:40:00.000000000 ProcessGroupNCCL.cpp:900] [PG ID 0 PG GUID 0 Rank 0] ProcessGroupNCCL initialization options: size: 4\n"


def judged(log: str) -> tuple[Case, Diagnosis]:
    case = log_case(log)
    return case, judge_case(case).diagnosis


def test_who_was_missing_is_not_known() -> None:
    _, diagnosis = judged(START + "".join(LINE.format(rank=r, seq=7, minute=40) for r in (1, 2)))
    assert diagnosis.next_steps
    assert "the ranks that did not print the timeout" in diagnosis.next_steps[0].title
    assert all(step.outcomes and step.undo and step.do for step in diagnosis.next_steps)


def test_every_rank_waited_in_the_same_call() -> None:
    gloo = "[Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3\n"
    case, diagnosis = judged(gloo + START + "".join(LINE.format(rank=r, seq=7, minute=40) for r in range(4)))
    assert case.job.world_size == 4
    assert diagnosis.findings[0].cause == "unknown"
    assert diagnosis.next_steps[0].do.startswith("dmesg -T")
    assert any("NCCL_P2P_DISABLE=1" in step.do for step in diagnosis.next_steps)


def test_a_run_has_to_last_longer_than_the_one_failure_that_is_known() -> None:
    _, diagnosis = judged(START + LINE.format(rank=1, seq=7, minute=43))
    runs = [step for step in diagnosis.next_steps if step.run_s]
    [(half, half_s), (ninety, ninety_s), (most, most_s)] = runs[0].run_s
    assert (half, ninety, most) == (0.5, 0.9, 0.95)
    assert half_s == pytest.approx(
        53 * 60, abs=60
    )  # it stopped 53 minutes after the start, ten minutes before the limit was hit
    assert (ninety_s, most_s) == (pytest.approx(9 * half_s), pytest.approx(19 * half_s))
    assert cost_of_step(runs[0]).startswith("a run: 53 min, 8.0 h, 16.8 h without a failure make it 50, 90, 95 % sure")


def test_a_cause_needs_no_experiment() -> None:
    case = make_case({0: ["barrier@main:3 !"], 1: ["all_reduce[8]@main:4 !"]}, world=2)()
    assert judge_case(case).diagnosis.next_steps == ()
    assert judged("all good\n")[1].next_steps == ()


def test_reports_have_the_steps() -> None:
    case, diagnosis = judged(START + LINE.format(rank=1, seq=7, minute=43))
    text = render_text(diagnosis, case, WaitsFor())
    assert "WHAT TO DO NOW, IN THIS ORDER" in text
    assert text.count("unhang run -- <the same command>") == 1
    steps = json.loads(to_json(diagnosis))["next_steps"]
    assert steps[0]["minutes"] == 2


def test_the_table_is_whole() -> None:
    steps = tomllib.loads(files("unhang.rules").joinpath("next_steps.toml").read_text())["step"]
    for step in steps:
        assert set(step["when"]) <= {"missing", "together", "unclear", "crash"}
        assert step.get("is_run", False) != ("minutes" in step), step["title"]
        assert all(len(pair) == 2 for pair in step["outcomes"])
    assert {kind for step in steps for kind in step["when"]} == {"missing", "together", "unclear", "crash"}
