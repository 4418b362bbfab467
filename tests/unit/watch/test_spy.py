"""Two who look at one process at the same moment both see it: a process has one tracer at a time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from unhang.watch.process import py_spy, take_stacks

ASLEEP = "import time; print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def asleep() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", ASLEEP], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_several_looks_at_the_same_moment_all_see_the_process(asleep: int) -> None:
    if py_spy() is None or not take_stacks([asleep]):
        pytest.skip("no process can be traced here")
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: take_stacks([asleep], timeout_s=15), range(6)))
    assert [asleep in stacks for stacks in found] == [True] * 6
