"""Waits within a program that cannot end, by its source; beside each a program that looks alike and is sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.analyze.small_programs import frame, program, thread
from unhang.analyze.waits.host_waits import (
    actor_circle,
    ended_task,
    forgetful_actor,
    forked_lock,
    full_queue,
    named_actor,
    not_released,
    own_loop,
    puts,
    queue_at,
    read_later,
    unanswered,
    unread_errors,
    writes_to_child,
)
from unhang.analyze.waits.locks import held_over_call, held_twice
from unhang.analyze.waits.own_threads import own_pool
from unhang.model import Frame
from unhang.model.frames import WaitingTask

_LIB = "/usr/lib/python3.11/"
_PUT = Frame(f"{_LIB}queue.py", 140, "put")
_RECV = Frame(f"{_LIB}socket.py", 706, "readinto")
_OF_A_POOL = Frame(f"{_LIB}concurrent/futures/thread.py", 58, "run")
_CALL = Frame("/site-packages/torch/distributed/distributed_c10d.py", 3252, "all_reduce")


_SCORES = """
import asyncio
class Client:
    def __init__(self):
        self.slots = asyncio.Semaphore(4)
        self.other = asyncio.Semaphore(4)
    async def repair(self, text):
        async with self.{inner}:  # inner
            return text
    async def score(self, text):
        async with self.slots:
            return await self.repair(text)  # outer
        await self.repair(text)  # behind
"""


def test_a_place_that_the_caller_has_is_waited_for(tmp_path: Path) -> None:
    file = program(tmp_path, _SCORES.format(inner="slots"))
    ways = [[frame(file, "inner")], [frame(file, "inner"), frame(file, "outer")]]
    found = held_twice(ways)
    assert found is not None
    assert (found.inner.line, found.since, found.what) == (8, 11, "self.slots")


@pytest.mark.parametrize(
    ("inner", "outer"), [("other", "outer"), ("slots", "behind")], ids=["another place", "the caller gave it back"]
)
def test_a_place_that_others_have_is_awaited(inner: str, outer: str, tmp_path: Path) -> None:
    file = program(tmp_path, _SCORES.format(inner=inner))
    assert held_twice([[frame(file, "inner"), frame(file, outer)]]) is None


_LOCKS = """
import threading
lock = threading.{kind}()
def inner():
    with lock:  # inner
        pass
def outer():
    with lock:
        inner()  # outer
"""


@pytest.mark.parametrize(("kind", "is_told"), [("Lock", True), ("RLock", False)])
def test_a_lock_that_may_be_taken_again_is_no_such_wait(kind: str, is_told: bool, tmp_path: Path) -> None:
    file = program(tmp_path, _LOCKS.format(kind=kind))
    assert (held_twice([[frame(file, "inner"), frame(file, "outer")]]) is not None) is is_told


_PREFETCH = """
class Prefetcher:
    def produce(self):
        for item in self.items:
            self.queue.put(item)  # put
    def close(self):
        self.thread.join()  # join
class Other:
    def close(self):
        self.thread.join()  # elsewhere
"""


def test_the_joined_thread_waits_for_room(tmp_path: Path) -> None:
    file = program(tmp_path, _PREFETCH)
    found = full_queue(frame(file, "join"), [thread(_PUT, frame(file, "put"))])
    assert found is not None
    assert (found.thread, found.queue, found.put.line) == ("self.thread", "self.queue", 5)


def test_a_thread_at_work_or_a_queue_of_another_object_is_not(tmp_path: Path) -> None:
    file = program(tmp_path, _PREFETCH)
    assert full_queue(frame(file, "join"), [thread(frame(file, "put"))]) is None
    assert full_queue(frame(file, "elsewhere"), [thread(_PUT, frame(file, "put"))]) is None


_SPAWNS = """
def main():
    entries = []
    mp.spawn(run, nprocs=3)  # join
    while not history.empty():
        entries.append(history.get())
def reads_before():
    while not history.empty():
        entries.append(history.get())
    mp.spawn(run, nprocs=3)  # read before
def looks_up():
    mp.spawn(run, nprocs=3)  # a mapping
    print(table.get(name, 0))
"""


def test_a_parent_reads_when_its_workers_are_through(tmp_path: Path) -> None:
    file = program(tmp_path, _SPAWNS)
    found = read_later(frame(file, "join"))
    assert found is not None
    assert (found.queue, found.get, found.spawn) == ("history", 6, "mp.spawn")
    assert found.statement == "entries.append(history.get())"


@pytest.mark.parametrize("mark", ["read before", "a mapping"])
def test_a_parent_that_reads_nothing_later_is_not_at_fault(mark: str, tmp_path: Path) -> None:
    assert read_later(frame(program(tmp_path, _SPAWNS), mark)) is None


_TAKES = """
def bare(path):
    baton = FileBaton(path)
    while not exists(path):
        if baton.try_acquire():
            build(path)
            baton.release()
        else:
            baton.wait()  # bare
def kept(path):
    baton = FileBaton(path)
    if baton.try_acquire():
        try:
            build(path)
        finally:
            baton.release()
    else:
        baton.wait()  # in a finally
