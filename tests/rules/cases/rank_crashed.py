"""The cases of rank-crashed."""

from __future__ import annotations

from tests.rules.notation import log_case, make_case
from unhang.testing import Fires, Quiet, ended

_ECHO = "RuntimeError: Connection closed by peer [127.0.0.1]:4242@main:10"

_LOG = """\
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.2]:16786
Process 2 terminated with exit code 10, terminating remaining processes.
"""

_SEGFAULT = """\
step 10, loss 0.4
[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error
ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -11) local_rank: 3 (pid: 711) of binary: /usr/bin/python
"""

_ABORTED = """\
[rank1]:[E ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)
ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -6) local_rank: 1 (pid: 711) of binary: /usr/bin/python
"""

# Ray's word on a process whose watchdog aborted it.
_ABORTED_IN_RAY = """\
(W pid=7) [rank1]:[E ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)
(W pid=7) Fatal Python error: Aborted
(raylet) A worker died or was killed while executing a task by an unexpected system error.
"""

_KILLED_LAST = """\
1: [rank1]:[E ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)
2: [rank2]:[E ProcessGroupNCCL.cpp:607] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)
srun: error: node7: task 1: Aborted (core dumped)
srun: error: node7: task 2: Aborted (core dumped)
srun: error: node7: task 0: Killed
"""

_WATCHDOG_OF_AN_ERROR = """\
[rank0]:[E ProcessGroupNCCL.cpp:1335] [PG 0 Rank 0] NCCL watchdog thread terminated with exception: NCCL error: internal error, NCCL 2.21.5
[rank0]:[E ProcessGroupNCCL.cpp:564] [Rank 0] To avoid data inconsistency, we are taking the entire process down.
[node7:00571] *** Process received signal ***
[node7:00571] Signal: Aborted (6)
"""

_KILLED_TOGETHER = """\
step 10, loss 0.4
step 11, loss 0.4
WARNING:torch.distributed.elastic.multiprocessing.api:Sending process {} closing signal SIGTERM
ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 0 (pid: 71) of binary: /usr/bin/python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-04-02_12:58:41
  rank      : 2 (local_rank: 2)
  exitcode  : -9 (pid: 73)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-04-02_12:58:41
  rank      : 0 (local_rank: 0)
  exitcode  : -9 (pid: 71)
"""

# Engines that serve, whose launchers end the others.
_TGI = """\
INFO text_generation_launcher: Starting shard rank=0
INFO text_generation_launcher: Starting shard rank=1
ERROR shard-manager: text_generation_launcher: Shard process was signaled to shutdown with signal 9 rank=1
ERROR text_generation_launcher: Shard 1 failed to start
INFO text_generation_launcher: Shutting down shards
"""
_VLLM = """\
INFO 05-02 10:11:11 model_runner.py:680] Starting to load model opt
ERROR 05-02 10:11:12 multiproc_worker_utils.py:120] Worker VllmWorkerProcess pid 812 died, exit code: {}
INFO 05-02 10:11:12 multiproc_worker_utils.py:124] Killing local vLLM worker processes
"""

_STEP, _ACTOR = (
    "step {} loss 2.13",
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
)

_VLLM_V1 = "{}ERROR [multiproc_executor.py:140] Worker proc VllmWorker-1 died unexpectedly, shutting down executor.\n"

# What Ray lists of an actor tells its process, and other lines tell which rank that is.
_NODE_LOST = """\
(RayTrainWorker pid=6420, ip=10.0.0.3) [rank 12] epoch 3 step 840 loss 0.2413
(RayTrainWorker pid=5233, ip=10.0.0.5) [rank 4] epoch 3 step 840 loss 0.2391
ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.
\tclass_name: RayTrainWorker
\tpid: 6420
\tip: 10.0.0.3
The actor is dead because its node has died. Node Id: 677df2a9020c5db4
"""

# The raylet names the process.
_RAYLET = """\
(W pid=6420, ip=10.0.0.3) [rank 12] epoch 3 step 840 loss 0.2413
(W pid=5233, ip=10.0.0.5) [rank 4] epoch 3 step 840 loss 0.2391
(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker port: 10185 Worker PID: 6420 Worker exit type: SYSTEM_ERROR{}
"""

# What Ray Train lists when it has started its workers.
_LISTED = """\
(TrainController pid=401) Started training worker group of size 2:
(TrainController pid=401) - (ip=10.0.0.3, pid=6420) world_rank=1, local_rank=0, node_rank=1
(TrainController pid=401) - (ip=10.0.0.5, pid=5233) world_rank=0, local_rank=0, node_rank=0
(RayTrainWorker pid=5233, ip=10.0.0.5) epoch 3 step 840 loss 0.2391
(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker PID: 6420 Worker exit type: SYSTEM_ERROR
"""

# The word of an agent whose store is on another node.
_AGENT = (
    "WARNING:torch.distributed.elastic.rendezvous.dynamic_rendezvous:The node 'node-b_3427_0' has failed to {} the rendezvous '1' "
    "due to an error of type RendezvousConnectionError.\n"
)
_BEAT, _BYE = _AGENT.format("send a keep-alive heartbeat to"), _AGENT.format("shutdown")
_ENDS = "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 3494 closing signal SIGTERM\n"
_UNREACHED = (
    "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.\n"
)

