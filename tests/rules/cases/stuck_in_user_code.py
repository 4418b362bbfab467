"""The cases of rank-stuck-in-user-code."""

from __future__ import annotations

from dataclasses import replace

from tests.rules.notation import Later, log_case, make_case
from unhang.model import Case, Frame, ProcessState, ThreadStack
from unhang.model.frames import WaitingTask
from unhang.testing import Fires, Quiet, ended, path, raised

_PASTED = """\
rank 0:
    all_gather (torch/distributed/distributed_c10d.py:3075)
    step (app/train.py:41)
rank 1:
    grade (app/reward.py:33)
    step (app/train.py:40)
"""

# Two ranks in one place, and in two places.
_TWO_AWAY = _PASTED + "rank 2:\n    grade (app/reward.py:35)\n    step (app/train.py:40)\n"
_TWO_PLACES = _TWO_AWAY.replace("grade (app/reward.py:35)", "log (app/board.py:9)")

# A worker of vLLM is not idle where its loop has called something.
_UNDER_VLLM = """\
Process 288: VLLM::Worker_TP0
Thread 288 (active): "MainThread"
    run (app/kernels.py:702)
    sample_tokens (vllm/v1/worker/gpu_model_runner.py:3902)
    worker_busy_loop (vllm/v1/executor/multiproc_executor.py:736)
Process 311: VLLM::Worker_TP1
Thread 311 (active): "MainThread"
    all_gather_into_tensor (torch/distributed/distributed_c10d.py:4201)
    sample_tokens (vllm/v1/worker/gpu_model_runner.py:3877)
    worker_busy_loop (vllm/v1/executor/multiproc_executor.py:736)
"""

_UNDER_RAY = """\
(Worker rank=0 pid=710, ip=10.0.0.4) scored 15 answers
(Worker rank=1 pid=711, ip=10.0.0.4) ready
$ py-spy dump --pid 711
Process 711: ray::Worker.score
Python v3.11.13 (/opt/env/bin/python3.11)

Thread 0x7F5E9C7FA640 (active): "asyncio_0"
    verify (app/grader.py:31)
    score (app/reward.py:88)
Thread 0x7F6B11D40740 (idle): "MainThread"
    main_loop (ray/_private/worker.py:963)
$ py-spy dump --pid 710
Process 710: ray::Worker
Thread 0x7F2C604EA740 (idle): "MainThread"
    main_loop (ray/_private/worker.py:963)
$ py-spy dump --pid 502
Process 502: python -m app.train
Thread 0x7F41D8A1B740 (idle): "MainThread"
    get_objects (ray/_private/worker.py:952)
    evaluate (app/trainer.py:402)
"""

_LOST_ALARM = """\
Exception ignored in: <finalize object at 0xc02a81d4646d; dead>
Traceback (most recent call last):
  File "/opt/env/lib/python3.12/weakref.py", line 585, in __call__
    def __call__(self, _=None):
  File "/app/verify.py", line 43, in handler
    raise TimeoutError("Operation timed out!")
TimeoutError: Operation timed out!
[rank2]:[E ProcessGroupNCCL.cpp:629] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=_ALLGATHER_BASE, NumelIn=192, NumelOut=576)
[rank1]:[E ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=_ALLGATHER_BASE, NumelIn=192, NumelOut=576)
"""

_GONE = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.4]:11954@main:10"
_WAIT = {r: ["all_reduce[8]@main:10 !"] for r in (0, 2, 3)}

_COMM = dict.fromkeys((0, 2, 3), "main:10>~comm")

# Line 3 calls melt(), in which the rank stands.
_SOLVES = """def solve(lo, hi):
    HEAD:
        mid = melt((lo + hi) / 2)
        lo, hi = halves(lo, mid, hi)

def melt(x):
    return x * x
"""


def _solves(head: str) -> Later:
    """Rank 1 is busy below a loop."""
    stacks = {**_COMM, 1: "solve:3>melt:7"}
    states = {1: ProcessState("R", 1.0)}
    return make_case(_WAIT, hang="suspected", stacks=stacks, states=states, source=_SOLVES.replace("HEAD", head))


_WRITES = """def finish(done):
    done.wait()

def write(part, done):
    save(part)
    done.set()

def main(pool, done):
    pool.submit(write, part, done)
    finish(done)
"""


def _kept(text: str, beside: str = "") -> Later:
    """Rank 1 waits for an event; its work has kept an exception. `beside`: another thread of its own."""

    def made() -> Case:
        stacks = {**_COMM, 1: "main:10>finish:2>~lock"}
        case = make_case(_WAIT, hang="suspected", stacks=stacks, source=_WRITES)()
        mine = case.ranks[1]
        file = mine.main_frames[-1].file
        error = raised(text)
        error = replace(error, frames=tuple(replace(f, file=file) for f in error.frames))
        own = (ThreadStack("writer", tuple(replace(f, file=file) for f in path(beside))),) if beside else ()
        return replace(case, ranks={**case.ranks, 1: replace(mine, kept=(error,), stacks=(*mine.stacks, *own))})

    return made