def quick(path):
    baton = FileBaton(path)
    if baton.try_acquire():
        baton.release()
    else:
        baton.wait()  # nothing between
"""


def test_a_lock_is_kept_where_the_work_raises(tmp_path: Path) -> None:
    file = program(tmp_path, _TAKES)
    at = frame(file, "bare")
    found = not_released(at.file, at.line)
    assert found is not None
    assert (found.taken, found.released, found.what, found.work) == (5, 7, "baton", "build(path)")


@pytest.mark.parametrize("mark", ["in a finally", "nothing between"])
def test_a_lock_that_is_given_back_in_any_case_is_not(mark: str, tmp_path: Path) -> None:
    at = frame(program(tmp_path, _TAKES), mark)
    assert not_released(at.file, at.line) is None


_SERVES = """
def serve(stream):
    for line in stream:  # skips
        if over_quota(line):
            continue
        stream.write(answer(line))
        stream.flush()
def answers_all(stream):
    for line in stream:  # answers
        if over_quota(line):
            stream.write(refusal(line))
            continue
        stream.write(answer(line))
"""


def test_a_request_is_left_without_an_answer(tmp_path: Path) -> None:
    found = unanswered([thread(_RECV, frame(program(tmp_path, _SERVES), "skips"))])
    assert found is not None
    assert (found.way.leaves_at, found.answer) == (5, "stream.write(answer(line))\nstream.flush()")


def test_a_refusal_is_an_answer(tmp_path: Path) -> None:
    assert unanswered([thread(_RECV, frame(program(tmp_path, _SERVES), "answers"))]) is None


_ACTORS = """
import ray
@ray.remote{options}
class Learner:
    def fit(self):
        return ray.get(self.buffer.{asks}.remote())  # wait
    def version(self):
        return self.count
@ray.remote
class Buffer:
    def sample(self):
        self.drop()
        return self.rows
    def size(self):
        return len(self.rows)
    def drop(self):
        ray.get(self.learner.version.remote())
"""


@pytest.mark.parametrize(
    ("asks", "options", "is_told"),
    [("sample", "(num_cpus=1)", True), ("size", "", False), ("sample", "(max_concurrency=2)", False)],
    ids=["it asks back", "it asks nobody", "a second thread answers"],
)
def test_two_actors_wait_for_each_other(asks: str, options: str, is_told: bool, tmp_path: Path) -> None:
    file = program(tmp_path, _ACTORS.format(asks=asks, options=options))
    found = actor_circle(frame(file, "wait"))
    assert (found is not None) is is_told
    if found is not None:
        assert (found.asked, found.back.line, found.decorator, found.at.line) == (
            "version",
            17,
            "ray.remote(num_cpus=1)",
            3,
        )


_GATE = """
@ray.remote({options})
class Gate:
    def arrive(self, n): ...
    def is_open(self, n): ...
def passes(gate, n):
    {told}
    while not ray.get(gate.is_open.remote(n)):
        time.sleep(1)  # asks
"""


@pytest.mark.parametrize(
    ("options", "told", "is_told"),
    [
        ("max_restarts=-1", "ray.get(gate.arrive.remote(n))", True),
        ("max_restarts=0", "ray.get(gate.arrive.remote(n))", False),
        ("max_restarts=-1", "pass", False),
    ],
    ids=["it may be made anew", "it is not made anew", "it was told nothing"],
)
def test_an_actor_that_is_made_anew_forgets(options: str, told: str, is_told: bool, tmp_path: Path) -> None:
    file = program(tmp_path, _GATE.format(options=options, told=told))
    found = forgetful_actor(frame(file, "asks"))
    assert (found and (found.actor, found.handed, found.at.line)) == (("Gate", told, 2) if is_told else None)


@pytest.mark.parametrize("more", ["", ', lifetime="detached"', ", get_if_exists=True"])
def test_a_named_actor_ends_with_the_handle_of_its_maker(more: str, tmp_path: Path) -> None:
    text = f"""
def opens(n):
    return Judge.options(name=str(n){more}).remote(n)
def finds(n):
    while True:
        try: return ray.get_actor(str(n))
        except ValueError: time.sleep(1)  # looks
"""
    found = named_actor(frame(program(tmp_path, text), "looks"))
    assert (found and (found[0].line, found[1])) == (None if more else (3, "Judge.options(name=str(n))"))


_EXCLUSIVE = """
def trains(x):
    with lock:
        dist.all_reduce(x)  # calls
def feeds(x):
    with lock:  # waits
        dist.broadcast(x)
def alone(x):
    dist.all_reduce(x)  # calls without
