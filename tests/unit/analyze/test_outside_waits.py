"""Waits for what is outside of the program's own threads; beside each one that looks alike and is sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.analyze.small_programs import frame, program, thread
from unhang.analyze.waits.outside_waits import (
    asks_at,
    asks_for_pauses,
    exception_not_sent,
    forked_torch,
    left_barrier,
    left_stream,
    lost_worker,
    open_transaction,
    opens_fifo,
    timer_left_on,
    tries_for_ever,
    unbounded,
    uncommitted,
    writes_back,
)
from unhang.analyze.waits.polling import asks_database
from unhang.model import Frame, RaisedError, ThreadStack
from unhang.model.evidence import KernelWait

_LIB = "/usr/lib/python3.11/"
_WORKER = Frame(f"{_LIB}multiprocessing/pool.py", 125, "worker")
_GET = Frame(f"{_LIB}multiprocessing/queues.py", 364, "get")
_RESULT = Frame(f"{_LIB}multiprocessing/pool.py", 774, "get")
_SPAWN = Frame(f"{_LIB}multiprocessing/spawn.py", 129, "_main")

_DATABASE = """
import contextlib
import sqlite3
class Book:
    @contextlib.contextmanager
    def atomic(self):
        self.db.execute("BEGIN IMMEDIATE")  # waits
        yield
        self.db.execute("COMMIT")
    def add(self, row):
        self.db.execute("INSERT INTO rows VALUES (?)", row)  # open
        if self.pending > 9:
            self.db.commit()
    def end(self, row):
        self.db.execute("INSERT INTO rows VALUES (?)", row)
        self.db.commit()
    def all(self):
        return self.db.execute("SELECT * FROM rows").fetchall()
    def kept(self, row):
        with self.db:
            self.db.execute("INSERT INTO rows VALUES (?)", row)
def step(book, loss, amended):
    unit = book.atomic() if amended else contextlib.nullcontext()
    with unit:
        loss.backward()  # inside
    loss.backward()  # behind
"""


def test_a_line_that_waits_for_a_database(tmp_path: Path) -> None:
    file = program(tmp_path, _DATABASE)
    assert asks_database(str(file), frame(file, "waits").line) == "self.db"
    assert asks_database(str(file), frame(file, "inside").line) == ""
    other = program(tmp_path, _DATABASE.replace("import sqlite3\n", ""), "other.py")
    assert asks_database(str(other), frame(other, "waits").line) == "", "execute() of something else"


def test_a_peer_that_waits_in_its_transaction(tmp_path: Path) -> None:
    file = program(tmp_path, _DATABASE)
    held = open_transaction([frame(file, "inside")], frame(file, "waits"))
    assert held is not None
    assert (held.stands.line, held.since, held.what) == (25, 24, "unit")
    assert open_transaction([frame(file, "behind")], frame(file, "waits")) is None


def test_writes_that_stay_without_a_commit(tmp_path: Path) -> None:
    file = program(tmp_path, _DATABASE)
    assert uncommitted(str(file)) == [frame(file, "open").line], (
        "not those that commit at once, read, or stand in a block"
    )


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("with open(path, 'w') as pipe:  # here\n    pipe.write(x)", ("path", "'w'", "pipe", True)),
        (
            "self.pipe = open(fifo, mode='w', buffering=1)  # here",
            ("fifo", "mode='w', buffering=1", "self.pipe", False),
        ),
        ("pipe = open(path)  # here", None),
        ("pipe = open(path, 'r')  # here", None),
    ],
    ids=["with", "set", "read", "read by mode"],
)
def test_how_a_fifo_is_opened(line: str, found: tuple[object, ...] | None, tmp_path: Path) -> None:
    file = program(tmp_path, f"{line}\n")
    assert opens_fifo(frame(file, "here")) == found


_POOL = """
import torch
def features(clip):
    return clip - 0.5  # op
def load(pool, clips):
    return pool.map(features, clips)  # waits
