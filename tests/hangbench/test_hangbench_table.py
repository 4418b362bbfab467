"""The table of the hang benchmark is consistent with the programs, the catalogue and what is promised."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from benchmarks.hangbench import page, peers, reproduced, run
from benchmarks.hangbench.cases import HERE, STORIES, TABLE, TRUTHS, all_runs, lines_with, truth_with
from benchmarks.hangbench.jobs import run_limited
from benchmarks.hangbench.summary import told

from unhang.inside.inject import FAULTS, read_fault
from unhang.model import CAUSES

RUNS = all_runs()
SICK = [r for r in RUNS if not r.is_healthy]
HEALTHY = [r for r in RUNS if r.is_healthy]


def test_there_are_as_many_runs_as_promised() -> None:
    assert len(SICK) >= 120
    assert len({r.kind for r in SICK}) >= 30
    assert len(HEALTHY) >= 60
    per_story = Counter(r.story for r in SICK)
    assert set(per_story) == set(TRUTHS)
    assert max(per_story.values()) <= 1.3 * min(per_story.values()), per_story
    assert {r.story for r in HEALTHY} == {*TRUTHS, "hard"}


def test_names_are_unique_and_programs_exist() -> None:
    names = [r.name for r in RUNS]
    assert len(set(names)) == len(names)
    assert [r.name for r in RUNS if not r.program.exists()] == []
    assert set(run.QUICK) <= set(names)


def test_faults_can_be_injected_and_have_a_truth() -> None:
    assert set(TABLE["faults"]) <= set(FAULTS)
    for r in SICK:
        assert r.truth is not None
        assert set(r.truth.causes) <= set(CAUSES), r.name
        assert r.truth.outcomes, r.name
        assert r.is_own != bool(r.fault), r.name
        if r.is_own:
            assert r.truth.ranks, r.name
            assert r.truth.lines, r.name
    for r in RUNS:
        if r.fault:
            read_fault(r.fault)


def test_a_truth_that_says_more_than_the_catalogue_says_why() -> None:
    for row in TABLE["run"]:
        if {"also", "causes", "outcomes"} & set(row):
            assert row.get("why") or row.get("widened"), row


def test_another_seed_draws_others_of_the_same_kinds() -> None:
    again = all_runs(2)
    assert all_runs() == RUNS
    assert [r.name for r in again] == [r.name for r in RUNS]
    assert sum(a.fault != b.fault for a, b in zip(again, RUNS, strict=True)) > 50


def test_a_marker_that_is_not_there_is_an_error() -> None:
    with pytest.raises(LookupError, match="no line with 'nowhere'"):
        lines_with(STORIES / "reid" / "train.py", "nowhere")


def test_the_record_completes_the_truth() -> None:
    truth = next(r for r in SICK if r.name == "reid/sigstop-1").truth
    assert truth is not None
    event = {"event": "happened", "rank": 2, "file": "/a/train.py", "line": 9}
    full = truth_with(truth, [event, {**event, "event": "met", "rank": 3}])
    assert (full.ranks, full.lines) == (frozenset({2}), frozenset({("train.py", 9)}))


def test_the_sample_for_the_peers_is_balanced() -> None:
    sample = peers.chosen(RUNS)
    assert set(Counter(r.story for r in sample).values()) == {peers.PER_STORY}
    assert len({r.kind for r in sample}) == len(sample)


def row_of(name: str, result: str = "hit", **more: Any) -> dict[str, Any]:
    parts = dict.fromkeys(("outcome", "cause", "ranks", "line"), result == "hit")
    return {
        "name": name,
        "kind": "skip_collective",
        "story": "reid",
        "is_healthy": False,
        "fault": "skip_collective:rank=1",
        "widened": "",
        "truth": {"causes": ["code-divergence"]},
        "said": {"outcome": "hang", "cause": "x", "ranks": [1], "line": ["train.py", 3], "title": "t"},
        "score": {"result": result, **parts},
        "hang": {"kind": "proven"},
        "verdict_after_s": 2.0,
        "seconds": 9.0,
        **more,
    }


def test_a_stop_loses_nothing(tmp_path: Path) -> None:
    path, said = tmp_path / "results.jsonl", list[str]()
    path.write_text(json.dumps(row_of("a")) + "\n" + '{"name": "b", "cut sh')
    made = run.work_through({name: lambda name=name: [row_of(name)] for name in ("a", "b")}, path, True, said.append)
    assert [row["name"] for row in made] == ["a", "b"]
    assert [row["name"] for row in run.read_rows(path)] == ["a", "b"]
    assert len(said) == 1
    run.work_through({"a": lambda: [row_of("a", "undecided")]}, path, False, said.append)
    assert {row["name"]: row["score"]["result"] for row in run.read_rows(path)} == {"a": "undecided", "b": "hit"}


def test_the_page_is_made_of_the_rows(tmp_path: Path) -> None:
    healthy = row_of("reid/healthy-1", is_healthy=True, truth=None)
    rows = [
        row_of("a"),
        row_of("reid/skip", "wrong line", widened="why"),
        healthy,
        row_of("c", "the fault did not happen"),
    ]
    peer = {**row_of("a", "undecided"), "tool": "torchfrtrace", "after_s": 10.0}
    made = [{"name": "a", "is_right": True, "seconds": 8.0}]
    text = page.write_docs(rows, [peer], made, tmp_path).read_text()
    assert "1 of 2, 50.0 % (9.5 to 90.5)" in text
    assert "strict, without runs whose truth was widened | 1 of 1" in text
    assert "| reid/skip | `skip_collective:rank=1` |" in text
    assert "left out | 1 |" in text
    assert "| torchfrtrace | 1 | 0 of 1" in text
    assert "{{" not in text
    assert "sample: torchfrtrace" in (tmp_path / "hangbench.svg").read_text()
    assert "healthy runs   1, accused 0 of 1" in told(rows)


def test_every_note_belongs_to_a_run() -> None:
    assert set(tomllib.loads((HERE / "notes.toml").read_text())) <= {r.name for r in RUNS}


def test_only_hangs_are_reproduced() -> None:
    assert reproduced.is_candidate(row_of("a"))
    assert not reproduced.is_candidate({**row_of("a"), "said": {"outcome": "crash"}})
    assert not reproduced.is_candidate(row_of("a", is_healthy=True))


def test_a_job_that_does_not_end_is_ended_with_its_children(tmp_path: Path) -> None:
    program = "import subprocess, time; print(subprocess.Popen(['sleep', '50']).pid, flush=True); time.sleep(50)"
    done = run_limited([sys.executable, "-c", program], tmp_path, 1.0)
    assert done.exit_code is None
    state = subprocess.run(["ps", "-o", "stat=", "-p", done.output.strip()], capture_output=True, text=True)
    assert state.stdout.strip()[:1] in ("", "Z")
