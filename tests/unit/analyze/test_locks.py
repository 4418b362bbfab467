"""Locks, places and notices that cannot come free, by the source; beside each a program that looks alike and is sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.analyze.small_programs import frame, program, thread
from unhang.analyze.waits.locks import crosswise, held_by_parent, kept_block, lost_notice
from unhang.model.frames import WaitingTask

_BOARD = """
class Board:
    def __init__(self):
        self.lock = RLock()
    def scalar(self, value):
        with self.lock:  # scalar
            self.write(value)
    @contextmanager
    def page(self):
        with self.lock:
            yield self
"""
_AVERAGE = """
class Average:
    def __init__(self, board):
        self.lock = Lock()
    def update(self, model):
        with self.lock:
            self.count += 1
            if self.board:
                self.board.scalar(1)  # update
    def outside(self):
        self.board.scalar(1)  # outside
    def weights(self):
        with self.lock:  # weights
            return self.shadow
def render(board, average):
    with board.page():
        show(average.weights())  # render
"""


@pytest.mark.parametrize("by", ["update", "outside"])
def test_each_of_two_threads_has_the_lock_of_the_other(by: str, tmp_path: Path) -> None:
    board, average = program(tmp_path, _BOARD, "board.py"), program(tmp_path, _AVERAGE, "average.py")
    main = thread(frame(board, "scalar"), frame(average, by))
    other = thread(frame(average, "weights"), frame(average, "render"))
    found = crosswise([main, other])
    assert (found is not None) is (by == "update")
    assert crosswise([main]) is None
    if found is not None:
        assert (found.mine.since, found.mine.text, found.wants.line) == (6, "self.lock", 6)
        assert found.may_leave_first
        assert not found.turned.may_leave_first


_CACHE = """
class Cache:
    def put(self):
        self.index.acquire()
        self.data.acquire()  # put
    def evict(self):
        self.{first}.acquire()
        try:
            with self.{second}:  # evict
                drop()
        finally:
            self.{first}.release()
    def done(self):
        self.data.acquire()
        self.data.release()
        with self.index:  # done
            drop()
"""


@pytest.mark.parametrize(("first", "second", "is_told"), [("data", "index", True), ("index", "data", False)])
def test_one_function_takes_two_locks_in_another_order(first: str, second: str, is_told: bool, tmp_path: Path) -> None:
    file = program(tmp_path, _CACHE.format(first=first, second=second))
    found = crosswise([thread(frame(file, "put")), thread(frame(file, "evict"))])
    assert (found is not None) is is_told
    assert found is None or (found.has_both_names and not found.may_leave_first)
    assert crosswise([thread(frame(file, "put")), thread(frame(file, "done"))]) is None  # it gave the first one back


_JUDGE = """
class Judge:
    def __init__(self):
        self.slots = Semaphore(2)
    async def score(self, text):
        async with self.slots:  # inner
            await gather(*map(self.score, halves(text)))  # outer
        await gather(*map(self.score, halves(text)))  # behind
"""


@pytest.mark.parametrize(("at", "is_told"), [("outer", True), ("behind", False)])
def test_a_place_that_a_task_keeps_while_it_awaits_who_needs_one(at: str, is_told: bool, tmp_path: Path) -> None:
    file = program(tmp_path, _JUDGE)
    tasks = [WaitingTask("A", (frame(file, at),), ("B",)), WaitingTask("B", (frame(file, "inner"),))]
    found = held_by_parent(tasks)
    assert (found is not None) is is_told
    assert found is None or (found.since, found.what) == (6, "self.slots")
    assert held_by_parent([WaitingTask("A", (frame(file, at),)), tasks[1]]) is None  # not for that task


_SLOT = """
class Slot:
    def put(self, item):
        with self.cond:
            {sets}
            self.cond.notify()
    def take(self):
        with self.cond:
            {head}
                self.cond.wait()  # takes
"""


@pytest.mark.parametrize(
    ("sets", "head", "holds"),
    [
        ("self.item = item", "if True:", "self.item is not None"),
        ("self.is_full = True", "if not self.is_full:", "self.is_full"),
        ("self.items.append(item)", "if True:", "self.items"),
        ("self.item = item", "while self.item is None:", ""),
        ("pass", "if True:", ""),
    ],
)
def test_a_notice_may_come_before_the_wait(sets: str, head: str, holds: str, tmp_path: Path) -> None:
    found = lost_notice(frame(program(tmp_path, _SLOT.format(sets=sets, head=head)), "takes"))
    assert (found.holds if found else "") == holds


_SETTLES = """
class Writer:
    def __init__(self):
        threading.Thread(target=self.run).start()
    def run(self):
        with self.changed:
            self.pending = None
            self.changed.notify_all()
    def submit(self, state):
        with self.changed:
            self.pending = state
            self.changed.notify_all()
    def settle(self):
        with self.changed:
            self.changed.wait()  # waits
"""


@pytest.mark.parametrize(("runs", "holds"), [("run", "self.pending is None"), ("other", "")])
def test_a_notice_of_the_thread_that_does_the_work_is_what_is_waited_for(runs: str, holds: str, tmp_path: Path) -> None:
    file = program(tmp_path, _SETTLES.replace("target=self.run", f"target=self.{runs}"))
    found = lost_notice(frame(file, "waits"))
    assert (found.holds if found else "") == holds


_LOCKED = """
class Cache:
    def __enter__(self):
        fcntl.flock(self.file, LOCK_EX)  # takes
def prepare(build):
    with Cache():
        build()
        dist.barrier()  # within
    dist.barrier()  # behind
"""


@pytest.mark.parametrize(("at", "line"), [("within", 6), ("behind", 0)])
def test_the_block_that_has_the_lock_on_a_file(at: str, line: int, tmp_path: Path) -> None:
    file = program(tmp_path, _LOCKED)
    found = kept_block([frame(file, at)], frame(file, "takes"))
    assert (found[1] if found else 0) == line