_DRIVES = """import ray

def fit(workers, shards):
    losses = ray.get([workers[i].step.remote(n) for i, n in shards if n > 0])
    return losses

def step(n):
    all_reduce(n)
"""


def _driven(source: str = _DRIVES) -> Later:
    """Rank 1, an actor of Ray, has no task; the others are in the method that the driver has called."""

    def made() -> Case:
        idle = ThreadStack(
            "MainThread", (Frame("/env/site-packages/ray/_private/worker.py", 1069, "main_loop"),), is_main=True
        )
        line = 1 + next(i for i, text in enumerate(source.splitlines()) if "all_reduce" in text)
        stacks = {**dict.fromkeys((0, 2, 3), f"step:{line}>~comm"), 1: idle}
        case = make_case(
            {r: ["all_reduce[8]@step:9 !"] for r in (0, 2, 3)}, hang="suspected", stacks=stacks, source=source
        )()
        file = next(f.file for f in case.ranks[0].main_frames if f.is_user)
        gets = Frame("/env/site-packages/ray/_private/worker.py", 1007, "get_objects")
        return replace(case, launcher_stacks=(ThreadStack("MainThread", (gets, Frame(file, 4, "fit")), is_main=True),))

    return made


_DEALS = """import ray

def fit(pool, units):
    results = list(pool.map(lambda a, unit: a.step.remote(unit), units))
    return results

def step(n):
    all_reduce(n)
"""


def _dealt(by: str = "/env/site-packages/ray/util/actor_pool.py") -> Later:
    """As `_driven`, where the driver waits for the results of a pool."""

    def made() -> Case:
        case = _driven(_DEALS)()
        stack = case.launcher_stacks[0]
        frames = (stack.frames[0], Frame(by, 267, "get_next"), stack.frames[1])
        return replace(case, launcher_stacks=(replace(stack, frames=frames),))

    return made


_ASKS = """import ray

def main(workers):
    ray.get([one.fit.remote() for one in workers])

def fit(self):
    for epoch in range(9):
        for x in self.batches(epoch):
            all_reduce(x)
        if {test}:
            break
"""


def _asks(test: str) -> Later:
    """Rank 1, an actor of Ray, has ended the method in whose loop the others began another round."""

    def made() -> Case:
        idle = Frame("/env/site-packages/ray/_private/worker.py", 1069, "main_loop")
        stacks = {**dict.fromkeys((0, 2, 3), "fit:9>~comm"), 1: ThreadStack("MainThread", (idle,), is_main=True)}
        rounds = {r: ["all_reduce[8]@fit:9", *["all_reduce[8]@fit:9 !"] * (r != 1)] for r in range(4)}
        case = make_case(rounds, hang="suspected", stacks=stacks, source=_ASKS.format(test=test))()
        file = next(f.file for f in case.ranks[0].main_frames if f.is_user)
        gets = Frame("/env/site-packages/ray/_private/worker.py", 1007, "get_objects")
        return replace(case, launcher_stacks=(ThreadStack("MainThread", (gets, Frame(file, 4, "main")), is_main=True),))

    return made


_RETRIES = """import ray

@ray.method(max_task_retries=3, retry_exceptions=[OSError])
def step(self, n):
    all_reduce(n)
def fit(workers):
    ray.get([one.step.remote() for one in workers])
"""


def _retried(said: str) -> Later:
    """Rank 1, an actor of Ray, is in a method with which the others are through."""

    def made() -> Case:
        idle = ThreadStack(
            "MainThread", (Frame("/env/site-packages/ray/_private/worker.py", 1069, "main_loop"),), is_main=True
        )
        stacks = {r: "step:5>~comm" if r == 1 else idle for r in range(4)}
        rounds = {r: ["all_reduce[8]@step:5", *["all_reduce[8]@step:5 !"] * (r == 1)] for r in range(4)}
        log = f"(raylet) Task Learner.{said} failed. There are 3 retries remaining, so the task will be retried."
        case = make_case(rounds, world=4, hang="suspected", stacks=stacks, source=_RETRIES)()
        return replace(case, events=log_case(log)().events)

    return made


