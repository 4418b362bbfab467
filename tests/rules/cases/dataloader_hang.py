"""The cases of dataloader-hang."""

from __future__ import annotations

from tests.rules.cases.calls_disagree import timeouts
from tests.rules.notation import Later, log_case, make_case
from unhang.model import Frame, ThreadStack
from unhang.testing import Fires, Quiet, path

_WAIT = {r: ["all_reduce[8]@main:10 !"] for r in (0, 2, 3)}

_OWN_WAIT = ThreadStack(
    "MainThread",
    (
        Frame("/usr/lib/python3.11/socket.py", 706, "readinto"),
        Frame("train.py", 30, "__getitem__"),
        Frame("/site-packages/torch/utils/data/_utils/fetch.py", 54, "fetch"),
        Frame("train.py", 8, "main"),
    ),
    is_main=True,
)

_PASTED = """\
rank 0:
Thread 0x7FA6E7C01740 (idle): "MainThread"
    wait (threading.py:302)
    get (queue.py:170)
    _try_get_data (torch/utils/data/dataloader.py:1310)
    _next_data (torch/utils/data/dataloader.py:1524)
    __next__ (torch/utils/data/dataloader.py:741)
    train (app/train.py:274)
rank 1:
Thread 0x7FA6E7C01740 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:3075)
    train (app/train.py:280)
"""

# Rank 2 fetches once less than the others, and the traceback of no rank in particular ends in a loader.
_FETCHED = "".join(f"rank {r}, fetch sample {n}\n" for n in (3, 5) for r in range(4) if (n, r) != (5, 2))
_INTERRUPTED = """^CTraceback (most recent call last):
  File "tools/train.py", line 223, in main
    for i, batch in enumerate(loader):
  File "/env/site-packages/torch/utils/data/dataloader.py", line 761, in _try_get_data
    data = self._data_queue.get(timeout=timeout)
  File "/usr/lib/python3.6/selectors.py", line 376, in select
    fd_event_list = self._poll.poll(timeout)
KeyboardInterrupt
"""

_PICKLES = ThreadStack(
    "MainThread",
    (
        Frame("/usr/lib/python3.11/multiprocessing/reduction.py", 60, "dump"),
        Frame("/usr/lib/python3.11/multiprocessing/popen_spawn_posix.py", 47, "_launch"),
        *path("main:8>~loader"),
    ),
    is_main=True,
)

_COMM = dict.fromkeys((0, 2, 3), "main:10>~backward")

_LACKS = "".join(f"[rank2] no batch for {n} s (queue empty)\n" for n in (60, 120, 180))
_OTHERS_WAIT = timeouts(*((r, 64, "ALLREDUCE", 9000) for r in (0, 1, 3))) + "\n"

# Line 3 goes over a generator of the program, line 4 is in that loop, line 5 behind it.
_READS = """def main():
    index = {}
    for number, doc in enumerate(read()):
        use(number, doc)
    dist.all_reduce(index)

def read():
    for _ in range(9):
        yield fetch()
"""


def _reads(call: str, steps: int = 0) -> Later:
    """Rank 1 stands in a generator of the program, the others wait at `call`."""
    calls = {r: [f"all_reduce[8]@{call} !"] for r in (0, 2, 3)}
    stacks = {**dict.fromkeys((0, 2, 3), f"{call}>~comm"), 1: "main:3>read:9"}
    return make_case(
        calls, hang="suspected", stacks=stacks, source=_READS, steps=dict.fromkeys(range(4), steps) if steps else {}
    )


_DUMP = """\
{} 20418{}
Process 20418: /env/bin/python train.py
Python v3.10.12 (/env/bin/python3.10)

Thread 20418 (idle): "MainThread"
    select (selectors.py:416)
    get (multiprocessing/queues.py:113)
    _try_get_data (torch/utils/data/dataloader.py:1251)
    _next_data (torch/utils/data/dataloader.py:1458)
    __next__ (torch/utils/data/dataloader.py:734)
    train (train.py:21)
"""
_WORKER = """\
$ py-spy dump --pid 61719   # a worker of the loader of rank 1
Process 61719: /env/bin/python train.py
Python v3.10.12 (/env/bin/python3.10)

Thread 61719 (idle): "MainThread"
    wait (threading.py:355)
    decode (data.py:97)
    fetch (torch/utils/data/_utils/fetch.py:54)
    _worker_loop (torch/utils/data/_utils/worker.py:358)
    run (multiprocessing/process.py:108)
"""
_ONE_WAITS = timeouts((0, 1304, "ALLREDUCE", 9000)) + "\n"
_NOT_THERE = (
    "[rank1]:[E829 15:02:41.9 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 1] Received a dump signal due to a collective timeout "
    "from  rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: {}, last completed NCCL work: 1303.\n"
)


_FETCHES = ThreadStack("MainThread", path("main:8>~loader"), is_main=True)
_LOOP = Frame("/site-packages/torch/utils/data/_utils/worker.py", 374, "_worker_loop")
_BARRIER = Frame("/site-packages/torch/distributed/distributed_c10d.py", 5356, "barrier")


