"""Jobs without a fault, watched impatiently: nobody is accused, and the job ends as it would have."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.slowness import slowness

from .faults import HEALTHY, Case, healthy
from .harness import check_files, check_healthy, run_job
from .live import params


@pytest.mark.parametrize("case", params(HEALTHY))
def test_nobody_is_accused(case: Case, tmp_path: Path) -> None:
    result = run_job(case, tmp_path)
    check_healthy(result, case)
    check_files(result)


def test_a_circle_that_ends_by_a_limit_which_the_program_catches_is_left_alone(tmp_path: Path) -> None:
    """Two ranks wait in a monitored barrier for those who wait for them in another group."""
    case = healthy("ends_by_a_caught_limit")  # ends_by_a_caught_limit.py
    result = run_job(case, tmp_path)
    check_healthy(result, case)
    assert "somebody has left" in result.stdout


def test_a_circle_of_ranks_is_left_alone_where_a_thread_of_one_of_them_works(tmp_path: Path) -> None:
    """Rank 0 steps on and waits for rank 1, which waits for the thread of rank 0 that saves."""
    result = run_job(case := healthy("saves_in_a_thread", ranks=2), tmp_path)  # saves_in_a_thread.py
    check_healthy(result, case)


def test_a_sleep_that_ends_and_a_slow_end_beside_work_are_not_ended(tmp_path: Path) -> None:
    """Though the user has a suspected hang ended after three seconds: the pause lasts five, and so does the thread at the end of rank 1."""
    scale = str(max(1.0, slowness() / 2))  # as that of the limits
    case = replace(healthy("pauses_as_told", ranks=2, args=(scale,)), stall_after_s=1.5, abort_after_s=3)
    result = run_job(case, tmp_path)
    check_healthy(result, case)