"""


def _child(*frames: Frame, call: str = "futex", file: str = "") -> ThreadStack:
    return ThreadStack("MainThread", frames, kernel=KernelWait(call, file), process_id=7)


def test_a_pool_whose_workers_have_no_work_left(tmp_path: Path) -> None:
    file = program(tmp_path, _POOL)
    waits, idle, busy = thread(_RESULT, frame(file, "waits")), _child(_GET, _WORKER), _child(frame(file, "op"), _WORKER)
    found = lost_worker(waits, [idle, idle])
    assert found is not None
    assert found == "pool.map"
    assert lost_worker(waits, [idle, busy]) is None, "one is at work"
    assert lost_worker(waits, []) is None, "no worker was seen"
    assert lost_worker(thread(frame(file, "waits")), [idle]) is None, "the rank does not wait for the pool"


def test_a_forked_process_that_waits_for_threads_of_its_parent(tmp_path: Path) -> None:
    at = frame(program(tmp_path, _POOL), "op")
    assert forked_torch([_child(at, _WORKER)]) == at
    assert forked_torch([_child(at, _WORKER, call="")]) is None, "it does not sleep"
    assert forked_torch([_child(at, _WORKER, _SPAWN)]) is None, "it was not forked"
    assert forked_torch([_child(_GET, at, _WORKER)]) is None, "it waits for something else"
    told = frame(program(tmp_path, "import torch\ndef play(go):\n    go.acquire()  # told\n", "told.py"), "told")
    assert forked_torch([_child(told, _WORKER)]) is None, "it waits to be told, in C"
    plain = frame(program(tmp_path, _POOL.replace("import torch\n", ""), "plain.py"), "op")
    assert forked_torch([_child(plain, _WORKER)]) is None, "torch has no part in it"


def test_a_process_that_asks_something_reads_at_another_line_than_those_of_other_ranks(tmp_path: Path) -> None:
    file = program(tmp_path, "def ask():\n    return input()  # asks\ndef main():\n    read()  # serves\n")
    asks, serves = (_child(frame(file, mark), call="read", file="pipe") for mark in ("asks", "serves"))
    assert asks_at([asks], [serves]) == frame(file, "asks")
    assert asks_at([serves], [serves]) is None
    assert asks_at([asks], []) is None, "where it usually reads is not known"


_STREAM = """
class Learner:
    def publish(self, weights):
        ray.get(self.{asked}.set.remote(weights))  # waits
    def collect(self):
        stream = self.sampler.episodes.options(num_returns="streaming").remote()
        for ref in stream:
            if self.enough():
                {leaves}
"""


@pytest.mark.parametrize(
    ("asked", "leaves", "is_told"),
    [("sampler", "break", True), ("other", "break", False), ("sampler", "log()", False)],
    ids=["left", "another actor", "read to its end"],
)
def test_a_stream_that_is_left(asked: str, leaves: str, is_told: bool, tmp_path: Path) -> None:
    found = left_stream(frame(program(tmp_path, _STREAM.format(asked=asked, leaves=leaves)), "waits"))
    assert (found is not None) is is_told
    assert found is None or (found.loop, found.leaves, found.stream) == (7, 9, "stream")


@pytest.mark.parametrize(("tries", "line"), [("max_task_retries=-1", 3), ("max_task_retries=3", None)])
def test_calls_that_ray_makes_for_ever(tries: str, line: int | None, tmp_path: Path) -> None:
    text = f"import ray\nray.get(x)  # waits\n@ray.remote(max_restarts=-1, {tries})\nclass Decoder:\n    pass\n"
    found = tries_for_ever(frame(program(tmp_path, text), "waits"))
    assert (found.at if found else None) == line


@pytest.mark.parametrize(("more", "line"), [("", 2), (", respect_retry_after_header=False", None)])
def test_where_a_server_may_say_how_long_to_wait(more: str, line: int | None, tmp_path: Path) -> None:
    program(tmp_path, f"from urllib3.util import Retry\npolicy = Retry(total=4{more})\n", "client.py")
    found = asks_for_pauses(str(program(tmp_path, "import client\n")))
    assert (found[1] if found else None) == line


_LANES = """
class Lanes:
    def drive(self, lane):
        while True:
            self.begin.wait()
            self.end.wait()
            {ends}
    def step(self):
        self.begin.wait()  # waits