CASES = {
    "rank-crashed": (
        Fires(
            make_case(
                {}, exits={2: ended("signal", -9, where="main:7", text="sent by itself")}, hang=None, exit_code=1
            ),
            (2,),
            7,
        ),
        Fires(make_case({}, exits={1: ended("signal", -7, where="main:5")}, hang=None, exit_code=1), (1,), 5),
        Fires(log_case(_LOG), (2,)),
        Fires(log_case(_SEGFAULT), (3,)),
        Quiet(log_case(_ABORTED), "the watchdog aborts a process that has waited too long"),
        Quiet(log_case(_ABORTED_IN_RAY), "so it does in an actor of Ray, which calls that an unexpected system error"),
        Quiet(log_case(_KILLED_LAST), "the launcher kills whom the others had waited for, after they have ended"),
        Fires(
            log_case(
                "loss 2\nsrun: error: node7: task 3: Segmentation fault (core dumped)\nsrun: error: node7: task 0: Killed\n"
            ),
            (3,),
            cause="unknown",  # nobody says that he lost a peer
        ),
        Quiet(log_case(_WATCHDOG_OF_AN_ERROR), "so it does where NCCL reported an error"),
        Quiet(log_case("ValueError: x\n" + _SEGFAULT), "an exception that comes before"),
        Fires(
            make_case(
                {},
                errors={0: _ECHO},
                exits={2: ended("signal", -9, at_s=5), 3: ended("signal", -15, at_s=11)},
                hang=None,
                exit_code=1,
            ),
            (2,),
        ),
        Fires(
            make_case(
                {},
                errors={0: _ECHO, 1: _ECHO},
                exits={2: ended("signal", -9, at_s=10.3)},
                hang=None,
                exit_code=137,
            ),
            (2,),
        ),
        Fires(
            make_case(
                {},
                errors={0: _ECHO},
                exits={0: ended("signal", -15, at_s=10.6), 1: ended("signal", -11, at_s=10.3)},
                hang=None,
                exit_code=139,
            ),
            (1,),
        ),
        Quiet(
            make_case(
                {},
                errors={0: _ECHO},
                exits={r: ended("signal", -9, at_s=10.3) for r in (1, 2, 3)},
                hang=None,
                exit_code=137,
            ),
            "a launcher that kills everybody when one rank has lost its connection",
        ),
        Fires(
            make_case(
                {},
                errors={0: _ECHO},
                exits={0: ended("os._exit", 1, at_s=10.5), 3: ended("vanished", None, at_s=10.2)},
                hang=None,
                exit_code=1,
            ),
            (3,),
        ),
        Quiet(
            make_case(
                {},
                errors={0: _ECHO, 1: _ECHO},
                exits={0: ended("os._exit", 1, at_s=10.1), 3: ended("vanished", None, at_s=10.6)},
                hang=None,
                exit_code=1,
            ),
            "gone unseen after another rank had ended: the launcher ends them all",
        ),
        Quiet(
            make_case(
                {}, exits={r: ended("signal", -15, at_s=100 + r * 0.001) for r in range(4)}, hang=None, exit_code=143
            ),
            "a scheduler that ends the whole job",
        ),
        Quiet(
            make_case(
                {}, errors={1: "ValueError: x@main:3"}, exits={2: ended("signal", -15, at_s=12)}, hang=None, exit_code=1
            ),
            "the launcher's SIGTERM",
        ),
        Fires(log_case(_KILLED_TOGETHER.format(72)), (0, 2), cause="unknown"),
        Quiet(log_case(_KILLED_TOGETHER.format(73)), "the launcher ended one of those that were killed"),
        Quiet(log_case("$ kill -ABRT 71844\nFatal Python error: Aborted\n"), "somebody wanted to see its stacks"),
        Fires(log_case("\n".join((_STEP.format(7), _ACTOR, _STEP.format(8)))), (), cause="unknown"),
        Quiet(
            log_case("\n".join((_STEP.format(7), _ACTOR, *map(_STEP.format, (8, 9, 10))))),
            "a worker that was replaced: the training came further",
        ),
        Fires(log_case(_TGI), (1,)),
        Fires(log_case(_VLLM.format(-9)), ()),
        Quiet(log_case(_VLLM.format(-15)), "the launcher's SIGTERM, as an engine that serves tells of it"),
        Fires(log_case(_VLLM_V1.format("")), (1,), cause="unknown"),  # how it ended is not told
        Fires(log_case(_NODE_LOST), (12,)),
        Fires(log_case(_RAYLET.format("")), (12,), cause="unknown"),
        Fires(log_case(_LISTED), (1,), cause="unknown"),
        Fires(log_case(_RAYLET.format(" [repeated 3x across cluster]")), (), cause="unknown"),
        Fires(log_case(f"step 9 loss 2.1\n{_BEAT}{_ENDS}{_BYE}{_UNREACHED}"), ()),
        Quiet(
            log_case(f"step 9 loss 2.1\n{_BYE}{_UNREACHED}"),
            "the first node had done its work: only the last word to its store finds nobody",
        ),
        Quiet(
            log_case(f"{_SEGFAULT.replace('-11', '1')}{_BEAT}{_ENDS}{_BYE}{_UNREACHED}"),
            "a worker of this node had failed before",
        ),
        Quiet(log_case(_VLLM_V1.format("^C") + "INFO:     Shutting down\n"), "somebody ended the server"),
    ),
}
