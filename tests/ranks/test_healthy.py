"""Jobs without a fault, watched impatiently: nobody is accused, and the job ends as it would have."""

from pathlib import Path

import pytest

from .faults import HEALTHY, Case
from .harness import check_files, check_healthy, run_job
from .live import params


@pytest.mark.parametrize("case", params(HEALTHY))
def test_nobody_is_accused(case: Case, tmp_path: Path) -> None:
    result = run_job(case, tmp_path)
    check_healthy(result, case)
    check_files(result)
