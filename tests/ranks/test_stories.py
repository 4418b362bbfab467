"""Five workloads in the shape of real trainings, each with the faults that such a training had."""

from pathlib import Path

import pytest

from .faults import STORIES, Case
from .harness import check_fault, run_job
from .live import params


@pytest.mark.parametrize("case", params(STORIES))
def test_the_fault_is_found(case: Case, tmp_path: Path) -> None:
    for attempt in range(3 if case.is_race else 1):
        (folder := tmp_path / str(attempt)).mkdir()
        result = run_job(case, folder)
        if result.report["outcome"] != "clean" or result.exit_code:
            break
    check_fault(case, result)