"""


@pytest.mark.parametrize(("ends", "line"), [("if lane.done: return", 7), ("lane.next()", None)])
def test_a_thread_that_leaves_its_barrier(ends: str, line: int | None, tmp_path: Path) -> None:
    found = left_barrier(frame(program(tmp_path, _LANES.format(ends=ends)), "waits"))
    assert (found.leaves if found else None) == line
    assert found is None or found.meetings == ("self.begin.wait()", "self.end.wait()")


_TIMER = """
import signal
def limited(work):
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 2)
    try:
        return work()
    finally:
        {off}signal.signal(signal.SIGALRM, before)
"""


def test_a_timer_that_is_left_on(tmp_path: Path) -> None:
    file = str(program(tmp_path, _TIMER.format(off="")))
    assert timer_left_on(file) == (file, 9, "signal.setitimer(signal.ITIMER_REAL, 0)")
    (tmp_path / "sound").mkdir()
    assert timer_left_on(str(program(tmp_path / "sound", _TIMER.format(off="signal.alarm(0); ")))) is None


@pytest.mark.parametrize(
    ("head", "found"),
    [
        ("while True", (3, "while True:", "for _ in range(1000):", "return x")),
        ("while not x.ok", (3, "while not x.ok:", "for _ in range(1000):\n    if x.ok: break", "")),
        ("for _ in range(9)", None),
    ],
)
def test_a_loop_that_nothing_counts(head: str, found: tuple[object, ...] | None, tmp_path: Path) -> None:
    text = f"\ndef root(x):\n    {head}:\n        x = x.halve()  # runs\n        if x.ok:\n            return x\n"
    assert unbounded(frame(program(tmp_path, text), "runs")) == found


_CLAIM = """
class ClaimError(ValueError):  # made
    def __init__(self, patent, offset):
        super().__init__(f"{patent}: {offset}")
"""
_RECEIVED = (
    Frame(f"{_LIB}multiprocessing/connection.py", 251, "recv"),
    Frame(f"{_LIB}multiprocessing/pool.py", 579, "_handle_results"),
)


@pytest.mark.parametrize(
    ("message", "frames", "is_told"),
    [
        ("ClaimError.__init__() missing 1 required positional argument: 'offset'", _RECEIVED, True),
        (
            "ClaimError.__init__() missing 1 required positional argument: 'offset'",
            (Frame("job.py", 9, "main"),),
            False,
        ),
        ("Claim.__init__() missing 1 required positional argument: 'offset'", _RECEIVED, False),
        ("int() argument must be a string", _RECEIVED, False),
    ],
    ids=["received", "raised by the program", "no class of the program", "another error"],
)
def test_an_exception_that_cannot_be_sent(
    message: str, frames: tuple[Frame, ...], is_told: bool, tmp_path: Path
) -> None:
    at = frame(program(tmp_path, _CLAIM), "made")
    found = exception_not_sent(RaisedError("TypeError", message, 0, frames), [at])
    assert (found is not None) is is_told
    assert found is None or (found.at.line, found.given) == (2, "(self.patent, self.offset)")


def test_a_process_that_answers_while_nobody_reads(tmp_path: Path) -> None:
    at = frame(program(tmp_path, "def serve(sock):\n    sock.sendall(answer)  # writes\n"), "writes")
    assert writes_back([_child(at, call="sendto", file="socket")]) == at
    assert writes_back([_child(at, call="recvfrom", file="socket")]) is None
    assert writes_back([_child(at, call="write", file="file answers")]) is None