_REACHES = """import ray

def reachable(workers):
    found = []
    for one in workers:
        {head}
            found.append(one)
        {end}
    return found

def fit(workers):
    near = reachable(workers)
    return ray.get([one.step.remote() for one in near])

def step(n):
    all_reduce(n)
"""
_SOME = _REACHES.format(head="try:", end="except TimeoutError: pass")
_EACH = _REACHES.format(head="for _ in range(1):", end="pass")


def _reached(source: str) -> Later:
    """As `_driven`, by a list that a function of the driver has made."""

    def made() -> Case:
        case = _driven(source)()
        stack = case.launcher_stacks[0]
        frames = (stack.frames[0], replace(stack.frames[1], line=13))
        return replace(case, launcher_stacks=(replace(stack, frames=frames),))

    return made


_WIRE = """def read(sock, n):
    return sock.recv(n)

def ask(sock, data):
    sock.settimeout(20)
    {sends}
    return read(sock, 8)
"""


def _asked(sends: str, beside: str = "read:2") -> Later:
    """Rank 1 waits in a socket for the answer to what it has sent; a thread of rank 0 reads, too."""

    def made() -> Case:
        stacks = {**_COMM, 1: "ask:7>read:2"}
        source = _WIRE.format(sends=sends)
        case = make_case(_WAIT, hang="suspected", stacks=stacks, source=source)()
        waits = Frame("/usr/lib/python3.11/socket.py", 706, "readinto")
        mine, other = case.ranks[1], case.ranks[0]
        file = next(f.file for f in mine.main_frames if f.is_user)
        main = replace(mine.stacks[0], frames=(waits, *mine.stacks[0].frames))
        serves = ThreadStack("serve", (waits, *(replace(f, file=file) for f in path(beside))), is_main=False)
        ranks = {1: replace(mine, stacks=(main,)), 0: replace(other, stacks=(*other.stacks, serves))}
        return replace(case, ranks={**case.ranks, **ranks})

    return made


_PUMPS = """async def pump(link):
    while True:
        try:
            item = await link.get()
        except ({kinds}):
            {does}
        await queue.put(item)

async def close(tasks):
    for task in tasks:
        task.cancel()
    await gather(*tasks)
"""


def _pumped(kinds: str = "TimeoutError, CancelledError", does: str = "continue") -> Later:
    """Rank 1 waits for the end of a task that it has cancelled."""

    def made() -> Case:
        source = _PUMPS.format(kinds=kinds, does=does)
        case = make_case(_WAIT, hang="suspected", stacks={**_COMM, 1: "main:12>~lock"}, source=source)()
        mine = case.ranks[1]
        file = next(f.file for f in mine.main_frames if f.is_user)
        puts = (Frame("/usr/lib/python3.11/asyncio/queues.py", 126, "put"), Frame(file, 7, "pump"))
        tasks = (WaitingTask("A", (Frame(file, 12, "close"),), ("B",)), WaitingTask("B", puts))
        return replace(case, ranks={**case.ranks, 1: replace(mine, tasks=tasks)})

    return made


_JUDGES = """async def practise(judge):
    rows = await judge.ask()
    average(model, rows)

def average(model, rows):
    all_reduce(rows)

async def client(reader, writer):
    await receive(reader)

async def serve():
    asyncio.{starts}(client, port=0)

async def receive(reader):
    return await reader.readexactly(4)
"""


def _judged(starts: str = "start_server") -> Later:
    """Rank 1 waits in a task for an answer; rank 0, in whose loop another task stands, is in the collective."""

    def made() -> Case:
        stacks = {**_COMM, 0: "practise:3>average:6>~comm", 1: "practise:2>~lock"}
        case = make_case(_WAIT, hang="suspected", stacks=stacks, source=_JUDGES.format(starts=starts))()
        server, asks = case.ranks[0], case.ranks[1]
        file = next(f.file for f in asks.main_frames if f.is_user)
        lib = "/usr/lib/python3.11/asyncio"
        waits = (Frame(f"{lib}/streams.py", 540, "_wait_for_data"), Frame(file, 15, "receive"))
        loop, runs = Frame(f"{lib}/base_events.py", 1884, "_run_once"), Frame(f"{lib}/events.py", 80, "_run")
        idle = ThreadStack("MainThread", (Frame("/usr/lib/python3.11/selectors.py", 468, "select"), loop), is_main=True)
        main = replace(server.stacks[0], frames=(*server.stacks[0].frames, runs, loop))
        asking = (WaitingTask("Task-1", (*waits, Frame(file, 2, "practise"))),)
        serving = (WaitingTask("Task-5", (*waits, Frame(file, 9, "client"))),)
        both = {0: replace(server, stacks=(main,), tasks=serving), 1: replace(asks, stacks=(idle,), tasks=asking)}
        return replace(case, ranks={**case.ranks, **both})

    return made


