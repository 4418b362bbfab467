"""What real jobs on NCCL left (one H200, torch 2.11, NCCL 2.28.9, three ranks on the device), judged again without a device.

`plain`: dumps, logs, stacks and RAS, as users have them. `run`: what `unhang run` left. `attach`: what was seen from outside.
"""

from __future__ import annotations

import json
import linecache
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu_evidence.faults import BY_NAME
from benchmarks.gpu_evidence.judge import ABSTAINS, DID_NOT_HAPPEN, RIGHT, WRONG, verdict

from unhang.diagnosis import judge_paths
from unhang.show.reports import render

ARCHIVE = Path(__file__).with_name("h200.tar.xz")
RANKS = 3
# Where the programs lay, which are read from memory.
PLACES = {"plain": "/tmp/gpu-0", "watched": "/tmp/gpu-1"}
PROGRAM = "benchmarks/gpu_evidence/job.py"


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("h200")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    for kind, place in PLACES.items():
        text = (folder / "programs" / kind / "job.py").read_text()
        linecache.cache[f"{place}/{PROGRAM}"] = (len(text), None, text.splitlines(True), f"{place}/{PROGRAM}")
    return folder


def judged(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(render(judge_paths([folder]), "json"))
    return report


def test_what_users_have(sets: Path) -> None:
    found, wrong = Counter[str](), {}
    for job in sorted((sets / "plain").iterdir()):
        if not json.loads((job / "outcome.json").read_text())["happened"]:
            found[DID_NOT_HAPPEN] += 1
            continue
        report = judged(job / "evidence")
        result = verdict(json.loads((job / "truth.json").read_text()), report)
        found[result] += 1
        if result == WRONG:
            wrong[job.name] = report["findings"][:1]
    assert not wrong
    assert found[RIGHT] >= 12, found
    assert found[DID_NOT_HAPPEN] == 4  # NCCL let calls pass that did not fit


@pytest.mark.parametrize(("way", "right"), [("run", 26), ("attach", 9)])
def test_what_was_watched(way: str, right: int, sets: Path) -> None:
    results, wrong = Counter[str](), {}
    for job in sorted((sets / way).iterdir()):
        report = judged(job / "bundle")
        result = verdict(BY_NAME[job.name].truth(RANKS), report)
        results[result] += 1
        if result == WRONG:
            wrong[job.name] = report["findings"][:1]
    assert not wrong
    assert results[RIGHT] >= right, results
    assert results[ABSTAINS] <= len(list((sets / way).iterdir())) - right


def test_calls_that_nccl_let_pass_are_told(sets: Path) -> None:
    for name in ("size-mismatch", "dtype-mismatch", "other-order", "ddp-validation-on-rank0"):
        report = judged(sets / "run" / name / "bundle")
        assert (report["outcome"], report["verdict"], report["findings"][0]["rule"]) == (
            "clean",
            "wrong",
            "passed-unnoticed",
        )


def test_healthy_jobs_are_clean(sets: Path) -> None:
    names = [name for name, fault in BY_NAME.items() if fault.is_healthy]
    assert len(names) == 4
    assert {judged(sets / "run" / name / "bundle")["verdict"] for name in names} == {"clean"}
