"""The first fix of a rank that waits for what is outside of its program, from the rank's stack to the words of the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.analyze.small_programs import frame, program
from unhang.model import Frame, ProcessState, RaisedError, ThreadStack
from unhang.model.frames import KernelWait
from unhang.testing import judge, make_case

_CALLS = {0: [], 1: ["broadcast[8]@receive:63 !"]}
_DATABASE = """
import sqlite3
def note(db, row):
    db.execute("INSERT INTO rows VALUES (?)", row)  # here
"""
_FIFO = """
def page(path, text):
    with open(path, "w") as pipe:  # here
        pipe.write(text)
"""
_PAUSE = """
from urllib3 import Retry
policy = Retry(4)
def ask(session):
    return session.get("/")  # here
"""
_ROUNDS = """
def root(x):
    while True:
        x = x / 2  # here
        if x < 1:
            return x
"""
_SLEEPS = Frame("/site-packages/urllib3/util/retry.py", 374, "sleep_for_retry")


@pytest.mark.parametrize(
    ("text", "above", "kernel", "state", "awaits", "fix"),
    [
        (_DATABASE, (), None, None, "waited for the lock of a database", "db.commit()   # right behind job.py:4"),
        (_FIFO, (), KernelWait("open", "FIFO"), None, "the other end of a FIFO", "os.O_WRONLY | os.O_NONBLOCK), 'w')"),
        (_PAUSE, (_SLEEPS,), KernelWait("nanosleep"), None, "a pause that a server asked for", "# job.py:3\nRetry("),
        (_ROUNDS, (), None, ProcessState("R", 1.0), "a loop without an end", "# job.py:3, in place of `while True:`\nfor _"),
    ],
    ids=["database", "fifo", "pause", "rounds"],
)  # fmt: skip
def test_the_first_fix_is_a_change_at_the_place(
    text: str, above: tuple[Frame, ...], kernel: KernelWait | None, state: Any, awaits: str, fix: str, tmp_path: Path
) -> None:
    at = frame(program(tmp_path, text), "here")
    stack = ThreadStack("MainThread", (*above, at), is_main=True, kernel=kernel)
    states = {0: state} if state else {}
    case = make_case(_CALLS, world=2, hang="suspected", stacks={0: stack, 1: "receive:63>~comm"}, states=states)
    found = judge(case).findings[0]
    assert (found.cause, found.culprit_ranks) == ("rank-stuck-in-user-code", (0,))
    assert awaits in found.title
    first = found.fixes[0]
    assert fix in (first.advice or "")


def test_an_exception_that_a_process_could_not_send_is_told_at_its_class(tmp_path: Path) -> None:
    text = (
        "class ClaimError(ValueError):  # made\n    def __init__(self, patent, offset):\n        pass\nwait()  # here\n"
    )
    file = program(tmp_path, text)
    stack = ThreadStack("MainThread", (frame(file, "here"),), is_main=True)
    message = "ClaimError.__init__() missing 1 required positional argument: 'offset'"
    error = RaisedError(
        "TypeError", message, 1, (Frame("/usr/lib/python3.11/multiprocessing/connection.py", 251, "recv"),)
    )
    case = make_case(_CALLS, world=2, hang="suspected", stacks={0: stack, 1: "receive:63>~comm"}, errors={0: error})
    found = judge(case).findings[0]
    assert (found.cause, found.culprit_ranks) == ("user-exception", (0,))
    assert found.location is not None
    assert found.location.line == 1
    assert "type(self), (self.patent, self.offset)" in (found.fixes[0].advice or "")


@pytest.mark.parametrize(("kills", "cause"), [(0, "rank-crashed-earlier"), (1, "host-oom"), (None, "host-oom")])
def test_a_worker_was_killed_for_memory_only_if_the_kernel_may_have_done_it(kills: int | None, cause: str) -> None:
    error = RaisedError(
        "RuntimeError", "DataLoader worker (pid 4711) is killed by signal: Killed. ", 1, (Frame("train.py", 9, "main"),)
    )
    case = make_case(
        _CALLS, world=2, hang=None, exit_code=1, errors={0: error}, states={0: ProcessState("gone", oom_kills=kills)}
    )
    found = judge(case).findings[0]
    assert (found.cause, found.culprit_ranks) == (cause, (0,))
