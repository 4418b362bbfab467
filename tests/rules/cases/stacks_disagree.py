"""The cases of stacks-disagree."""

from __future__ import annotations

from tests.rules.notation import log_case, make_case
from unhang.testing import Fires, Quiet

_APART = """\
TP0:
all_reduce (torch/distributed/distributed_c10d.py:3075)
  sync_groups (cache.py:196)
  get_batch (scheduler.py:2679)
TP1-3:
broadcast (torch/distributed/distributed_c10d.py:2974)
  broadcast_pyobj (utils/common.py:1437)
  recv_requests (receiver.py:187)
"""

_TOGETHER = """\
rank 0:
    all_reduce (torch/distributed/distributed_c10d.py:3075)
    step (train.py:41)
rank 1:
    all_reduce (torch/distributed/distributed_c10d.py:3075)
    step (train.py:41)
"""

_RETURNED = """\
$ py-spy dump --pid 410   # rank 0
Thread 410 (active): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2810)
    finalize (checkpoint.py:71)
$ py-spy dump --pid 411   # rank 1
Thread 411 (idle): "MainThread"
    main_loop (ray/_private/worker.py:977)
$ py-spy dump --pid 412   # rank 2
Thread 412 (idle): "MainThread"
    main_loop (ray/_private/worker.py:977)
"""

# A job whose torch keeps no record of gloo's calls: the stacks of the watcher are all that there is.
_EVALUATES, _WAITS = "main:4>evaluate:2>~comm", "main:6>~barrier"

_TIMER = """\
[INFO] [launch.py:102:main] dist_world_size=2
Timeout (0:02:00)!
Thread 0x00007f6c2b1a7740 (most recent call first):
  File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 3081 in all_gather_object
  File "/work/rollout.py", line 212 in collect
Timeout (0:02:00)!
Thread 0x00007f3273c51740 (most recent call first):
  File "/venv/site-packages/deepspeed/runtime/zero/partition_parameters.py", line 175 in wait
  File "/venv/site-packages/deepspeed/runtime/zero/partitioned_param_coordinator.py", line 320 in fetch_sub_module
  File "/work/rollout.py", line 255 in main
"""

# Other amounts, as the calls are those of two lines.
_TWO_LINES = "".join(
    f"[rank{r}]:[E601 14:02:11.{r} ProcessGroupNCCL.cpp:683] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9104, "
    f"OpType=ALLGATHER, NumelIn={n}, NumelOut={2 * n}, Timeout(ms)=1800000) ran for 1800028 milliseconds before timing out.\n"
    for r, n in ((0, 2), (1, 6291456))
) + "".join(
    f"[rank{r}]:[E601 14:02:12.{r} ProcessGroupNCCL.cpp:730] Stack trace of the failed collective: \n"
    "#0 all_gather from /venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py:3706\n"
    f"#1 gather_all_tensors from /venv/lib/python3.12/site-packages/torchmetrics/utilities/distributed.py:{line}\n"
    "#2 _sync_dist from /venv/lib/python3.12/site-packages/torchmetrics/detection/mean_ap.py:1011\n"
    for r, line in ((0, 127), (1, 141))
)

# Collectives of vLLM's own communicators, of which one rank alone makes that of the draft model.
_DRAFTS = """\
(EngineCore_DP0 pid=1454) INFO 05-28 14:31:02 [parallel_state.py:1208] rank 0 in world size 2 is assigned as DP rank 0, PP rank 0, TP rank 0, EP rank 0
(EngineCore_DP1 pid=1455) INFO 05-28 14:31:02 [parallel_state.py:1208] rank 1 in world size 2 is assigned as DP rank 1, PP rank 0, TP rank 0, EP rank 1
$ py-spy dump --pid 1502   # Worker of DP0
Process 1502: VLLM::Worker_DP0_EP0
Thread 1502 (active): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2810)
    coordinate_batch_across_dp (vllm/v1/worker/dp_utils.py:218)
    execute_model (vllm/v1/worker/gpu_model_runner.py:3011)
$ py-spy dump --pid 1503   # Worker of DP1
Process 1503: VLLM::Worker_DP1_EP1
Thread 1503 (active): "MainThread"
    all_gatherv (vllm/distributed/device_communicators/pynccl.py:212)
    dispatch (vllm/distributed/device_communicators/all2all.py:74)
    dummy_run (vllm/v1/spec_decode/eagle.py:1102)
"""

# DDP sends its buffers at the head of a forward, and no function there bears the name of a collective.
_OF_DDP = """\
rank 0:
    _sync_buffers (torch/nn/parallel/distributed.py:1945)
    forward (torch/nn/parallel/distributed.py:1519)
    validate (train.py:188)
rank 1:
    barrier (torch/distributed/distributed_c10d.py:3330)
    train (train.py:322)
"""

