"""The cases of external-signal."""

from __future__ import annotations

from typing import Any

from tests.rules.notation import log_case, make_case
from unhang.testing import Fires, Quiet, ended

_TERM = """\
[default0]:INFO Waiting for training batch to arrive
W1122 04:29:04.631636 247807 torch/distributed/elastic/agent/server/api.py:723] Received 15 death signal, shutting down workers
W1122 04:29:04.913115 247807 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 550084 closing signal SIGTERM
"""

_ON_THE_WAY_OUT = """\
[rank2]: Traceback (most recent call last):
[rank2]:   File "/srv/run.py", line 61, in at_the_end
[rank2]:     torch.save(state, path)
[rank2]: {}
"""

_HUNG = """\
[rank1]:[E ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)
WARNING:torch.distributed.elastic.agent.server.api:Received 15 death signal, shutting down workers
"""

_LOST = dict.fromkeys((0, 2, 3), "RuntimeError: Connection closed by peer [127.0.0.1]:4242@main:10")

_EXIT = ended("os._exit", 1, at_s=11)

_OPEN = "all_reduce[8]@main:10 !"

_ENDED: dict[str, Any] = {"hang": None, "exit_code": 143}

_LIMIT = "slurmstepd: error: *** JOB 494583 ON node-a CANCELLED AT 2024-04-20T09:09:37 DUE TO TIME LIMIT ***"

_PREEMPTED = _LIMIT.replace("TIME LIMIT", "PREEMPTION")

_BARS = "\n".join(f"Epoch 0: {n}%|#| {n}/100 [{{0}}:{n:02}<{{0}}:50, 1.00it/s, loss=2.7]" for n in range(1, 41, 3))

_OF_TESTS = "##[error]The action 'unit tests' has timed out after 60 minutes.\n"

_OF_SUBMITIT = (
    "[2021-10-21 11:50:15,216][submitit][WARNING] - Caught signal SIGUSR1 on node-a: this job is timed-out.\n"
)
_GAVE_UP = """\
Traceback (most recent call last):
  File "/srv/train.py", line 188, in __call__
    loss.backward()
submitit.core.utils.UncompletedJobError: Job not requeued because: timed-out too many times.
"""

CASES = {
    "external-signal": (
        Fires(log_case(f"{_BARS.format('11:54')}\n{_OF_TESTS}{_TERM}"), ()),
        Fires(log_case(_TERM), ()),
        Fires(log_case(_OF_SUBMITIT + _GAVE_UP), ()),
        Quiet(log_case(_GAVE_UP + _OF_SUBMITIT), "it had failed before"),
        Fires(log_case("RuntimeError: DataLoader worker (pid 41956) is killed by signal: Hangup. "), ()),
        Fires(
            log_case("torch.distributed.elastic.multiprocessing.api.SignalException: Process 8401 got signal: 1"), ()
        ),
        Fires(
            log_case(_TERM + _ON_THE_WAY_OUT.format("torch.AcceleratorError: CUDA error: unspecified launch failure")),
            (),
        ),
        Fires(log_case(_TERM + _ON_THE_WAY_OUT.format("torch.cuda.OutOfMemoryError: CUDA out of memory.")), ()),
        Quiet(
            log_case(_ON_THE_WAY_OUT.format("torch.AcceleratorError: CUDA error: unspecified launch failure") + _TERM),
            "a rank had failed in a kernel before",
        ),
        Fires(log_case(_LIMIT), ()),
        Fires(log_case(f"{_BARS.format('11:54')}\n{_LIMIT}"), ()),
        Fires(
            make_case(
                {}, errors=_LOST, exits={1: ended("signal", -15, at_s=10.1), 0: _EXIT, 2: _EXIT, 3: _EXIT}, **_ENDED
            ),
            (1,),
        ),
        Fires(
            make_case(
                {1: ["all_reduce[8]@main:10"], **{r: ["all_reduce[8]@main:10"] * 2 + [_OPEN] for r in (0, 2, 3)}},
                errors=_LOST,
                exits={1: ended("signal", -15, at_s=10.1), 0: _EXIT, 2: _EXIT, 3: ended("signal", -15, at_s=11.5)},
                stacks={1: "main:8>load:33>~lock"},
                **_ENDED,
            ),
            (1,),
        ),
        Quiet(
            log_case(f"step: 9 loss: 2.0\n{_PREEMPTED}\n" + "\n".join(f"step: {n} loss: 1.9" for n in range(10, 14))),
            "it was begun anew, and went on",
        ),
        Quiet(
            log_case(f"epoch 1 loss 2.0\n$ scancel 494583\n{_LIMIT.partition(' DUE')[0]} ***"),
            "somebody at the terminal ended it",
        ),
        Quiet(
            log_case(f"epoch 1 loss 2.0\nRun cancel requested by user\n{_TERM}"),
            "a service tells that somebody ended it",
        ),
        Quiet(
            log_case(f"{_BARS.format('00')}\n{_OF_TESTS}{_TERM}"), "it had not moved until a service for tests ended it"
        ),
        Quiet(
            make_case(
                {}, errors=_LOST, exits={1: ended("signal", -15, at_s=12), 0: _EXIT, 2: _EXIT, 3: _EXIT}, **_ENDED
            ),
            "a rank had ended before: the signal may be the launcher's answer",
        ),
        Quiet(
            make_case({}, exits={r: ended("signal", -15, at_s=10 + r / 100) for r in range(4)}, **_ENDED),
            "somebody ended all of them",
        ),
        Quiet(
            make_case({}, errors={0: "ValueError: x@main:3"}, exits={1: ended("signal", -15, at_s=10.1)}, **_ENDED),
            "a rank that failed by itself, and has not ended yet",
        ),
        Quiet(log_case(_HUNG), "somebody ended a job that hung"),
        Quiet(log_case(f"{_BARS.format('00')}\n{_LIMIT}"), "it had not moved for most of its time: it may have hung"),
        Quiet(
            log_case(f"{_BARS.format('00')}\n{_LIMIT.partition(' DUE')[0]} ***\n{_TERM}"),
            "the same of a job that was cancelled without a word, whose processes then got the signal",
        ),
        Quiet(log_case("[rank2]: ValueError: x\n" + _TERM), "one node ends the others because a rank failed"),
        Quiet(log_case(_TERM.replace("15", "Signals.SIGINT")), "the same in the words of a later torchrun"),
        Quiet(log_case(_TERM.replace("15", "2")), "somebody pressed Ctrl-C, mostly because it hung"),
    ),
}
