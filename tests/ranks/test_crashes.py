"""Jobs that end with an error: the first rank to fail is named, not the ones that lost their connection."""

from pathlib import Path

import pytest

from .faults import CRASHES, Case
from .harness import check_fault, check_files, run_job
from .live import params


@pytest.mark.parametrize("case", params(CRASHES))
def test_the_first_failure_is_named(case: Case, tmp_path: Path) -> None:
    result = run_job(case, tmp_path)
    check_fault(case, result)
    check_files(result)
