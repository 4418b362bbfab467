"""Which process a rank must be that never announced itself; where there is a choice, none is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.slowness import slowness

from unhang.watch.process_tree import descendants_of
from unhang.watch.ranks import adopt, disown, is_adopted, unregistered

# Forks children alike and starts one of another command, tells their pids, and ends when stdin does.
LAUNCHER = """
import os, subprocess, sys
pids = []
for _ in range(int(sys.argv[1])):
    pid = os.fork()
    if not pid:
        sys.stdin.read()
        os._exit(0)
    pids.append(pid)
other = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"])
print(*pids, other.pid, flush=True)
sys.stdin.read()
other.wait()
for pid in pids:
    os.waitpid(pid, 0)
"""
# A rank with a helper that inherits its number.
RANK = """
import subprocess, sys
helper = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"])
print(helper.pid, flush=True)
sys.stdin.read()
helper.wait()
"""


class Started:
    """Processes that end when their stdin is closed."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def __call__(self, code: str, *arguments: str, **environment: str) -> tuple[int, list[int]]:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.processes.append(process)
        assert process.stdout is not None
        return process.pid, [int(word) for word in process.stdout.readline().split()]


@pytest.fixture
def start() -> Iterator[Started]:
    started = Started()
    yield started
    for process in started.processes:
        process.communicate(timeout=20 * slowness())


def members(launcher: int) -> list[int]:
    return [process.pid for process in descendants_of(launcher)]


def test_the_one_sibling_that_is_left_is_the_missing_rank(start: Started) -> None:
    launcher, (one, two, three, other) = start(LAUNCHER, "3")
    assert other in members(launcher)
    assert unregistered({1}, [one, three], members(launcher)) == {1: two}


def test_with_a_choice_nobody_is_named(start: Started) -> None:
    launcher, (one, two, three, other) = start(LAUNCHER, "3")
    assert unregistered({1}, [one], members(launcher)) == {}
    assert unregistered({1, 2}, [one], members(launcher)) == {}
    assert unregistered({3}, [one, two, three], members(launcher)) == {}, "another command"
    assert unregistered({1}, [], [other]) == {}


def test_the_number_in_the_environment_tells_and_its_helpers_only_inherit_it(start: Started) -> None:
    pid, (helper,) = start(RANK, RANK="2")
    known, (own_helper,) = start(RANK, RANK="0")
    everybody = [pid, helper, known, own_helper]
    assert unregistered({2}, [known], everybody) == {2: pid}
    assert unregistered({1, 2}, [known], everybody) == {2: pid}
    assert unregistered({1}, [known], everybody) == {}
    again, (helper_again,) = start(RANK, RANK="2")
    assert unregistered({2}, [known], [*everybody, again, helper_again]) == {}, "two claim the number"


def test_only_what_did_not_announce_itself_is_disowned(tmp_path: Path) -> None:
    adopt(tmp_path, {0: 11, 1: 12})
    first, second = tmp_path / "ranks" / "r0-11", tmp_path / "ranks" / "r1-12"
    (second / "identity.json").write_text(json.dumps({"rank": 1, "pid": 12, "world_size": 2}))
    assert (is_adopted(first), is_adopted(second), is_adopted(tmp_path)) == (True, False, False)
    disown(first)
    disown(second)
    assert (first.exists(), second.exists()) == (False, True)