def _all_fetch(*of_worker: Frame) -> Later:
    """Both ranks wait for their loaders, each with a worker that stands there."""
    worker = {r: ThreadStack("MainThread", (*of_worker, _LOOP), is_main=True, process_id=90 + r) for r in range(2)}
    calls = {r: ["all_reduce[8]@main:10"] for r in range(2)}
    return make_case(calls, world=2, hang="suspected", more={r: {"stacks": (_FETCHES, worker[r])} for r in range(2)})


_FETCH = (
    '{0}  File "/env/site-packages/torch/utils/data/dataloader.py", line 761, in _try_get_data\n{0}    data = self._data_queue.get()\n'
    '{0}  File "/usr/lib/python3.6/queue.py", line 173, in get\n{0}    self.not_empty.wait(remaining)\n{0}KeyboardInterrupt\n'
)
_IN_BACKWARD = '{0}  File "/env/site-packages/torch/autograd/__init__.py", line 100, in backward\n{0}    allow_unreachable=True)\n{0}KeyboardInterrupt\n'


def _of_local_ranks(*ends: str) -> str:
    """Tracebacks behind the local rank, whose first lines have none."""
    head = 'Traceback (most recent call last):\n{0}  File "train.py", line 43, in train\n{0}    step()\n'
    return "".join((head + end).format(f"[local_rank {r}] ") for r, end in enumerate(ends))


def _imports_anew() -> Later:
    """Rank 1 waits for its loader, whose worker still imports the script, and stands in init_process_group there."""
    init = Frame("/site-packages/torch/distributed/distributed_c10d.py", 1800, "init_process_group")
    again = Frame("/usr/lib/python3.11/multiprocessing/spawn.py", 297, "_fixup_main_from_path")
    worker = ThreadStack("MainThread", (init, Frame("train.py", 3, "<module>"), again), is_main=True, process_id=91)
    stacks = {1: {"stacks": (_FETCHES, worker)}}
    return make_case(_WAIT, hang="suspected", stacks=_COMM, more=stacks)


CASES = {
    "dataloader-hang": (
        Fires(log_case(_of_local_ranks(_IN_BACKWARD, _IN_BACKWARD, _FETCH)), (2,)),
        Fires(log_case(_PASTED), (0,)),
        Fires(log_case(_FETCHED + _INTERRUPTED), (2,)),
        Fires(log_case("[rank2]: RuntimeError: DataLoader timed out after 120 seconds"), (2,)),
        Quiet(
            log_case(_PASTED.replace("torch/utils/data/dataloader.py", "app/tokens.py")),
            "a wait of another kind",
        ),
        Fires(make_case(_WAIT, hang="suspected", stacks={**_COMM, 1: "main:8>~loader"}), (1,), 8),
        Fires(make_case(_WAIT, hang="suspected", stacks={**_COMM, 1: _PICKLES}), (1,), 8),
        Quiet(make_case(_WAIT, hang="suspected", stacks={**_COMM, 1: "main:8>save:40"}), "the rank is in other code"),
        Quiet(
            make_case(_WAIT, hang="suspected", stacks={**_COMM, 1: _OWN_WAIT}),
            "the data set, in the process of the rank, waits for a socket",
        ),
        Fires(_reads("main:4"), (1,), 9),
        Fires(_reads("main:5", steps=20), (1,), 9),
        Quiet(_reads("main:5"), "a generator that the program reads before its first step, in a loop without calls"),
        Quiet(
            make_case(
                {r: ["all_reduce[8]@main:10"] for r in range(4)},
                hang=None,
                stacks=dict.fromkeys(range(4), "main:8>~loader"),
            ),
            "nobody waits for the rank",
        ),
        Fires(log_case(_LACKS + _OTHERS_WAIT), (2,)),
        Quiet(log_case(_LACKS + "[rank2] step 8: got a batch\n" + _OTHERS_WAIT), "it said so before, and went on"),
        Quiet(
            log_case("".join(_LACKS.replace("rank2", f"rank{r}") for r in range(4)) + _OTHERS_WAIT), "all ranks say so"
        ),
        Fires(log_case(_DUMP.format("$ py-spy dump --pid", "   # rank 1") + _ONE_WAITS), (1,)),
        Fires(log_case(_DUMP.format("$ py-spy dump --pid", "   # rank 1") + _WORKER + _ONE_WAITS), (1,)),
        Fires(log_case(_DUMP.format("$ py-spy dump --pid", "") + _ONE_WAITS + _NOT_THERE.format(1303)), (1,)),
        Fires(log_case(_DUMP.format("$ py-spy dump --pid", "") + _ONE_WAITS + _NOT_THERE.format(1304)), ()),
        Fires(_all_fetch(_BARRIER, Frame("data.py", 29, "load")), (), 29),
        Fires(_imports_anew(), (1,), 3),
        Quiet(_all_fetch(_BARRIER), "all ranks wait for their loaders, and no worker stands in the program"),
    ),
}