CASES = {
    "rank-stuck-in-user-code": (
        Fires(_asks("ray.get(self.progress.finished.remote())"), (1,), 10, cause="code-divergence"),
        Fires(_asks("epoch > 5"), (1,), 4),
        Fires(_reached(_SOME), (1,), 13, cause="code-divergence"),
        Fires(_reached(_EACH), (1,), 13),
        Fires(_dealt(), (), 4, cause="uneven-inputs"),
        Fires(_retried("step"), (1,), 3, cause="code-divergence"),
        Fires(_retried("score"), (0, 2, 3), 5),  # another method was retried
        Fires(_dealt(by="/env/site-packages/ray/util/queue.py"), (1,), 4),
        Fires(_judged(), (0, 1), 3),
        Fires(_judged(starts="create_task"), (1,), 15),
        Fires(_asked("sock.send(data)"), (1,), 6),
        Fires(_asked("sock.sendall(data)"), (1,), 2),
        Fires(_asked("sent = sock.send(data)"), (1,), 2),
        Fires(_asked("sock.send(data)", beside="serve:40"), (1,), 2),
        Fires(_pumped(), (1,), 5),
        Fires(_pumped("TimeoutError, OSError"), (1,), 12),
        Fires(_pumped(does="raise"), (1,), 12),
        Fires(log_case(_PASTED), (1,), 33),
        Fires(log_case(_TWO_AWAY), (1, 2), 33),
        Quiet(log_case(_TWO_PLACES), "several ranks elsewhere, each in another place"),
        Fires(log_case(_UNDER_VLLM), (0,), 702),
        Fires(log_case(_LOST_ALARM), (0,)),
        Fires(log_case(_UNDER_RAY), (1,), 31),
        Quiet(log_case(_UNDER_RAY.split("$ py-spy dump --pid 502")[0]), "no driver is seen to wait"),
        Quiet(
            log_case(_PASTED.replace("grade (app/reward.py", "all_reduce (torch/distributed/distributed_c10d.py")),
            "all in a collective",
        ),
        Quiet(log_case(_LOST_ALARM.split("[rank2]")[0]), "nothing hangs"),
        Fires(make_case(_WAIT, hang="suspected", stacks={**_COMM, 1: "main:8>load:33>~lock"}), (1,), 33),
        Fires(
            make_case(
                _WAIT, hang="suspected", stacks={**_COMM, 1: "main:8>spin:60"}, states={1: ProcessState("R", 1.0)}
            ),
            (1,),
            60,
        ),
        Fires(_kept("KeyError: 'c7'@write:5"), (1,), 5, cause="user-exception"),
        Fires(_kept("KeyError: 'c7'@write:5", beside="write:5"), (1,), 2, cause="rank-stuck-in-user-code"),
        Fires(_kept("KeyError: 'c7'@load:9"), (1,), 2, cause="rank-stuck-in-user-code"),
        Fires(_driven(), (1,), 4, cause="code-divergence"),
        Fires(_driven(_DRIVES.replace(" if n > 0", "")), (1,), 4, cause="rank-stuck-in-user-code"),
        Fires(
            _driven(_DRIVES.replace("    all_reduce", "    if n == 0:\n        return\n    all_reduce")),
            (1,),
            4,
            cause="rank-stuck-in-user-code",
        ),
        Fires(_solves("while hi - lo > eps"), (1,), 2),
        Fires(_solves("for _ in range(99)"), (1,), 7),
        Quiet(
            make_case(_WAIT, hang="suspected", stacks={**_COMM, 1: "main:8"}, states={1: ProcessState("T")}),
            "a stopped process",
        ),
        Fires(  # it handled an exception before, and stands elsewhere for another reason
            make_case(
                _WAIT,
                stacks={**_COMM, 1: "main:9>ask:30>~child"},
                handled={1: raised("TimeoutError: no answer@main:9>ask:28", at_s=-5, handled=True)},
            ),
            (1,),
            30,
        ),
        Quiet(
            make_case(
                {r: ["all_reduce[8]@main:10"] for r in range(4)},
                hang="suspected",
                stacks=dict.fromkeys(range(4), "main:8"),
            ),
            "all ranks pause together: nobody waits",
        ),
        Quiet(
            make_case(
                {r: ["all_reduce[8]@main:10 !"] for r in range(3)},
                hang=None,
                exit_code=15,
                out_of_sight=(3,),
                stacks={1: "main:8>report:60"},
                errors={r: raised(_GONE, at_s=10) for r in (0, 2)},
                handled={1: raised(_GONE, at_s=10.1, handled=True)},
                exits={1: ended("signal", -15, at_s=10.5)},
            ),
            "it had lost a peer, too, and was told to end while it printed that",
        ),
    ),
}
