"""How several workers share the tests: real jobs, which mostly wait, run between tests that compute, so that no core idles."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[1]
# Here a test starts processes, and mostly waits for them.
JOB_FOLDERS = tuple(
    f"tests/{name}"
    for name in (
        "ranks/", "stories/", "integrations/", "inject/", "check/", "verify/", "hangbench/", "dumps/", "folklore/", "unit/recorder/",
        "unit/watch/", "attach/", "pytest_plugin/", "mcp_server/", "ci/", "unit/show/test_browser.py",
    )
)  # fmt: skip
# Files that share what one of them has worked out: here that of the recorded jobs.
_TOGETHER = {"tests/fix/test_twins.py": "tests/ranks/test_recordings.py"}
# The jobs are through when this much of the rest is: what comes last is short.
_JOBS_END = 0.8


class Lanes(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a worker that is free the next unit: a test of a real job, or a file."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def unit_of(nodeid: str) -> str:
    """What one worker runs without a break: a file, or a single test that starts a job and shares nothing."""
    file = nodeid.partition("::")[0]
    file = _TOGETHER.get(file, file)
    return nodeid if file.startswith(JOB_FOLDERS) and not _shares(file) else file


@cache
def _shares(file: str) -> bool:
    """Whether something is set up once for all tests of the file."""
    return 'scope="module"' in (ROOT / file).read_text()


def in_lanes(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests in the order in which they are given out."""
    jobs: dict[str, list[pytest.Item]] = {}
    rest: dict[str, list[pytest.Item]] = {}
    for item in items:
        lane = jobs if item.nodeid.startswith(JOB_FOLDERS) else rest
        lane.setdefault(unit_of(item.nodeid), []).append(item)
    return list(_merged(list(jobs.values()), list(rest.values())))


def _merged(jobs: list[list[pytest.Item]], rest: list[list[pytest.Item]]) -> Iterable[pytest.Item]:
    """Both in their order, the jobs spread over the first part of the rest."""
    placed = [(_JOBS_END * i / len(jobs), unit) for i, unit in enumerate(jobs)]
    placed += [(i / len(rest), unit) for i, unit in enumerate(rest)]
    return itertools.chain.from_iterable(unit for _, unit in sorted(placed, key=lambda pair: pair[0]))
