"""How a job ended, as its log tells."""

from __future__ import annotations

import pytest

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
