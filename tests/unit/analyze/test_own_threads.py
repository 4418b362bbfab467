"""Waits for threads of the same process that cannot end; beside each one that looks alike and ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.analyze.small_programs import frame, program, thread
from unhang.analyze.waits.own_threads import body_waits, few_parties, forked_place, keeps_alive
from unhang.model import Frame, RankEvidence, RankIdentity, ThreadStack
from unhang.model.frames import KernelWait

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
gate = {maker}({count})
def meet():
    gate.wait()  # waits
    work()  # works
"""


@pytest.mark.parametrize(
    ("maker", "count", "other", "is_told"),
    [
        ("threading.Barrier", "3", "waits", True),
        ("threading.Barrier", "n", "waits", False),
        ("threading.Barrier", "3", "works", False),
        ("multiprocessing.Barrier", "3", "waits", False),
    ],
    ids=["too few", "not known", "one works", "of processes"],
)
def test_a_barrier_that_counts_more_than_there_are(
    maker: str, count: str, other: str, is_told: bool, tmp_path: Path
) -> None:
    file = program(tmp_path, _GATE.format(maker=maker, count=count))
    stacks = [thread(_WAIT, frame(file, "waits")), thread(*((_WAIT,) if other == "waits" else ()), frame(file, other))]
    assert (few_parties(frame(file, "waits"), stacks) is not None) is is_told


@pytest.mark.parametrize(("made", "is_told"), [("threading.Lock()", True), ("multiprocessing.Lock()", False)])
def test_a_lock_that_a_forked_process_got_as_it_was(made: str, is_told: bool, tmp_path: Path) -> None:
    file = program(
        tmp_path, f"HELD = {made}\ndef count():\n    with HELD:  # waits\n        pass\n    work()  # works\n"
    )
    fork = Frame(f"{_LIB}multiprocessing/popen_fork.py", 71, "_launch")
    at, works, asleep = frame(file, "waits"), frame(file, "works"), KernelWait("futex")
    child = ThreadStack("MainThread", (at, fork), True, process_id=7, kernel=asleep)
    assert (forked_place([child]) == at) is is_told
    assert forked_place([replace(child, kernel=KernelWait("read"))]) is None
    assert forked_place([replace(child, frames=(works, fork))]) is None
    assert forked_place([replace(child, frames=(at,))]) is None, "it was not forked"
