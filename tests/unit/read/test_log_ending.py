"""How a job ended, as its log tells."""

from __future__ import annotations

import pytest

from unhang.diagnosis import judge_case
from unhang.model import Outcome
from unhang.read.logs.case import log_case

STEPS = "".join(f"step {n} loss 2.0\n" for n in range(1, 6))
FAILED = "node:1:2 [0] misc/ibvwrap.cc:309 NCCL WARN Call to ibv_modify_qp failed with 61 No data available\n"
ECHO = "RuntimeError: [/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:41822\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (STEPS + "train-0 exited with code 0\n", 0),
        (FAILED + STEPS + "train-0 exited with code 0\n", 0),
        (STEPS + ECHO + "[head] rc=0\n", 0),
        (STEPS + FAILED + "train-0 exited with code 0\n", None),
        (STEPS + FAILED + "train-0 exited with code 3\n", 3),
    ],
)
def test_a_zero_behind_a_failure_from_which_nothing_moved_on_is_not_believed(text: str, code: int | None) -> None:
    assert log_case(text).job.exit_code == code


LEFT = "[rank0]:[W604 08:55:15 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before program exit\n"
TRACEBACK = (
    'Traceback (most recent call last):\n  File "/app/serve.py", line 7, in stop\n    sys.exit({})\nSystemExit: {}\n'
)
ON_THE_WAY_OUT = (
    "\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
    '  File "/app/serve.py", line 9, in loop\n    await receive()\nasyncio.exceptions.CancelledError\n\n'
)


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (STEPS + LEFT, Outcome.CLEAN),
        (STEPS + LEFT + STEPS, Outcome.MOVES),  # another process goes on
        (STEPS + FAILED + LEFT, Outcome.CRASH),
        (STEPS + ECHO + LEFT, Outcome.CRASH),
        (STEPS + TRACEBACK.format(0, 0) + ON_THE_WAY_OUT + LEFT, Outcome.CLEAN),
        (STEPS + TRACEBACK.format(1, 1) + ON_THE_WAY_OUT + LEFT, Outcome.CRASH),
    ],
)
def test_a_process_that_left_with_its_group_ended_well_where_nothing_failed(text: str, outcome: Outcome) -> None:
    assert judge_case(log_case(text)).diagnosis.outcome is outcome


@pytest.mark.parametrize(
    ("word", "outcome"),
    [("Finished in 8.81 seconds", Outcome.CLEAN), ("Finished saving the checkpoint in 8.81 seconds", Outcome.MOVES)],
)
def test_a_last_word_on_a_part_is_not_the_end_of_the_job(word: str, outcome: Outcome) -> None:
    assert judge_case(log_case(f"{STEPS}{word}\n")).diagnosis.outcome is outcome


ELASTIC = "[INFO] torch.distributed.elastic.agent.server.api: [default] "
KILLED = "[ERROR] torch.distributed.elastic.multiprocessing.api: failed (exitcode: -9) local_rank: 0 (pid: 31) of binary: python\n"
AGAIN = f"{ELASTIC}Rendezvous complete for workers. Result: restart_count=1 master_addr=a master_port=29500\n"
SUCCEEDED = f"{ELASTIC}worker group successfully finished. Waiting 300 seconds for other agents to finish.\n"


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (STEPS + KILLED + AGAIN + STEPS + SUCCEEDED, Outcome.CLEAN),
        (STEPS + KILLED + AGAIN + STEPS + KILLED + SUCCEEDED, Outcome.CRASH),
    ],
)
def test_a_job_that_was_started_again_and_ended_well_is_clean(text: str, outcome: Outcome) -> None:
    assert judge_case(log_case(text)).diagnosis.outcome is outcome


DIRECT = "node:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via P2P/IPC\n"
TRIED = "$ # the same command with NCCL_P2P_DISABLE=1\n"


@pytest.mark.parametrize(("before", "code"), [(STEPS, 0), ("", None)], ids=["had moved", "stood"])
def test_how_an_experiment_ended_is_not_how_a_job_did_that_stood(before: str, code: int | None) -> None:
    assert log_case(DIRECT + before + TRIED + STEPS + "Training finished\n").job.exit_code == code
