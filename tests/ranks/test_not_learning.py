"""Jobs that end well: told when they have trained nothing, and only then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.slowness import slowness

from .faults import HERE
from .harness import _unhang


def _report_of(tmp_path: Path, *ways: str) -> dict[str, Any]:
    job = warm.forkrun("--eager", 1, HERE / "programs" / "few_steps.py", *ways)
    command = [*_unhang(), "run", "--report-dir", str(tmp_path / "report"), "--", *job]
    done = warm.run(command, tmp_path, 50 * slowness())
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((tmp_path / "report" / "report.json").read_text())
    return report


@pytest.mark.parametrize(
    ("ways", "title"),
    [
        (("train", "never"), "no optimizer step was taken: the loss scaler left out all 48"),
        (
            ("train", "then"),
            "the last 27 optimizer steps were all left out by the loss scaler, after 21 that were taken",
        ),
        (("train", "plain", "never"), "the loss or its gradient is NaN in each of the last 48 lines"),
    ],
)
def test_a_job_that_trains_nothing_is_told_so(ways: tuple[str, ...], title: str, tmp_path: Path) -> None:
    report = _report_of(tmp_path, *ways)
    assert report["outcome"] == "clean"
    (finding,) = report["findings"]
    assert (finding["cause"], finding["culprit_ranks"]) == ("not-learning", [])
    assert finding["title"].startswith(title)


@pytest.mark.parametrize(
    "ways", [("train", "once"), ("train", "accumulate"), ("evaluate",), ("by_hand",), ("train", "plain")]
)
def test_a_healthy_job_has_no_finding(ways: tuple[str, ...], tmp_path: Path) -> None:
    report = _report_of(tmp_path, *ways)
    assert (report["outcome"], report["findings"]) == ("clean", [])
