"""The first fix of a rank that waits in a library, from its stack and the program's source; beside each a look-alike that keeps the old advice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.analyze.small_programs import frame, program, thread
from unhang.model import Case, Finding, Frame, ThreadStack
from unhang.model.frames import KernelWait, WaitingTask
from unhang.rules.item_repairs import of_worker
from unhang.rules.known_repairs import known_waits
from unhang.testing import judge, make_case

_SITE, _LIB = "/env/lib/python3.11/site-packages/", "/usr/lib/python3.11/"
_QUEUE, _EVENT = Frame(f"{_LIB}queue.py", 171, "get"), Frame(f"{_LIB}threading.py", 327, "wait")
_CALLS = {0: [], 1: ["all_reduce[8]@main:9 !"]}


def _at(place: str) -> Frame:
    file, _, function = place.rpartition(":")
    return Frame(f"{_LIB if file.startswith('/') else _SITE}{file.lstrip('/')}", 100, function or "recv_string")


def _job(stack: ThreadStack, *others: ThreadStack, peer: str = "main:9>~comm", tasks: Any = ()) -> Case:
    case = make_case(_CALLS, world=2, hang="suspected", stacks={0: stack, 1: peer})
    mine = replace(case.ranks[0], stacks=(stack, *others), tasks=tuple(tasks))
    return replace(case, ranks={**case.ranks, 0: mine})


def _first(case: Case) -> Finding:
    found = judge(case).findings[0]
    assert (found.cause, found.culprit_ranks) == ("rank-stuck-in-user-code", (0,))
    return found


_POOLS = {
    "urllib3/connectionpool.py:_get_conn": (_QUEUE, "page = session.get(url, stream=True)", "page.close()", "with session.get(url, stream=True) as page:"),
    "httpcore/_sync/connection_pool.py:wait_for_connection": (_EVENT, "page = client.send(url, stream=True)", "page.read()", "finally: page.close()"),
    "sqlalchemy/pool/impl.py:_do_get": (_EVENT, "page = engine.connect()", "page.close()", "with engine.connect() as page:"),
    "psycopg_pool/pool.py:getconn": (_EVENT, "page = pool.getconn()", "pool.putconn(page)", "finally: pool.putconn(page)"),
    "redis/connection.py:get_connection": (_QUEUE, "page = client.pubsub()", "page.close()", "finally: page.close()"),
}  # fmt: skip


@pytest.mark.parametrize("place", _POOLS)
def test_a_pool_is_empty_and_a_line_does_not_give_back(place: str, tmp_path: Path) -> None:
    above, takes, gives, fix = _POOLS[place]
    for is_kept in (True, False):
        last = "print(page.status)" if is_kept else gives
        file = program(
            tmp_path,
            f"def ask(session, client, engine, pool, url):\n    {takes}  # here\n    {last}\n",
            f"{is_kept}.py",
        )
        stack = ThreadStack("MainThread", (above, _at(place), frame(file, "here")), is_main=True)
        found = _first(_job(stack))
        assert (fix in (found.fixes[0].advice or "")) is is_kept, found.fixes[0]


def test_a_pool_of_which_another_thread_has_a_connection(tmp_path: Path) -> None:
    text = "def ask(session, url):\n    page = session.get(url, stream=True)  # here\n    work(page.status)  # has\n"
    file = program(tmp_path, text)
    stack = ThreadStack(
        "MainThread", (_QUEUE, _at("urllib3/connectionpool.py:_get_conn"), frame(file, "here")), is_main=True
    )
    reads = thread(_at("urllib3/response.py:read"), frame(file, "has"))
    assert "with session.get" in (_first(_job(stack)).fixes[0].advice or "")
    assert "with session.get" not in (_first(_job(stack, reads)).fixes[0].advice or "")
    assert "with session.get" not in (_first(_job(stack, thread(frame(file, "has")))).fixes[0].advice or "")


@pytest.mark.parametrize(
    "place", ["aiohttp/connector.py:_wait_for_available_connection", "asyncpg/pool.py:_acquire_impl"]
)
def test_a_pool_of_tasks_is_empty(place: str, tmp_path: Path) -> None:
    verb = "get" if "aiohttp" in place else "acquire"
    asks = f"async def ask(session):\n    page = await session.{verb}()\n    print(page.status)\n"
    text = f"{asks}async def main(session):\n    async with session.{verb}() as page:  # here\n        pass\n"
    file = program(tmp_path, f"{text}def begin():\n    asyncio.run(main())  # begins\n")
    at, begins = frame(file, "here"), frame(file, "begins")
    loop = Frame(f"{_LIB}asyncio/base_events.py", 1884, "_run_once")
    main = ThreadStack("MainThread", (Frame(f"{_LIB}selectors.py", 468, "select"), loop, begins), is_main=True)
    task = WaitingTask("Task-1", (_at(place), at))
    assert f"async with session.{verb}() as page:" in (_first(_job(main, tasks=[task])).fixes[0].advice or "")
    other = WaitingTask("Task-2", (Frame(f"{_LIB}asyncio/locks.py", 2, "wait"), at))
    assert "async with" not in (_first(_job(main, tasks=[other])).fixes[0].advice or "")


_BY_STACK = {
    "torch/utils/file_baton.py:wait": "-name lock -print -delete",
    "wandb/sdk/lib/apikey.py:prompt_api_key": "WANDB_MODE=offline",
    "/pdb.py:interaction": "no breakpoint()",
    "/getpass.py:unix_getpass": "from os.environ",
    "tensorboard/summary/writer/event_file_writer.py:flush": "SummaryWriter(log_dir=...)",
    "wandb/sdk/wandb_run.py:_finish": "wandb sync",
    "zmq/sugar/socket.py:": "zmq.RCVTIMEO",
    "grpc/_channel.py:_blocking": "timeout=60",
    "requests/sessions.py:send": "timeout=(10, 60)",
}


@pytest.mark.parametrize("place", _BY_STACK)
def test_where_it_stands_tells_the_repair(place: str, tmp_path: Path) -> None:
    at = frame(program(tmp_path, "def work(thing):\n    thing.run()  # here\n"), "here")
    asleep = KernelWait("futex")
    found = _first(_job(ThreadStack("MainThread", (_at(place), at), is_main=True, kernel=asleep)))
    fix = found.fixes[0]
    assert _BY_STACK[place] in f"{fix.advice}{fix.setting}{fix.command}", fix
    elsewhere = _first(
        _job(ThreadStack("MainThread", (Frame(f"{_SITE}other/{place.partition(':')[0]}x", 3, "f"), at), is_main=True))
    )
    assert elsewhere.fixes[0].kind == "limit"


def test_a_build_that_a_peer_makes_and_a_writer_that_is_at_work(tmp_path: Path) -> None:
    at = frame(program(tmp_path, "def work(thing):\n    thing.run()  # here\n"), "here")
    writer = thread(_QUEUE, _at("tensorboard/summary/writer/event_file_writer.py:run"))
    flush = _at("tensorboard/summary/writer/event_file_writer.py:flush")
    stack = ThreadStack("MainThread", (Frame(f"{_LIB}queue.py", 90, "join"), flush, at), is_main=True)
    assert "TensorBoard" not in _first(_job(stack, writer)).fixes[0].title
    baton = ThreadStack("MainThread", (_at("torch/utils/file_baton.py:wait"), at), is_main=True)
    builds = ThreadStack("MainThread", (_at("torch/utils/cpp_extension.py:_run_ninja_build"), at), is_main=True)
    case = _job(baton)
    case = replace(case, ranks={**case.ranks, 1: replace(case.ranks[1], stacks=(*case.ranks[1].stacks, builds))})
    assert "lock file" in _first(_job(baton)).fixes[0].title
    peers = {r: replace(e, stacks=(builds,)) if r == 1 else e for r, e in case.ranks.items()}
    assert all(
        "Remove the lock file" not in f.title for x in judge(replace(case, ranks=peers)).findings for f in x.fixes
    )


def test_a_line_that_asks_at_the_terminal(tmp_path: Path) -> None:
    file = program(tmp_path, "def work():\n    name = input('name? ')  # here\n    return find(name)  # other\n")
    for mark, is_asked in (("here", True), ("other", False)):
        stack = ThreadStack("MainThread", (frame(file, mark),), is_main=True, kernel=KernelWait("read", "terminal"))
        assert ("command line" in (_first(_job(stack)).fixes[0].advice or "")) is is_asked


def test_a_soft_lock_stays_when_its_process_dies(tmp_path: Path) -> None:
    for name, is_soft in (("SoftFileLock", True), ("FileLock", False)):
        at = frame(
            program(
                tmp_path, f"def work(path):\n    with filelock.{name}(path):  # here\n        pass\n", f"{name}.py"
            ),
            "here",
        )
        found = _first(_job(ThreadStack("MainThread", (_at("filelock/_api.py:acquire"), at), is_main=True)))
        assert "a lock file" in found.title
        assert ("filelock.FileLock(...)" in (found.fixes[0].advice or "")) is is_soft


_LOADER = tuple(
    Frame(f"{_SITE}torch/utils/data/{file}.py", 50, name)
    for file, name in (("_utils/fetch", "fetch"), ("dataloader", "_next_data"))
)


def test_a_data_set_that_waits_in_the_process_of_the_rank_has_no_worker(tmp_path: Path) -> None:
    file = program(
        tmp_path,
        "def __getitem__(self, i):\n    return ask(i)  # here\ndef serve():\n    loop()  # serves\nfor batch in loader:  # loop\n    pass\n",
    )
    socket, mine = Frame(f"{_LIB}socket.py", 706, "readinto"), (frame(file, "here"), *_LOADER, frame(file, "loop"))
    child = ThreadStack(
        "MainThread",
        (Frame(f"{_LIB}socketserver.py", 233, "serve_forever"), frame(file, "serves")),
        True,
        process_id=4711,
    )
    found = _first(_job(ThreadStack("MainThread", (socket, *mine), is_main=True), child))
    assert found.location is not None
    assert found.location.line == 2
    assert "data loader" not in found.title
    slow = judge(_job(ThreadStack("MainThread", mine, is_main=True), child)).findings[0]
    assert (slow.cause, slow.location and slow.location.line) == ("dataloader-hang", 2)
    assert "worker" not in slow.title
    worker = replace(
        child, frames=(*child.frames, Frame(f"{_SITE}torch/utils/data/_utils/worker.py", 349, "_worker_loop"))
    )
    loader = ThreadStack("MainThread", (_QUEUE, *_LOADER, frame(file, "loop")), is_main=True)
    stuck = judge(_job(loader, worker)).findings[0]
    assert stuck.cause == "dataloader-hang"
    assert "whose worker stands at serve" in stuck.title.replace("stood", "stands")


def test_a_listener_that_authenticates_one_that_says_nothing(tmp_path: Path) -> None:
    file = program(tmp_path, "def ask(place):\n    return Client(place, authkey=key)  # here\n")
    mine = ThreadStack(
        "MainThread", (_at("/multiprocessing/connection.py:answer_challenge"), frame(file, "here")), is_main=True
    )
    for place in ("deliver_challenge", "accept"):
        serves = ThreadStack(
            "serve", (_at(f"/multiprocessing/connection.py:{place}"), frame(file, "here")), is_main=False
        )
        title = _first(_job(mine, serves)).fixes[0].title
        assert title.startswith("Let the listener authenticate") is (place == "deliver_challenge")


@pytest.mark.parametrize(
    ("serves", "is_told"),
    [
        (("/http/server.py:handle_one_request", "/socketserver.py:serve_forever"), True),
        (("/http/server.py:handle_one_request", "/socketserver.py:process_request_thread"), False),
        (("/selectors.py:select", "/socketserver.py:serve_forever"), False),
    ],
    ids=["its only thread has one connection", "each has a thread", "it has none"],
)
def test_a_server_with_one_thread_keeps_a_connection(serves: tuple[str, ...], is_told: bool, tmp_path: Path) -> None:
    file = program(tmp_path, "def ask(conn):\n    return conn.getresponse()  # here\n")
    reads = (_at("/socket.py:readinto"), _at("/http/client.py:_read_status"), frame(file, "here"))
    server = ThreadStack("server", (*map(_at, serves), frame(file, "here")), is_main=False)
    found = _first(_job(ThreadStack("MainThread", reads, is_main=True), server))
    assert found.fixes[0].title.startswith("Serve each connection") is is_told


@pytest.mark.parametrize("given", ["preexec_fn=policy.apply", "start_new_session=True"])
def test_a_child_that_stands_before_its_program(given: str, tmp_path: Path) -> None:
    file = program(tmp_path, f"def thin(ship):\n    return subprocess.run(tool, {given})  # here\n")
    stack = ThreadStack("MainThread", (_at("/subprocess.py:_execute_child"), frame(file, "here")), is_main=True)
    assert any(f.title.startswith("Take no lock in preexec_fn") for f in _first(_job(stack)).fixes) is (
        "preexec" in given
    )


@pytest.mark.parametrize(
    "made", ["torch/distributed/distributed_c10d.py:init_process_group", "torch/serialization.py:load"]
)
def test_a_child_that_takes_itself_for_the_rank(made: str, tmp_path: Path) -> None:
    file = program(tmp_path, "def score(tool):\n    return subprocess.run(tool)  # here\n")
    tool = program(tmp_path, "def setup():\n    join()  # here\n", "tool.py")
    stack = ThreadStack("MainThread", (_at("/subprocess.py:communicate"), frame(file, "here")), is_main=True)
    child = ThreadStack("MainThread", (_at(made), frame(tool, "here")), is_main=True, process_id=77)
    found = _first(_job(stack, child))
    assert any("takes itself for rank 0" in f.title for f in found.fixes) is ("init_process_group" in made)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("gate.wait()", "not told"),
        ("tokens = split(rows)", "no fork"),
        ("while not os.path.exists(rows): time.sleep(0.1)", "polls"),
        ("for row in rows: time.sleep(row)", "no fork"),
    ],
)
def test_a_worker_that_waits_to_be_told_is_no_matter_of_forks(line: str, name: str, tmp_path: Path) -> None:
    place = frame(program(tmp_path, f"def item(gate, rows):\n    {line}  # here\n"), "here")
    assert of_worker(place, None)[0] == name


def test_every_row_says_what_to_change() -> None:
    for row in known_waits():
        assert row.at or row.calls, row
        assert row.fix.advice or row.fix.setting or row.fix.command, row
        assert bool(row.gives) == bool(row.takes), row


_OWN_LOCK = """
class Lock:
    def acquire(self):
        while self.store.compare_set(self.key, "free", self.owner).decode() != self.owner:
            time.sleep(0.01)  # spins
    def release(self):
        self.store.set(self.key, "free")
