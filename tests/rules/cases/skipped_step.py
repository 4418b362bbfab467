"""The cases of skipped-step."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_TIMEOUT = "[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)\n"

_SKIPPED = "[rank3]: WARNING: ran out of memory with exception: CUDA out of memory; skipping batch\n"

CASES = {
    "skipped-step": (
        Fires(log_case("step 8, loss 0.4\n" + _SKIPPED + _TIMEOUT), (3,)),
        Quiet(log_case(_SKIPPED + "step 9, loss 0.4\nstep 10, loss 0.4\n"), "the job went on"),
        Quiet(log_case(_TIMEOUT + _SKIPPED), "the line came after the timeout"),
    ),
}