_SYNCHRONIZES = """\
TP{}:
    synchronize (torch/cuda/streams.py:231)
    process_{} (results.py:{})
    process (scheduler.py:{})
    main (scheduler.py:2903)
"""


def _devices(*sides: tuple[str, int, int]) -> str:
    return "".join(_SYNCHRONIZES.format(rank, *side) for rank, side in enumerate(sides))


_ABORTED = """\
2023-06-04 11:43:47,120 ERROR [trainer.py:1210] ({0}/2) Traceback (most recent call last):
  File "/data/trainer.py", line {1}, in {2}
    {3}()
  File "/env/site-packages/torch/{4}", line 3328, in {3}
    call()
RuntimeError: NCCL communicator was aborted on rank {0}.  Original reason for failure was: [Rank {0}] Watchdog \
caught collective operation timeout: WorkNCCL(SeqNum=41102, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1804020 milliseconds before timing out.
"""
_EPOCH = "2023-06-04 11:13:42,{1} INFO [trainer.py:1071] ({0}/2) Epoch 1, batch 9, loss 2.{0}\n"
_GAVE_UP = "".join(
    f"[E ProcessGroupNCCL.cpp:828] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41102, OpType=ALLREDUCE, "
    "Timeout(ms)=1800000) ran for 1803114 milliseconds before timing out.\n"
    for r in range(2)
)
_IN_BACKWARD, _IN_BARRIER = (
    _ABORTED.format(0, 668, "train", "backward", "_tensor.py"),
    _ABORTED.format(1, 1076, "run", "barrier", "distributed/distributed_c10d.py"),
)


def _apart_in_the_end(last: str) -> str:
    said = (
        "".join(_EPOCH.format(r, 100 + r) for r in range(2))
        + f"2023-06-04 11:13:43,371 INFO [trainer.py:1071] (1/2) {last}\n"
    )
    return said + _GAVE_UP + _IN_BARRIER + _IN_BACKWARD


CASES = {
    "stacks-disagree": (
        Fires(log_case(_devices(("prefill", 56, 2251), ("prefill", 56, 2251), ("decode", 244, 2243))), (2,)),
        Fires(log_case(_apart_in_the_end("Epoch 1 done, 5871 batches")), (1,), cause="uneven-inputs"),
        Fires(log_case(_apart_in_the_end("read the next shard")), (), cause="code-divergence"),
        Fires(log_case(_TIMER), ()),
        Fires(log_case(_APART), (0,)),
        Fires(log_case(_DRAFTS), ()),
        Fires(log_case(_TWO_LINES), ()),
        Fires(log_case(_RETURNED), (0,)),
        Fires(log_case(_OF_DDP), ()),
        Quiet(log_case(_OF_DDP.replace("_sync_buffers", "_check_inputs")), "one of them is in no call"),
        Quiet(log_case(_RETURNED[_RETURNED.index("$ py-spy dump --pid 411") :]), "all wait for their next task"),
        Fires(
            log_case(
                _TOGETHER.replace("all_reduce", "barrier", 1)
                + _TOGETHER.replace("rank 0", "rank 2").replace("rank 1", "rank 3")
            ),
            (0,),
        ),
        Fires(make_case(hang="suspected", stacks={0: _EVALUATES, **dict.fromkeys((1, 2, 3), _WAITS)}), ()),
        Quiet(
            make_case(hang="suspected", stacks={0: "main:4>evaluate:2", **dict.fromkeys((1, 2, 3), _WAITS)}),
            "nothing was recorded, and a rank is in no call: it may yet come",
        ),
        Quiet(
            make_case(hang="suspected", stacks=dict.fromkeys(range(4), _WAITS)), "unrecorded, and all in the same call"
        ),
        Quiet(
            make_case(
                {r: ["barrier@main:6 !"] for r in range(4)}, stacks={0: _EVALUATES, **dict.fromkeys((1, 2, 3), _WAITS)}
            ),
            "the calls are recorded: rules that know them judge",
        ),
        Quiet(log_case(_TOGETHER), "all ranks wait in the same call: the stacks do not tell why"),
        Quiet(log_case(_APART.split("TP1-3")[0]), "the stack of one rank alone"),
        Quiet(
            log_case(
                _devices(("prefill", 56, 2251), ("decode", 244, 2243)).replace("    process (scheduler.py:2243)\n", "")
            ),
            "all wait for their devices, at places that have no function in common",
        ),
    ),
}
