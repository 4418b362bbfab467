"""How frameworks word the work of one rank, and what must not be taken for it."""

from __future__ import annotations

import pytest

from tests.rules.cases.calls_disagree import timeouts
from unhang.analyze.situation import Situation
from unhang.read.logs.case import log_case
from unhang.rules.registry import judge

WAITS = timeouts((1, 40, "ALLREDUCE", 1), (2, 40, "ALLREDUCE", 1), (3, 40, "ALLREDUCE", 1))
NEXT_CALL = timeouts((1, 4000, "ALLREDUCE", 9000), (2, 4000, "ALLREDUCE", 9000), (3, 4000, "ALLREDUCE", 9000))
AT_WORK = (
    "Saving model checkpoint to out/checkpoint-500",
    "saving checkpoint at iteration    1000 to /out in torch_dist format",
    "The model is bigger than the maximum size per checkpoint (5GB) and is going to be split in 3 checkpoint shards.",
    "INFO | fairseq.checkpoint_utils | Preparing to save checkpoint for epoch 1 @ 500 updates",
    "Epoch 0, global step 500: 'val_loss' reached 0.51 (best 0.51), saving model to 'out/epoch=0.ckpt' as top 1",
    "--> saving model ...",
    "INFO:x.checkpoint:Consolidating safetensors files on every rank ...",
    "Retrieving optimizer state dict...",
    "merging lora weights into the base model",
    "uploading checkpoint to s3://bucket/run",
    "***** Running Prediction *****",
    "10/26 11:27:48 - mmengine - INFO - Evaluating bbox...",
    "Running per image evaluation...",
    "Accumulating evaluation results...",
    "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95):  41%|####      | 51/124 [59:51<1:25:41,  1.43it/s]",
    " Generating 4 images with prompt: a cat.",
    'INFO | fairseq_cli.train | begin validation on "valid" subset',
    "[d2.evaluation.coco_evaluation]: Preparing results for COCO format ...",
    "Tokenizing Prompts (num_proc=64):  92%|#########1| 328986/359152 [29:58<12:05, 41.59 examples/s]",
    "train: Caching images (31.2GB ram):  61%|######    | 27539/45012 [29:58<19:01, 15.31it/s]",
    "Packing train dataset:  12%|#2        | 120/1000 [21:00<07:20, 2.0 examples/s]",
    "Extracting features:  12%|#2        | 120/1000 [21:00<07:20, 2.0it/s]",
    "> WARNING: could not find index map file /data/x.npy, building the indices on rank 0 ...",
)
NOT_AT_WORK = (
    "  3%|3         | 270/9847 [05:50<3:17:42,  1.24s/it]",
    "{'loss': 6.1660, 'learning_rate': 0.71, 'epoch': 0.03}",
    "Saving model checkpoint to out/checkpoint-500\n{'loss': 6.1660, 'learning_rate': 0.71, 'epoch': 0.03}",
    "saving checkpoint at iteration 1000 to /out\n  successfully saved checkpoint from iteration 1000 to /out",
    "Map:  100%|##########| 1000/1000 [21:00<00:00, 2.0 examples/s]",
    "INFO saves a checkpoint every 500 steps",
    "INFO loading checkpoint on rank 3",
)


@pytest.mark.parametrize("line", AT_WORK)
def test_the_last_thing_told_is_the_work_of_rank_0(line: str) -> None:
    first = judge(log_case(f"{line}\n{WAITS}")).findings[0]
    assert (first.cause, first.culprit_ranks) == ("slow-rank0-work", (0,))
    assert first.confidence >= 0.8


@pytest.mark.parametrize("line", NOT_AT_WORK)
def test_nobody_is_accused_of_work_that_is_done_or_was_none(line: str) -> None:
    assert [f.cause for f in judge(log_case(f"{line}\n{NEXT_CALL}")).findings] == ["unknown"]


@pytest.mark.parametrize("line", AT_WORK)
def test_rank_0_is_not_accused_of_working_where_it_waits_itself(line: str) -> None:
    found = judge(log_case(f"{line}\n{WAITS}\n" + timeouts((0, 40, "ALLREDUCE", 1)))).findings
    assert [f.cause for f in found] == ["unknown"]


def test_the_limit_and_the_length_of_a_wait_are_read() -> None:
    (wait,) = Situation(log_case(timeouts((1, 40, "ALLREDUCE", 1)))).watchdogs.timed_out
    assert (wait.limit_ms, wait.ran_ms) == (600000, 600010)


def test_older_versions_tell_the_shape() -> None:
    line = "RuntimeError: [Rank 1] Caught collective operation timeout: WorkNCCL(OpType=BROADCAST, TensorShape=[3, 4], Timeout(ms)=9)"
    (wait,) = Situation(log_case(line)).watchdogs.timed_out
    assert (wait.rank, wait.op, wait.numel_in, wait.limit_ms) == (1, "BROADCAST", 12, 9)


def test_a_rank_that_the_launcher_ended_has_not_failed_by_itself() -> None:
    summary = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train.py FAILED
Failures:
[1]:
  time      : 2026-11-21_15:42:14
  host      : node-a
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 28744)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 28744
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_15:42:14
  host      : node-a
  rank      : 1 (local_rank: 1)
  exitcode  : -6 (pid: 28743)
  error_file: <N/A>
  traceback : Signal 6 (SIGABRT) received by PID 28743
"""
    found = judge(log_case(f"Saving model checkpoint to out\n{WAITS}\n{summary}")).findings
    assert (found[0].cause, found[0].culprit_ranks) == ("slow-rank0-work", (0,))


def test_a_comparison_that_follows_another_exception_is_not_the_first_cause() -> None:
    compared = "RuntimeError: disagreement between rank0 and rank7: rank0: [2, 3], rank7: [2, 5]"
    failed = (
        '[rank7]: Traceback (most recent call last):\n[rank7]:   File "/app/train.py", line 7, in step\n[rank7]:     load(x)\n'
        "[rank7]: ValueError: corrupt sample\n"
    )
    found = judge(log_case(f"{failed}[rank0]: {compared}")).findings
    assert found[0].cause == "user-exception"
