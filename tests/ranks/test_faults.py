"""Jobs that hang or lag: the rank, the line and the cause are named, and the job is ended."""

from pathlib import Path

import pytest

from .faults import HANGS, STRAGGLERS, Case
from .harness import check_fault, check_files, run_job
from .live import params


@pytest.mark.parametrize("case", params(HANGS + STRAGGLERS))
def test_the_fault_is_found(case: Case, tmp_path: Path) -> None:
    result = run_job(case, tmp_path)
    check_fault(case, result)
    check_files(result)
