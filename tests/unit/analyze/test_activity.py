"""What a rank does is told by frames, the recorder's marks and the kernel, not by how a line of the user reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.rules.notation import make_case
from unhang.analyze.activity import activity_of, in_communication
from unhang.analyze.hosts import doer
from unhang.analyze.situation import Situation
from unhang.model import Frame, RankEvidence, RankIdentity, ThreadStack
from unhang.model.frames import KernelWait, ThreadWait, WaitingTask
from unhang.read.stack_texts import read_pyspy

LIB = "/usr/lib/python3.11"
TORCH = "/venv/lib/python3.11/site-packages/torch"
LINES = ("x = conn.recv(9)", "h.wait()", "y = loss.item()", "work()", "with state_lock: work()")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("\n".join(LINES) + "\n")
    return path


def thread(
    *frames: Frame, name: str = "MainThread", kernel: KernelWait | None = None, ident: int = 100001
) -> ThreadStack:
    return ThreadStack(name, frames, name == "MainThread", ident=ident, kernel=kernel)


def rank(*stacks: ThreadStack, waits: tuple[ThreadWait, ...] = (), tasks: tuple[WaitingTask, ...] = ()) -> RankEvidence:
    return RankEvidence(RankIdentity(1), stacks, thread_waits=waits, tasks=tasks)


def at(program: Path, text: str) -> Frame:
    return Frame(str(program), LINES.index(text) + 1, "main")


@pytest.mark.parametrize(
    ("text", "is_open", "call", "waits"),
    [
        ("x = conn.recv(9)", True, "", False),
        ("h.wait()", True, "", True),
        ("h.wait()", True, "futex", True),
        ("h.wait()", True, "wait4", False),
        ("h.wait()", False, "", False),
        ("y = loss.item()", True, "", True),
        ("y = loss.item()", False, "", False),
        ("work()", True, "", False),
    ],
)
def test_a_line_of_the_user_alone_is_no_communication(
    program: Path, text: str, is_open: bool, call: str, waits: bool
) -> None:
    stack = thread(at(program, text), kernel=KernelWait(call) if call else None)
    assert in_communication(stack, is_open) is waits


@pytest.mark.parametrize(
    ("name", "function"), [("watch_work.<locals>.wait", "wait"), ("_watched_get.<locals>.get", "store_wait")]
)
def test_the_recorder_marks_a_wait_for_other_ranks(tmp_path: Path, program: Path, name: str, function: str) -> None:
    frames = [
        {"name": name, "filename": "/x/unhang/inside/recorder/calls.py", "line": 295},
        {"name": "main", "filename": str(program), "line": 4},
    ]
    (tmp_path / "pyspy.json").write_text(json.dumps([{"thread_name": "MainThread", "frames": frames}]))
    (stack,) = read_pyspy(tmp_path / "pyspy.json")
    assert stack.frames[0].function == function
    assert in_communication(stack, is_open=False)


@pytest.mark.parametrize(
    ("wait", "awaits"),
    [
        (KernelWait("recvfrom", "socket"), "a socket"),
        (KernelWait("poll", "socket"), "a socket"),
        (KernelWait("read", "pipe"), "a pipe"),
        (KernelWait("read", "FIFO /data/features"), "the FIFO features"),
        (KernelWait("open", "FIFO"), "the other end of a FIFO"),
        (KernelWait("flock", "file /data/cache.lock"), "the lock on the file cache.lock"),
        (KernelWait("wait4"), "a child process"),
        (KernelWait("sendto", "socket"), "room in a socket"),
    ],
)
def test_the_kernel_names_what_a_call_of_c_waits_for(program: Path, wait: KernelWait, awaits: str) -> None:
    found = activity_of(rank(thread(at(program, "work()"), kernel=wait)))
    assert (found.kind, found.awaits) == ("outside", awaits)


@pytest.mark.parametrize(
    ("library", "kind", "awaits"),
    [
        (Frame("<frozen importlib._bootstrap>", 201, "acquire"), "lock", "the lock of an import"),
        (Frame(f"{LIB}/threading.py", 1119, "join"), "lock", "a thread that does not end"),
        (Frame(f"{LIB}/subprocess.py", 2000, "wait"), "outside", "a child process"),
        (Frame(f"{TORCH}/cuda/__init__.py", 1140, "synchronize"), "outside", "its device"),
        (Frame(f"{LIB}/json/__init__.py", 346, "loads"), "user", ""),
    ],
)
def test_the_standard_library_names_a_wait(program: Path, library: Frame, kind: str, awaits: str) -> None:
    found = activity_of(rank(thread(library, at(program, "work()"))), is_open=False)
    assert (found.kind, found.awaits) == (kind, awaits)


def test_a_device_that_has_a_call_to_end_is_waited_for_with_the_others(program: Path) -> None:
    stack = thread(Frame(f"{TORCH}/cuda/__init__.py", 1140, "synchronize"), at(program, "work()"))
    assert in_communication(stack, is_open=True)
    assert not in_communication(stack, is_open=False)


@pytest.mark.parametrize("wait", [None, KernelWait("nanosleep"), KernelWait("epoll_wait"), KernelWait("poll", "")])
def test_what_is_not_known_is_its_own_code(program: Path, wait: KernelWait | None) -> None:
    assert activity_of(rank(thread(at(program, "work()"), kernel=wait))).kind == "user"


def test_the_wait_that_the_user_called_is_named_not_the_one_within(program: Path) -> None:
    inner = (Frame(f"{LIB}/threading.py", 327, "wait"), Frame(f"{LIB}/queue.py", 171, "get"))
    found = activity_of(rank(thread(*inner, at(program, "work()"))))
    assert (found.kind, found.awaits) == ("lock", "a queue")


def test_a_line_that_takes_a_lock_is_no_wait_while_the_kernel_says_another_one(program: Path) -> None:
    line = at(program, "with state_lock: work()")
    assert activity_of(rank(thread(line))).awaits == "a lock"
    assert activity_of(rank(thread(line, kernel=KernelWait("nanosleep")))).kind == "user"


LOOP = (
    Frame(f"{LIB}/selectors.py", 468, "select"),
    Frame(f"{LIB}/asyncio/base_events.py", 1884, "_run_once"),
    Frame(f"{LIB}/asyncio/base_events.py", 607, "run_forever"),
)


def test_an_idle_loop_is_where_its_last_task_is(program: Path) -> None:
    inner = at(program, "h.wait()")
    tasks = (
        WaitingTask("Task-1", (at(program, "work()"),), ("Task-2",)),
        WaitingTask("Task-2", (Frame(f"{LIB}/asyncio/queues.py", 158, "get"), inner)),
    )
    found = activity_of(rank(thread(*LOOP, at(program, "work()")), tasks=tasks))
    assert (found.frame, found.awaits, found.detail) == (inner, "a queue", "a wait for a queue in the task Task-2")


@pytest.mark.parametrize(("begun", "awaits"), [("work", "a queue"), ("other", "its tasks")])
def test_of_several_tasks_the_one_counts_whose_end_the_thread_waits_for(program: Path, begun: str, awaits: str) -> None:
    main = replace(at(program, "work()"), function=begun)
    tasks = (
        WaitingTask("Task-1", (Frame(f"{LIB}/asyncio/queues.py", 158, "get"), at(program, "h.wait()"), main)),
        WaitingTask("Task-2", (Frame(f"{LIB}/asyncio/queues.py", 158, "put"), at(program, "x = conn.recv(9)"))),
    )
    assert activity_of(rank(thread(*LOOP, at(program, "work()")), tasks=tasks)).awaits == awaits


def test_a_callback_that_runs_in_a_loop_is_its_own_code(program: Path) -> None:
    tasks = (WaitingTask("Task-2", (at(program, "h.wait()"),)),)
    found = activity_of(rank(thread(at(program, "work()"), *LOOP[1:], at(program, "work()")), tasks=tasks))
    assert (found.kind, found.frame) == ("user", at(program, "work()"))


IN_QUEUE = (Frame(f"{LIB}/threading.py", 327, "wait"), Frame(f"{LIB}/queue.py", 171, "get"))
CASE = make_case({1: ["all_reduce[8]@main:10"], 0: ["all_reduce[8]@main:10", "all_reduce[8]@main:10 !"]})()


def asked(evidence: RankEvidence, caller: int) -> tuple[str, ...]:
    """The names of the threads that are asked where this thread made the rank's calls."""
    case = replace(CASE, calls=replace(CASE.calls, threads=tuple(f"python {caller}" for _ in CASE.calls.threads)))
    found = doer(case, evidence, Situation(case).waits.edges[0])
    assert found is not None
    return tuple(stack.name for stack in found.stacks)


