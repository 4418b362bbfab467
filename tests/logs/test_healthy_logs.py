"""Logs of jobs that ended well, with the warnings that such jobs print: no finding, whatever words are in them.

Real gloo jobs; those named nccl_* are composed from the lines that NCCL prints on success, not taken from a run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.read.logs.case import case_of_outputs, log_case
from unhang.read.output_log import parse_output
from unhang.rules.registry import judge

LOGS = sorted((Path(__file__).parent / "healthy").glob("*.log"))


def of(path: Path) -> object:
    return pytest.param(path, id=path.stem)


def test_there_are_logs() -> None:
    assert len(LOGS) >= 18


@pytest.mark.parametrize("path", [of(path) for path in LOGS])
def test_a_healthy_log_gets_no_finding(path: Path) -> None:
    diagnosis = judge(log_case(path.read_text()))
    assert [o for o in diagnosis.outcomes if o.verdict == "error"] == []
    assert [(f.rule, f.title, f.confidence) for f in diagnosis.findings] == []


@pytest.mark.parametrize("path", [of(path) for path in LOGS])
def test_nor_as_a_collector_hands_it_on(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    text = "".join(f"2026-01-14T08:12:{i % 60:02d}.5Z [pod/w-0/main] {line}\n" for i, line in enumerate(lines))
    assert [(f.rule, f.title) for f in judge(log_case(text)).findings] == []


@pytest.mark.parametrize("path", [of(path) for path in LOGS])
def test_nor_beside_the_same_log_of_another_machine(path: Path) -> None:
    data = path.read_bytes()
    outputs = [parse_output(data, "node-a.log"), parse_output(data, "node-b.log")]
    assert [(f.rule, f.title) for f in judge(case_of_outputs(outputs)).findings] == []
