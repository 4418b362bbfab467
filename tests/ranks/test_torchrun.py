"""The same through the real torchrun, which imports torch in every rank: one hang, one crash, one clean job."""

from pathlib import Path

import pytest

from .faults import TORCHRUN, Case
from .harness import check_fault, check_healthy, run_job


@pytest.mark.torchrun
@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", TORCHRUN, ids=str)
def test_torchrun(case: Case, tmp_path: Path) -> None:
    result = run_job(case, tmp_path, limit_s=100)
    if case.outcome == "clean":
        check_healthy(result, case)
    else:
        check_fault(case, result)
