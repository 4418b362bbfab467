"""The cases of user-exception."""

from __future__ import annotations

from tests.rules.notation import log_case, make_case
from unhang.testing import Fires, Quiet

_ECHO = "RuntimeError: Connection closed by peer [127.0.0.1]:4242@main:10"

_COLLECTED = "CheckpointException: CheckpointException ranks:dict_keys([1])@main:9>save:17"

_LOG = """\
[rank2]: Traceback (most recent call last):
[rank2]:   File "/app/train.py", line 88, in <module>
[rank2]:     train()
[rank2]:   File "/app/train.py", line 41, in collate
[rank2]:     raise ValueError("empty batch")
[rank2]: ValueError: empty batch
[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE)
"""

# Of the third rank the log has the last line alone.
_CUT = _LOG.split("[rank0]")[0] + "[rank3]: ValueError: empty batch\n[rank1]: ValueError: another one\n"

_SCATTER = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/app/train.py", line 38, in exchange
[rank0]:     dist.scatter_object_list(got, hands, src=0)
[rank0]:   File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4778, in scatter
[rank0]:     work = group.scatter(output_tensors, input_tensors, opts)
[rank0]: RuntimeError: {}
"""

_ITEMS = "ProcessGroupGloo::scatter: Incorrect input list size 2. Input list size should be 3, same as size of the process group."

_STEPS = """\
step 177, loss 0.1, cuda:0 7.4GB
step 177, loss 0.1, cuda:1 7.4GB
step 177, loss 0.2, cuda:2 7.4GB
step 178, loss 0.2, cuda:2 7.4GB
step 178, loss 0.2, cuda:0 7.4GB
Unhandled exception <class 'ValueError'> in thread <_MainThread(MainThread)>
"""

_HANDLED = """\
Traceback (most recent call last):
  File "/app/data.py", line 12, in load
    raise ValueError("bad image")
ValueError: bad image
step 10, loss 0.5
step 11, loss 0.4
step 12, loss 0.4
step 13, loss 0.3
"""

_DRIVER = """\
Traceback (most recent call last):
  File "/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""

_FORKED = """\
Traceback (most recent call last):
  File "/w/train.py", line 33, in train
    for batch in loader:
  File "/v/site-packages/torch/utils/data/dataloader.py", line 681, in __next__
    data = self._next_data()
RuntimeError: Caught RuntimeError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/v/site-packages/torch/utils/data/_utils/worker.py", line 302, in _worker_loop
    data = fetcher.fetch(index)
RuntimeError: CUDA error: initialization error
"""

# Ray Train's controller tells whose exception it is.
_OF_A_CONTROLLER = """\
(TrainController pid=401) Terminating training worker group after encountering failure(s) on 1 worker(s):
(TrainController pid=401) [Rank 3]
(TrainController pid=401) Traceback (most recent call last):
(TrainController pid=401)   File "/app/train.py", line 40, in train_func
(TrainController pid=401)     batch = next(rows)
(TrainController pid=401) ValueError: bad row in shard 7
"""

_OF_A_LOADER = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/app/train.py", line 88, in <module>
[rank1]:     state.load(path)
[rank1]: RuntimeError: Loading checkpoint from /data/run/7, but no path for the scheduler
"""

# pytest tells first that the command failed, then what the command printed.
_OF_A_TEST = """\
>       assert result.returncode == 0
E       AssertionError: assert 1 == 0
tests/test_training.py:30: AssertionError
----------------------------- Captured stderr call -----------------------------
"""

CASES = {
    "user-exception": (
        Fires(log_case(_CUT), (2, 3)),
        Fires(log_case(_OF_A_LOADER), (1,), 88),
        Fires(log_case(_OF_A_TEST + _LOG), (2,), 41),
        Fires(log_case(_OF_A_CONTROLLER), (3,), 40),
        Fires(
            make_case({}, errors={1: "ValueError: corrupt@main:9>load:31", 0: _ECHO, 2: _ECHO}, hang=None, exit_code=1),
            (1,),
            31,
        ),
        Fires(make_case({}, errors=dict.fromkeys(range(3), _COLLECTED), hang=None, exit_code=1), (1,), 17),
        Fires(log_case(_LOG), (2,), 41),
        Fires(log_case(_SCATTER.format(_ITEMS)), (0,), 38),
        Fires(log_case(_FORKED), (), 33),
        Fires(log_case(_STEPS), (1,)),
        Quiet(make_case({}, errors={0: _ECHO, 2: _ECHO}, hang=None, exit_code=1), "lost peers are echoes"),
        Quiet(log_case(_SCATTER.format("Connection reset by peer")), "a library between the ranks tells of no program"),
        Quiet(make_case({r: ["all_reduce[8]@main:10"] for r in range(4)}, hang=None, exit_code=0), "no failure"),
        Quiet(log_case(_HANDLED), "an exception that was handled: the steps went on"),
        Quiet(log_case(_DRIVER), "what the launcher raises because a rank failed"),
        Quiet(
            log_case(_FORKED.replace("utils/data/_utils/worker.py", "cuda/__init__.py")),
            "a call of the device that a process of the rank itself could not make",
        ),
    ),
}
