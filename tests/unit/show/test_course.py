"""How a job ran, where it stopped and how it was set up, as the reports say it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.show.cases import clean, evidence, hang
from unhang.errors import UnreadableInput
from unhang.model import Case, Course, Frame, PassedStall, ProcessGroup, RankIdentity, SlowStep, ThreadStack
from unhang.model.case import SlowerSteps, StepPace
from unhang.read.runs import joined_course, read_course
from unhang.show.course import course_lines, in_brief, panels, run_card, stop_in_words, stop_of
from unhang.show.text import render_text
from unhang.show.verdict import to_json
from unhang.show.web_page import page_data

COURSE = Course(
    ran_s=600.0,
    steps={0: StepPace(1200, 0.37, 0.41), 1: StepPace(1200, 0.37, 0.42)},
    slow_steps=(SlowStep(31, 0.96, 0.0036, 5.0, {0: "backward 96 %", 1: "data 100 %"}),),
    slow_count=1,
    stalls=(PassedStall(120.0, 16.0, (1, 2, 3), "they wait"),),
    contexts={"0": {"rank 0": 9000.0, "rank 1": 512.0}, "1": {"rank 1": 9000.0}},
    samples={
        "at_s": (0.0, 2.0, 4.0),
        "rank 0 memory_mb": (100.0, 200.0, 300.0),
        "rank 1 memory_mb": (100.0, 900.0, 900.0),
        "node load": (None, 1.0, 2.0),
    },
)


def rank_with(function: str, epoch: str = "2", steps: int = 31) -> Case:
    frame = Frame("/home/ada/train.py", 7, function)
    stack = ThreadStack("MainThread", (frame,), is_main=True)
    known = ((frame, "epoch", epoch),)
    return Case(ranks={r: replace(evidence(r), stacks=(stack,), variables=known, steps=steps) for r in range(2)})


def test_a_clean_run_tells_its_pace_and_what_passed() -> None:
    assert in_brief(COURSE) == "1200 steps, median 370 ms; 1 slow step; 1 stall that passed, of up to 16.0 s"
    sample = clean()
    text = render_text(sample.diagnosis, replace(sample.case, course=COURSE), sample.waits)
    assert "Stall that passed  16.0 s, 2 min after the start: ranks 1-3 waited" in text
    assert "step 31 took 960 ms, 267x the usual 3.6 ms (rank 0: backward 96 %; rank 1: data 100 %)" in text
    assert "on device 0, of processes that compute elsewhere: rank 1 (512 MB)" in text
    assert "300 to 900 MB (most: rank 1)" in text


def test_a_clean_run_without_anything_remarkable_is_one_line() -> None:
    sample = clean()
    quiet = Course(steps={0: StepPace(10, 0.1, 0.1)})
    assert render_text(sample.diagnosis, replace(sample.case, course=quiet), sample.waits).count("\n") == 1
    assert in_brief(None) == ""
    assert course_lines(Case()) == []


def test_steps_that_became_slower_are_told() -> None:
    [_, line] = course_lines(Case(course=replace(Course(steps=COURSE.steps), slower=SlowerSteps(25, 1.0, 0.033))))
    assert line == ("Slower", "since about step 25 a step takes 1.0 s, 30x the 33 ms at the beginning")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("evaluate", "in the evaluation"),
        ("save_checkpoint", "while saving a checkpoint"),
        ("train", ""),
        ("retrieval_step", ""),
    ],
)
def test_where_it_stopped(function: str, words: str) -> None:
    assert stop_in_words(stop_of(rank_with(function), None)) == ", ".join(
        filter(None, ("after step 31, epoch 2", words))
    )


def test_ranks_at_different_steps_and_epochs() -> None:
    case = rank_with("train")
    behind = {**case.ranks, 0: replace(case.ranks[0], steps=30)}
    assert stop_in_words(stop_of(replace(case, ranks=behind), None)).startswith(
        "after step 30 (rank 0) and 31 (rank 1)"
    )
    assert "epoch" not in stop_of(rank_with("train", "x"), None)


def test_json_has_the_stop_the_cost_and_the_course() -> None:
    sample = hang()
    found: dict[str, Any] = json.loads(to_json(sample.diagnosis, replace(sample.case, course=COURSE)))
    assert found["stop"] == {"steps": [{"count": 40, "ranks": [0, 1, 2, 3]}], "phase": "checkpoint"}
    assert found["cost"]["limit_s"] == 600
    assert found["course"]["slow_steps"][0]["step"] == 31
    assert "samples" not in found["course"]
    assert {"stop", "cost", "course"}.isdisjoint(json.loads(to_json(sample.diagnosis)))


def test_the_page_draws_what_was_sampled_and_folds_many_ranks() -> None:
    shown = panels(COURSE)
    assert [p["title"] for p in shown["panels"]] == ["Memory of each rank, MB", "Load of the machine"]
    many = {f"rank {r} cpu": (float(r), 1.0, None) for r in range(5000)}
    [panel] = panels(Course(samples={"at_s": (0.0, 1.0, 2.0), **many}))["panels"]
    assert panel["lines"] == [["highest", [4999.0, 1.0, None]], ["lowest", [0.0, 1.0, None]]]
    assert panels(None) == panels(Course()) == {}
    assert (
        page_data(hang().diagnosis, replace(hang().case, course=COURSE), hang().waits)["course"]["panels"][0]["most"]
        == 900
    )


def test_a_course_is_read_back_and_damage_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "course.json"
    path.write_text('{"steps": {"3": {"steps": 7, "median_s": 0.5}}, "later": 1, "samples": {"at_s": [0, 2.5]}}')
    assert read_course(path).steps == {3: StepPace(7, 0.5)}
    for damage in ('{"steps": {"3"', '{"steps": 4}', "[]", '{"steps": {"x": {}}}', "{" * 100_000):
        path.write_text(damage)
        with pytest.raises(UnreadableInput, match="it does not say how a job ran"):
            read_course(path)


def test_the_courses_of_two_nodes_are_one() -> None:
    other = Course(
        steps={2: StepPace(5)}, slower=SlowerSteps(3, 1.0, 0.1), stalls=(PassedStall(120.2, 16.1, (1, 2, 3)),)
    )
    both = joined_course(COURSE, other)
    assert both is not None
    assert set(both.steps) == {0, 1, 2}
    assert both.slow_count == 1
    assert both.slower is not None
    assert len(both.stalls) == 1
    assert joined_course(None, other) is other


def card(at_start: dict[str, str], at_init: dict[str, str], **job: dict[str, str]) -> dict[str, str]:
    identity = RankIdentity(0, variables=at_start, variables_at_init=at_init, device=1, host="n1")
    group = ProcessGroup("0", "default_pg", (0, 1), 45.0, "gloo", Frame("/x/accelerate/state.py", 210, "init"))
    case = Case(ranks={0: replace(evidence(0), identity=identity)}, groups=(group,))
    lines = run_card(replace(case, job=replace(case.job, **job)))  # type: ignore[arg-type]
    return {value.partition("=")[0].partition(" ")[0]: value for _, value in lines}


def test_the_card_says_who_set_what() -> None:
    said = card(
        {"NCCL_A": "1", "NCCL_B": "1", "NCCL_L": "7", "TORCH_FR_BUFFER_SIZE": "2000"},
        {"NCCL_A": "1", "NCCL_B": "2", "NCCL_C": "3", "NCCL_E": "0", "NCCL_L": "7"},
        environment={"NCCL_A": "1", "NCCL_B": "1", "NCCL_D": "9"},
        added={"NCCL_E": "0"},
    )
    assert said["45.0"] == "45.0 s for the default group, set at state.py:210 in init"
    assert said["NCCL_A"].endswith("as it was before the job")
    assert said["NCCL_B"] == "NCCL_B=2, set by the program before it created its first group, before it was 1"
    assert said["NCCL_C"].endswith("set by the program before it created its first group")
    assert said["NCCL_D"] == "NCCL_D=9 was set for the job but did not reach the ranks"
    assert said["NCCL_L"].endswith("set by the launcher")
    assert said["rank"] == "rank 0 on cuda:1"
    assert "enabled by unhang" in said["the"]


def test_no_card_without_a_recording() -> None:
    assert run_card(hang().case) == []