def test_the_thread_that_made_the_calls_is_asked(program: Path) -> None:
    other = thread(at(program, "work()"), name="metrics", ident=200002)
    evidence = rank(thread(at(program, "x = conn.recv(9)")), other)
    assert asked(evidence, 200002) == ("metrics",)
    assert asked(evidence, 100001) == ("MainThread",)


def test_an_idle_thread_is_not_blamed_for_having_no_orders(program: Path) -> None:
    idle = thread(*IN_QUEUE, at(program, "work()"), name="metrics", ident=200002)
    busy = thread(at(program, "x = conn.recv(9)"))
    assert asked(rank(busy, idle), 200002) == ("MainThread",)
    given = (ThreadWait(200002, "queue", (100001,)),)
    assert asked(rank(busy, idle, waits=given), 200002) == ("metrics", "MainThread")


def test_two_threads_that_wait_for_each_other_end_where_it_began(program: Path) -> None:
    main = thread(Frame(f"{LIB}/concurrent/futures/_base.py", 451, "result"), at(program, "work()"))
    worker = thread(*IN_QUEUE, at(program, "h.wait()"), name="worker", ident=200002)
    waits = (ThreadWait(100001, "result", (200002,)), ThreadWait(200002, "queue", (100001,)))
    assert asked(rank(main, worker, waits=waits), 100001) == ("MainThread",)


def test_a_thread_that_waits_for_other_ranks_is_not_followed(program: Path) -> None:
    main = thread(Frame(f"{LIB}/threading.py", 1119, "join"), at(program, "work()"))
    waiting = thread(
        Frame(f"{TORCH}/distributed/distributed_c10d.py", 3245, "all_reduce"),
        at(program, "work()"),
        name="comm",
        ident=200002,
    )
    assert asked(rank(main, waiting, waits=(ThreadWait(100001, "thread", (200002,)),)), 100001) == ("MainThread",)
