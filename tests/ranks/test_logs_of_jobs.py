"""Jobs that fail under plain torchrun: the cause from nothing but what they print."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import warm
from tests.slowness import slowness
from unhang.model import Diagnosis
from unhang.read.logs.case import log_case
from unhang.rules.registry import judge

from .faults import HERE

RANKS = 3
# What is printed decides: a rank that sleeps, or misses a barrier, prints nothing of why.
EXPECTED = {
    "exception": ("user-exception", (1,)),
    "early": ("rank-exited-early", (1,)),
    "killed": ("rank-crashed-earlier", (1,)),
    "size": ("size-mismatch", ()),
    "monitored": ("unknown", (1,)),
    "late_rank": ("rendezvous-incomplete", (1,)),
    "other_shape": ("size-mismatch", (1,)),
    "other_call": ("code-divergence", (1,)),
}
# What these print is judged in every run too: in tests/incidents and the rules' examples.
OFTEN = ("exception",)


def printed_by(fault: str, tmp_path: Path) -> tuple[str, int]:
    debug = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"} if fault.startswith("other") else {}
    command = [
        *warm.TORCHRUN,
        "--standalone",
        "--nproc-per-node",
        str(RANKS),
        str(HERE / "programs" / "failing.py"),
        fault,
    ]
    with (tmp_path / "log").open("w+", errors="replace") as log:
        job = warm.start(command, tmp_path, log.fileno(), {**os.environ, "OMP_NUM_THREADS": "1", **debug})
        try:
            job.communicate(100 * slowness())
        finally:
            warm.end(job)
        log.seek(0)
        return log.read(), job.returncode or 0


def diagnosis_of(log: str) -> Diagnosis:
    return judge(log_case(log))


@pytest.mark.torchrun
@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", [pytest.param(f, marks=[pytest.mark.whole] * (f not in OFTEN)) for f in EXPECTED])
def test_the_log_alone_tells(fault: str, tmp_path: Path) -> None:
    log, code = printed_by(fault, tmp_path)
    assert code != 0, log
    findings = diagnosis_of(log).findings
    assert findings, log
    assert (findings[0].cause, findings[0].culprit_ranks) == EXPECTED[fault], log


@pytest.mark.whole
@pytest.mark.torchrun
@pytest.mark.timeout(120)
def test_a_job_that_ends_well_draws_nothing(tmp_path: Path) -> None:
    log, code = printed_by("none", tmp_path)
    assert code == 0, log
    assert diagnosis_of(log).findings == ()
