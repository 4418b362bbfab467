"""The labelled set of `benchmarks/gpu_evidence`: on a device with NCCL, and a few of its jobs without one; how its answers are judged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from benchmarks.gpu_evidence import faults, make
from benchmarks.gpu_evidence.judge import ABSTAINS, RIGHT, WRONG, verdict
from tests.slowness import slowness

FOUND = {"cause": "size-mismatch", "culprit_ranks": [1]}


def truth(name: str, ranks: int = 3) -> dict[str, object]:
    return faults.BY_NAME[name].truth(ranks)


@pytest.mark.parametrize(
    ("name", "ranks", "findings", "expected"),
    [
        ("size-mismatch", 3, [FOUND], RIGHT),
        ("size-mismatch", 3, [{**FOUND, "culprit_ranks": []}], ABSTAINS),
        ("size-mismatch", 3, [{**FOUND, "culprit_ranks": [0]}], WRONG),
        ("size-mismatch", 2, [{**FOUND, "culprit_ranks": [0]}], RIGHT),
        ("size-mismatch", 2, [{**FOUND, "cause": "straggler"}], WRONG),
        ("exception", 2, [{**FOUND, "cause": "user-exception", "culprit_ranks": [0]}], WRONG),
        ("missing-call", 3, [FOUND], WRONG),
        ("missing-call", 3, [], ABSTAINS),
        ("endless-kernel", 3, [{"cause": "unknown", "culprit_ranks": [0]}], WRONG),
        ("endless-kernel", 3, [{"cause": "unknown", "culprit_ranks": [1]}], RIGHT),
        ("healthy", 3, [], RIGHT),
        ("healthy", 3, [{"cause": "unknown", "culprit_ranks": []}], WRONG),
    ],
)
def test_verdicts(name: str, ranks: int, findings: list[object], expected: str) -> None:
    assert verdict(truth(name, ranks), {"findings": findings}) == expected


def test_a_job_is_not_begun_without_time_or_device(tmp_path: Path) -> None:
    how = make.How("gloo", "cpu", 2, 3, 60, 1)
    chosen = [faults.BY_NAME["device-assert"], faults.BY_NAME["exception"]]
    index = make.make(chosen, tmp_path / "set", how, 1, 1)
    assert index == {"device-assert": {"skipped": "needs a device"}, "exception": {"skipped": "no time left"}}
    assert "0 right, 0 abstains, 0 wrong, 0 did not happen, 2 skipped" in make.table(index)


def test_each_fault_has_a_place_in_the_program() -> None:
    text = Path(make.__file__).with_name("job.py").read_text()
    assert all(f"\ndef {name.replace('-', '_')}(job: Training)" in text for name in faults.BY_NAME)
    assert len([fault for fault in faults.FAULTS if not fault.is_healthy]) >= 12


@pytest.mark.whole
@pytest.mark.timeout(180)
def test_without_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, results = tmp_path / "set", tmp_path / "results.json"
    chosen = ["healthy", "missing-call", "exception", "killed"]
    slow = slowness()
    given = ["--backend", "gloo", "--device", "cpu", "--ranks", "2"]
    given += ["--timeout", str(3 * slow), "--job-limit", str(60 * slow), "--limit", str(150 * slow)]
    assert make.main([str(out), *given, "--results", str(results), "--only", *chosen]) == 0, capsys.readouterr().out
    jobs = json.loads(results.read_text())["jobs"]
    assert sorted(jobs) == sorted(chosen)
    assert jobs["healthy"]["exit_codes"] == [0, 0]
    assert jobs["healthy"]["result"] == jobs["exception"]["result"] == jobs["missing-call"]["result"] == RIGHT
    assert jobs["killed"]["exit_codes"][1] == -9
    for name in chosen:
        assert json.loads((out / name / "truth.json").read_text())["fault"] == name
        assert (out / name / "evidence" / "logs" / "rank_1.log").exists()
    assert jobs["missing-call"]["dumps"] == ["nccl_trace_rank_0", "nccl_trace_rank_1"]


REASON = make.no_device()


@pytest.mark.skipif(bool(REASON), reason=f"needs a device with NCCL: {REASON}")
@pytest.mark.timeout(560)
def test_on_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(os.environ.get("OUT", tmp_path))
    code = make.main([str(folder / "gpu-evidence-test"), "--limit", "480", "--results", str(folder / "results.json")])
    shown = capsys.readouterr().out
    jobs = json.loads((folder / "results.json").read_text())["jobs"].values()
    assert sum("seconds" in job and job["happened"] for job in jobs) >= 12, shown
    assert sum(bool(job.get("dumps")) for job in jobs) >= 9, shown
    assert code == 0, shown
