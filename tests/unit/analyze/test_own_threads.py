"""Waits for threads of the same process that cannot end; beside each one that looks alike and ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.analyze.small_programs import frame, program, thread
from unhang.analyze.own_threads import body_waits, few_parties, keeps_alive
from unhang.model import Frame, RankEvidence, RankIdentity, ThreadStack

_LIB = "/usr/lib/python3.11/"
_RESULT = Frame(f"{_LIB}concurrent/futures/_base.py", 451, "result")
_IMPORT = Frame("<frozen importlib._bootstrap>", 120, "acquire")
_LOADS = Frame("<frozen importlib._bootstrap>", 1200, "_find_and_load")
_WAIT = Frame(f"{_LIB}threading.py", 327, "_wait")
_PUT = Frame(f"{_LIB}queue.py", 140, "put")
_ENDS = Frame(f"{_LIB}threading.py", 1590, "_shutdown")

_BODY = """
TABLE = list(pool.map(rows, range(3)))  # body
def rows(number):
    import job  # imports
def main():
    import job  # elsewhere
"""


def test_a_body_waits_for_a_thread_that_imports_its_module(tmp_path: Path) -> None:
    file = program(tmp_path, _BODY)
    main, other = thread(_RESULT, frame(file, "body"), _LOADS), thread(_IMPORT, _LOADS, frame(file, "imports"))
    found = body_waits([main, other])
    assert found is not None
    assert (found.body.line, found.imports.line, found.made) == (2, 4, "return list(pool.map(rows, range(3)))")
    assert (found.function, found.use) == ("table", "table() in place of TABLE")
    at_work = thread(frame(file, "body"), _LOADS)
    third = thread(Frame(f"{_LIB}ast.py", 5, "parse"), _LOADS, frame(file, "elsewhere"))
    assert body_waits([at_work, other]) is None, "the body is at work"
    assert body_waits([thread(_RESULT, frame(file, "body")), other]) is None, (
        "the body is that of the program: nobody imports it"
    )
    assert body_waits([main, thread(_RESULT, frame(file, "imports"))]) is None, "the thread waits for something else"
    assert body_waits([main, other, third]) is None, "a third thread imports"


_THREADS = """
import threading
def make(batches):
    batches.put(1)  # puts
def start(batches):
    threading.Thread(target=make, args=(batches,){more}).start()
"""


@pytest.mark.parametrize(
    ("more", "ends", "is_told"), [("", _ENDS, True), (", daemon=True", _ENDS, False), ("", _RESULT, False)]
)
def test_a_thread_that_keeps_the_process_at_its_end(more: str, ends: Frame, is_told: bool, tmp_path: Path) -> None:
    file = program(tmp_path, _THREADS.format(more=more))
    main = ThreadStack("MainThread", (ends,), is_main=True)
    evidence = RankEvidence(RankIdentity(0, 1, 0), stacks=(main, thread(_PUT, frame(file, "puts"))))
    found = keeps_alive(evidence)
    assert (found is not None) is is_told
    if found is not None:
        assert (found.does, found.what, found.made) == ("put", "batches", 6)
        assert found.thread == "threading.Thread(target=make, args=(batches,), daemon=True)"


_GATE = """
gate = threading.Barrier({count})
def meet():
    gate.wait()  # waits
    work()  # works
"""


@pytest.mark.parametrize(
    ("count", "other", "is_told"), [("3", "waits", True), ("n", "waits", False), ("3", "works", False)]
)
def test_a_barrier_that_counts_more_than_there_are(count: str, other: str, is_told: bool, tmp_path: Path) -> None:
    file = program(tmp_path, _GATE.format(count=count))
    stacks = [thread(_WAIT, frame(file, "waits")), thread(*((_WAIT,) if other == "waits" else ()), frame(file, other))]
    assert (few_parties(frame(file, "waits"), stacks) is not None) is is_told