"""


def test_a_lock_is_held_over_a_call(tmp_path: Path) -> None:
    file = program(tmp_path, _EXCLUSIVE)
    waiting, calls, free = (frame(file, mark) for mark in ("waits", "calls", "calls without"))
    found = held_over_call([thread(_CALL, calls), thread(waiting)])
    assert found is not None
    assert (found.holds.line, found.waits.line, found.what) == (3, 6, "lock")
    assert held_over_call([thread(_CALL, free), thread(waiting)]) is None
    assert held_over_call([thread(_CALL, calls), thread(free)]) is None


_PUBLISHES = """
class Publisher:
    def run(self):
        self.task = self.loop.create_task(self.drain())
    async def drain(self):
        while True:
            write(await self.queue.get())
    async def offer(self, record):
        await self.queue.put(record)
    def publish(self, record):
        run_coroutine_threadsafe(self.queue.put(record), self.loop).result()  # put
    def other(self, record):
        run_coroutine_threadsafe(self.later.put(record), self.loop).result()  # another queue
"""


def test_the_task_that_took_from_a_queue_has_ended(tmp_path: Path) -> None:
    file = program(tmp_path, _PUBLISHES)
    at = frame(file, "put")
    found = ended_task(at, ())
    assert found is not None
    assert (found.made, found.task, found.coroutine, found.queue) == (4, "self.task", "self.drain", "self.queue")
    assert ended_task(at, [WaitingTask("Task-1", (Frame(str(file), 7, "drain"),))]) is None
    assert ended_task(frame(file, "another queue"), ()) is None


@pytest.mark.parametrize(("line", "is_told"), [("sort.stdin.close()", True), ("sort.stdout.close()", False)])
def test_a_program_that_writes_to_a_child_is_asked_nothing(line: str, is_told: bool, tmp_path: Path) -> None:
    assert writes_to_child(str(program(tmp_path, f"{line}\nsort.wait()\n"))) is is_told


def test_who_waits_for_room_and_for_which_queue(tmp_path: Path) -> None:
    at = frame(program(tmp_path, "def main():\n    weights.put(model)  # put\n"), "put")
    assert queue_at(at) == "weights"
    assert puts(thread(_PUT, at))
    assert not puts(thread(at))


_CACHE = """
import threading
class Cache:
    def __init__(self, lock):
        self.lock = {made}
    def get(self, key):
        with self.lock:  # waits
            return self.rows[key]
"""


@pytest.mark.parametrize(("made", "line"), [("threading.Lock()", 5), ("lock", None)], ids=["made there", "given"])
def test_where_a_lock_is_made_that_a_fork_hands_on(made: str, line: int | None, tmp_path: Path) -> None:
    found = forked_lock(frame(program(tmp_path, _CACHE.format(made=made)), "waits"))
    assert (found.at.line if found else None) == line


_NESTED = """
class Fetcher:
    def item(self, parts):
        futures = [self.{inner}.submit(self.part, p) for p in parts]
        return [f.result() for f in futures]  # waits
    def batch(self, items):
        return [self.pool.submit(self.item, parts) for parts in items]
"""


@pytest.mark.parametrize(("inner", "is_told"), [("pool", True), ("other", False)])
def test_a_pool_whose_threads_wait_for_work_in_it(inner: str, is_told: bool, tmp_path: Path) -> None:
    at = frame(program(tmp_path, _NESTED.format(inner=inner)), "waits")
    assert own_pool([thread(at)]) is None, "no thread of a pool"
    found = own_pool([thread(at, _OF_A_POOL)])
    assert (found is not None) is is_told
    assert found is None or (found.submits.line, found.function, found.pool) == (4, "item", "self.pool")


_TOOL = """
tool = Popen(["tool"], stdout=PIPE,
             stderr={where})
{reads}
"""


@pytest.mark.parametrize(
    ("where", "reads", "line"),
    [
        ("subprocess.PIPE", "", 3),
        ("PIPE", "if tool.poll(): raise OSError(tool.stderr.read())", 3),
        ("DEVNULL", "", 0),
        ("PIPE", "Thread(target=tool.stderr.read).start()", 0),
    ],
)
def test_a_pipe_of_errors_that_nobody_reads(where: str, reads: str, line: int, tmp_path: Path) -> None:
    assert unread_errors(str(program(tmp_path, _TOOL.format(where=where, reads=reads)))) == line


_AGENT = """
def run(loop, work):
    return asyncio.run_coroutine_threadsafe(work, loop).result()  # waits
def quote(loop, doc):
    return run(loop, fetch(doc))  # plain
async def answer(loop, doc):
    return quote(loop, doc)  # calls
"""
_RESULT = Frame(f"{_LIB}concurrent/futures/_base.py", 451, "result")
_LOOP = Frame(f"{_LIB}asyncio/base_events.py", 1909, "_run_once")


def test_a_loop_that_waits_for_itself(tmp_path: Path) -> None:
    waits, plain, calls = (frame(program(tmp_path, _AGENT), mark) for mark in ("waits", "plain", "calls"))
    found = own_loop([thread(_RESULT, waits, plain, calls, _LOOP)])
    assert found is not None
    assert (found.waits.line, found.calls.line, found.plain) == (3, 7, "quote")
    assert own_loop([thread(_RESULT, waits, plain)]) is None, "another thread than that of the loop"
    assert own_loop([thread(_LOOP)]) is None, "the loop waits for nothing"
