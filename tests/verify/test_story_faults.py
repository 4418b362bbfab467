"""`unhang demo --faults`: each verdict is laid beside the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.verify.made_runs import clean_run, hung_run
from unhang import verify as runs
from unhang.verify import HowToRun, Run
from unhang.verify.stories import Fault, agrees, find_stories, play_faults

HUNG = Fault("uneven", "hang", "code-divergence", (0,))


@pytest.mark.parametrize(
    ("fault", "is_right"),
    [
        (HUNG, True),
        (replace(HUNG, culprits=(1,)), False),
        (replace(HUNG, culprits=(0, 1, 2)), False),
        (replace(HUNG, culprits=(0, 1, 2), any_culprit=True), True),
        (replace(HUNG, cause="uneven-inputs"), False),
        (replace(HUNG, outcome="crash"), False),
    ],
)
def test_outcome_cause_and_culprits_must_be_right(fault: Fault, is_right: bool) -> None:
    assert agrees(fault, hung_run()) is is_right


def test_a_job_without_a_finding_agrees_with_a_control() -> None:
    assert agrees(Fault("stall", "clean", "", ()), clean_run())


def test_every_fault_is_run_and_a_wrong_verdict_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    def made(command: Sequence[str], folder: Path, how: HowToRun) -> Run:
        started.append(command[-1])
        assert how.cwd is not None
        assert (how.cwd / "train.py").exists()
        return hung_run() if command[-1] == "rank0_preview" else clean_run()

    monkeypatch.setattr(runs, "make_run", made)
    said: list[str] = []
    story = find_stories()[0]["reid"]
    assert play_faults([story], tmp_path, HowToRun(), said.append) == 1
    assert started == ["unused_mask", "swallowed", "nan_loss", "rank0_preview"]
    assert said[0] == "WRONG  reid unused_mask: clean; the truth is crash, unused-parameters, rank 2"
    assert said[3] == "right  reid rank0_preview: hang, code-divergence, rank 0"
    assert said[4].startswith("1 of 4 verdicts are right")
