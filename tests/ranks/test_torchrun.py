"""The same through torchrun: one hang, whose processes are interpreters of their own, one crash, one clean job."""

from pathlib import Path

import pytest

from tests import warm

from .faults import TORCHRUN, Case
from .harness import check_fault, check_healthy, run_job


@pytest.mark.torchrun
@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", TORCHRUN, ids=str)
def test_torchrun(case: Case, tmp_path: Path) -> None:
    start = warm.cold if case.outcome == "hang" else warm.popen
    result = run_job(case, tmp_path, 100, start)
    if case.outcome == "clean":
        check_healthy(result, case)
    else:
        check_fault(case, result)