class Registry:
    def column(self, name):
        self.lock.acquire()  # here
        if name in self.table:
            LEAVES
            return self.table[name]
        self.lock.release()
        return self.add(name)
"""


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_lock_of_the_programs_own_that_one_way_keeps(is_kept: bool, tmp_path: Path) -> None:
    file = program(tmp_path, _OWN_LOCK.replace("LEAVES", "self.count()" if is_kept else "self.lock.release()"))
    stack = ThreadStack("MainThread", (frame(file, "spins"), frame(file, "here")), is_main=True)
    title = "Give it back on every way: one way out of the function keeps what it took"
    assert (_first(_job(stack)).fixes[0].title == title) is is_kept


_SANDBOX = """
async def run(source):
    proc = await asyncio.create_subprocess_exec(source)
    try:
        out, _ = await asyncio.wait_for(proc.communicate(), 2)
    except asyncio.TimeoutError:
        proc.{ends}()
        out, _ = await proc.communicate()  # here
def grade(sources):
    asyncio.run(all_of(sources))  # begins
async def all_of(sources):
    await asyncio.gather(*map(run, sources))  # gathers
"""


@pytest.mark.parametrize("ends", ["kill", "terminated_by"])
def test_a_task_that_reads_what_a_program_that_was_killed_has_left(ends: str, tmp_path: Path) -> None:
    file = program(tmp_path, _SANDBOX.format(ends=ends))
    begins, gathers, at = (frame(file, mark) for mark in ("begins", "gathers", "here"))
    loop = Frame(f"{_LIB}asyncio/base_events.py", 1884, "_run_once")
    main = ThreadStack("MainThread", (Frame(f"{_LIB}selectors.py", 468, "select"), loop, begins), is_main=True)
    tasks = [
        WaitingTask("Task-9", (Frame(f"{_LIB}asyncio/subprocess.py", 200, "communicate"), at), ("Task-10",)),
        WaitingTask("Task-10", (Frame(f"{_LIB}asyncio/streams.py", 540, "_wait_for_data"),)),
        WaitingTask("Task-1", (gathers,), ("Task-9",)),
    ]
    found = _first(_job(main, tasks=tasks))
    assert found.location is not None
    assert (found.location.line, "the output of a child process" in found.title) == (at.line, True)
    assert ("os.killpg" in (found.fixes[0].advice or "")) is (ends == "kill")
